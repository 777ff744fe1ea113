"""B03: a worker that is told to stop claims nothing more, hands back, and lets work end."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Any

import pytest
from tests.scenarios.mill import Mill, Worker, now_ms, soak, until

APP = """
@pond.task(**FAST)
def short(n: int, *, ctx: Context = Context.injected) -> None:
    note("short", ctx.job_id, ctx.attempt)
    pause(0.05)

@pond.task(**FAST)
async def ashort(n: int, *, ctx: Context = Context.injected) -> None:
    note("short", ctx.job_id, ctx.attempt)
    await asyncio.sleep(0.05)

@pond.task(**FAST)
def deaf(*, ctx: Context = Context.injected) -> None:
    note("long", ctx.job_id, ctx.attempt)
    if not (yard.folder / "quick.open").exists():
        pause(30)

@pond.task(**FAST)
def obedient(*, ctx: Context = Context.injected) -> None:
    note("long", ctx.job_id, ctx.attempt)
    if not (yard.folder / "quick.open").exists():
        while True:
            ctx.check_cancelled()
            pause(0.02)

@pond.task(**FAST)
async def along(*, ctx: Context = Context.injected) -> None:
    note("long", ctx.job_id, ctx.attempt)
    if not (yard.folder / "quick.open").exists():
        try:
            await asyncio.sleep(30)
        finally:
            note("cleaned", ctx.job_id)

@pond.task(**FAST)
def gated(*, ctx: Context = Context.injected) -> str:
    note("long", ctx.job_id, ctx.attempt)
    gate("end")
    return "done"

@pond.task(**FAST)
async def agated(*, ctx: Context = Context.injected) -> str:
    note("long", ctx.job_id, ctx.attempt)
    await asyncio.to_thread(gate, "end")
    return "done"
"""

STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def moment(line: dict[str, Any]) -> int:
    """Return when a log line was written, in wall-clock milliseconds."""
    return round(datetime.fromisoformat(line["at"]).timestamp() * 1000)


def stop_seen(worker: Worker) -> int:
    """Return when the worker has heard the signal, in wall-clock milliseconds."""
    (line,) = until(lambda: worker.events("worker_stopping"), what="it says that it stops")
    return moment(line)


def claimed_late(worker: Worker) -> list[int]:
    """Return how long after it had heard the signal a worker claimed, in milliseconds."""
    heard = stop_seen(worker)
    lines = [moment(line) - heard for line in worker.events("claimed")]
    # What was on its way to the store when the signal came is answered a moment later.
    return [late for late in lines if late > 100]


def started(worker: Worker) -> dict[int, int]:
    """Return the jobs that a worker has started, and when."""
    return {line["job"]: moment(line) for line in worker.events("started")}


@pytest.mark.parametrize(
    ("task", "form"),
    [
        ("short", {}),
        ("ashort", {"processes": 2}),
        soak("short", {"processes": 2}),
        soak("ashort", {}),
        soak("short", {"processes": 0}),
        soak("ashort", {"processes": 0}),
    ],
)
def test_b03_what_has_not_started_goes_back_and_another_worker_takes_it(
    mill: Mill, task: str, form: dict[str, Any]
) -> None:
    mill.write(APP, lease="3s")
    refs = mill.put(task, 1, count=60)
    first = mill.worker(concurrency=1, batch=5, drain="2s", level="debug", **form).ready()
    mill.noted("short", 15)
    first.send(signal.SIGTERM)
    second = mill.worker(batch=5, level="debug", **form).ready()
    assert first.ended() == 0

    assert mill.all_final() == {"completed": 60}
    assert claimed_late(first) == []
    # Nothing that the first one gave back was charged, or even written down, or run twice.
    assert [mill.outcomes(ref) for ref in refs] == [[("completed", 1)]] * 60
    assert len(mill.notes("short")) == 60
    mine, theirs = started(first), started(second)
    assert mine.keys().isdisjoint(theirs)
    assert len(mine) + len(theirs) == 60
    # What was given back starts at once.
    claimed = {line["job"] for line in first.events("claimed")}
    given_back = [at for job, at in theirs.items() if job in claimed]
    there = moment(second.events("worker_started")[0])
    assert min(given_back, default=there) < there + 1_000
    assert "0 lost" in first.said.splitlines()[-1]


@pytest.mark.parametrize(
    ("task", "number"),
    [
        ("deaf", signal.SIGTERM),
        ("obedient", signal.SIGINT),
        ("along", signal.SIGHUP),
        *(soak(task, number) for task in ("deaf", "obedient", "along") for number in STOPS),
    ],
)
def test_b03_what_outlasts_the_drain_goes_back_uncharged(
    mill: Mill, task: str, number: int
) -> None:
    mill.write(APP, lease="3s")
    refs = mill.put(task, count=5)
    first = mill.worker(concurrency=1, batch=5, drain="300ms", level="debug").ready()
    mill.noted("long")
    sent = now_ms()
    assert first.stop(number, within=10) == 0
    # The drain, then a second to clean up, and the writes.
    assert now_ms() - sent < 300 + 1_000 + 2_000

    assert [mill.state(ref) for ref in refs] == ["ready"] * 5
    assert [mill.job(ref).attempts for ref in refs] == [0] * 5
    assert mill.outcomes(refs[0]) == [("released", None)]
    assert [mill.outcomes(ref) for ref in refs[1:]] == [[]] * 4
    assert len(mill.notes("cleaned")) == (task == "along")
    assert claimed_late(first) == []

    mill.open("quick")
    started = mill.worker()
    assert mill.all_final() == {"completed": 5}
    assert mill.outcomes(refs[0]) == [("released", None), ("completed", 1)]
    assert started.process.poll() is None


@pytest.mark.parametrize(
    ("task", "form"),
    [
        ("gated", {}),
        soak("agated", {}),
        ("agated", {"processes": 0}),
        soak("gated", {"processes": 0}),
    ],
)
def test_b03_what_ends_during_the_drain_is_completed_and_not_run_again(
    mill: Mill, task: str, form: dict[str, Any]
) -> None:
    mill.write(APP, lease="3s")
    ref = mill.one(task)
    first = mill.worker(concurrency=1, drain="10s", **form).ready()
    mill.noted("long")
    first.send(signal.SIGTERM)
    stop_seen(first)
    second = mill.worker().ready()
    behind = mill.put("short", 1, count=3)
    for one in behind:
        mill.becomes(one, "completed")
    assert mill.state(ref) == "running"
    mill.open("end")

    assert first.ended() == 0
    assert mill.job(ref).result == "done"
    assert mill.outcomes(ref) == [("completed", 1)]
    assert second.stop() == 0
    assert len(mill.notes("long")) == 1
    assert not {note.pid for note in mill.notes("short")} & {
        note.pid for note in mill.notes("long")
    }


@pytest.mark.parametrize("task", ["deaf", soak("obedient"), "along"])
def test_b03_a_second_signal_waits_for_nothing(mill: Mill, task: str) -> None:
    mill.write(APP, lease="3s")
    ref = mill.one(task)
    first = mill.worker(drain="60s").ready()
    mill.noted("long")
    first.send(signal.SIGTERM)
    stop_seen(first)
    sent = now_ms()
    assert first.stop(signal.SIGTERM, within=10) == 0
    assert now_ms() - sent < 3_000
    assert (mill.state(ref), mill.outcomes(ref)) == ("ready", [("released", None)])
    mill.open("quick")
    mill.worker()
    assert mill.all_final() == {"completed": 1}


def test_b03_a_worker_that_is_stopped_while_it_starts_ends(mill: Mill) -> None:
    mill.write("pause(1)\n" + APP)
    ref = mill.one("short", 1)
    worker = mill.worker()
    until(worker.runners)
    assert worker.stop(within=10) == 0
    assert (mill.state(ref), mill.outcomes(ref)) == ("ready", [])


def test_b03_the_last_line_sums_up(mill: Mill) -> None:
    mill.write(APP, lease="3s")
    done = mill.put("short", 1, count=2)
    given_back = mill.one("deaf")
    worker = mill.worker(concurrency=1, drain="100ms").ready()
    mill.noted("long")
    assert worker.stop(within=10) == 0
    last = worker.said.splitlines()[-1]
    assert last == "worker stopped: 2 finished, 0 failed, 0 retried, 1 handed back, 0 lost"
    # Gone in order, and still named in the history of what it did; giving back is no error.
    names = {str(each.worker) for ref in (*done, given_back) for each in mill.history(ref)}
    assert {name.rpartition(":")[2] for name in names} == {str(worker.pid)}
    assert mill.job(given_back).last_error is None
