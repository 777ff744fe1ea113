"""What the stories of the examples share: a folder to play in, and processes to start and kill."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 45.0
"""How long anything may take; on a quiet machine nothing takes a tenth of it."""


def say(text: str) -> None:
    """Tell the audience a sentence."""
    print(text, flush=True)


def check(fact: object, sentence: str) -> None:
    """Tell a sentence that is a fact; the story ends when it is none."""
    if not fact:
        sys.exit(f"This should be true and is not: {sentence}")
    say(f"   {sentence}")


def until(condition: Callable[[], T], what: str) -> T:
    """Return the first true answer; the story ends when none comes."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    sys.exit(f"Gave up after {PATIENCE_S:.0f} s waiting until {what}")


@dataclass
class Stage:
    """A folder with a copy of an example, and the processes that were started in it."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, command: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a program of the folder, in a process group of its own, its output in a log."""
        log = self.folder / f"process-{len(self.processes) + 1}.log"
        mine = {name: value for name, value in os.environ.items() if "MILLPOND" not in name}
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=self.folder,
                env=mine | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def worker(self, fault: str = "") -> subprocess.Popen[bytes]:
        """Start a worker; `fault` is where it kills itself."""
        armed = {"MILLPOND_FAULT": fault} if fault else {}
        return self.start(["-m", "millpond", "worker", "app:pond"], **armed)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Do what a power failure does: kill -9 for the process and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Ask a worker to end, and wait until it has."""
        process.terminate()
        process.wait(PATIENCE_S)


@contextlib.contextmanager
def stage(example: Path, arguments: Sequence[str]) -> Iterator[Stage]:
    """Copy an example into the folder that was named, else a new one, and play there.

    Whatever happens, no process is left. The folder stays, to be looked at.
    """
    folder = Path(arguments[0] if arguments else tempfile.mkdtemp(prefix=f"{example.name}-"))
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.db")):
        sys.exit(f"There is a database in {folder} already: name an empty folder.")
    for file in (*example.glob("*.py"), *example.glob("*.toml")):
        shutil.copy(file, folder)
    logging.basicConfig(filename=folder / "story.log")
    os.chdir(folder)
    sys.path.insert(0, str(folder.resolve()))
    playing = Stage(folder.resolve())
    try:
        yield playing
    finally:
        for process in playing.processes:
            playing.kill(process)
