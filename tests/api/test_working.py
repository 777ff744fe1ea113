"""Embedded workers and eager mode: the whole way from an enqueue to a result."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millpond import (
    BadConfig,
    BadPayload,
    Context,
    Fail,
    JobFailed,
    ManualClock,
    Millpond,
    Retry,
    Snooze,
)


@pytest.fixture
def eager(url: str, clock: ManualClock) -> Iterator[Millpond]:
    pond = Millpond(url, clock=clock, eager=True)
    yield pond
    pond.close()


def test_an_embedded_worker_runs_what_is_enqueued(url: str) -> None:
    pond = Millpond(url)

    @pond.task
    def add(a: int, b: int) -> int:
        return a + b

    @pond.task
    async def aadd(a: int, b: int) -> int:
        await asyncio.sleep(0)
        return a + b

    with pond, pond.worker(concurrency=2, queues=["default"], poll="20ms"):
        assert add.enqueue(1, 2).wait(timeout=30) == 3
        assert asyncio.run(aadd.enqueue(3, 4).await_(timeout=30)) == 7


def test_a_drain_runs_what_is_due_and_leaves_the_rest(pond: Millpond, clock: ManualClock) -> None:
    ran: list[int] = []

    @pond.task
    def note(number: int) -> None:
        ran.append(number)

    note.enqueue(1)
    late = note.using(delay=60).enqueue(2)

    assert pond.drain().finished == 1
    assert (ran, late.job().state) == ([1], "scheduled")
    clock.advance(60)
    assert pond.drain().finished == 1
    assert ran == [1, 2]
    assert pond.drain().ended == 0


def test_a_worker_serves_only_the_queues_it_was_given(pond: Millpond) -> None:
    @pond.task
    def note() -> None: ...

    mail, reports = note.using(queue="mail").enqueue(), note.using(queue="reports").enqueue()

    pond.drain(queues=["mail"])

    assert (mail.job().state, reports.job().state) == ("completed", "ready")


def test_worker_options_that_cannot_work_are_refused(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="did you mean 'concurrency'"):
        pond.worker(concurency=2)
    with pytest.raises(BadConfig, match="concurrency"):
        pond.worker(concurrency=0)


def test_a_handler_says_how_its_attempt_ends(pond: Millpond, clock: ManualClock) -> None:
    say: list[Exception] = []

    @pond.task(max_attempts=3)
    def speak() -> str:
        if say:
            raise say.pop()
        return "done"

    def attempt(error: Exception | None) -> Any:
        say[:] = [error] if error else []
        ref = speak.enqueue()
        pond.drain()
        return ref.job(), pond.attempts(ref.id)[-1]

    job, last = attempt(None)
    assert (job.state, job.result, last.outcome) == ("completed", "done", "completed")
    job, last = attempt(Retry("later", after=100))
    assert (job.state, last.outcome, last.number) == ("scheduled", "retried", 1)
    assert job.due_at - last.ended_at >= timedelta(seconds=100)
    job, last = attempt(Snooze(50))
    assert (job.state, last.outcome, last.number, job.attempts) == ("scheduled", "snoozed", None, 0)
    assert job.due_at - last.ended_at == timedelta(seconds=50)
    job, last = attempt(Fail("no such account"))
    assert (job.state, last.outcome, job.reason) == ("failed", "failed", "no such account")
    job, last = attempt(KeyError("x"))
    assert (job.state, last.outcome, last.error_type) == ("scheduled", "retried", "KeyError")
    assert job.last_error is not None
    assert "x" in job.last_error
    assert last.traceback is not None


def test_a_later_attempt_finds_what_an_earlier_one_remembered(
    pond: Millpond, clock: ManualClock
) -> None:
    seen: list[object] = []

    @pond.task
    def charge(*, ctx: Context = Context.injected) -> object:
        seen.append((ctx.attempt, ctx.operation_id, ctx.remembered))
        if ctx.remembered is None:
            ctx.remember({"receipt": 7})
            raise ConnectionError
        return ctx.remembered

    ref = charge.using(operation_id="payment-812").enqueue()
    pond.drain()
    clock.advance(3600)
    pond.drain()

    assert seen == [(1, "payment-812", None), (2, "payment-812", {"receipt": 7})]
    assert ref.wait(timeout=0) == {"receipt": 7}


def test_a_context_tells_of_the_job(pond: Millpond) -> None:
    told: list[object] = []

    @pond.task(queue="reports", max_attempts=4)
    async def tell(*, ctx: Context = Context.injected) -> None:
        told.extend([ctx.job_id, ctx.attempt, ctx.max_attempts, ctx.queue, dict(ctx.meta)])
        told.append(ctx.lease_remaining)
        told.append(Context.current() is ctx)
        ctx.progress(1, 2)

    ref = tell.using(meta={"by": "ann"}).enqueue()
    pond.drain()

    assert told == [ref.id, 1, 4, "reports", {"by": "ann"}, 60.0, True]


def test_an_eager_enqueue_has_run_when_it_returns(eager: Millpond) -> None:
    @eager.task
    def add(a: int, b: int) -> int:
        return a + b

    assert add.enqueue(1, 2).wait(timeout=0) == 3
    assert eager.enqueue("add", {"a": 1, "b": 2}).wait(timeout=0) == 3
    with eager.batch() as batch:
        batch.add(add, 3, 4)
        batch.add(add, 5, 6)
    assert [ref.wait(timeout=0) for ref in batch.refs] == [7, 11]


def test_an_eager_enqueue_can_be_awaited(eager: Millpond) -> None:
    @eager.task
    async def add(a: int, b: int) -> int:
        return a + b

    async def produce() -> int:
        ref = await add.aenqueue(1, 2)
        return await ref.await_(timeout=0)

    assert asyncio.run(produce()) == 3


def test_an_eager_failure_is_the_jobs_and_not_the_enqueues(
    eager: Millpond, clock: ManualClock
) -> None:
    @eager.task(max_attempts=2)
    def fail() -> None:
        raise ValueError("broken")

    ref = fail.enqueue()
    assert (ref.job().state, ref.job().attempts) == ("scheduled", 1)
    clock.advance(3600)
    eager.drain()
    with pytest.raises(JobFailed, match="broken"):
        ref.wait(timeout=0)


def test_eager_mode_leaves_what_is_due_later(eager: Millpond) -> None:
    @eager.task
    def note() -> None: ...

    assert note.using(delay=1).enqueue().job().state == "scheduled"


def test_an_eager_enqueue_inside_a_handler_is_stored_and_run_after_it(eager: Millpond) -> None:
    order: list[str] = []

    @eager.task
    def inner() -> None:
        order.append("inner")

    @eager.task
    def outer() -> None:
        order.append("outer starts")
        inner.enqueue()
        order.append("outer ends")

    @eager.task
    async def aouter() -> None:
        await inner.aenqueue()
        order.append("aouter ends")

    with eager.worker(concurrency=1):
        pass
    outer.enqueue()
    assert order[0] == "outer starts"
    assert sorted(order) == ["inner", "outer ends", "outer starts"]
    aouter.enqueue()
    assert sorted(order[3:]) == ["aouter ends", "inner"]


def test_eager_threads_each_return_after_their_own_job(eager: Millpond) -> None:
    @eager.task
    def echo(number: int) -> int:
        return number

    eager.open()
    barrier = threading.Barrier(6)
    got: list[tuple[int, str]] = []

    def produce(number: int) -> None:
        barrier.wait(timeout=30)
        got.append((number, echo.enqueue(number).job().state))

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert sorted(got) == [(number, "completed") for number in range(6)]


@pytest.mark.parametrize("value", [{1: "a"}, float("nan"), (1, 2), b"x"], ids=repr)
def test_eager_mode_refuses_exactly_what_the_real_one_refuses(
    eager: Millpond, pond: Millpond, value: object
) -> None:
    messages = []
    for each in (eager, pond):

        @each.task
        def keep(value) -> None: ...

        with pytest.raises(BadPayload) as refused:
            keep.enqueue(value)
        messages.append(str(refused.value))
        assert each.jobs() == []
    assert messages[0] == messages[1]


def test_an_eager_enqueue_in_a_transaction_waits_for_the_commit(
    tmp_path: Path, clock: ManualClock
) -> None:
    pond = Millpond(tmp_path / "jobs.db", clock=clock, eager=True)

    @pond.task
    def note() -> None: ...

    pond.open()
    conn = sqlite3.connect(pond.url, isolation_level=None)
    ref = note.using(tx=conn).enqueue()
    conn.execute("COMMIT")
    conn.close()

    assert ref.job().state == "ready"
    pond.drain()
    assert ref.job().state == "completed"
    pond.close()
