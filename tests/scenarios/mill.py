"""Real workers of a real application in a folder of its own, started, stopped and killed.

The settings that all scenarios share are here, and smaller where nothing depends on them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import psutil
import pytest
from tests.scenarios.standing import complaints
from tests.scenarios.yard import Note

from millpond import Attempt, Job, JobRef, Millpond

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

PATIENCE = 30.0
"""Seconds for what must come and has no bound of its own; only a failure waits so long."""

SETTINGS = {"recover": "500ms", "poll": "200ms", "drain": "5s", "busy": "5s"}

HEAD = """\
import asyncio, ctypes, os, signal, sys, threading, time
from millpond import Backoff, Context, Fail, JobCancelled, LeaseLost, Retry, Snooze
from tests.scenarios.yard import Yard

yard = Yard(__file__)
pond, note, gate, pause, hog = yard.pond, yard.note, yard.gate, yard.pause, yard.hog
FAST = dict(lease=LEASE, max_attempts=3, retry=Backoff(base=0.2))
"""


def soak(*values: Any) -> Any:
    """Return a parameter that only the long run tries: another one of its kind is tried always."""
    return pytest.param(*values, marks=pytest.mark.soak)


def until(condition: Callable[[], T], within: float = PATIENCE, *, what: str = "") -> T:
    """Return the first true answer; fail when none comes within so many seconds."""
    wait = threading.Event()
    ends = time.monotonic() + within
    while True:
        # Asked again after the end: this process may have been kept from the processor.
        last = time.monotonic() >= ends
        found = condition()
        if found:
            return found
        if last:
            pytest.fail(f"not within {within} s: {what or condition!r}")
        wait.wait(0.01)


def now_ms() -> int:
    """Return the wall clock as the store counts it."""
    return time.time_ns() // 1_000_000


@dataclass
class Worker:
    """A keeper process, and through it its runners."""

    process: subprocess.Popen[bytes]
    log: Path
    buried: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """Everything on its standard output and error."""
        return self.log.read_text(errors="replace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Its structured log lines, as far as they are whole."""
        whole = self.said.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return its lines of one name."""
        return [line for line in self.lines if line.get("event") == name]

    def ready(self) -> Worker:
        """Wait until it is registered. Its first job may have killed it since."""
        until(lambda: self.events("worker_started") or self.process.poll() is not None)
        assert self.events("worker_started"), self.said
        return self

    def runners(self) -> list[int]:
        """Return the processes that run the handlers."""
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(self.pid).children()]
        return []

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM, within: float = PATIENCE) -> int:
        """Ask it to end and return its exit code."""
        self.send(number)
        return self.ended(within)

    def ended(self, within: float = PATIENCE) -> int:
        """Wait for its end and return its exit code."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker has not ended within {within} s:\n{self.said[-4000:]}")

    def kill(self) -> None:
        """Kill the keeper and nobody else, and reap it."""
        self.process.kill()
        self.process.wait()

    def kill_all(self) -> None:
        """Kill the keeper and whatever it has started, and reap it; once."""
        if self.buried:
            return
        # The number may be another's later, so it is used only this once.
        self.buried = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Mill:
    """One application in a folder, its workers, and the jobs it was told are accepted."""

    folder: Path
    app: Any = None
    workers: list[Worker] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def pond(self) -> Millpond:
        return self.app.pond  # type: ignore[no-any-return]

    @property
    def environment(self) -> dict[str, str]:
        """What processes of this folder get: no settings of the machine's."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("MILLPOND_")}
        path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
        return {**own, "PYTHONPATH": path, "MILLPOND_LOG_FORMAT": "json"}

    # --- the application -------------------------------------------------------------------------

    def write(self, text: str, *, name: str = "app", lease: str = "1s") -> ModuleType:
        """Write an application's module and import it here, under a name of its own."""
        file = self.folder / f"{name}.py"
        file.write_text(HEAD.replace("LEASE", repr(lease)) + text)
        return self.load(name)

    def load(self, name: str = "app") -> ModuleType:
        """Import a module of the folder, anew each time."""
        unique = f"scenario_{name}_{abs(hash(self.folder))}_{len(self._names)}"
        spec = importlib.util.spec_from_file_location(unique, self.folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        self._names.append(unique)
        spec.loader.exec_module(module)
        self.app = module
        return module

    def put(self, task: str, *args: Any, count: int = 1, **options: Any) -> list[JobRef[Any]]:
        """Enqueue `count` jobs of a task in one commit; they must still be there at the end."""
        bound = getattr(self.app, task).using(**options)
        with self.pond.batch() as batch:
            for _ in range(count):
                batch.add(bound, *args)
        self.accepted += [ref.id for ref in batch.refs]
        return batch.refs

    def one(self, task: str, *args: Any, **options: Any) -> JobRef[Any]:
        """Enqueue one job."""
        (ref,) = self.put(task, *args, **options)
        return ref

    def open(self, gate: str) -> None:
        """Let handlers through a gate."""
        (self.folder / f"{gate}.open").touch()

    # --- workers ---------------------------------------------------------------------------------

    def worker(
        self, *arguments: str, app: str = "app:pond", fault: str = "", level: str = "info",
        env: dict[str, str] | None = None, **settings: object,
    ) -> Worker:  # fmt: skip
        """Start a worker process; settings are those of the [worker] table."""
        wanted = {**SETTINGS, "concurrency": 4, **settings}
        env = {
            **self.environment,
            **{f"MILLPOND_{name.upper()}": str(value) for name, value in wanted.items()},
            "MILLPOND_LOG_LEVEL": level,
            **(env or {}),
        }
        if fault:
            env["MILLPOND_FAULT"] = fault
        command = [sys.executable, "-m", "millpond", "worker", app, *arguments]
        return self.start(command, env)

    def start(self, command: list[str], env: dict[str, str] | None = None) -> Worker:
        """Start a process in the folder, in a group of its own, its output in a log."""
        log = self.folder / f"process-{len(self.workers)}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=env or self.environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        started = Worker(process, log)
        self.workers.append(started)
        return started

    def run(
        self, *arguments: str, env: dict[str, str] | None = None, within: float = PATIENCE
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of millpond to its end."""
        return subprocess.run(
            [sys.executable, "-m", "millpond", *arguments], cwd=self.folder, check=False,
            env={**self.environment, **(env or {})}, timeout=within, text=True,
            capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    # --- what happened ---------------------------------------------------------------------------

    def notes(self, word: str | None = None) -> list[Note]:
        """Return what handlers wrote down, only lines that start with `word` when it is given."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.folder / "notes").read_text().splitlines()
            found = [Note.read(line) for line in lines]
            return [note for note in found if word is None or note.words[0] == word]
        return []

    def pids(self, word: str) -> set[int]:
        """Return the processes that wrote such lines."""
        return {note.pid for note in self.notes(word)}

    def noted(self, word: str, count: int = 1, within: float = PATIENCE) -> list[Note]:
        """Wait until so many lines start with `word`."""
        what = f"{count} notes of {word!r}"
        until(lambda: len(self.notes(word)) >= count, within, what=what)
        return self.notes(word)

    def job(self, ref: JobRef[Any]) -> Job:
        return self.pond.get(ref.id)

    def history(self, ref: JobRef[Any]) -> list[Attempt]:
        return self.pond.attempts(ref.id)

    def outcomes(self, ref: JobRef[Any]) -> list[tuple[str, int | None]]:
        """Return outcome and charged number of every attempt."""
        return [(each.outcome.value, each.number) for each in self.history(ref)]

    def state(self, ref: JobRef[Any]) -> str:
        return self.job(ref).state.value

    def lease(self, ref: JobRef[Any]) -> int:
        """Return when the lease of a running job ends, in wall-clock milliseconds."""
        lease = self.job(ref).lease
        assert lease is not None, f"job {ref.id} does not run"
        assert lease.expires_at is not None
        return round(lease.expires_at.timestamp() * 1000)

    def becomes(self, ref: JobRef[Any], state: str, within: float = PATIENCE) -> Job:
        """Wait until a job is in this state."""
        until(lambda: self.job(ref).final or self.state(ref) == state, within)
        job = self.job(ref)
        assert job.state == state, (job, self.history(ref))
        return job

    def all_final(self, within: float = PATIENCE) -> Counter[str]:
        """Wait until nothing is outstanding; return how many ended how."""
        until(lambda: self.pond.status().outstanding == 0, within, what="nothing is outstanding")
        return Counter({state.value: n for state, n in self.pond.status().counts.items() if n})

    def end(self) -> None:
        """Kill what still runs and forget what was imported."""
        for worker in self.workers:
            worker.kill_all()
        for name in self._names:
            module = sys.modules.pop(name)
            if hasattr(module, "pond"):
                module.pond.close()


@contextlib.contextmanager
def building(folder: Path) -> Iterator[Mill]:
    """Hand out a mill; whatever happens its processes end, and then the standing checks hold."""
    mill = Mill(folder)
    try:
        yield mill
    finally:
        mill.end()
    assert complaints(mill.path, mill.accepted) == []
