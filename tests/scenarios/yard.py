"""What the handlers of a scenario's application use: notes, gates and pauses, as files.

A scenario's application is a module in a folder of its own. Whatever its handlers do they
write down there, one whole line for each thing, so that a process that is killed takes
nothing back.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from millpond import Millpond


@dataclass(frozen=True)
class Note:
    """One line that a handler wrote: when (wall clock, ms), in which process, what."""

    at: int
    pid: int
    words: tuple[str, ...]

    @classmethod
    def read(cls, line: str) -> Note:
        at, pid, *words = line.split()
        return cls(int(at), int(pid), tuple(words))


class Yard:
    """The folder of one application; `file` is the application's own module."""

    def __init__(self, file: str) -> None:
        self.folder = Path(file).absolute().parent
        self.pond = Millpond(str(self.folder / "jobs.db"))

    def note(self, *words: object) -> None:
        """Write a line that outlives this process."""
        text = " ".join(map(str, (time.time_ns() // 1_000_000, os.getpid(), *words)))
        fd = os.open(self.folder / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, f"{text}\n".encode())
        finally:
            os.close(fd)

    def gate(self, name: str, within: float = 60.0) -> None:
        """Wait until the test opens the gate of this name."""
        ends = time.monotonic() + within
        while not (self.folder / f"{name}.open").exists():
            if time.monotonic() >= ends:
                msg = f"gate {name} was not opened"
                raise TimeoutError(msg)
            self.pause(0.005)

    @staticmethod
    def pause(seconds: float) -> None:
        """Stand for work that takes this long and gives the interpreter away."""
        threading.Event().wait(seconds)

    @staticmethod
    def hog(seconds: float) -> None:
        """Stand for work in C that keeps the interpreter all the while."""
        import ctypes

        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
