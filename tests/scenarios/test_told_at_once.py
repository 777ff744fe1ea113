"""A cancel and a pause reach a worker that would not beat for a long time yet."""

from __future__ import annotations

import pytest
from tests.scenarios.mill import Mill, until

APP = """
@pond.task(lease=600, max_attempts=3)
def patient(*, ctx: Context = Context.injected) -> None:
    note("patient", ctx.job_id)
    while not ctx.cancelled:
        pause(0.01)
    ctx.check_cancelled()

@pond.task(lease=600, isolation="process")
def deaf() -> None:
    note("deaf")
    pause(600)

@pond.task(lease=600)
def quick(n: int) -> None:
    pause(0.01)
"""


@pytest.mark.parametrize("task", ["patient", "deaf"])
@pytest.mark.parametrize("by", ["the pond", "the command line"])
def test_a_cancel_reaches_a_running_handler_at_once(mill: Mill, task: str, by: str) -> None:
    mill.write(APP)
    ref = mill.one(task)
    mill.worker(beat="100s").ready()
    mill.noted(task)
    if by == "the pond":
        assert mill.pond.cancel(ref.id) == "running"
    else:
        assert mill.run("cancel", str(ref.id), "--yes", "--app", "app:pond").returncode == 0
    mill.becomes(ref, "cancelled", within=30)
    assert mill.outcomes(ref) == [("cancelled", 1)]


def test_a_pause_fetches_back_what_has_not_started(mill: Mill) -> None:
    mill.write(APP)
    quick = [mill.one("quick", n) for n in range(100)]
    mill.worker(concurrency=1, beat="100s").ready()
    until(lambda: mill.state(quick[20]) == "completed")
    mill.pond.pause("default")
    until(lambda: mill.pond.status().counts["running"] == 0, within=30)
    left = [ref for ref in quick if mill.state(ref) == "ready"]
    assert all(mill.outcomes(ref) == [] for ref in left)
    mill.pond.resume("default")
    assert mill.all_final() == {"completed": 100}
