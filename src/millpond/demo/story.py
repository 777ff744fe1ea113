"""What happens in the demo, turn by turn; whoever shows it is told and asked nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from millpond.app import Millpond
from millpond.config import StoreConfig
from millpond.demo.crew import Crew, Worker
from millpond.demo.load import Load
from millpond.model import AttemptOutcome, StatusSnapshot
from millpond.task.jobs import Job

TURN_S = 0.1
WORKERS = 2

CRASH_AFTER = 0.15
"""The part of the whole time after which a worker is killed, the rest is for its jobs to return."""

FINISH_S = 20.0
"""How long the last jobs may take once no more are made."""

READY_S = 20.0
"""How long the workers may take to start."""

_LOST = frozenset({AttemptOutcome.LEASE_LOST, AttemptOutcome.CRASHED, AttemptOutcome.RELEASED})


class Audience(Protocol):
    """Who watches."""

    def tell(self, line: str) -> None:
        """Hear of something that happened."""
        ...

    def see(self, now: StatusSnapshot, left_s: float | None) -> None:
        """See how things stand; `left_s` is None in a demo without an end."""
        ...


@dataclass(slots=True)
class Crash:
    """A worker that was killed with the jobs that it held, and what became of the long one."""

    pid: int
    job: int
    held: tuple[int, ...]
    at: float
    back_s: float | None = None
    attempts: int = 0
    outcome: str = ""


@dataclass(slots=True)
class Summary:
    """What the demo has shown."""

    seconds: float = 0
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    recovered: int = 0
    crash: Crash | None = None
    unfinished: int = 0
    stopped_in_order: bool = True
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether the store lost nothing and the killed job came back."""
        back = self.crash is None or self.crash.back_s is not None
        return back and not self.problems and not self.unfinished

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON data."""
        crash = self.crash and {
            "worker_pid": self.crash.pid,
            "job": self.crash.job,
            "held": list(self.crash.held),
            "first_attempt": self.crash.outcome,
            "attempts": self.crash.attempts,
            "back_after_s": self.crash.back_s,
        }
        return {
            "ok": self.good,
            "seconds": round(self.seconds, 1),
            "queues": self.queues,
            "recovered": self.recovered,
            "crash": crash,
            "unfinished": self.unfinished,
            "problems": self.problems,
        }


class Story:
    """One run of the demo in a temporary folder that is gone when it ends, however it ends."""

    def __init__(
        self,
        audience: Audience,
        *,
        seconds: float | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._audience = audience
        self._seconds = seconds
        self._stopped = stopped
        self._load = Load()
        self._crash: Crash | None = None
        self._lost: set[int] = set()

    def run(self) -> Summary:
        """Run until the time is over or somebody wants it to end; return what was seen."""
        with tempfile.TemporaryDirectory(prefix="millpond-demo-") as name:
            url = str(Path(name) / "demo.db")
            with Crew(Path(name), url) as crew, Millpond(config=StoreConfig(url=url)) as pond:
                return self._play(crew, pond)

    def _play(self, crew: Crew, pond: Millpond) -> Summary:
        self._audience.tell(f"a store in {crew.folder}, {WORKERS} workers on three queues")
        for _ in range(WORKERS):
            crew.start()
        self._wait_for_workers(crew, pond)
        started = time.monotonic()
        self._work(crew, pond, started)
        if self._stopped():
            self._audience.tell("no more jobs are made; a second Ctrl-C ends at once")
        return self._end(crew, pond, started)

    def _wait_for_workers(self, crew: Crew, pond: Millpond) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and not self._stopped():
            if sum(worker.live for worker in pond.store.workers()) >= WORKERS:
                return
            crew.bury()
            time.sleep(TURN_S)

    def _work(self, crew: Crew, pond: Millpond, started: float) -> None:
        while not self._stopped():
            elapsed = time.monotonic() - started
            left = None if self._seconds is None else self._seconds - elapsed
            if left is not None and left <= 0:
                return
            self._produce(pond, elapsed)
            self._supervise(crew)
            self._dramatise(crew, pond, elapsed)
            self._audience.see(pond.store.status(), left)
            time.sleep(TURN_S)

    def _produce(self, pond: Millpond, elapsed: float) -> None:
        due = list(self._load.due(elapsed))
        if due:
            with pond.batch() as batch:
                for task, payload in due:
                    batch.add_by_name(task, payload)

    def _supervise(self, crew: Crew) -> None:
        """Do what systemd or a container's host does: start again what was killed."""
        for worker in crew.bury():
            self._replace(crew, worker)

    def _replace(self, crew: Crew, worker: Worker) -> None:
        fresh = crew.start()
        self._audience.tell(f"worker {worker.pid} is gone; worker {fresh.pid} takes its place")

    def _dramatise(self, crew: Crew, pond: Millpond, elapsed: float) -> None:
        """Let a long job start, kill its worker, and watch the job come back."""
        wanted = (self._seconds or 20.0) * CRASH_AFTER
        if self._crash is None:
            if elapsed >= wanted:
                self._begin_crash(crew, pond)
        elif not self._crash.pid:
            self._strike(crew, pond, self._crash)
        elif self._crash.back_s is None:
            self._watch(pond, self._crash)

    def _begin_crash(self, crew: Crew, pond: Millpond) -> None:  # noqa: ARG002
        ref = pond.enqueue("build_report", {"number": 0}, priority=0)
        self._crash = Crash(pid=0, job=ref.id, held=(), at=0.0)

    def _strike(self, crew: Crew, pond: Millpond, crash: Crash) -> None:
        job = pond.get(crash.job)
        victim = _holder(crew, job)
        if victim is None or job.progress is None:
            return
        held = [each.id for each in pond.jobs(state="running", limit=100) if _on(victim, each)]
        crash.pid, crash.held, crash.at = victim.pid, tuple(held), time.monotonic()
        self._lost.update(held)
        self._audience.tell(
            f"kill -9 {victim.pid}: the worker dies at page {job.progress.done:g} of report "
            f"{crash.job}; it held {len(held)} of the running jobs"
        )
        crew.kill(victim)
        self._replace(crew, victim)

    def _watch(self, pond: Millpond, crash: Crash) -> None:
        job = pond.get(crash.job)
        history = pond.attempts(crash.job)
        if not history or not (job.lease or job.final):
            return
        crash.back_s = round(time.monotonic() - crash.at, 1)
        crash.attempts, crash.outcome = job.attempts, history[0].outcome.value
        where = f" on {job.lease.owner}" if job.lease else ""
        self._audience.tell(
            f"report {crash.job} is back after {crash.back_s} s as attempt {job.attempts}{where}; "
            f"attempt 1 is in its history as {crash.outcome}"
        )

    def _end(self, crew: Crew, pond: Millpond, started: float) -> Summary:
        self._finish(crew, pond)
        summary = Summary(seconds=time.monotonic() - started, crash=self._crash)
        if self._crash is not None and not self._crash.pid:
            summary.crash = None
        summary.stopped_in_order = crew.stop()
        summary.queues = _by_queue(pond.store.status())
        summary.recovered = sum(_came_back(pond, job_id) for job_id in self._lost)
        summary.unfinished = pond.status().outstanding
        summary.problems = pond.verify()
        return summary

    def _finish(self, crew: Crew, pond: Millpond) -> None:
        """Let the workers do what is left."""
        deadline = time.monotonic() + FINISH_S
        while pond.status().outstanding and time.monotonic() < deadline:
            self._supervise(crew)
            if self._crash is not None and self._crash.pid and self._crash.back_s is None:
                self._watch(pond, self._crash)
            self._audience.see(pond.store.status(), 0.0)
            time.sleep(TURN_S)


def _holder(crew: Crew, job: Job) -> Worker | None:
    return next((worker for worker in crew.workers if _on(worker, job)), None)


def _on(worker: Worker, job: Job) -> bool:
    return job.lease is not None and job.lease.owner.endswith(f":{worker.pid}")


def _came_back(pond: Millpond, job_id: int) -> bool:
    """Tell whether a job of a killed worker was taken back and has since ended well."""
    ended = pond.get(job_id).state == "completed"
    return ended and any(attempt.outcome in _LOST for attempt in pond.attempts(job_id))


def _by_queue(now: StatusSnapshot) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for lane in now.lanes:
        counts = found.setdefault(lane.queue, {"completed": 0, "retried": 0, "failed": 0})
        counts["completed"] += lane.completed
        counts["retried"] += lane.retried
        counts["failed"] += lane.failed
    return found
