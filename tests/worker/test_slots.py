"""Slots: never more jobs at once, in the order fed, and none waits beside a free slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.worker.fakes import WAIT_S, claim

from millpond.worker.frames import Fed
from millpond.worker.slots import Slots


def fed(number: int, task: str = "plain") -> Fed:
    return Fed(0, 0, claim(number, task))


class Floor:
    """Runs jobs that hold their slot until they are let go."""

    def __init__(self, size: int, on_loop: frozenset[str] = frozenset()) -> None:
        self.started: list[int] = []
        self.looped: list[int] = []
        self.running = 0
        self.most = 0
        self._news = threading.Condition()
        self._open: set[int] = set()
        self.slots = Slots(size, self._run, self._to_loop, on_loop)

    def _run(self, job: Fed) -> None:
        number = job.claim.token.claim
        with self._news:
            self.started.append(number)
            self.running += 1
            self.most = max(self.most, self.running)
            self._news.notify_all()
            assert self._news.wait_for(lambda: number in self._open, WAIT_S)
            self.running -= 1
            self._news.notify_all()

    def _to_loop(self, jobs: list[Fed]) -> None:
        with self._news:
            self.looped += [job.claim.token.claim for job in jobs]
            self._news.notify_all()

    def wait(self, there: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(there, WAIT_S), (self.started, self.looped)

    def let_go(self, *numbers: int) -> None:
        with self._news:
            self._open.update(numbers)
            self._news.notify_all()

    def close(self) -> None:
        self.let_go(*range(1000))
        self.slots.close()
        ends = time.monotonic() + WAIT_S
        assert self.slots.join(lambda: ends - time.monotonic())


def test_jobs_start_in_the_order_fed_and_never_more_than_there_are_slots() -> None:
    floor = Floor(3)
    floor.slots.put([fed(number) for number in range(1, 11)])
    floor.wait(lambda: len(floor.started) == 3)
    assert floor.slots.busy == 3
    assert floor.slots.waiting == 7
    for done in range(1, 8):
        floor.let_go(done)
        floor.wait(lambda done=done: len(floor.started) == done + 3)  # type: ignore[misc]
    assert floor.started == list(range(1, 11))
    assert floor.most == 3
    floor.close()


def test_one_slow_job_does_not_hold_up_what_was_fed_with_it() -> None:
    floor = Floor(2)
    floor.slots.put([fed(number) for number in range(1, 6)])
    floor.let_go(2, 3, 4, 5)
    floor.wait(lambda: len(floor.started) == 5)
    assert floor.slots.busy >= 1
    floor.close()


def test_what_is_dropped_never_starts() -> None:
    floor = Floor(1)
    floor.slots.put([fed(number) for number in range(1, 6)])
    floor.wait(lambda: floor.started == [1])
    assert floor.slots.drop({1, 3}) == [3]
    assert floor.slots.drop(None) == [2, 4, 5]
    floor.let_go(1)
    floor.slots.put([fed(6)])
    floor.wait(lambda: floor.started == [1, 6])
    floor.close()


def test_async_jobs_take_slots_as_well() -> None:
    floor = Floor(2, frozenset({"on_loop"}))
    floor.slots.put([fed(1, "on_loop"), fed(2), fed(3, "on_loop"), fed(4)])
    floor.wait(lambda: floor.started == [2])
    assert floor.looped == [1]
    assert [job.claim.token.claim for job in floor.slots.release()] == [3]
    floor.let_go(2)
    floor.wait(lambda: floor.started == [2, 4])
    floor.close()


def test_the_end_of_a_plain_job_sends_the_next_async_one_to_the_loop() -> None:
    floor = Floor(1, frozenset({"on_loop"}))
    floor.slots.put([fed(1), fed(2, "on_loop")])
    floor.wait(lambda: floor.started == [1])
    assert floor.looped == []
    floor.let_go(1)
    floor.wait(lambda: floor.looped == [2])
    floor.close()


def test_no_thread_is_made_before_there_is_plain_work_and_none_stays_after_the_end() -> None:
    before = threading.active_count()
    floor = Floor(4, frozenset({"on_loop"}))
    floor.slots.put([fed(1, "on_loop")])
    assert threading.active_count() == before
    floor.slots.release()
    floor.slots.put([fed(2)])
    floor.wait(lambda: floor.started == [2])
    assert threading.active_count() == before + 1
    floor.close()
    assert threading.active_count() == before
