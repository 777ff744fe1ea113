"""The demo's worker processes: started, killed, started again, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from millpond.errors import MillpondError

SETTINGS = """\
[worker]
concurrency = 4
beat = "500ms"
poll = "200ms"
recover = "250ms"
drain = "3s"
"""

STOP_S = 8.0
"""How long stopped workers may take: the drain time, the time to clean up, and some more."""

_TAIL = 15


class WorkerDied(MillpondError):
    """A worker of the demo ended although nobody had asked it to."""


@dataclass(slots=True)
class Worker:
    """One worker process, its log, and whether the demo itself has killed it."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    killed: bool = False

    @property
    def pid(self) -> int:
        """The process id of the worker, which also names the group of its runners."""
        return self.process.pid


@dataclass(slots=True)
class Crew:
    """The workers of one store, in a `with` block at whose end none of them is left."""

    folder: Path
    url: str
    workers: list[Worker] = field(default_factory=list)
    _count: int = 0

    def __enter__(self) -> Self:
        (self.folder / "millpond.toml").write_text(SETTINGS, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            _kill(worker)

    def start(self) -> Worker:
        """Start a worker; it leads a group of its own, which Ctrl-C in the terminal spares."""
        self._count += 1
        log = self.folder / f"worker-{self._count}.log"
        with log.open("wb") as lines:
            process = subprocess.Popen(
                [sys.executable, "-m", "millpond", "worker", "millpond.demo.app:pond"],
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=lines,
                cwd=self.folder,
                env=environment(os.environ, self.folder, self.url),
                start_new_session=True,
            )
        worker = Worker(self._count, process, log)
        self.workers.append(worker)
        return worker

    def kill(self, worker: Worker) -> None:
        """End a worker and its runners as a power failure would: SIGKILL, no last words."""
        worker.killed = True
        _kill(worker)
        self.workers.remove(worker)

    def bury(self) -> list[Worker]:
        """Return the workers that somebody else has killed, and forget them.

        Raises WorkerDied, with the end of its log, for one that ended by itself.
        """
        gone = [worker for worker in self.workers if worker.process.poll() is not None]
        for worker in gone:
            self.workers.remove(worker)
            if worker.process.returncode != -signal.SIGKILL:
                tail = worker.log.read_text(encoding="utf-8", errors="replace").splitlines()
                said = "\n".join(tail[-_TAIL:])
                code = worker.process.returncode
                raise WorkerDied(f"a worker of the demo ended with code {code}:\n{said}")
            # Its runners end with it; whatever is left of the group ends now.
            _kill(worker)
        return gone

    def stop(self) -> bool:
        """Ask all workers to stop in order; tell whether they did so in time."""
        for worker in self.workers:
            worker.process.terminate()
        deadline = time.monotonic() + STOP_S
        clean = True
        for worker in self.workers:
            try:
                code = worker.process.wait(max(deadline - time.monotonic(), 0.01))
            except subprocess.TimeoutExpired:
                code = None
            clean = clean and code == 0
        return clean


def environment(own: Mapping[str, str], folder: Path, url: str) -> dict[str, str]:
    """Return a worker's environment: nothing of the user's settings, all paths absolute."""
    kept = {name: value for name, value in own.items() if not name.startswith("MILLPOND_")}
    if "PYTHONPATH" in kept:
        parts = (os.path.abspath(part) for part in kept["PYTHONPATH"].split(os.pathsep))  # noqa: PTH100  links stay
        kept["PYTHONPATH"] = os.pathsep.join(parts)
    return kept | {"MILLPOND_URL": url, "MILLPOND_CONFIG": str(folder / "millpond.toml")}


def _kill(worker: Worker) -> None:
    """End a worker's whole group; a process of ours that has ended already is only reaped."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.process.wait()
