"""What a sudden death costs a job, wherever it comes: one table of runs, charges and history.

Each case runs one job whose first attempt meets a SIGKILL of the keeper (which takes its
runner along) or of the runner alone at a named point. A job that never started is not
charged; what had started is; only what had not returned when its runner died alone is a crash.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

import psutil
import pytest
from tests.worker.conftest import Jobs, Lab, Worker, wait_for
from tests.worker.fakes import WAIT_S

from millpond.model import State

APP = """
from millpond import Backoff, Context
mark = f"{folder}/armed"
try:
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    fault.arm(os.environ.get("RUNNER_FAULT", ""))
except FileExistsError:
    fault.arm("")

@pond.task(lease=3.0, max_attempts=4, retry=Backoff(base=0))
def work(*, ctx: Context):
    open(f"{folder}/runs", "a").write(f"{ctx.attempt} ")
    if ctx.attempt == 1 and os.environ.get("LINGER"):
        while not os.path.exists(f"{folder}/go"):
            time.sleep(0.01)
    return ctx.attempt
"""


class Case(NamedTuple):
    """A death and its price."""

    victim: str
    point: str
    runs: int
    crashes: int
    history: list[str]


DONE = ["completed"]
LOST = ["lease_lost", "completed"]
CRASHED = ["crashed", "completed"]

CASES = [
    Case("keeper", "claim-committed", 1, 0, DONE),
    Case("keeper", "fed", 1, 0, DONE),
    Case("keeper", "started", 1, 0, LOST),
    Case("keeper", "returned", 2, 0, LOST),
    Case("keeper", "outcome-read", 2, 0, LOST),
    Case("keeper", "settled", 1, 0, DONE),
    Case("keeper", "beat", 2, 0, LOST),
    Case("runner", "claim-committed", 1, 0, DONE),
    Case("runner", "fed", 1, 0, DONE),
    Case("runner", "started", 1, 1, CRASHED),
    Case("runner", "returned", 2, 0, LOST),
    Case("runner", "outcome-read", 1, 0, DONE),
    Case("runner", "settled", 1, 0, DONE),
    Case("runner", "beat", 2, 1, CRASHED),
]

IN_RUNNER = {"started", "returned"}


def stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def go_on(worker: Worker) -> bool:
    """Let a keeper pass its point again, where it stands still each time."""
    worker.signal(signal.SIGCONT)
    return True


def begin(lab: Lab, case: Case, app: str) -> Worker:
    """Start the worker that will meet the death, its first job not yet enqueued."""
    faults, env = "", {}
    if case.point in IN_RUNNER:
        env["RUNNER_FAULT"] = f"{case.point}:{'kill' if case.victim == 'runner' else 'sleep=60'}"
    else:
        faults = f"{case.point}:{'kill' if case.victim == 'keeper' else 'stop'}"
    if case.point == "beat":
        env["LINGER"] = "yes"
    worker = lab.start(app, faults=faults, env=env, concurrency=1)
    wait_for(lambda: worker.said("worker_started"))
    return worker


def strike(lab: Lab, case: Case, worker: Worker, runner: int) -> None:
    """Bring the death about, as far as the fault itself does not."""
    if case.victim == "keeper" and case.point in IN_RUNNER:
        wait_for(lambda: worker.said("started job="), "the runner at its point")
        wait_for(lambda: case.point == "started" or lab.lines("runs"), "the handler's end")
        worker.signal(signal.SIGKILL)
    elif case.victim == "runner" and case.point not in IN_RUNNER:
        wait_for(lambda: stopped(worker.pid), "the keeper at its point")
        os.kill(runner, signal.SIGKILL)
        worker.signal(signal.SIGCONT)
    if case.victim == "keeper":
        assert worker.wait() == -signal.SIGKILL
    wait_for(lambda: not psutil.pid_exists(runner), "the end of the runner")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.victim}-{case.point}")
def test_a_death_costs_what_the_table_says(lab: Lab, case: Case) -> None:
    app = lab.app(APP)
    pond = lab.pond()
    worker = begin(lab, case, app)
    (runner,) = worker.runners()
    if case.point == "fed":
        # A runner that stands still cannot start what it was fed.
        os.kill(runner, signal.SIGSTOP)
    ref = pond.enqueue("work")
    strike(lab, case, worker, runner)
    lab.touch("go")
    if case.victim == "keeper":
        worker = lab.start(app, concurrency=1)
    jobs = Jobs(pond)
    wait_for(lambda: go_on(worker) and jobs.state(ref.id) is State.COMPLETED, "the end")
    history = jobs.history(ref.id)
    charged = [attempt.number for attempt in history]
    assert jobs.outcomes(ref.id) == case.history, worker.log()
    assert charged == list(range(1, len(case.history) + 1))
    assert len(lab.lines("runs")) == case.runs
    row = jobs.row(ref.id)
    assert (row.attempts, row.crashes) == (len(case.history), case.crashes)
    assert ref.job().result == len(case.history)
    if case.crashes:
        assert history[0].signal == signal.SIGKILL
        assert "runner killed by signal 9 (SIGKILL)" in (history[0].message or "")
    wait_for(lambda: worker.said("worker_started"))
    worker.signal(signal.SIGTERM)
    wait_for(lambda: go_on(worker) and worker.process.poll() is not None, "the end of the worker")
    assert worker.wait() == 0
    assert pond.store.workers() == [] or case.victim == "keeper"
    jobs.sound()


def test_many_jobs_through_many_deaths_are_each_charged_once_a_death(lab: Lab) -> None:
    app = lab.app(
        "from millpond import Backoff, Context\n"
        "@pond.task(lease=3.0, max_attempts=50, retry=Backoff(base=0))\n"
        "def work(n, *, ctx: Context):\n"
        "    open(f'{folder}/runs', 'a').write(f'{n}:{ctx.attempt} ')\n"
        "    time.sleep(0.002)\n"
    )
    pond = lab.pond()
    lab.start(app, drain=True).wait()
    refs = [pond.enqueue("work", {"n": n}) for n in range(300)]
    worker = lab.start(app, concurrency=4)
    for round_ in range(1, 6):
        wait_for(lambda round_=round_: len(lab.lines("runs")) > 40 * round_)  # type: ignore[misc]
        for runner in worker.runners():
            os.kill(runner, signal.SIGKILL)
    jobs = Jobs(pond)
    jobs.wait_final(*(ref.id for ref in refs), seconds=2 * WAIT_S)
    runs = lab.lines("runs")
    assert len(set(runs)) == len(runs), "the same attempt ran twice"
    for n, ref in enumerate(refs):
        history = jobs.history(ref.id)
        assert history[-1].outcome == "completed"
        assert [attempt.number for attempt in history] == list(range(1, len(history) + 1))
        assert {attempt.outcome for attempt in history[:-1]} <= {"crashed", "lease_lost"}
        ran = sum(run.startswith(f"{n}:") for run in runs)
        assert ran <= len(history)
    worker.stop()
    jobs.sound()
