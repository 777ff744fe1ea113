"""The storage thread: what waits together commits together, and nothing is told that is not so."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import Bench, Dice, sound, spec, specs

from millpond.clock import ManualClock
from millpond.config import StoreConfig
from millpond.errors import StoreBusy, StoreClosed, StoreError, StoreFull
from millpond.model import AttemptOutcome, JobFilter, Settlement, State
from millpond.store import open_store

OUT = AttemptOutcome
PATIENCE_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def make(path: str, clock: ManualClock, dice: Dice) -> Iterator[Callable[..., Bench]]:
    made: list[Any] = []

    def make(**more: Any) -> Bench:
        config = StoreConfig(path, **({"synchronous": "normal"} | more))
        made.append(open_store(path, clock=clock, config=config, roll=dice))
        return Bench(made[-1], clock, dice)

    yield make
    for store in made:
        store.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Iterator[Bench]:
    bench = make()
    yield bench
    sound(bench.store)


@contextmanager
def locked(path: str) -> Iterator[sqlite3.Connection]:
    """Another connection holds the write lock meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        yield conn
        if conn.in_transaction:
            conn.execute("ROLLBACK")


def writer_of(bench: Bench) -> Any:
    return bench.store._writer  # type: ignore[attr-defined]


@contextmanager
def busy_thread(bench: Bench) -> Iterator[None]:
    """The storage thread stands inside an operation meanwhile."""
    entered, leave = threading.Event(), threading.Event()

    def stand(_: Any) -> None:
        entered.set()
        assert leave.wait(PATIENCE_S)

    ticket = writer_of(bench).submit(stand)
    assert entered.wait(PATIENCE_S)
    try:
        yield
    finally:
        leave.set()
        ticket.result(PATIENCE_S)


# Group commit


def test_what_waits_together_is_committed_together(bench: Bench, path: str):
    bench.job()
    before = bench.store.figures().count
    with locked(path):
        tickets = [bench.store.enqueue([spec()]) for _ in range(64)]
        tickets += [bench.store.pause("default", False) for _ in range(5)]  # type: ignore[list-item]
    answers = [ticket.result(PATIENCE_S) for ticket in tickets]
    assert len({answer[0].job_id for answer in answers[:64]}) == 64
    assert bench.store.figures().count - before <= 2


def test_callers_from_many_threads_each_get_their_own_answer(bench: Bench):
    def one(at: int) -> tuple[int, str, Any]:
        (answer,) = bench.store.enqueue([spec(operation_id=f"op-{at}")]).result(PATIENCE_S)
        return at, answer.operation_id, answer.job_id

    with ThreadPoolExecutor(16) as pool:
        told = list(pool.map(one, range(400)))
    assert all(operation == f"op-{at}" for at, operation, _ in told)
    for at, _, ident in told[::37]:
        assert bench.row(ident).operation_id == f"op-{at}"


def test_a_failing_write_undoes_only_itself(bench: Bench, path: str):
    bench.job()
    with locked(path):
        tickets = []
        for at in range(40):
            bad = [spec(priority=40_000)] if at % 5 == 2 else []
            tickets.append(bench.store.enqueue([spec(f"t{at}", queue=f"q{at % 7}"), *bad]))
            if at % 9 == 4:
                tickets.append(bench.store.pause("nowhere", True))  # type: ignore[arg-type]
    failed = 0
    for ticket in tickets:
        try:
            ticket.result(PATIENCE_S)
        except StoreError:
            failed += 1
    assert failed == 8
    assert len(bench.store.find(JobFilter(), limit=99)) == 1 + 32


def test_a_write_that_ends_the_whole_transaction_takes_nobody_with_it(bench: Bench, path: str):
    """An error may roll everything back: the others are done again, each alone."""
    bench.job()

    def end_all(tx: Any) -> None:
        bench_job = {"id": 900, "name": "gone"}
        tx.execute("INSERT INTO millpond_tenant (id, name) VALUES (:id, :name)", bench_job)
        tx.execute("ROLLBACK")
        raise StoreError("the whole transaction is gone")

    with locked(path):
        before = [bench.store.enqueue([spec("before", queue="new")]) for _ in range(3)]
        bad = writer_of(bench).submit(end_all)
        after = [bench.store.enqueue([spec("after"), spec(key="k")]) for _ in range(3)]
    with pytest.raises(StoreError, match="the whole transaction is gone"):
        bad.result(PATIENCE_S)
    assert all(ticket.result(PATIENCE_S)[0].answer == "admitted" for ticket in before)
    kinds = [ticket.result(PATIENCE_S)[1].answer for ticket in after]
    assert kinds == ["admitted", "duplicate", "duplicate"]
    rows = bench.store.find(JobFilter(), limit=99)
    assert sorted(row.task for row in rows) == ["after"] * 3 + ["before"] * 3 + ["mail"] * 2


def test_a_full_database_refuses_what_does_not_fit_and_recovers_by_itself(bench: Bench, path: str):
    keeper = bench.keeper()
    bench.put(*specs(2))
    claim = keeper.one()
    conn = bench.store._first  # type: ignore[attr-defined]
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    conn.execute(f"PRAGMA max_page_count={pages + 40}").fetchall()
    with locked(path):
        small = [bench.store.enqueue([spec()]) for _ in range(3)]
        huge = bench.store.enqueue([spec(payload=b"x" * 2_000_000)])
        end = bench.store.settle(keeper.id, [Settlement(claim.token, OUT.COMPLETED, started_at=1)])
    with pytest.raises(StoreFull, match="nothing was written"):
        huge.result(PATIENCE_S)
    assert [len(ticket.result(PATIENCE_S)) for ticket in small] == [1, 1, 1]
    assert end.result(PATIENCE_S)[0].held
    assert bench.held() == 4
    conn.execute("PRAGMA max_page_count=1000000").fetchall()
    assert bench.job(payload=b"x" * 2_000_000)


# The lock of others


@pytest.mark.parametrize("budget_ms", [0, 150, 400])
def test_a_write_waits_as_long_as_its_budget_and_says_how_long(
    make: Callable[..., Bench], path: str, budget_ms: int
):
    bench = make(busy_ms=budget_ms)
    bench.job()
    with locked(path):
        started = time.perf_counter()
        with pytest.raises(StoreBusy, match=r"locked by another connection for \d+\.\d\d s"):
            bench.job()
        waited = time.perf_counter() - started
    assert budget_ms / 1000 <= waited < budget_ms / 1000 + 1.0
    assert bench.held() == 1
    assert bench.store.figures().busy == 1
    assert bench.job()


def test_a_lock_that_is_given_up_in_time_is_no_error(make: Callable[..., Bench], path: str):
    """B14: another process holds the lock for a while, shorter than the budget."""
    bench = make(busy_ms=10_000)
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    with locked(path) as conn:
        ticket = bench.store.enqueue([spec()])
        end = bench.store.settle(keeper.id, [Settlement(claim.token, OUT.COMPLETED, started_at=1)])
        assert not threading.Event().wait(0.2)
        assert not ticket.done()
        conn.execute("ROLLBACK")
    assert ticket.result(PATIENCE_S)
    assert end.result(PATIENCE_S)[0].held
    assert bench.state(job) is State.COMPLETED
    assert bench.store.figures().wait_max >= 150_000


def test_what_keeps_a_lease_waits_longer_than_what_does_not(make: Callable[..., Bench], path: str):
    """B14: the enqueue is told that the file is busy, the running job completes all the same."""
    bench = make(busy_ms=100)
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    with locked(path):
        ticket = bench.store.enqueue([spec()])
        beat = bench.store.beat(keeper.id, [claim.token], None, 15_000, 60_000)
        end = bench.store.settle(keeper.id, [Settlement(claim.token, OUT.COMPLETED, started_at=1)])
        with pytest.raises(StoreBusy):
            ticket.result(PATIENCE_S)
        assert not beat.done()
        assert not end.done()
    assert beat.result(PATIENCE_S).registered
    assert end.result(PATIENCE_S)[0].held
    assert bench.state(job) is State.COMPLETED


def test_what_is_handed_over_during_the_wait_has_its_own_budget(
    make: Callable[..., Bench], path: str
):
    bench = make(busy_ms=300)
    bench.job()
    with locked(path):
        first = bench.store.enqueue([spec()])
        threading.Event().wait(0.2)
        second = bench.store.enqueue([spec()])
        with pytest.raises(StoreBusy):
            first.result(PATIENCE_S)
        assert not second.done()
    assert second.result(PATIENCE_S)


# The line


def finish_order(tickets: dict[str, Any]) -> list[str]:
    """Let each ticket note when it was answered; return the list they write into."""
    order: list[str] = []
    for name, ticket in tickets.items():
        ticket.then(lambda name=name: order.append(name))
    return order


def test_beats_and_settles_go_ahead_of_all_other_writes(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3))
    one, two, _ = keeper.claim(3)
    with busy_thread(bench):
        tickets: dict[str, Any] = {
            f"plain {at}": bench.store.pause("default", False) for at in range(600)
        }
        end = Settlement(one.token, OUT.COMPLETED, started_at=1)
        tickets["settle"] = bench.store.settle(keeper.id, [end])
        tickets["beat"] = bench.store.beat(keeper.id, [two.token], None, 15_000, 1_000)
        order = finish_order(tickets)
    for ticket in tickets.values():
        ticket.result(PATIENCE_S)
    assert order[:2] == ["settle", "beat"]
    assert order[2:] == [f"plain {at}" for at in range(600)], "each kind in its own order"


def test_a_full_line_refuses_at_once_but_never_a_beat_or_a_settle(make: Callable[..., Bench]):
    bench = make(inbox=5)
    keeper = bench.keeper()
    bench.put(*specs(2))
    claim, other = keeper.claim(2)
    with busy_thread(bench):
        waiting = [bench.store.enqueue([spec()]) for _ in range(5)]
        for _ in range(3):
            with pytest.raises(StoreBusy, match=r"5 writes wait .* nothing was written"):
                bench.store.enqueue([spec()])
        end = bench.store.settle(keeper.id, [Settlement(claim.token, OUT.COMPLETED, started_at=1)])
        beat = bench.store.beat(keeper.id, [other.token], None, 15_000, 1_000)
    assert end.result(PATIENCE_S)[0].held
    assert beat.result(PATIENCE_S).lost == ()
    assert len([ticket.result(PATIENCE_S) for ticket in waiting]) == 5
    assert bench.job()


def test_a_transaction_is_bounded_in_jobs_and_in_writes(bench: Bench):
    bench.job()
    before = bench.store.figures().count
    with busy_thread(bench):
        tickets = [bench.store.enqueue(specs(2_000)) for _ in range(6)]
    assert sum(len(ticket.result(PATIENCE_S)) for ticket in tickets) == 12_000
    assert bench.store.figures().count - before >= 3


# Tickets


def test_a_ticket_can_be_awaited_by_a_loop_and_by_threads(bench: Bench):
    async def many() -> list[Any]:
        tickets = [bench.store.enqueue([spec()]) for _ in range(50)]
        return [answers[0].job_id for answers in await asyncio.gather(*map(_whole, tickets))]

    async def _whole(ticket: Any) -> Any:
        return await ticket

    assert len(set(asyncio.run(many()))) == 50
    answers: list[Any] = []
    with busy_thread(bench):
        ticket = bench.store.enqueue([spec()])
        with pytest.raises(TimeoutError, match="may still be"):
            ticket.result(0.01)
        waiting = [
            threading.Thread(target=lambda: answers.append(ticket.result(PATIENCE_S)))
            for _ in range(4)
        ]
        for thread in waiting:
            thread.start()
        assert not ticket.done()
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert answers == [ticket.result(0)] * 4


def test_an_awaited_write_that_fails_raises_in_the_loop(bench: Bench):
    async def fail() -> None:
        await bench.store.enqueue([spec(priority=40_000)])

    with pytest.raises(StoreError):
        asyncio.run(fail())


def test_a_loop_that_was_given_up_does_no_harm(bench: Bench):
    async def give_up() -> None:
        ticket = bench.store.enqueue([spec()])
        task = asyncio.ensure_future(_wait(ticket))
        await asyncio.sleep(0)
        task.cancel()

    async def _wait(ticket: Any) -> Any:
        return await ticket

    for _ in range(20):
        asyncio.run(give_up())
    assert bench.job()


def test_a_callback_that_fails_neither_ends_the_thread_nor_hides_the_answer(bench: Bench):
    with busy_thread(bench):
        ticket = bench.store.enqueue([spec()])
        other = bench.store.enqueue([spec()])
        ticket.then(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert ticket.result(PATIENCE_S)
    assert other.result(PATIENCE_S)
    ticket.then(lambda: 1 / 0)  # type: ignore[arg-type,return-value]
    assert bench.job()


# Closing


def test_closing_finishes_what_was_handed_over(make: Callable[..., Bench], path: str):
    bench = make()
    bench.job()
    with locked(path) as conn:
        tickets = [bench.store.enqueue([spec()]) for _ in range(20)]
        closer = threading.Thread(target=bench.store.close)
        closer.start()
        assert not threading.Event().wait(0.1)
        conn.execute("ROLLBACK")
    closer.join(PATIENCE_S)
    assert not closer.is_alive()
    assert sum(len(ticket.result(0)) for ticket in tickets) == 20
    again = make()
    assert again.held() == 21


def test_closing_does_not_wait_longer_than_the_budgets(make: Callable[..., Bench], path: str):
    bench = make(busy_ms=200)
    bench.job()
    with locked(path):
        ticket = bench.store.enqueue([spec()])
        closer = threading.Thread(target=bench.store.close)
        closer.start()
        closer.join(PATIENCE_S)
        assert not closer.is_alive()
    with pytest.raises(StoreBusy):
        ticket.result(0)


def test_a_closed_store_refuses_every_call_and_opens_nothing(make: Callable[..., Bench]):
    bench = make()
    job = bench.job()
    bench.row(job)
    bench.store.close()
    bench.store.close()
    before = descriptors()
    for call in (
        lambda: bench.store.enqueue([spec()]),
        lambda: bench.store.get(job),
        lambda: bench.store.find(JobFilter()),
        bench.store.status,
        lambda: bench.store.claimable(["mail"]),
        bench.store.changed,
        bench.store.verify,
        lambda: bench.store.beat(1, (), None, 1_000, 1_000),  # type: ignore[arg-type]
    ):
        with pytest.raises(StoreClosed, match="closed"):
            call()
    assert descriptors() == before


def test_every_write_that_races_with_close_is_answered(make: Callable[..., Bench]):
    for at in range(30):
        bench = make()
        tickets: list[Any] = []
        threads = [threading.Thread(target=submit_some, args=(bench, tickets)) for _ in range(4)]
        for thread in threads:
            thread.start()
        threading.Event().wait(at / 10_000)
        bench.store.close()
        for thread in threads:
            thread.join(PATIENCE_S)
        for ticket in tickets:
            with suppress(StoreClosed):
                ticket.result(PATIENCE_S)


def submit_some(bench: Bench, tickets: list[Any]) -> None:
    with suppress(StoreClosed):
        tickets.extend(bench.store.pause("nowhere", True) for _ in range(40))


# Threads, descriptors and what is measured


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")


@needs_proc
def test_short_lived_threads_leave_no_descriptors(bench: Bench):
    """B17: a thread per job, a thousand times."""
    bench.job()
    bench.held()
    before = descriptors()
    for _ in range(100):
        threads = [threading.Thread(target=bench.job) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert bench.held() == 1_001
    assert descriptors() <= before + 5


@needs_proc
def test_opening_and_closing_leaves_no_descriptors(make: Callable[..., Bench], path: str):
    """B17: the kind of a thousand cycles, with writes and reads in each."""
    make().job()
    before, threads = descriptors(), threading.active_count()
    for at in range(120):
        store = open_store(path, config=StoreConfig(path, synchronous="normal"))
        if at % 3:
            store.enqueue([spec()]).result(PATIENCE_S)
        if at % 2:
            store.status()
        store.close()
    assert descriptors() <= before + 5
    assert threading.active_count() <= threads


def test_stores_can_be_opened_and_closed_by_many_threads_at_once(path: str):
    def cycle(at: int) -> int:
        store = open_store(path, config=StoreConfig(path, synchronous="normal"))
        try:
            (answer,) = store.enqueue([spec(f"t{at % 3}")]).result(PATIENCE_S)
            assert store.get(answer.job_id) is not None
            return answer.job_id
        finally:
            store.close()

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(cycle, range(64)))
    assert len(set(made)) == 64
    with closing(open_store(path)) as store:
        sound(store)


def test_lengths_of_transactions_and_waits_are_known(bench: Bench):
    assert bench.store.figures().count == 0
    for _ in range(5):
        bench.job()
    figures = bench.store.figures()
    assert figures.count == 5
    assert 0 < figures.held_p50 <= figures.held_p99 <= figures.held_max
    assert figures.wait_p50 <= figures.wait_p99 <= figures.wait_max
    assert figures.busy == 0
