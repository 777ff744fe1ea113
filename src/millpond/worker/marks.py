"""Which claimed jobs have started: a small file that outlives the processes that write it.

The keeper enters a job before it feeds it, the runner marks it started before it calls the
handler and returned after it. When either dies, whoever settles the rest can tell what never
ran (it costs no attempt) from what did. Keeper and runners hold a shared lock on the file as
long as they live, so that nobody judges by the marks of a worker that only stands still.

The header also shows the keeper's latest beat, so that a runner that was kept from reading
its link never takes a lease for expired that was renewed meanwhile.

Layout: a header, then entries of 32 bytes: job, claim, start (wall clock, ms) and one byte of
state, which is written last and therefore vouches for the others.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from millpond.model import JobId, Token

_HEADER = struct.Struct("<8sIIq40x")
_RENEWED = struct.Struct("q")  # native, and aligned: written and read in one piece
_RENEWED_AT = 24
_MAGIC = b"MPMARKS1"
_ENTRY = struct.Struct("<qqqB7x")
_FIELDS = struct.Struct("<qqqB")
_IDS = struct.Struct("<qq")
_MOMENT = struct.Struct("<q")
_STARTED_AT = 16
_STATE = 24
_FIRST = _HEADER.size
_SIZE = _ENTRY.size
_STATE_OF_FIRST = _FIRST + _STATE
_MOST = 1 << 20

_LOOKS = 3
_LOOK_AGAIN_S = 0.001
"""Another keeper may be reading the same marks, which takes far less than this."""


class Stage(IntEnum):
    """How far a fed job has come."""

    FREE = 0
    FED = 1
    STARTED = 2
    RETURNED = 3


class Mark(NamedTuple):
    """What the file says about one job."""

    stage: Stage
    started_at: int | None


class Marks:
    """The entries, shared by a keeper and its runners; without a path they are private memory."""

    def __init__(
        self, memory: mmap.mmap, capacity: int, fd: int = -1, path: str | None = None
    ) -> None:
        self._memory = memory
        self._fd = fd
        self.path = path
        self.capacity = capacity
        self._free = list(range(capacity - 1, -1, -1))

    @classmethod
    def create(cls, path: Path | None, capacity: int) -> Marks:
        """Return fresh marks in a new file at `path`, or in memory when it is None.

        Raises OSError when the file cannot be made or there is no room for all of it.
        """
        size = _HEADER.size + capacity * _ENTRY.size
        if path is None:
            return cls(mmap.mmap(-1, size), capacity)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Room for every page now: a full disk must not become a bus error later.
            os.posix_fallocate(fd, 0, size)
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            memory = mmap.mmap(fd, size)
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        _HEADER.pack_into(memory, 0, _MAGIC, _ENTRY.size, capacity, os.getpid())
        return cls(memory, capacity, fd, str(path))

    @classmethod
    def attach(cls, path: str) -> Marks:
        """Return the marks that a keeper made at `path`, for its runner."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            memory = mmap.mmap(fd, 0)
            capacity = _capacity(memory)
        except (OSError, ValueError):
            os.close(fd)
            raise
        return cls(memory, capacity, fd, path)

    def enter(self, token: Token) -> int | None:
        """Note a job that is about to be fed; its place, None when all are taken."""
        if not self._free:
            return None
        place = self._free.pop()
        # The place says FREE, and the state is written after the rest.
        _FIELDS.pack_into(
            self._memory, _FIRST + place * _SIZE, token.job_id, token.claim, 0, Stage.FED
        )
        return place

    def started(self, place: int, at_ms: int) -> None:
        """Note that the handler is about to be called."""
        at = _FIRST + place * _SIZE
        _MOMENT.pack_into(self._memory, at + _STARTED_AT, at_ms)
        self._memory[at + _STATE] = Stage.STARTED

    def returned(self, place: int) -> None:
        """Note that the handler has returned or raised."""
        self._memory[_STATE_OF_FIRST + place * _SIZE] = Stage.RETURNED

    def look(self, place: int) -> Mark:
        """Return what stands at a place."""
        return _mark(self._memory, place)

    def leave(self, place: int) -> None:
        """Give a place back, after its job is settled or handed back."""
        self.leave_all([place])

    def leave_all(self, places: Iterable[int]) -> None:
        """Give places back."""
        memory, free = self._memory, self._free.append
        for place in places:
            memory[_STATE_OF_FIRST + place * _SIZE] = 0
            free(place)

    def renew(self, mono: int) -> None:
        """Show that a beat was committed at this reading of the monotonic clock."""
        _RENEWED.pack_into(self._memory, _RENEWED_AT, mono)

    @property
    def renewed(self) -> int:
        """When the keeper's latest beat was committed, 0 before the first."""
        return int(_RENEWED.unpack_from(self._memory, _RENEWED_AT)[0])

    def close(self, *, remove: bool = False) -> None:
        """Let go of the memory and the lock; `remove` deletes the file, at a clean end."""
        self._memory.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if remove and self.path is not None:
            Path(self.path).unlink(missing_ok=True)


def read(path: str) -> dict[Token, Mark] | None:
    """Return the marks of a worker that is dead, None when they cannot be trusted.

    A job that is not in them was never fed. None, when the file is gone or broken, belongs
    to somebody else, or its keeper or a runner still lives: count every job as started then.
    """
    for _ in range(_LOOKS):
        try:
            whole = _copied(path)
            return dict(_entries(whole, _capacity(whole)))
        except BlockingIOError:
            time.sleep(_LOOK_AGAIN_S)
        except (OSError, ValueError):
            return None
    return None


def remove(path: str) -> None:
    """Delete the marks of a dead worker, once all its jobs are recovered."""
    with contextlib.suppress(OSError):
        Path(path).unlink()


def _copied(path: str) -> bytes:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _entries(memory: bytes, capacity: int) -> list[tuple[Token, Mark]]:
    found = []
    for place in range(capacity):
        mark = _mark(memory, place)
        if mark.stage is not Stage.FREE:
            job, claim = _IDS.unpack_from(memory, _FIRST + place * _SIZE)
            found.append((Token(JobId(job), claim), mark))
    return found


def _mark(memory: mmap.mmap | bytes, place: int) -> Mark:
    _, _, started_at, state = _ENTRY.unpack_from(memory, _FIRST + place * _SIZE)
    stage = Stage(state)
    return Mark(stage, started_at if stage >= Stage.STARTED else None)


def _capacity(memory: mmap.mmap | bytes) -> int:
    if len(memory) < _HEADER.size:
        msg = "no marks: the file is shorter than its header"
        raise ValueError(msg)
    magic, entry, capacity, _ = _HEADER.unpack_from(memory, 0)
    whole = len(memory) == _HEADER.size + capacity * _ENTRY.size
    if magic != _MAGIC or entry != _ENTRY.size or not whole or capacity > _MOST:
        msg = "no marks: the header does not fit"
        raise ValueError(msg)
    return int(capacity)
