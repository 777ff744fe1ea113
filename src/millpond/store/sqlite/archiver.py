"""Moving final jobs into an archive so that a kill at any point loses and doubles nothing.

The transaction that deletes a batch also writes down how far the archive counts. After a kill
the archive may hold one batch beyond that: if the store still has all of its jobs the batch is
cut off again and written anew; if it has lost some of them since (a worker pruned them), what
is left of the batch is deleted, as it would have been.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millpond import fault
from millpond.errors import BadConfig, StoreBusy, StoreError, StoreFull
from millpond.model import Purged, State
from millpond.store.shelf import Ref, Shelf
from millpond.store.sqlite.checkpoint import Election
from millpond.store.sqlite.connect import primary_code, translate
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context
from millpond.store.sqlite.part import Part, timed
from millpond.store.sqlite.retention import delete_jobs, delete_unchanged, past

BATCH_BYTES = 4 * 1024 * 1024
"""Payloads and results of one batch at most, unless a single job has more."""

_TRIES = 20
_NO_SPACE = frozenset({28, 122})
"""ENOSPC and EDQUOT."""

Execute = Callable[..., Any]
_encode = msgspec.json.encode


class Archiver:
    """One run of archiving: the only one of its store, and its file."""

    def __init__(
        self, store: Part, path: Path, lock: Election, open_shelf: Callable[[Path], Shelf]
    ) -> None:
        self._store = store
        self._path = path
        self._lock = lock
        self._unsettled = False
        if not lock.won():
            raise StoreBusy(
                f"another process archives jobs of {store.path}; nothing was written. Wait for it."
            )
        try:
            self._shelf = self._opened(open_shelf)
        except BaseException:
            lock.leave()
            raise

    def _opened(self, open_shelf: Callable[[Path], Shelf]) -> Shelf:
        """Settle what an earlier run has left, in this file or another, then open this one."""
        mark = self._store._read(_under_way)  # noqa: SLF001
        if mark is not None and mark[0] != str(self._path) and Path(mark[0]).exists():
            self._settle_other(open_shelf, *mark)
        shelf: Shelf = self._safely(lambda: open_shelf(self._path))
        try:
            if mark is not None and mark[0] == str(self._path):
                self._settle(shelf, mark[1])
            self._write(lambda tx: _mark(tx, self._path, shelf.position()))
        except BaseException:
            shelf.close()
            raise
        return shelf

    def _settle_other(self, open_shelf: Callable[[Path], Shelf], path: str, position: int) -> None:
        try:
            left: Shelf = self._safely(lambda: open_shelf(Path(path)))
        except BadConfig:
            return  # another file stands there now, in which nothing of ours can be
        try:
            self._settle(left, position)
        finally:
            left.close()

    def _settle(self, shelf: Shelf, position: int) -> None:
        """Take back, or end, a batch that was written and perhaps not deleted."""
        refs = shelf.tail(position)
        if not refs:
            return
        param = {"ids": _encode([ref.id for ref in refs]).decode()}
        found = self._store._read(lambda run: run(SQL["present"], param).fetchone()[0])  # noqa: SLF001
        if found == len(refs):
            self._safely(lambda: shelf.cut(position))
            return
        self._safely(shelf.sync)
        self._write(lambda tx: _delete_rest(tx, refs))

    def move(self, windows: Mapping[State, int], limit: int) -> Purged:
        """Move a batch; see `millpond.store.protocol.Archiver`."""
        now = self._store.clock.now()
        for _ in range(_TRIES):
            refs = self._store._read(lambda run: _fitting(run, now, windows, limit))  # noqa: SLF001
            if not refs:
                return Purged(0, more=False)
            self._realign()
            held_us = self._moved(refs)
            if held_us is not None:
                return Purged(len(refs), more=True, held_us=held_us)
        raise StoreBusy(
            f"{self._store.path}: the jobs to archive are being changed by somebody else all the "
            "time; what was moved so far is safe. Try again later."
        )

    def _moved(self, refs: Sequence[Ref]) -> int | None:
        """Write, sync, delete; None when a job was changed meanwhile and nothing was moved."""
        shelf = self._shelf
        self._unsettled = True
        if self._safely(lambda: shelf.write(refs)) != len(refs):
            return None
        fault.point("archive-written")
        reached = self._safely(shelf.sync)
        fault.point("archive-synced")
        deleted, held_us = self._write(timed(lambda tx: _delete(tx, refs, self._path, reached)))
        if not deleted:
            return None
        self._unsettled = False
        fault.point("archive-deleted")
        return int(held_us)

    def _realign(self) -> None:
        """Cut off what was written and not deleted; the store says how far the file counts."""
        if not self._unsettled:
            return
        mark = self._store._read(_under_way)  # noqa: SLF001
        if mark is not None:
            self._safely(lambda: self._shelf.cut(mark[1]))
        self._unsettled = False

    def _write(self, run: Callable[[Context], Any]) -> Any:
        return self._store._write(run).result()  # noqa: SLF001

    def _safely(self, call: Callable[[], Any]) -> Any:
        """Do something to the file; what goes wrong with it is an error of ours."""
        try:
            return call()
        except OSError as error:
            kind = StoreFull if error.errno in _NO_SPACE else StoreError
            raise kind(
                f"{self._path}: {error.strerror}; the jobs are still in the store. Make room or "
                "name another file, and run it again."
            ) from error
        except Exception as error:
            if primary_code(error):
                raise translate(error, str(self._path)) from error
            raise

    def close(self) -> None:
        """Close the file and forget that a run was under way."""
        try:
            # When this fails the store goes on knowing of the run, and the next one settles it.
            self._realign()
            self._write(lambda tx: tx.execute(SQL["drop_under_way"]) and None)
        finally:
            self._shelf.close()
            self._lock.leave()


def _under_way(execute: Execute) -> tuple[str, int] | None:
    row = execute(SQL["under_way"]).fetchone()
    return None if row is None else msgspec.json.decode(row[0], type=tuple[str, int])


def _mark(tx: Context, path: Path, position: int) -> None:
    tx.execute(SQL["put_under_way"], {"value": _encode((str(path), position)).decode()})


def _fitting(execute: Execute, now: int, windows: Mapping[State, int], limit: int) -> list[Ref]:
    """Return jobs past their window, no more than fit in memory together."""
    refs = past(execute, now, windows, limit)
    param = {"ids": _encode([ref.id for ref in refs]).decode()}
    total = 0
    for at, (size,) in enumerate(execute(SQL["sizes"], param).fetchall()):
        total += size
        if total > BATCH_BYTES and at:
            return refs[:at]
    return refs


def _delete(tx: Context, refs: Sequence[Ref], path: Path, reached: int) -> bool:
    if not delete_unchanged(tx, refs):
        return False
    _mark(tx, path, reached)
    return True


def _delete_rest(tx: Context, refs: Sequence[Ref]) -> None:
    """Delete those that are still as they were written; another life of a job goes on."""
    param = {"refs": _encode(refs).decode()}
    ids = [row[0] for row in tx.execute(SQL["still_final"], param).fetchall()]
    if ids:
        delete_jobs(tx, ids)
