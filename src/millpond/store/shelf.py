"""Files that final jobs are moved to: what every kind can do, and the kind made of JSON lines.

A batch is written, then on disk, then deleted from the store, which writes down how far the
file counts in that same transaction. What stands beyond has not been deleted anywhere and is
cut off again, unless the store has lost those jobs otherwise.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from millpond.errors import BadConfig
from millpond.model import JobId

_BLOCK = 65_536
"""Bytes that are read at once while the last line's end is looked for."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Ref(NamedTuple):
    """A final job as it was when it was found: one that is put back ends at another moment."""

    id: JobId
    finished_at: int


class Shelf(Protocol):
    """A file that final jobs are moved to; positions grow with what it holds."""

    def position(self) -> int:
        """Return the end of what it holds."""
        ...

    def tail(self, position: int) -> list[Ref] | None:
        """Return the jobs after a position; None when the file was never as long as that."""
        ...

    def cut(self, position: int) -> None:
        """Take off what stands after a position."""
        ...

    def write(self, refs: Sequence[Ref]) -> int:
        """Write jobs with all that belongs to them, not yet safely; return how many were there."""
        ...

    def sync(self) -> int:
        """Return the new end once everything is on disk."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class _Line(msgspec.Struct, frozen=True):
    """What a line must tell to be recognised."""

    id: int
    finished_at: str


_decode = msgspec.json.Decoder(_Line).decode


class LineFile:
    """A file of JSON objects, one a line, each a job of one store.

    An existing file is held to that: it must be empty, or begin with a job of this store.
    """

    def __init__(self, path: Path, store_id: str) -> None:
        self._path = path
        new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
        try:
            self._check(store_id)
            self._end = self._drop_half_line()
            if new:
                os.fsync(self._file)
                sync_folder(path)
        except BaseException:
            os.close(self._file)
            raise

    def _check(self, store_id: str) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise BadConfig(f"{self._path} is no plain file: an archive must be one")
        begins = f'{{"store":"{store_id}",'.encode()
        found = os.pread(self._file, len(begins), 0)
        # Shorter than that is an empty file, or the first line of a process that was killed.
        if not begins.startswith(found):
            raise BadConfig(
                f"{self._path} holds something else than jobs of this store: nothing was "
                "written; name another file"
            )

    def _drop_half_line(self) -> int:
        """Cut off a line that was being written when its process was killed."""
        end = size = os.fstat(self._file).st_size
        while end > 0:
            start = max(end - _BLOCK, 0)
            at = os.pread(self._file, end - start, start).rfind(b"\n")
            end = start + at + 1 if at >= 0 else start
            if at >= 0:
                break
        if end < size:
            os.ftruncate(self._file, end)
        return end

    def position(self) -> int:
        """Return the size in bytes."""
        return self._end

    def tail(self, position: int) -> list[Ref] | None:
        """Return the jobs after a position; None when no line begins there."""
        if position > self._end or (position and os.pread(self._file, 1, position - 1) != b"\n"):
            return None
        found = []
        with self._path.open("rb") as lines:
            lines.seek(position)
            for line in lines:
                job = _decoded(line)
                if job is None:
                    return None
                found.append(Ref(JobId(job.id), milliseconds(job.finished_at)))
        return found

    def cut(self, position: int) -> None:
        """Shorten the file; one that is shorter stays."""
        # What was written in part only counts as well, and is not in `_end`.
        size = os.fstat(self._file).st_size
        if size > position:
            os.ftruncate(self._file, position)
        self._end = min(size, position)

    def append(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Write a line for each job at the end."""
        data = memoryview(b"".join(msgspec.json.encode(job) + b"\n" for job in jobs))
        at = self._end
        while data:
            written = os.pwrite(self._file, data, at)
            at, data = at + written, data[written:]
        self._end = at

    def sync(self) -> int:
        """Return the size once all of it is on disk."""
        os.fsync(self._file)
        return self._end

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _decoded(line: bytes) -> _Line | None:
    try:
        return _decode(line)
    except msgspec.DecodeError:
        return None


def moment(ms: int | None) -> str | None:
    """Return milliseconds since 1970 as RFC 3339 text."""
    if ms is None:
        return None
    at = _EPOCH + timedelta(milliseconds=ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(text: str) -> int:
    """Return what `moment` was given."""
    return (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)


def sync_folder(path: Path) -> None:
    """Make sure that a new file's name is on disk, where folders can be synced."""
    if os.name != "posix":
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
