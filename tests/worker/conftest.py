"""What tests of whole workers share: a pond in a temporary file, and a program around one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.fakes import WAIT_S

from millpond.app import Millpond
from millpond.clock import ManualClock, SystemClock
from millpond.config import StoreConfig, WorkerConfig
from millpond.model import AttemptRow, JobId, JobRow, State
from millpond.worker import EmbeddedWorker

MAIN = """
import json, sys
from millpond.config import LogConfig, Serve, WorkerConfig
from millpond.worker import run_worker
given = json.loads(sys.argv[1])
app, options = given.pop("app"), given.pop("options")
queues = tuple(Serve.parse(each) for each in given.pop("queues", ()))
log = LogConfig(level=given.pop("level", "debug"))
sys.exit(run_worker(app, WorkerConfig(queues=queues, **given), log=log, **options))
"""

SUBREAPER = """
import ctypes
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
"""

QUICK = {"beat_ms": None, "poll_ms": 200, "recover_ms": 300, "drain_ms": 5_000}


def wait_for(there: Callable[[], Any], what: str = "it", seconds: float = WAIT_S) -> Any:
    """Look again and again, with an end, until something is there; what other processes do."""
    ends = time.monotonic() + seconds
    pause = threading.Event()
    while not (found := there()):
        if time.monotonic() > ends:
            pytest.fail(f"{what} has not come in {seconds} s")
        pause.wait(0.01)
    return found


class Lab:
    """One store in a temporary folder, embedded workers and worker processes around it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.url = str(folder / "jobs.db")
        self.processes: list[Worker] = []
        self.subreaper = False
        self._ponds: list[Millpond] = []

    def pond(self, clock: ManualClock | None = None, **options: Any) -> Millpond:
        config = StoreConfig(url=self.url, **options)
        made = Millpond(config=config, clock=clock or SystemClock())
        self._ponds.append(made)
        return made

    def worker(self, pond: Millpond, **options: Any) -> EmbeddedWorker:
        return EmbeddedWorker(pond, WorkerConfig(**{**QUICK, **options}))

    def app(self, code: str, name: str = "app") -> str:
        """Write an application whose pond uses this lab's store."""
        head = (
            "import asyncio, os, signal, sys, threading, time\n"
            "from millpond.app import Millpond\n"
            "from millpond import fault\n"
            f"from millpond.config import StoreConfig\n"
            f"pond = Millpond(config=StoreConfig(url={self.url!r}))\n"
            f"folder = {str(self.folder)!r}\n"
        )
        (self.folder / f"{name}.py").write_text(head + code, encoding="utf-8")
        return f"{name}:pond"

    def start(
        self,
        app: str,
        *,
        faults: str = "",
        env: dict[str, str] | None = None,
        once: bool = False,
        drain: bool = False,
        adopt: bool | None = None,
        **config: Any,
    ) -> Worker:
        given = {
            "app": app,
            "options": {"once": once, "drain": drain, "adopt": adopt},
            "processes": 1,
            **QUICK,
            **config,
        }
        log = self.folder / f"worker-{len(self.processes)}.log"
        main = SUBREAPER + MAIN if self.subreaper else MAIN
        environ = {**os.environ, "MILLPOND_FAULT": faults, **(env or {})}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-c", main, json.dumps(given)],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        worker = Worker(process, log)
        self.processes.append(worker)
        return worker

    def touched(self, name: str) -> bool:
        return (self.folder / name).exists()

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text(encoding="utf-8").split() if path.exists() else []

    def close(self) -> None:
        for worker in self.processes:
            worker.close()
        for pond in self._ponds:
            pond.close()


class Worker:
    """A worker process and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def said(self, words: str) -> bool:
        return words in self.log()

    def runners(self) -> list[int]:
        try:
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        except OSError:
            return []
        return [int(pid) for pid in text.split()]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = WAIT_S) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker has not ended in {seconds} s:\n{self.log()}")

    def stop(self) -> str:
        """Drain; return the last line."""
        wait_for(lambda: self.said("worker_started"), "the start of the worker")
        self.signal(signal.SIGTERM)
        assert self.wait() == 0, self.log()
        return self.log().strip().splitlines()[-1]

    def close(self) -> None:
        children = self.runners()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


class Jobs:
    """Looks at jobs through a pond's store."""

    def __init__(self, pond: Millpond) -> None:
        self.store = pond.store

    def row(self, ident: int) -> JobRow:
        found = self.store.get(JobId(ident))
        assert found is not None
        return found

    def state(self, ident: int) -> State:
        return self.row(ident).state

    def history(self, ident: int) -> list[AttemptRow]:
        return self.store.attempts(JobId(ident))

    def outcomes(self, ident: int) -> list[str]:
        return [attempt.outcome.value for attempt in self.history(ident)]

    def wait_final(self, *idents: int, seconds: float = WAIT_S) -> list[State]:
        def final() -> bool:
            return all(
                self.state(each) in {State.COMPLETED, State.FAILED, State.CANCELLED}
                for each in idents
            )

        wait_for(final, f"a final state of {idents}", seconds)
        return [self.state(each) for each in idents]

    def wait_running(self, *idents: int) -> None:
        wait_for(
            lambda: all(self.state(each) is State.RUNNING for each in idents),
            f"running of {idents}",
        )

    def sound(self) -> None:
        """The file, every state and every counter are in order."""
        assert self.store.verify() == []
        assert self.store.drift() == []


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path, monkeypatch)
    yield made
    made.close()
