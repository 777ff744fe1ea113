"""What an enqueue promises when things go wrong, and when many do it at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.api.hand import Hand

from millpond import JobRef, ManualClock, Millpond, StoreError, Task, fault


@pytest.fixture
def report(pond: Millpond) -> Task[[int], None, None]:
    @pond.task
    def report(number: int) -> None: ...

    pond.open()
    return report


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    fault.arm("")


def from_threads(count: int, call: object) -> list[object]:
    """Call from `count` threads at one instant and return what each got."""
    barrier = threading.Barrier(count)
    found: list[object] = []

    def run() -> None:
        barrier.wait(timeout=30)
        try:
            found.append(call())  # type: ignore[operator]
        except Exception as error:  # noqa: BLE001  the answer of this thread
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == count
    return found


def test_an_error_after_the_commit_makes_no_second_job(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    once = report.using(key="inv-77")
    fault.arm("after-commit:raise")
    with pytest.raises(fault.FaultInjected):
        once.enqueue(1)
    fault.arm("")

    again = once.enqueue(1)

    assert again.answer == "duplicate"
    assert [job.id for job in pond.jobs()] == [again.id]


def test_ten_threads_with_one_key_make_one_job(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    once = report.using(key="inv-77")
    fault.arm("after-commit:raise")
    assert all(
        isinstance(got, fault.FaultInjected) for got in from_threads(10, lambda: once.enqueue(1))
    )
    fault.arm("")

    refs = from_threads(10, lambda: once.enqueue(1))

    assert {ref.answer for ref in refs if isinstance(ref, JobRef)} == {"duplicate"}
    assert len({ref.id for ref in refs if isinstance(ref, JobRef)}) == 1
    assert len(pond.jobs()) == 1


def test_an_error_before_the_commit_writes_nothing(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    fault.arm("before-commit:raise")
    with pytest.raises(StoreError, match="fault point before-commit"):
        report.enqueue(1)
    fault.arm("")

    assert pond.jobs() == []
    assert report.enqueue(2).answer == "admitted"


def test_many_threads_lose_nothing(pond: Millpond, report: Task[[int], None, None]) -> None:
    def produce() -> list[int]:
        return [report.enqueue(number).id for number in range(20)]

    ids = [ident for got in from_threads(8, produce) for ident in got]

    assert len(set(ids)) == 160
    assert {job.id for job in pond.jobs(limit=1_000)} == set(ids)
    assert pond.verify() == []


def test_equal_jobs_run_in_the_order_they_were_enqueued(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    refs = [report.enqueue(number) for number in range(100)]
    hand = Hand(pond)

    assert [hand.complete() for _ in refs] == [ref.id for ref in refs]


def test_the_critical_job_is_next_behind_any_number_of_others(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    with pond.batch() as batch:
        for number in range(5_000):
            batch.add(report, number)
        for number in range(200):
            batch.add(report.using(priority=50), number)
    critical = report.using(priority=10).enqueue(1)

    assert Hand(pond).complete() == critical.id


def test_a_delayed_job_is_never_early(
    pond: Millpond, clock: ManualClock, report: Task[[int], None, None]
) -> None:
    report.using(delay=10).enqueue(1)
    hand = Hand(pond)

    clock.advance(ms=9_999)
    assert pond.store.claim(hand.number, [], ("report",), 1).result().claims == []
    clock.advance(ms=1)
    claim = hand.claim()
    assert claim.attempt == 1
