"""B01: a worker dies in the middle of its jobs, and another one goes on.

A job is charged an attempt exactly when its handler was started, whoever died and when.
"""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from tests.scenarios.mill import Mill, soak, until

RESIZE = """
@pond.task(**FAST)
def resize_photo(n: int = 0, *, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    if ctx.attempt == 1:
        pause(60)
    return n

@pond.task(**FAST)
async def aresize_photo(n: int = 0, *, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    if ctx.attempt == 1:
        await asyncio.sleep(60)
    return n

@pond.task(**FAST)
def quick(n: int = 0, *, ctx: Context = Context.injected) -> None:
    note("quick", ctx.job_id, ctx.attempt)

@pond.task(**{**FAST, "retry": Backoff(base=1, jitter="none")})
def patient(*, ctx: Context = Context.injected) -> None:
    note("quick", ctx.job_id, ctx.attempt)

@pond.task(**FAST)
def gated(*, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    gate(f"attempt-{ctx.attempt}")
    return ctx.attempt
"""


def test_b01_with_the_common_settings_another_worker_goes_on_within_r(mill: Mill) -> None:
    mill.write(RESIZE, lease="3s")
    ref = mill.one("resize_photo", 7)
    first = mill.worker(recover="1s").ready()
    mill.noted("start")
    died = time.time()
    first.kill()
    mill.worker(recover="1s").ready()
    ready = time.time()

    again = mill.noted("start", 2, within=8)[1]
    assert again.words[2] == "2"
    assert again.at / 1000 < max(died + 3, ready) + 1 + 1
    assert mill.becomes(ref, "completed").result == 7

    lost, done = mill.history(ref)
    assert (lost.outcome, lost.number, done.outcome, done.number) == (
        "lease_lost", 1, "completed", 2,
    )  # fmt: skip
    assert lost.message == "lease expired; worker lost"
    assert lost.worker is not None
    assert lost.worker != done.worker
    assert lost.worker.endswith(f":{first.pid}")
    assert lost.started_at is not None
    assert lost.claimed_at <= lost.started_at < lost.ended_at <= done.claimed_at


WAITS = "keeper while another worker waits"


@pytest.mark.parametrize(
    ("task", "whom"),
    [
        ("resize_photo", "both"),
        ("resize_photo", WAITS),
        ("aresize_photo", "keeper"),
        soak("resize_photo", "keeper"),
        soak("aresize_photo", "both"),
        soak("aresize_photo", WAITS),
    ],
)
def test_b01_whoever_dies_with_the_keeper_the_job_goes_on(mill: Mill, task: str, whom: str) -> None:
    mill.write(RESIZE)
    refs = mill.put(task, 1, count=2)
    first = mill.worker(concurrency=2).ready()
    mill.noted("start", 2)
    runner = first.runners()
    if whom == WAITS:
        # The other one recovers, and its window has room for both.
        mill.worker().ready()
    first.kill_all() if whom == "both" else first.kill()
    died = time.time()
    until(lambda: not any(map(psutil.pid_exists, runner)), 2, what="the runner dies along")
    ready = died
    if whom != WAITS:
        mill.worker().ready()
        ready = time.time()

    again = mill.noted("start", 4, within=10)[2:]
    assert {note.words[2] for note in again} == {"2"}
    # The lease first; then somebody must be there to recover.
    bound = max(died + 1, ready) + 0.625 + 1
    assert max(note.at for note in again) / 1000 < bound
    for ref in refs:
        mill.becomes(ref, "completed")
        assert mill.outcomes(ref) == [("lease_lost", 1), ("completed", 2)]


@pytest.mark.parametrize("number", [signal.SIGKILL, soak(signal.SIGSEGV), soak(signal.SIGABRT)])
def test_b01_a_dead_runner_is_known_at_once_and_replaced(mill: Mill, number: int) -> None:
    mill.write(RESIZE, lease="60s")
    ref = mill.one("resize_photo")
    worker = mill.worker().ready()
    mill.noted("start")
    (runner,) = worker.runners()
    os.kill(runner, number)

    (again,) = mill.noted("start", 2, within=5)[1:]
    assert again.pid != runner
    mill.becomes(ref, "completed")
    crashed, _ = mill.history(ref)
    assert (crashed.outcome, crashed.number) == ("crashed", 1)
    assert crashed.signal == number
    assert signal.Signals(number).name in str(crashed.message)
    assert worker.process.poll() is None
    assert worker.stop() == 0


def test_b01_what_waits_behind_the_running_job_is_not_charged(mill: Mill) -> None:
    mill.write(RESIZE)
    fast = mill.put("quick", count=30)
    slow = mill.one("resize_photo")
    behind = mill.put("quick", count=30)
    first = mill.worker(concurrency=1, window="10s").ready()
    mill.noted("start")
    mill.noted("quick", 30)
    held = until(lambda: [ref for ref in behind if mill.state(ref) == "running"])
    first.kill()

    mill.worker()
    assert mill.all_final() == {"completed": 61}
    assert mill.outcomes(slow) == [("lease_lost", 1), ("completed", 2)]
    assert held
    for ref in [*fast, *behind]:
        assert mill.outcomes(ref) == [("completed", 1)]
    assert {note.words[2] for note in mill.notes("quick")} == {"1"}


# What becomes of one job when a process dies at each step of its way: how often its handler
# is called, and the history. "runs" counts the death's own run.
TABLE = {
    "claim-committed": (1, [("completed", 1)]),
    "fed": None,
    "started": (1, [("crashed", 1), ("completed", 2)]),
    "returned": (2, [("lease_lost", 1), ("completed", 2)]),
    "outcome-read": (2, [("lease_lost", 1), ("completed", 2)]),
    "settled": (1, [("completed", 1)]),
}


@pytest.mark.parametrize("step", TABLE)
@pytest.mark.parametrize("action", ["kill", soak("exit")])
def test_b01_a_death_at_any_step_charges_what_was_started(
    mill: Mill, step: str, action: str
) -> None:
    mill.write(RESIZE)
    # The runner of the dying worker dies at every attempt: it must not get to a second one.
    ref = mill.one("patient" if step in {"started", "returned"} else "quick")
    env = {"MILLPOND_FAULT": f"{step}:{action}"}
    dying = mill.worker(env=env)
    if step in {"started", "returned"}:
        until(lambda: mill.outcomes(ref))
        dying.kill_all()
    else:
        dying.ended()
    mill.worker()
    mill.becomes(ref, "completed")

    runs, history = len(mill.notes("quick")), mill.outcomes(ref)
    if step == "fed":
        # Fed and started are two processes: the runner may or may not have got that far.
        assert (runs, history) in [
            (1, [("completed", 1)]),
            (1, [("lease_lost", 1), ("completed", 2)]),
            (2, [("lease_lost", 1), ("completed", 2)]),
        ]
    else:
        assert (runs, history) == TABLE[step]


@pytest.mark.parametrize("whom", [soak("keeper"), "both"])
def test_b01_a_worker_that_stood_still_past_its_lease_is_refused(mill: Mill, whom: str) -> None:
    mill.write(RESIZE)
    ref = mill.one("gated")
    first = mill.worker(level="debug").ready()
    (runner,) = first.runners()
    mill.noted("start")
    stopped = [first.pid, runner] if whom == "both" else [first.pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    mill.worker()
    mill.noted("start", 2, within=10)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    mill.open("attempt-1")
    until(lambda: first.events("lease_lost"), what="the first worker learns that it is late")
    mill.open("attempt-2")

    assert mill.becomes(ref, "completed").result == 2
    assert mill.outcomes(ref) == [("lease_lost", 1), ("completed", 2)]
    assert first.process.poll() is None
    # What stood still works on: it is no worse than any other worker.
    more = mill.put("quick", count=20)
    assert mill.all_final() == {"completed": 21}
    assert {each.outcome.value for ref in more for each in mill.history(ref)} == {"completed"}


def test_b01_a_runner_that_stands_still_loses_no_lease(mill: Mill) -> None:
    mill.write(RESIZE)
    ref = mill.one("gated")
    worker = mill.worker().ready()
    (runner,) = worker.runners()
    mill.noted("start")
    mill.worker().ready()
    os.kill(runner, signal.SIGSTOP)
    before = mill.lease(ref)
    until(lambda: mill.lease(ref) > before + 2_500, 10, what="two and a half leases go by")
    os.kill(runner, signal.SIGCONT)
    mill.open("attempt-1")

    assert mill.becomes(ref, "completed").result == 1
    assert mill.outcomes(ref) == [("completed", 1)]
    assert len(mill.notes("start")) == 1
