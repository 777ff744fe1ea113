"""Who is fed what: spread evenly, careful jobs into free slots, crashed ones alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.worker.fakes import claim

from millpond.config import Serve, WorkerConfig
from millpond.worker.crew import Crew, Member, Stand
from millpond.worker.frames import Feed, ToKeeper, ToRunner
from millpond.worker.holdings import Holdings
from millpond.worker.link import Link
from millpond.worker.marks import Marks
from millpond.worker.shared import Group, groups_of, spread


class Told:
    """A link that remembers the claims fed over it."""

    def __init__(self) -> None:
        self.fed: list[int] = []
        self.ended = False

    def send(self, frame: ToRunner) -> None:
        assert isinstance(frame, Feed)
        self.fed += [job.claim.token.claim for job in frame.jobs]

    def receive(self) -> list[ToKeeper]:
        return []

    def close(self) -> None:
        self.ended = True


class Hand:
    """A runner that does nothing."""

    def __init__(self) -> None:
        self.told = Told()
        self.link: Link = self.told

    def poll(self) -> int | None:
        return None

    def kill(self) -> bool:
        return False

    def finish(self, timeout: float) -> bool:
        return timeout >= 0


class Shop:
    """A crew of ready members, holdings and marks."""

    def __init__(self, *sizes: tuple[int, ...], marks: int = 100) -> None:
        self.crew = Crew()
        self.hands = [Hand() for _ in sizes]
        for index, (size, hand) in enumerate(zip(sizes, self.hands, strict=True)):
            member = Member(index, hand, size, 0.0)
            member.stand = Stand.READY
            self.crew.members[index] = member
        self.holdings = Holdings(len(sizes[0]))
        self.marks = Marks.create(None, marks)

    def hold(self, number: int, group: int = 0, **changes: int) -> None:
        self.holdings.add(claim(number, **changes), group)

    def feed(self, ahead: float = 100) -> list[list[int]]:
        self.crew.feed(self.holdings, self.marks, [ahead] * len(self.holdings.waiting))
        return [list(hand.told.fed) for hand in self.hands]

    def ends(self, number: int) -> None:
        held = self.holdings.all[number]
        assert held.member is not None
        self.crew.members[held.member].returned(number)
        self.marks.leave(held.mark)
        self.holdings.remove(held)


def test_jobs_go_in_order_and_to_whoever_has_most_room() -> None:
    shop = Shop((2,), (2,))
    for number in range(1, 7):
        shop.hold(number)
    assert shop.feed() == [[1, 3, 5], [2, 4, 6]]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 40))
def test_no_runner_has_jobs_waiting_while_another_has_a_free_slot(
    sizes: list[int], jobs: int
) -> None:
    shop = Shop(*((size,) for size in sizes))
    for number in range(1, jobs + 1):
        shop.hold(number)
    loads = [len(fed) for fed in shop.feed()]
    assert sum(loads) == jobs
    waiting = any(load > size for load, size in zip(loads, sizes, strict=True))
    idle = any(load < size for load, size in zip(loads, sizes, strict=True))
    assert not (waiting and idle)


def test_what_is_beyond_its_share_waits_for_a_runner_that_is_still_to_come() -> None:
    shop = Shop((2,), (2,))
    shop.crew.members[1].stand = Stand.STARTING
    for number in range(1, 9):
        shop.hold(number)
    assert shop.feed(ahead=0) == [[1, 2], []]
    assert shop.feed(ahead=0.5) == [[1, 2, 3], []]
    shop.crew.members[1].stand = Stand.READY
    assert shop.feed(ahead=0.5) == [[1, 2, 3], [4, 5, 6]]


def test_a_job_with_one_attempt_goes_only_into_a_free_slot() -> None:
    shop = Shop((1,))
    shop.hold(1)
    shop.hold(2, max_attempts=1)
    shop.hold(3)
    assert shop.feed() == [[1]]
    shop.ends(1)
    assert shop.feed() == [[1, 2, 3]]


def test_a_crashed_job_runs_with_nobody_beside_it() -> None:
    shop = Shop((4,))
    shop.hold(1)
    assert shop.feed() == [[1]]
    shop.hold(2, crashes=1)
    shop.hold(3)
    assert shop.feed() == [[1]]
    assert shop.crew.waits_alone(shop.holdings)
    shop.ends(1)
    assert shop.feed() == [[1, 2]]
    shop.hold(4)
    assert shop.feed() == [[1, 2]]
    shop.ends(2)
    assert shop.feed() == [[1, 2, 3, 4]]


def test_one_runner_is_kept_free_for_a_crashed_job_while_the_others_work_on() -> None:
    shop = Shop((2,), (2,))
    shop.hold(1)
    shop.hold(2)
    assert shop.feed() == [[1], [2]]
    shop.hold(3, crashes=1)
    assert shop.feed() == [[1], [2]]
    shop.ends(1)
    assert shop.feed() == [[1, 3], [2]]
    shop.hold(4)
    assert shop.feed() == [[1, 3], [2, 4]]


def test_a_runner_is_not_fed_for_a_group_that_has_no_slot_there() -> None:
    shop = Shop((1, 1), (2, 0))
    for number in range(1, 4):
        shop.hold(number, group=1)
    assert shop.feed() == [[1, 2, 3], []]


def test_what_has_no_place_among_the_marks_waits_for_one() -> None:
    shop = Shop((4,), marks=2)
    for number in range(1, 4):
        shop.hold(number)
    assert shop.feed() == [[1, 2]]
    shop.ends(1)
    assert shop.feed() == [[1, 2, 3]]


def test_members_that_are_not_ready_are_not_fed() -> None:
    shop = Shop((1,), (1,))
    shop.crew.members[0].stand = Stand.STARTING
    shop.crew.members[1].dropping = True
    shop.hold(1)
    assert shop.feed() == [[], []]


def test_what_comes_back_unstarted_waits_before_all_others_in_its_old_order() -> None:
    shop = Shop((1,))
    for number in range(1, 5):
        shop.hold(number)
    (line,) = shop.holdings.waiting
    back = [line.popleft(), line.popleft()]
    shop.holdings.put_back(reversed(back))
    assert [held.number for held in line] == [1, 2, 3, 4]


def test_the_shortest_lease_is_of_what_is_held_now() -> None:
    holdings = Holdings(1)
    short = holdings.add(claim(1, lease_ms=300), 0)
    holdings.add(claim(2, lease_ms=60_000), 0)
    assert holdings.shortest_lease_ms == 300
    holdings.remove(short)
    holdings.remove(short)
    assert holdings.shortest_lease_ms == 60_000
    assert len(holdings) == 1
    assert holdings.newest == 2


# --- groups -------------------------------------------------------------------------------------


def test_without_queues_all_slots_are_for_all() -> None:
    assert groups_of(WorkerConfig(concurrency=3, processes=2)) == [Group(6)]


def test_queues_with_slots_have_their_own_and_the_others_share_the_rest() -> None:
    config = WorkerConfig(
        concurrency=8,
        queues=(Serve("reports", slots=4), Serve("reports", "routine", 2), Serve("mail")),
    )
    assert groups_of(config) == [
        Group(4, (Serve("reports", slots=4),)),
        Group(2, (Serve("reports", "routine", 2),)),
        Group(2, (Serve("mail"),)),
    ]


def test_the_workload_that_is_named_fits_better_than_its_queue() -> None:
    job = claim(1, queue="reports", workload="routine")
    assert Group(1).takes(job) == 1
    assert Group(1, (Serve("reports"),)).takes(job) == 2
    assert Group(1, (Serve("reports", "routine"),)).takes(job) == 3
    assert Group(1, (Serve("reports", "user"), Serve("mail"))).takes(job) == 0


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4), st.integers(1, 6))
def test_every_slot_is_dealt_out_once_and_evenly(slots: list[int], runners: int) -> None:
    sizes = spread([Group(each) for each in slots], runners)
    assert [sum(column) for column in zip(*sizes, strict=True)] == slots
    totals = [sum(size) for size in sizes]
    assert max(totals) - min(totals) <= 1
