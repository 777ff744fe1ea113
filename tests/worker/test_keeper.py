"""A keeper with its runner in threads, on a real store: everything but the death of processes."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from tests.worker.conftest import Jobs, Lab, wait_for
from tests.worker.fakes import WAIT_S

from millpond.clock import ManualClock
from millpond.config import Serve
from millpond.context import Context
from millpond.errors import BadConfig, Fail, Retry, Snooze
from millpond.model import State
from millpond.policy.backoff import Backoff
from millpond.worker import EmbeddedWorker
from millpond.worker.keeper import Until

# SQLite of this machine may be one that the start-up gate warns about, which is not the point.
pytestmark = pytest.mark.filterwarnings("ignore")

AT_ONCE = Backoff(base=0)


class Gate:
    """Handlers stand here until the test lets them go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.begun.release()
        assert self.opened.wait(WAIT_S)

    def wait_begun(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT_S)


# --- drain --------------------------------------------------------------------------------------


def test_a_drain_runs_all_that_is_ready_and_counts_how_it_ended(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def add(a: int, b: int) -> int:
        return a + b

    @pond.task
    async def later(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @pond.task
    def ends(how: str) -> None:
        match how:
            case "retry":
                raise ValueError("try me again")
            case "snooze":
                raise Snooze(60)
            case _:
                raise Fail("not this one")

    sums = [add.enqueue(n, 1) for n in range(20)]
    waits = [later.enqueue(n) for n in range(20)]
    retried, snoozed, failed = (ends.enqueue(how) for how in ("retry", "snooze", "fail"))
    report = lab.worker(pond).drain()
    assert (report.finished, report.retried, report.snoozed, report.failed) == (40, 1, 1, 1)
    assert [ref.job().result for ref in sums] == [n + 1 for n in range(20)]
    assert [ref.job().result for ref in waits] == list(range(20))
    assert retried.job().state is snoozed.job().state is State.SCHEDULED
    assert (failed.job().state, failed.job().reason) == (State.FAILED, "not this one")
    assert snoozed.job().attempts == 0
    Jobs(pond).sound()


def test_a_drain_leaves_no_threads_and_no_files_behind(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def plain() -> None: ...

    @pond.task
    async def looped() -> None: ...

    plain.enqueue()
    looped.enqueue()
    before = set(threading.enumerate())
    files = set(lab.folder.rglob("*"))
    for _ in range(3):
        lab.worker(pond).drain()
    assert set(threading.enumerate()) == before
    assert set(lab.folder.rglob("*")) - files == {lab.folder / "jobs.db-run"}
    assert pond.store.workers() == []


def test_a_drain_runs_what_handlers_enqueue(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def countdown(n: int) -> None:
        if n:
            countdown.enqueue(n - 1)

    countdown.enqueue(10)
    assert lab.worker(pond).drain().finished == 11


def test_a_drain_retries_what_is_due_at_once_until_its_attempts_are_used(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task(max_attempts=3, retry=AT_ONCE)
    def bad() -> None:
        raise ValueError("always")

    ref = bad.enqueue()
    report = lab.worker(pond).drain()
    assert (report.retried, report.failed) == (2, 1)
    assert ref.job().attempts == 3
    assert Jobs(pond).outcomes(ref.id) == ["retried", "retried", "failed"]


def test_a_drain_on_a_manual_clock_follows_it(lab: Lab) -> None:
    clock = ManualClock()
    pond = lab.pond(clock)

    @pond.task(retry=Backoff(base=10, jitter="none"))
    def flaky(*, ctx: Context) -> int:
        if ctx.attempt < 3:
            raise Retry
        return ctx.attempt

    ref = flaky.enqueue()
    for _ in range(2):
        assert lab.worker(pond).drain().retried == 1
        assert lab.worker(pond).drain().ended == 0
        clock.advance(20)
    assert lab.worker(pond).drain().finished == 1
    assert ref.job().result == 3


def test_a_drain_takes_back_what_a_lost_worker_left(lab: Lab) -> None:
    clock = ManualClock()
    pond = lab.pond(clock)

    @pond.task(lease=60, retry=AT_ONCE)
    def work() -> str:
        return "done"

    ref = work.enqueue()
    store = pond.store
    from millpond.model import Want, WorkerInfo

    dead = store.register(WorkerInfo("gone", 1, None, "0", 15_000, ("work",))).result()
    assert store.claim(dead, [Want(1)], ["work"], 1).result().claims
    assert lab.worker(pond).drain().ended == 0
    clock.advance(61)
    assert lab.worker(pond).drain().finished == 1
    assert Jobs(pond).outcomes(ref.id) == ["lease_lost", "completed"]


def test_jobs_of_before_a_reboot_are_taken_back_after_their_lease_by_our_own_clock(
    lab: Lab,
) -> None:
    from millpond.model import Want, WorkerInfo

    clock = ManualClock()
    pond = lab.pond(clock)

    @pond.task(lease=60, retry=AT_ONCE)
    def work() -> None: ...

    ref = work.enqueue()
    dead = pond.store.register(WorkerInfo("gone", 1, None, "0", 15_000, ("work",))).result()
    assert pond.store.claim(dead, [Want(1)], ["work"], 1).result().claims
    clock.reboot()
    jobs, begun = Jobs(pond), clock.now()
    with lab.worker(pond, recover_ms=20, poll_ms=20):

        def passes() -> bool:
            clock.advance(1)
            threading.Event().wait(0.02)
            return jobs.state(ref.id) is State.COMPLETED

        wait_for(passes, "the recovery")
    assert clock.now() - begun >= 60_000
    assert jobs.outcomes(ref.id) == ["lease_lost", "completed"]


def test_draining_an_empty_store_in_memory_is_quick_and_repeatable(lab: Lab) -> None:
    from millpond.app import Millpond

    with Millpond(":memory:") as pond:

        @pond.task
        def noop() -> None: ...

        noop.enqueue()
        assert EmbeddedWorker(pond).drain().finished == 1
        begun = time.monotonic()
        for _ in range(20):
            assert EmbeddedWorker(pond).drain().ended == 0
        # Twenty polls of a second would show here, however slow the machine is.
        assert time.monotonic() - begun < 10


# --- once, slots, queues ------------------------------------------------------------------------


def test_once_runs_at_most_one_job_a_slot(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def noop(n: int) -> None: ...

    for n in range(10):
        noop.enqueue(n)
    assert lab.worker(pond, concurrency=3).run(Until.ONCE).finished == 3
    assert lab.worker(pond, concurrency=20).run(Until.ONCE).finished == 7
    assert lab.worker(pond, concurrency=3).run(Until.ONCE).finished == 0


def test_slots_of_a_queue_bound_what_runs_of_it_and_leave_the_others_theirs(lab: Lab) -> None:
    pond = lab.pond()
    most: dict[str, int] = {}
    running: dict[str, int] = {}
    lock = threading.Lock()

    def busy(queue: str) -> None:
        with lock:
            running[queue] = running.get(queue, 0) + 1
            most[queue] = max(most.get(queue, 0), running[queue])
        threading.Event().wait(0.01)
        with lock:
            running[queue] -= 1

    @pond.task(queue="reports")
    def report() -> None:
        busy("reports")

    @pond.task(queue="mail")
    def mail() -> None:
        busy("mail")

    for _ in range(15):
        report.enqueue()
        mail.enqueue()
    queues = (Serve("reports", slots=1), Serve("mail", slots=3))
    assert lab.worker(pond, concurrency=4, queues=queues).drain().finished == 30
    assert most["reports"] == 1
    assert 2 <= most["mail"] <= 3


def test_a_worker_takes_nothing_of_queues_it_does_not_serve(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def work() -> None: ...

    work.using(queue="mail", workload="bulk").enqueue()
    work.using(queue="mail", workload="alerts").enqueue()
    work.using(queue="reports").enqueue()
    assert lab.worker(pond, queues=(Serve("mail", "alerts"),)).drain().finished == 1
    assert lab.worker(pond, queues=(Serve("mail"),)).drain().finished == 1
    assert lab.worker(pond).drain().finished == 1


def test_no_more_is_held_than_runs_while_nothing_is_known_of_the_handlers(lab: Lab) -> None:
    pond, gate = lab.pond(), Gate()

    @pond.task
    def slow(n: int) -> None:
        gate()

    refs = [slow.enqueue(n) for n in range(20)]
    with lab.worker(pond, concurrency=2):
        gate.wait_begun(2)
        assert sum(ref.job().state is State.RUNNING for ref in refs) == 2
        gate.opened.set()
        Jobs(pond).wait_final(*(ref.id for ref in refs))


def test_what_waits_behind_jobs_that_turn_slow_is_handed_back(lab: Lab) -> None:
    pond, gate = lab.pond(), Gate()

    @pond.task
    def work(slow: bool) -> None:
        if slow:
            gate()

    for _ in range(300):
        work.enqueue(False)
    refs = [work.enqueue(True) for _ in range(100)]
    with lab.worker(pond, concurrency=2, window_ms=100):
        gate.wait_begun(2)
        jobs = Jobs(pond)
        wait_for(
            lambda: sum(jobs.state(ref.id) is State.RUNNING for ref in refs) <= 4, "the hand-back"
        )
        gate.opened.set()
        jobs.wait_final(*(ref.id for ref in refs))
    assert {ref.job().attempts for ref in refs} == {1}
    assert all(jobs.outcomes(ref.id) == ["completed"] for ref in refs)
    jobs.sound()


# --- waking -------------------------------------------------------------------------------------


def test_an_enqueue_wakes_an_idle_worker_long_before_its_poll(lab: Lab) -> None:
    pond, other = lab.pond(), lab.pond()
    ran = threading.Event()

    @pond.task
    def work() -> None:
        ran.set()

    with lab.worker(pond, poll_ms=600_000):
        other.enqueue("work")
        assert ran.wait(WAIT_S)


def test_a_job_that_falls_due_is_started_at_its_time_and_not_before(lab: Lab) -> None:
    pond = lab.pond()
    ran: list[float] = []
    done = threading.Event()

    @pond.task
    def work() -> None:
        ran.append(time.time())
        done.set()

    with lab.worker(pond, poll_ms=100):
        due = work.using(delay=0.4).enqueue().job().due_at.timestamp()
        assert done.wait(WAIT_S)
    assert ran[0] >= due


def test_a_retry_is_started_at_its_time_without_a_poll(lab: Lab) -> None:
    pond, done = lab.pond(), threading.Event()

    @pond.task(retry=Backoff(base=0.3, jitter="none"))
    def work(*, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("once")
        done.set()

    with lab.worker(pond, poll_ms=600_000):
        work.enqueue()
        assert done.wait(WAIT_S)


def test_jobs_of_foreign_transactions_are_noticed(lab: Lab) -> None:
    pond = lab.pond()
    done = [threading.Event() for _ in range(2)]

    @pond.task
    def work(n: int) -> None:
        done[n].set()

    conn = sqlite3.connect(lab.url, isolation_level=None)
    try:
        with lab.worker(pond, poll_ms=100):
            for n in range(2):
                conn.execute("BEGIN IMMEDIATE")
                work.using(tx=conn).enqueue(n)
                assert not done[n].wait(0.2)
                conn.execute("COMMIT")
                assert done[n].wait(WAIT_S)
    finally:
        conn.close()


# --- cancelling, pausing, leases ----------------------------------------------------------------


def test_a_running_job_that_is_cancelled_is_told_and_ends_cancelled(lab: Lab) -> None:
    pond, begun, cleaned = lab.pond(), threading.Event(), threading.Event()

    @pond.task(lease=0.8)
    async def endless() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            cleaned.set()

    with lab.worker(pond):
        ref = endless.enqueue()
        assert begun.wait(WAIT_S)
        pond.cancel(ref.id)
        assert cleaned.wait(WAIT_S)
        assert Jobs(pond).wait_final(ref.id) == [State.CANCELLED]
    assert Jobs(pond).outcomes(ref.id) == ["cancelled"]


def test_a_pause_hands_back_what_has_not_started(lab: Lab) -> None:
    pond, gate = lab.pond(), Gate()

    @pond.task(lease=0.8)
    def work(slow: bool) -> None:
        if slow:
            gate()

    for _ in range(100):
        work.enqueue(False)
    refs = [work.enqueue(True) for _ in range(50)]
    with lab.worker(pond, concurrency=1, window_ms=3_600_000):
        gate.wait_begun()
        pond.pause("default")
        jobs = Jobs(pond)
        wait_for(lambda: sum(jobs.state(ref.id) is State.RUNNING for ref in refs) == 1)
        gate.opened.set()
        wait_for(lambda: jobs.state(refs[0].id) is State.COMPLETED)
        pond.resume("default")
        jobs.wait_final(*(ref.id for ref in refs))
    assert {len(jobs.history(ref.id)) for ref in refs} == {1}


def test_a_lease_is_renewed_while_the_handler_runs(lab: Lab) -> None:
    pond, gate = lab.pond(), Gate()

    @pond.task(lease=0.4)
    def long() -> None:
        gate()

    ref = long.enqueue()
    with lab.worker(pond) as worker:
        gate.wait_begun()
        assert not threading.Event().wait(1.5)
        assert worker.alive
        gate.opened.set()
        assert Jobs(pond).wait_final(ref.id) == [State.COMPLETED]
    assert Jobs(pond).outcomes(ref.id) == ["completed"]


def test_a_handler_stops_before_a_lease_that_cannot_be_renewed_and_its_result_is_refused(
    lab: Lab,
) -> None:
    pond = lab.pond()
    begun, told = threading.Event(), threading.Event()

    @pond.task(lease=0.6, retry=AT_ONCE)
    async def work(*, ctx: Context) -> int:
        if ctx.attempt > 1:
            return ctx.attempt
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.set()
            return -1
        return 0

    ref = work.enqueue()
    blocker = sqlite3.connect(lab.url, isolation_level=None, check_same_thread=False)
    try:
        with lab.worker(pond):
            assert begun.wait(WAIT_S)
            blocker.execute("BEGIN IMMEDIATE")
            assert told.wait(WAIT_S)
            threading.Event().wait(0.6)
            blocker.execute("ROLLBACK")
            assert Jobs(pond).wait_final(ref.id) == [State.COMPLETED]
    finally:
        blocker.close()
    first, second = Jobs(pond).history(ref.id)
    assert (first.outcome, second.outcome) == ("lease_lost", "completed")
    assert first.late_at is not None
    assert ref.job().result == 2


@pytest.mark.parametrize("beat_ms", [500, 1_000, 1_500])
def test_a_beat_that_does_not_fit_a_lease_is_refused_with_both_numbers(
    lab: Lab, beat_ms: int
) -> None:
    pond = lab.pond()

    @pond.task(lease=1.0)
    def work() -> None: ...

    with pytest.raises(BadConfig, match=rf"{beat_ms}.*1000"):
        lab.worker(pond, beat_ms=beat_ms).start()
    with pytest.raises(BadConfig, match="work"):
        lab.worker(pond, beat_ms=beat_ms).drain()
    assert pond.store.workers() == []


# --- stopping -----------------------------------------------------------------------------------


def test_stopping_lets_running_jobs_end_and_hands_the_others_back_untouched(lab: Lab) -> None:
    pond, gate = lab.pond(), Gate()

    @pond.task
    def work(slow: bool) -> None:
        if slow:
            gate()

    for _ in range(100):
        work.enqueue(False)
    refs = [work.enqueue(True) for _ in range(20)]
    worker = lab.worker(pond, concurrency=1, window_ms=3_600_000)
    worker.start()
    gate.wait_begun()
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    jobs = Jobs(pond)
    wait_for(lambda: sum(jobs.state(ref.id) is State.RUNNING for ref in refs) == 1)
    gate.opened.set()
    stopper.join(WAIT_S)
    assert not worker.alive
    assert [ref.job().state for ref in refs] == [State.COMPLETED] + [State.READY] * 19
    assert all(ref.job().attempts == 0 and not jobs.history(ref.id) for ref in refs[1:])
    assert pond.store.workers() == []
    jobs.sound()


def test_an_async_handler_that_outlasts_the_drain_is_cancelled_and_goes_back_uncharged(
    lab: Lab,
) -> None:
    pond, begun = lab.pond(), threading.Event()

    @pond.task
    async def endless() -> None:
        begun.set()
        await asyncio.sleep(3600)

    ref = endless.enqueue()
    worker = lab.worker(pond, drain_ms=50)
    worker.start()
    assert begun.wait(WAIT_S)
    report = worker.stop()
    assert report.handed_back == 1
    assert (ref.job().state, ref.job().attempts) == (State.READY, 0)
    assert Jobs(pond).outcomes(ref.id) == ["released"]


def test_a_thread_that_does_not_heed_the_stop_keeps_its_lease_to_its_end(lab: Lab) -> None:
    pond, gate = lab.pond(), Gate()

    @pond.task
    def deaf() -> None:
        gate()

    ref = deaf.enqueue()
    worker = lab.worker(pond, drain_ms=0)
    worker.start()
    gate.wait_begun()
    report = worker.stop()
    assert report.lost == 1
    assert ref.job().state is State.RUNNING
    gate.opened.set()


def test_what_keeps_a_worker_from_starting_is_raised_where_it_is_started(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task(lease=1.0)
    def work() -> None: ...

    worker = lab.worker(pond, beat_ms=900)
    with pytest.raises(BadConfig):
        worker.start()
    assert not worker.alive


def test_a_worker_needs_no_place_for_its_files(lab: Lab, tmp_path: Path) -> None:
    pond = lab.pond()
    lab.monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    lab.monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    (tmp_path / "jobs.db-run").write_text("in the way", encoding="ascii")

    @pond.task
    def work() -> None: ...

    work.enqueue()
    assert lab.worker(pond).drain().finished == 1
