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
from millpond.demo.crash import Crash, Drama
from millpond.demo.crew import Crew, Worker
from millpond.demo.load import Load
from millpond.model import AttemptOutcome, StatusSnapshot

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
        """Whether the store lost nothing, and the killed report came back and is right."""
        back = self.crash is None or self.crash.good
        return back and not self.problems and not self.unfinished

    def to_json(self) -> dict[str, Any]:
        """Return the summary as JSON data."""
        return {
            "ok": self.good,
            "seconds": round(self.seconds, 1),
            "queues": self.queues,
            "recovered": self.recovered,
            "crash": self.crash and self.crash.to_json(),
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
        self._lost: set[int] = set()

    def run(self) -> Summary:
        """Run until the time is over or somebody wants it to end; return what was seen."""
        with tempfile.TemporaryDirectory(prefix="millpond-demo-") as name:
            url = str(Path(name) / "demo.db")
            with Crew(Path(name), url) as crew, Millpond(config=StoreConfig(url=url)) as pond:
                summary = self._play(crew, pond)
        self._audience.tell(f"{name} is gone, with the store, the reports and all logs")
        return summary

    def _play(self, crew: Crew, pond: Millpond) -> Summary:
        self._audience.tell(f"a store in {crew.folder}, {WORKERS} workers on three queues")
        for _ in range(WORKERS):
            crew.start()
        self._wait_for_workers(crew, pond)
        started = time.monotonic()
        drama = Drama(crew, pond, (self._seconds or 20.0) * CRASH_AFTER)
        self._work(crew, pond, drama, started)
        if self._stopped():
            self._audience.tell("no more jobs are made; a second Ctrl-C ends at once")
        return self._end(crew, pond, drama, started)

    def _wait_for_workers(self, crew: Crew, pond: Millpond) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and not self._stopped():
            if sum(worker.live for worker in pond.store.workers()) >= WORKERS:
                return
            crew.bury()
            time.sleep(TURN_S)

    def _work(self, crew: Crew, pond: Millpond, drama: Drama, started: float) -> None:
        while not self._stopped():
            elapsed = time.monotonic() - started
            left = None if self._seconds is None else self._seconds - elapsed
            if left is not None and left <= 0:
                return
            self._produce(pond, elapsed)
            self._supervise(crew)
            self._dramatise(crew, drama, elapsed)
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

    def _dramatise(self, crew: Crew, drama: Drama, elapsed: float) -> None:
        killed, said = drama.turn(elapsed)
        self._tell(said)
        if killed is not None and drama.crash is not None:
            self._lost.update(drama.crash.held)
            self._replace(crew, killed)

    def _tell(self, lines: list[str]) -> None:
        for line in lines:
            self._audience.tell(line)

    def _end(self, crew: Crew, pond: Millpond, drama: Drama, started: float) -> Summary:
        self._finish(crew, pond, drama)
        summary = Summary(seconds=time.monotonic() - started)
        if drama.crash is not None and drama.crash.pid:
            summary.crash = drama.crash
        summary.stopped_in_order = crew.stop()
        summary.queues = _by_queue(pond.store.status())
        summary.recovered = sum(_came_back(pond, job_id) for job_id in self._lost)
        summary.unfinished = pond.status().outstanding
        summary.problems = pond.verify()
        return summary

    def _finish(self, crew: Crew, pond: Millpond, drama: Drama) -> None:
        """Let the workers do what is left."""
        deadline = time.monotonic() + FINISH_S
        while pond.status().outstanding and time.monotonic() < deadline:
            self._supervise(crew)
            # On a slow machine the time is over before the worker was to die.
            self._tell(drama.watch()) if self._stopped() else self._dramatise(crew, drama, 0.0)
            self._audience.see(pond.store.status(), 0.0)
            time.sleep(TURN_S)
        self._tell(drama.watch())


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
