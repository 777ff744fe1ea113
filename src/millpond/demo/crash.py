"""The drama of the demo: a long report, the death of its worker, and what comes back."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.app import Millpond
from millpond.demo import report
from millpond.demo.crew import Crew, Worker
from millpond.task.jobs import Job

MONTHS = range(1, 13)

STRIKE_AFTER = 4
"""Months that are finished before the worker is killed: some are left, and some can be reused."""


@dataclass(slots=True)
class Outcome:
    """What became of the report: which attempt made how many of its months, and is it right."""

    reused: int
    made_again: int
    right: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"reused": self.reused, "made_again": self.made_again, "right": self.right}


@dataclass(slots=True)
class Crash:
    """A worker that was killed with the jobs that it held, and what became of the long one."""

    pid: int
    job: int
    held: tuple[int, ...]
    at: float
    finished: tuple[str, ...] = ()
    half: tuple[str, ...] = ()
    back_s: float | None = None
    attempts: int = 0
    outcome: str = ""
    report: Outcome | None = None

    @property
    def good(self) -> bool:
        """Whether the report came back, and is right."""
        return self.back_s is not None and self.report is not None and self.report.right

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {
            "worker_pid": self.pid,
            "job": self.job,
            "held": list(self.held),
            "finished": list(self.finished),
            "half_written": list(self.half),
            "first_attempt": self.outcome,
            "attempts": self.attempts,
            "back_after_s": self.back_s,
            "report": None if self.report is None else self.report.to_json(),
        }


@dataclass(slots=True)
class Drama:
    """Asks for a long report, kills its worker half-way, and watches it come back."""

    crew: Crew
    pond: Millpond
    begins_s: float
    crash: Crash | None = None
    _said: list[str] = field(default_factory=list)

    def turn(self, elapsed_s: float) -> tuple[Worker | None, list[str]]:
        """Play one turn; return the worker that was killed in it, and what there is to tell."""
        self._said = []
        killed = None
        if self.crash is None:
            if elapsed_s >= self.begins_s:
                self.crash = self._begin()
        elif not self.crash.pid:
            killed = self._strike(self.crash)
        else:
            self.watch()
        return killed, self._said

    def watch(self) -> list[str]:
        """Look what became of the killed report; return what there is to tell."""
        self._said = []
        crash = self.crash
        if crash is not None and crash.pid:
            job = self.pond.get(crash.job)
            if crash.back_s is None:
                self._see_return(crash, job)
            if crash.back_s is not None and crash.report is None and job.final:
                self._see_outcome(crash, job)
        return self._said

    def _begin(self) -> Crash:
        ref = self.pond.enqueue("build_report", {"number": 0, "months": len(MONTHS)}, priority=0)
        self._said.append(f"somebody wants a report on a year, made month by month: job {ref.id}")
        return Crash(pid=0, job=ref.id, held=(), at=0.0)

    def _strike(self, crash: Crash) -> Worker | None:
        folder = self._folder(crash)
        victim = next(
            (each for each in self.crew.workers if on(each, self.pond.get(crash.job))), None
        )
        if victim is None or len(report.finished(folder)) < STRIKE_AFTER:
            return None
        held = [each.id for each in self.pond.jobs(state="running", limit=100) if on(victim, each)]
        self.crew.kill(victim)
        crash.pid, crash.held, crash.at = victim.pid, tuple(held), time.monotonic()
        crash.finished = tuple(report.finished(folder))
        crash.half = tuple(report.half_written(folder))
        half = f"{crash.half[0]} is half written" if crash.half else "none is half written"
        self._said.append(
            f"kill -9 {victim.pid}: the worker of report {crash.job} dies; {len(crash.finished)} "
            f"months are finished, {half}; it held {len(held)} of the running jobs"
        )
        return victim

    def _see_return(self, crash: Crash, job: Job) -> None:
        history = self.pond.attempts(crash.job)
        if not history or not (job.lease or job.final):
            return
        crash.back_s = round(time.monotonic() - crash.at, 1)
        crash.attempts, crash.outcome = job.attempts, history[0].outcome.value
        where = f" on {job.lease.owner}" if job.lease else ""
        self._said.append(
            f"report {crash.job} is back after {crash.back_s} s as attempt {job.attempts}{where}; "
            f"attempt 1 is in its history as {crash.outcome}"
        )

    def _see_outcome(self, crash: Crash, job: Job) -> None:
        made = (self.pond.result(job.operation_id, default={}) or {}).get("made", {})
        reused = sum(attempt == 1 for attempt in made.values())
        right = report.is_right(self._folder(crash) / "report.csv", 0, MONTHS)
        crash.report = Outcome(reused, len(made) - reused, right)
        self._said.append(
            f"report {crash.job} is ready: {reused} months were taken over from attempt 1, "
            f"{crash.report.made_again} were made since; "
            + ("every row is there once" if right else "ITS ROWS ARE WRONG")
        )

    def _folder(self, crash: Crash) -> Path:
        return self.crew.folder / report.REPORTS / str(crash.job)


def on(worker: Worker, job: Job) -> bool:
    """Tell whether a worker holds a job."""
    return job.lease is not None and job.lease.owner.endswith(f":{worker.pid}")
