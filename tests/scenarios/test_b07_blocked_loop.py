"""B07: a handler that blocks the event loop, or holds the interpreter, loses no lease."""

from __future__ import annotations

from typing import Any

import pytest
from tests.scenarios.mill import Mill, soak

APP = """
@pond.task(**FAST)
async def blocking(how: str, *, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    if ctx.attempt == 1:
        {"blocks the loop": pause, "holds the interpreter": hog}[how](2.5)
    note("end", ctx.job_id, ctx.attempt)
    return ctx.attempt

@pond.task(**FAST)
def hogging(how: str, *, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    if ctx.attempt == 1:
        hog(2.5)
    note("end", ctx.job_id, ctx.attempt)
    return ctx.attempt

@pond.task(**FAST)
async def beside(*, ctx: Context = Context.injected) -> int:
    note("beside", ctx.job_id, ctx.attempt)
    await asyncio.sleep(1)
    return ctx.attempt
"""


@pytest.mark.parametrize(
    ("task", "how"),
    [
        ("blocking", "blocks the loop"),
        ("blocking", "holds the interpreter"),
        soak("hogging", "holds the interpreter"),
    ],
)
def test_b07_a_blocked_runner_keeps_its_leases(mill: Mill, task: str, how: str) -> None:
    mill.write(APP)
    first = mill.worker().ready()
    others = mill.put("beside", count=3)
    mill.noted("beside", 3)
    ref = mill.one(task, how)
    mill.noted("start")
    mill.worker().ready()

    assert mill.all_final() == {"completed": 4}
    assert len(mill.notes("start")) == len(mill.notes("end")) == 1
    assert mill.outcomes(ref) == [("completed", 1)]
    assert [mill.outcomes(each) for each in others] == [[("completed", 1)]] * 3
    assert len(mill.notes("beside")) == 3
    if how == "blocks the loop":
        warnings = [line["message"] for line in first.lines if "message" in line]
        assert any("event loop blocked" in text and "blocking" in text for text in warnings)


@pytest.mark.parametrize(
    ("task", "how"),
    [
        soak("blocking", "blocks the loop"),
        soak("blocking", "holds the interpreter"),
        ("hogging", "holds the interpreter"),
    ],
)
def test_b07_in_the_keepers_own_process_at_most_one_success_is_recorded(
    mill: Mill, task: str, how: str
) -> None:
    mill.write(APP)
    mill.worker(processes=0).ready()
    ref = mill.one(task, how)
    mill.noted("start")
    second = mill.worker(processes=0).ready()

    mill.becomes(ref, "completed")
    assert mill.all_final() == {"completed": 1}
    history: list[Any] = mill.outcomes(ref)
    if how == "blocks the loop":
        assert history == [("completed", 1)]
        assert len(mill.notes("start")) == 1
    else:
        # Nothing in such a process can renew: the job may have gone to the other worker.
        assert history in ([("completed", 1)], [("lease_lost", 1), ("completed", 2)])
        assert mill.job(ref).result == len(history)
    assert second.process.poll() is None
