"""B30: cancelled, timed out, stopped and failed are four different ends of a handler."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from tests.scenarios.mill import Mill, Worker, soak, until

APP = """
MORE = {}

async def wait_here(ctx):
    note("start", ctx.job_id, ctx.attempt)
    try:
        await asyncio.sleep(30)
    finally:
        note("finally", ctx.job_id, ctx.attempt)

@pond.task(**FAST)
async def waits(*, ctx: Context = Context.injected) -> None:
    await wait_here(ctx)

@pond.task(**FAST, timeout=0.5)
async def short_waits(*, ctx: Context = Context.injected) -> None:
    await wait_here(ctx)

@pond.task(**FAST)
async def cleans_up(*, ctx: Context = Context.injected) -> None:
    note("start", ctx.job_id, ctx.attempt)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError as stop:
        await asyncio.sleep(0.05)
        note("finally", ctx.job_id, ctx.attempt)
        raise RuntimeError("cleaning up went wrong") from stop

@pond.task(**FAST)
async def swallows(*, ctx: Context = Context.injected) -> str:
    note("start", ctx.job_id, ctx.attempt)
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        note("finally", ctx.job_id, ctx.attempt)
        return "done all the same"
    return "never"

@pond.task(**FAST)
async def group(*, ctx: Context = Context.injected) -> None:
    note("start", ctx.job_id, ctx.attempt)
    try:
        async with asyncio.timeout(20):
            await asyncio.gather(*(asyncio.sleep(30) for _ in range(3)))
    finally:
        note("finally", ctx.job_id, ctx.attempt)

@pond.task(**FAST)
def checks(*, ctx: Context = Context.injected) -> None:
    note("start", ctx.job_id, ctx.attempt)
    try:
        while True:
            ctx.check_cancelled()
            pause(0.01)
    finally:
        note("finally", ctx.job_id, ctx.attempt)

@pond.task(**FAST, timeout=0.5)
def short_checks(*, ctx: Context = Context.injected) -> None:
    checks.function(ctx=ctx)

@pond.task(**FAST)
def looks(*, ctx: Context = Context.injected) -> None:
    note("start", ctx.job_id, ctx.attempt)
    while not ctx.cancelled:
        pause(0.01)
    note("finally", ctx.job_id, ctx.attempt)
    raise RuntimeError("stopped half way") from JobCancelled("seen")

@pond.task(**{**FAST, "max_attempts": 1})
async def own_doing(how: str, *, ctx: Context = Context.injected) -> None:
    note("start", ctx.job_id, ctx.attempt)
    if how == "a sub-task":
        task = asyncio.create_task(asyncio.sleep(30))
        await asyncio.sleep(0)
        task.cancel()
        await task
    elif how == "itself":
        asyncio.current_task().cancel()
        await asyncio.sleep(1)
    elif how == "a raise":
        raise asyncio.CancelledError("mine")
    elif how == "its own time-out":
        async with asyncio.timeout(0.05):
            await asyncio.sleep(30)
    elif how == "wait_for":
        await asyncio.wait_for(asyncio.sleep(30), 0.05)
    elif how == "a group":
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.sleep(30))
            raise KeyError("in the group")

@pond.task(**FAST)
async def good() -> None:
    note("good")
"""


OWN = APP.replace("**FAST", "**OWN").replace("MORE = {}", 'OWN = {**FAST, "isolation": "process"}')
"""The same handlers, each in a process of its own."""

Form = int | str


def started(mill: Mill, form: Form, task: str, **settings: Any) -> tuple[Any, Worker]:
    """Enqueue a job, and start a worker in this form: how many runners, or one for each job."""
    mill.write(OWN if form == "own" else APP)
    ref = mill.one(task)
    return ref, mill.worker(processes=1 if form == "own" else form, **settings).ready()


def still_works(mill: Mill, worker: Any) -> None:
    """See that the worker, and the very process of its runner, live on."""
    mill.becomes(mill.one("good"), "completed")
    assert worker.process.poll() is None
    assert len(mill.pids("start") | mill.pids("good")) == 1


@pytest.mark.parametrize(
    ("task", "form"),
    [
        *((task, 1) for task in ("waits", "cleans_up", "group", "checks", "looks")),
        ("waits", 0),
        ("waits", "own"),
        ("checks", "own"),
        *(soak(task, "own") for task in ("cleans_up", "group", "looks")),
        *(soak(task, 0) for task in ("cleans_up", "group", "checks", "looks")),
    ],
)
def test_b30_a_a_cancelled_job_is_told_and_ends_as_cancelled(
    mill: Mill, task: str, form: Form
) -> None:
    ref, worker = started(mill, form, task)
    mill.noted("start")
    assert mill.pond.cancel(ref.id, by="ops") == "running"
    mill.becomes(ref, "cancelled", within=5)
    (attempt,) = mill.history(ref)
    assert attempt.outcome == "cancelled"
    assert len(mill.notes("finally")) == 1
    still_works(mill, worker)
    assert len(mill.notes("start")) == 1


def test_b30_a_what_completes_in_spite_of_the_cancel_is_completed(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("swallows")
    worker = mill.worker().ready()
    mill.noted("start")
    mill.pond.cancel(ref.id)
    assert mill.becomes(ref, "completed").result == "done all the same"
    assert mill.outcomes(ref) == [("completed", 1)]
    still_works(mill, worker)


def test_b30_a_a_job_that_waits_is_cancelled_without_a_worker(mill: Mill) -> None:
    mill.write(APP)
    ready, later = mill.one("waits"), mill.one("waits", delay=60)
    assert mill.pond.cancel(ready.id) == "ready"
    assert mill.pond.cancel(later.id) == "scheduled"
    assert {mill.state(ready), mill.state(later)} == {"cancelled"}
    assert mill.history(ready) == mill.history(later) == []
    assert mill.worker("--drain").ended() == 0
    assert mill.notes("start") == []


@pytest.mark.parametrize(
    ("task", "form"),
    [
        ("short_waits", 1),
        ("short_checks", 1),
        ("short_waits", "own"),
        ("short_checks", "own"),
        soak("short_waits", 0),
        soak("short_checks", 0),
    ],
)
def test_b30_b_a_time_out_is_an_attempt_that_timed_out_and_is_tried_again(
    mill: Mill, task: str, form: Form
) -> None:
    ref, worker = started(mill, form, task)
    job = mill.becomes(ref, "failed", within=15)
    assert mill.outcomes(ref) == [("timed_out", n) for n in (1, 2, 3)]
    assert "3 of 3" in str(job.reason)
    for attempt in mill.history(ref):
        assert attempt.started_at is not None
        assert 0.45 < (attempt.ended_at - attempt.started_at).total_seconds() < 1.5
    assert len(mill.notes("finally")) == 3, "each attempt cleaned up once"
    still_works(mill, worker)


@pytest.mark.parametrize(
    ("task", "form"),
    [
        *((task, 1) for task in ("waits", "cleans_up", "checks")),
        ("checks", 0),
        ("waits", "own"),
        ("checks", "own"),
        *(soak(task, "own") for task in ("cleans_up", "group", "looks")),
        *(soak(task, 1) for task in ("group", "looks")),
        *(soak(task, 0) for task in ("waits", "cleans_up", "group", "looks")),
    ],
)
def test_b30_c_a_shutdown_gives_the_job_back_without_an_attempt(
    mill: Mill, task: str, form: Form
) -> None:
    ref, worker = started(mill, form, task, drain="100ms")
    mill.noted("start")
    assert worker.stop(signal.SIGTERM, within=10) == 0
    job = mill.job(ref)
    assert (job.state, job.attempts, job.last_error) == ("ready", 0, None)
    assert mill.outcomes(ref) == [("released", None)]
    assert len(mill.notes("finally")) == 1


HOWS = {
    "a sub-task": "CancelledError",
    "itself": "CancelledError",
    "a raise": "CancelledError",
    "its own time-out": "TimeoutError",
    "wait_for": "TimeoutError",
    "a group": "ExceptionGroup",
}


def test_b30_d_what_a_handler_cancels_itself_is_its_own_failure(mill: Mill) -> None:
    mill.write(APP)
    refs = {how: mill.one("own_doing", how) for how in HOWS}
    beside = mill.one("swallows")
    worker = mill.worker(concurrency=8).ready()
    for how, ref in refs.items():
        mill.becomes(ref, "failed")
        (attempt,) = mill.history(ref)
        assert (attempt.outcome, attempt.number) == ("failed", 1), how
        assert str(attempt.error_type).rpartition(".")[2] == HOWS[how], how
    assert mill.state(beside) == "running", "nobody else was cancelled along"
    still_works(mill, worker)
    mill.pond.cancel(beside.id)
    until(lambda: mill.job(beside).final)


@pytest.mark.parametrize("text", [APP, OWN], ids=["threads", "own"])
def test_b30_the_four_outcomes_differ(mill: Mill, text: str) -> None:
    mill.write(text)
    cancelled, timed_out = mill.one("waits"), mill.one("short_waits", max_attempts=1)
    failed, released = mill.one("own_doing", "a sub-task"), mill.one("waits")
    worker = mill.worker(drain="100ms", concurrency=8).ready()
    mill.noted("start", 4)
    mill.pond.cancel(cancelled.id)
    mill.becomes(cancelled, "cancelled")
    mill.becomes(timed_out, "failed")
    mill.becomes(failed, "failed")
    assert worker.stop() == 0
    refs = (cancelled, timed_out, released, failed)
    assert [mill.outcomes(ref) for ref in refs] == [
        [("cancelled", 1)], [("timed_out", 1)], [("released", None)], [("failed", 1)],
    ]  # fmt: skip
