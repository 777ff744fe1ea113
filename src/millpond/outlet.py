"""Writing lines to a descriptor without ever waiting for who reads it.

A paused terminal or a stuck log collector fills its pipe, and a plain write would then stop
the process in the middle of a beat. Lines go through a bounded queue and a thread of their
own; what does not fit is dropped and counted.
"""

from __future__ import annotations

import atexit
import os
import select
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

ATOM = 512
"""Bytes that a pipe takes at once or not at all wherever POSIX holds."""
LOOK_S = 0.2
LAST_S = 1.0
"""How long the end of the process waits for lines that are still queued."""


class Outlet:
    """A descriptor with a thread that writes to it."""

    def __init__(self, fd: int, lines: int = 10_000) -> None:
        self._fd = fd
        self._most = lines
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._dropped = 0
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._write_all, name="millpond-log", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def put(self, line: str) -> None:
        """Queue a line; dropped and counted when too many wait."""
        if self._lines.qsize() >= self._most:
            self._dropped += 1
            return
        self._lines.put(f"{line}\n".encode(errors="backslashreplace"))

    def close(self) -> None:
        """Write what is queued, as far as the reader takes it within a second."""
        if self._deadline == float("inf"):
            self._deadline = time.monotonic() + LAST_S
            self._lines.put(None)
        self._thread.join(LAST_S + 2 * LOOK_S)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = b"(%d lines were dropped: nobody read them)\n" % dropped + line
            if not write(self._fd, line, self._until):
                self._fd = -1

    def _until(self) -> float:
        return self._deadline


def write(fd: int, data: bytes, until: Callable[[], float]) -> bool:
    """Write in pieces as the reader takes them; False when it is gone or the time is up."""
    view = memoryview(data)
    while view:
        if fd < 0 or time.monotonic() > until():
            return False
        try:
            if not select.select([], [fd], [], LOOK_S)[1]:
                continue
            view = view[os.write(fd, view[:ATOM]) :]
        except (OSError, ValueError):
            return False
    return True


def last_word(text: str, fd: int = 2) -> None:
    """Write a line to standard error at the end of a command, if anybody reads it."""
    line = f"{text}\n".encode(errors="backslashreplace")
    deadline = time.monotonic() + LAST_S
    write(fd, line, lambda: deadline)
