"""Enqueue inside the caller's own transaction, on the caller's own connection (`tx=`)."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millpond.errors import BadConfig, StoreBusy
from millpond.model import Admission, JobSpec
from millpond.store.sqlite.admit import enqueue
from millpond.store.sqlite.connect import BUSY, BUSY_SNAPSHOT, LOCKED, primary_code, translate
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context

log = logging.getLogger("millpond.store")

FULL_SYNC = 2
LONG_S = 1.0
"""A caller's transaction that holds the write lock longer is named in the log."""


class _Open(NamedTuple):
    """A transaction of a caller that enqueued: in which thread, its first job, when and where."""

    thread: int
    job: int
    since: float
    site: str


class Foreign:
    """Knows which of the callers' transactions enqueued here and may still be open.

    Their connections are not kept: a forgotten one must be able to close and roll back. What
    tells is whether the job can be seen from outside; `visible` looks.
    """

    def __init__(self, path: str, visible: Callable[[int], bool]) -> None:
        self._path = path
        self._visible = visible
        self._open: deque[_Open] = deque(maxlen=64)
        self._warned = False

    def enqueue(
        self, conn: Any, specs: Sequence[JobSpec], context: Callable[[Any], Context]
    ) -> list[Admission]:
        """Decide and insert in the transaction of `conn`; the caller commits or rolls back.

        With no transaction open an immediate one is begun, and undone if this fails; in an
        open one only what this did is undone.
        """
        # Names are compared as text, whatever the connection makes of texts for its owner.
        factory, conn.text_factory = conn.text_factory, str
        try:
            return self._enqueue(conn, specs, context)
        finally:
            conn.text_factory = factory

    def _enqueue(
        self, conn: Any, specs: Sequence[JobSpec], context: Callable[[Any], Context]
    ) -> list[Admission]:
        self._check_file(conn)
        cursor = conn.cursor()
        cursor.row_factory = None
        began = not conn.in_transaction
        try:
            cursor.execute("BEGIN IMMEDIATE" if began else SQL["savepoint"])
            # The first statement is a write, so a stale snapshot shows before anything is read.
            cursor.execute(SQL["share_file"])
            answers = enqueue(context(cursor), specs)
            if not began:
                cursor.execute(SQL["release_savepoint"])
        except BaseException as error:
            self._undo(conn, cursor, began=began)
            raise self._told(error) from error
        self._note(answers)
        self._warn_sync(cursor)
        return answers

    def _check_file(self, conn: Any) -> None:
        cursor = conn.cursor()
        cursor.row_factory = None
        name = next((row[2] for row in cursor.execute("PRAGMA database_list") if row[0] == 0), "")
        name = os.fsdecode(name) if isinstance(name, bytes) else name
        if self._path == ":memory:" or not name or not Path(name).samefile(self._path):
            msg = (
                f"tx= got a connection to {name or 'a temporary database'}, but the jobs are in "
                f"{self._path}. Both must be the same file, to commit together."
            )
            raise BadConfig(msg)

    @staticmethod
    def _undo(conn: Any, cursor: Any, *, began: bool) -> None:
        if not conn.in_transaction:
            return
        if began:
            cursor.execute("ROLLBACK")
            return
        try:
            cursor.execute(SQL["rollback_savepoint"])
            cursor.execute(SQL["release_savepoint"])
        except Exception:
            log.debug("no savepoint to undo", exc_info=True)

    def _told(self, error: BaseException) -> BaseException:
        if getattr(error, "sqlite_errorcode", None) == BUSY_SNAPSHOT:
            return StoreBusy(
                f"{self._path}: this transaction read before it wrote, and another connection "
                "has written since; nothing was enqueued. Roll back, and start it with BEGIN "
                "IMMEDIATE next time."
            )
        if primary_code(error) in {BUSY, LOCKED}:
            return StoreBusy(
                f"{self._path} is locked by another connection; nothing was enqueued and your "
                "transaction is as it was. Begin with BEGIN IMMEDIATE and a timeout on your "
                "connection."
            )
        return translate(error, self._path) if primary_code(error) else error

    def _note(self, answers: list[Admission]) -> None:
        new = [answer.job_id for answer in answers if answer.answer == "admitted"]
        if new:
            # SQLAlchemy runs an awaited call on a stack of its own, without its caller.
            site = "".join(traceback.format_list(_call_site())).strip() or "an awaited call"
            self._open.append(_Open(threading.get_ident(), new[0], time.monotonic(), site))

    def _warn_sync(self, cursor: Any) -> None:
        if self._warned:
            return
        self._warned = True
        level = cursor.execute("PRAGMA synchronous").fetchone()[0]
        if int(level) < FULL_SYNC:
            log.warning(
                "a connection given as tx= has synchronous=%s: jobs enqueued on it may be lost "
                "in a power cut, with your own rows. Set PRAGMA synchronous=FULL on it.", level
            )  # fmt: skip

    def hint(self) -> str | None:
        """Return what a plain write of this thread must be told if it finds the file locked."""
        if not self._open:
            return None
        mine = [entry for entry in self._unseen() if entry.thread == threading.get_ident()]
        if not mine:
            return None
        return (
            "This thread itself enqueued in a transaction that is still open, so the write "
            f"waited for itself: pass tx= with that connection, or commit first. {mine[-1].site}"
        )

    def holders(self) -> list[str]:
        """Return where the callers' transactions enqueued that are open for over a second."""
        before = time.monotonic() - LONG_S
        return [entry.site for entry in self._unseen() if entry.since < before]

    def _unseen(self) -> list[_Open]:
        """Drop what has committed; a rolled back one stays until its job's number is used."""
        # A copy, as other threads add to it while this one looks.
        for entry in [entry for entry in self._open.copy() if self._visible(entry.job)]:
            with contextlib.suppress(ValueError):  # another thread has seen it too
                self._open.remove(entry)
        return list(self._open)


def _call_site() -> list[traceback.FrameSummary]:
    """Return the caller's frame: the newest that is not millpond's own."""
    for frame in reversed(traceback.extract_stack()):
        if f"{os.sep}millpond{os.sep}" not in frame.filename:
            return [frame]
    return []
