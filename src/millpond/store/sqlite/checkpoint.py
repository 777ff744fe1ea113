"""Who copies the write-ahead log back into the database, and when.

Automatic checkpoints are off on our connections. One elected process, the holder of an OS
lock on a side file, runs PASSIVE on a second connection *while its first holds the write
lock*: so no commit meets our checkpoint, which also excludes the WAL-reset race of SQLite
before 3.51.3 among our own processes. It does so in gaps between writes, and after
`checkpoint_pages` at the latest. Any process that finds the log twice as long does it too.
TRUNCATE, which takes the write lock itself, runs only when idle and large.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond import fault
from millpond.store.sqlite.connect import WAL_LIMIT_BYTES, primary_code, try_begin

try:
    import fcntl

    HAS_FLOCK = True
except ImportError:  # pragma: no cover  Windows has no flock
    HAS_FLOCK = False

FRAME_BYTES = 4096 + 24
IDLE_PAGES = 500
"""In a gap with nothing to do, a checkpoint is worth its two syncs from here on."""
FIRST_GUESS_PAGES = 12
"""Pages a transaction writes, until the first checkpoint has told."""


class Election:
    """An OS lock on a side file: who holds it does this duty for the database.

    Each duty has a lock of its own, since any process that writes may come to checkpoint, and
    only keepers keep house.
    """

    def __init__(self, path: str, duty: str) -> None:
        self._path = f"{path}-millpond-{duty}"
        self._file: int | None = None

    def won(self) -> bool:
        """Tell whether this process holds the lock, trying to take it when it is free."""
        if not HAS_FLOCK or self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        return True

    def leave(self) -> None:
        """Let another process be elected."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class Checkpointer:
    """Decides after each transaction whether to checkpoint; lives in the storage thread."""

    def __init__(
        self, path: str, election: Election, connect: Callable[[], Any], pages: int
    ) -> None:
        self._wal = Path(f"{path}-wal")
        self._election = election
        self._connect = connect
        self._most = pages
        self._second: Any = None
        self._transactions = 0
        self._per_transaction = float(FIRST_GUESS_PAGES)
        self._copied_to = 0
        self._seen = 0
        self.runs = 0

    def gap(self, conn: Any, transactions: int, *, idle: bool) -> None:
        """Called with the `transactions` since the last call; `idle` when nothing waits."""
        self._transactions += transactions
        if not self._due(IDLE_PAGES if idle else self._most):
            return
        if self._election.won() or self._long():
            self._passive(conn)
        else:
            self._transactions = 0
        self._seen = self._size()
        if idle and self._seen > WAL_LIMIT_BYTES:
            self._truncate()

    def _due(self, most: int) -> bool:
        """Tell whether so many pages are likely to have been written since the last time.

        By what a transaction has cost so far; and by the file, which grows when the estimate
        is wrong, or when other processes write.
        """
        if self._transactions * self._per_transaction >= most:
            return True
        size = self._size()
        self._seen = min(self._seen, size)
        return size - self._seen >= most * FRAME_BYTES

    def _size(self) -> int:
        try:
            return self._wal.stat().st_size
        except OSError:
            return 0

    def _long(self) -> bool:
        return self._size() > 2 * self._most * FRAME_BYTES

    def _passive(self, conn: Any) -> None:
        if not try_begin(conn):
            return
        try:
            fault.point("checkpoint")
            self._learn(self._run("PASSIVE"))
        finally:
            conn.execute("ROLLBACK")

    def _truncate(self) -> None:
        second = self._open()
        second.execute("PRAGMA busy_timeout=1000").fetchall()
        try:
            self._learn(self._run("TRUNCATE"))
        finally:
            second.execute("PRAGMA busy_timeout=0").fetchall()

    def _open(self) -> Any:
        if self._second is None:
            self._second = self._connect()
        return self._second

    def _run(self, mode: str) -> tuple[int, int, int]:
        try:
            row = self._open().execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        except Exception as error:
            if primary_code(error) in {5, 6}:
                return 1, -1, -1
            raise
        self.runs += 1
        return int(row[0]), int(row[1]), int(row[2])

    def _learn(self, answer: tuple[int, int, int]) -> None:
        _, log, copied = answer
        if log >= 0:
            fresh = log - self._copied_to if log >= self._copied_to else log
            if self._transactions:
                measured = max(fresh / self._transactions, 1.0)
                self._per_transaction = 0.5 * self._per_transaction + 0.5 * measured
            # A log that was copied as a whole is written from its start again.
            self._copied_to = 0 if copied >= log else log
        self._transactions = 0

    def close(self) -> None:
        """Close the second connection."""
        second, self._second = self._second, None
        if second is not None:
            second.close()
