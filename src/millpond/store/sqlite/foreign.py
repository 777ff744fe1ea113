"""Enqueue inside the caller's own transaction, on the caller's own connection (`tx=`)."""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


class Foreign:
    """Knows which of the callers' transactions enqueued here and may still be open."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._local = threading.local()
        self._open: list[tuple[weakref.ref[Any], float, str]] = []
        self._lock = threading.Lock()
        self._warned = False

    def enqueue(
        self, conn: Any, specs: Sequence[JobSpec], context: Callable[[Any], Context]
    ) -> list[Admission]:
        """Decide and insert in the transaction of `conn`; the caller commits or rolls back.

        With no transaction open an immediate one is begun, and undone if this fails; in an
        open one only what this did is undone.
        """
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
        self._note(conn)
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

    def _note(self, conn: Any) -> None:
        site = "".join(traceback.format_list(_call_site())).strip()
        entry = (weakref.ref(conn), time.monotonic(), site)
        self._local.last = entry
        with self._lock:
            self._open = [*(e for e in self._open[-63:] if _holds(e[0])), entry]

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

    def deadlock(self) -> StoreBusy | None:
        """Return the error for a plain write by a thread whose own transaction is still open."""
        entry = getattr(self._local, "last", None)
        if entry is None or not _holds(entry[0]):
            return None
        return StoreBusy(
            f"{self._path}: this thread holds a write transaction open on the same file (it "
            f"enqueued in it at {entry[2]}), so this write would wait for itself; nothing was "
            "written. Pass tx= with that connection, or commit first."
        )

    def holders(self) -> list[str]:
        """Return where the callers' transactions began that are open for over a second."""
        before = time.monotonic() - LONG_S
        with self._lock:
            return [site for ref, since, site in self._open if since < before and _holds(ref)]


def _holds(ref: weakref.ref[Any]) -> bool:
    conn = ref()
    try:
        return conn is not None and bool(conn.in_transaction)
    except Exception:  # noqa: BLE001  closed, or in use by its own thread
        return False


def _call_site() -> list[traceback.FrameSummary]:
    """Return the caller's frame: the newest that is not millpond's own."""
    for frame in reversed(traceback.extract_stack()):
        if f"{os.sep}millpond{os.sep}" not in frame.filename:
            return [frame]
    return []
