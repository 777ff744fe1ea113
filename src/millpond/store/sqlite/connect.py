"""Connections to the SQLite file, and `begin`, the one way a write transaction starts.

SQLite's own busy handler lets a waiter starve behind those who come later; a short uniform
wait with a busy timeout of zero does not, and it ends when the caller's budget ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Literal, TypeVar
from urllib.parse import quote

from millpond.errors import StoreBusy, StoreClosed, StoreError, StoreFull, UnsafeStorage

T = TypeVar("T")
Synchronous = Literal["full", "normal"]

WAIT_MIN_S, WAIT_MAX_S = 0.0001, 0.002
"""A waiter looks again after a uniform time between these, so that no two stay in step."""

BUSY, LOCKED, NOMEM, READONLY, IOERR, CORRUPT, FULL, CANTOPEN, NOTADB = (
    5,
    6,
    7,
    8,
    10,
    11,
    13,
    14,
    26,
)
BUSY_SNAPSHOT = 517
WAL_LIMIT_BYTES = 64 * 1024 * 1024
SETUP_BUSY_MS = 5_000


def primary_code(error: BaseException) -> int:
    """Return SQLite's primary result code of a driver's error, 0 when it has none."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF


def open_connection(
    module: ModuleType,
    path: str,
    *,
    synchronous: Synchronous = "full",
    create: bool = False,
    readonly: bool = False,
) -> Any:
    """Open one connection with our settings; settings stored in the file are not touched.

    Only `create` makes a file that is not there: a store that was moved must not leave an
    empty one in its place.
    """
    if path == ":memory:":
        conn = module.connect(":memory:", isolation_level=None, check_same_thread=False)
    else:
        uri = f"file:{quote(path)}?mode={'ro' if readonly else 'rwc' if create else 'rw'}"
        conn = module.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=0,
            cached_statements=256,
        )  # fmt: skip
    for pragma in (
        # Some of these read the schema, which others may be making at this very moment.
        f"busy_timeout={SETUP_BUSY_MS}",
        f"synchronous={synchronous.upper()}",
        "cache_size=-16384",
        "temp_store=MEMORY",
        "mmap_size=0",
        "wal_autocheckpoint=0",
        f"journal_size_limit={WAL_LIMIT_BYTES}",
        "recursive_triggers=OFF",
        "busy_timeout=0",
    ):
        conn.execute(f"PRAGMA {pragma}").fetchall()
    return conn


def ensure_wal(conn: Any, path: str, *, budget_s: float, roll: Callable[[], float]) -> None:
    """Make a new file a WAL file; a file with other tables in it is never switched unasked.

    Raises:
        UnsafeStorage: the file is somebody's, and not in WAL mode.
    """
    if not patiently(lambda: _ensure_wal(conn, path), budget_s=budget_s, roll=roll, path=path):
        raise UnsafeStorage(
            f"{path} cannot be switched to write-ahead logging here: keep the store on a local "
            "disk, whose file system has locks and shared memory."
        )


def patiently(look: Callable[[], T], *, budget_s: float, roll: Callable[[], float], path: str) -> T:
    """Return what `look` returns, asking again while the file is locked, until the budget ends.

    Raises StoreBusy after the budget, and every other error of the driver's as ours.
    """
    deadline = time.monotonic() + budget_s
    while True:
        try:
            return look()
        except Exception as error:
            code = primary_code(error)
            if code == 0:
                raise
            if code not in {BUSY, LOCKED} or time.monotonic() > deadline:
                raise translate(error, path) from error
        time.sleep(WAIT_MIN_S + roll() * (WAIT_MAX_S - WAIT_MIN_S))


def _ensure_wal(conn: Any, path: str) -> bool:
    (mode,) = conn.execute("PRAGMA journal_mode").fetchone()
    if mode in {"wal", "memory"}:
        return True
    (foreign,) = conn.execute(
        "SELECT count(*) FROM sqlite_schema WHERE name NOT LIKE 'millpond%'"
        " AND name NOT LIKE 'sqlite%'"
    ).fetchone()
    if foreign:
        msg = (
            f"{path} is in journal mode {mode!r} and holds tables of another application; "
            "millpond needs write-ahead logging, so that readers and the writer do not block "
            "each other. It changes no file of yours unasked: run once "
            f"sqlite3 '{path}' 'PRAGMA journal_mode=WAL', or give millpond a file of its own."
        )
        raise UnsafeStorage(msg)
    conn.execute("PRAGMA page_size=4096").fetchall()
    (mode,) = conn.execute("PRAGMA journal_mode=WAL").fetchone()
    return bool(mode == "wal")


def begin(conn: Any, *, budget_s: float, roll: Callable[[], float], path: str = "") -> float:
    """Start a write transaction and return the seconds waited for the lock.

    Raises:
        StoreBusy: another process held the lock for the whole budget; nothing was begun.
    """
    started = time.perf_counter()
    deadline = started + budget_s
    while not try_begin(conn, path):
        now = time.perf_counter()
        if now >= deadline:
            raise busy(path, now - started)
        time.sleep(WAIT_MIN_S + roll() * (WAIT_MAX_S - WAIT_MIN_S))
    return time.perf_counter() - started


def try_begin(conn: Any, path: str = "") -> bool:
    """Start a write transaction if nobody holds the lock."""
    try:
        conn.execute("BEGIN IMMEDIATE")
    except Exception as error:
        if primary_code(error) in {BUSY, LOCKED}:
            return False
        raise translate(error, path) from error
    return True


LOOK_FOR = (
    "Try again, or look for a long transaction; if it is this thread's own on the same file, "
    "pass its connection as tx=."
)


def busy(path: str, waited_s: float, hint: str = "") -> StoreBusy:
    """Return the error that names the wait."""
    return StoreBusy(
        f"{path} stayed locked by another connection for {waited_s:.2f} s, the whole busy "
        f"budget; nothing was written. {hint or LOOK_FOR}"
    )


def translate(error: BaseException, path: str = "") -> StoreError:
    """Turn a driver's error into one of ours that says what to do; ours pass unchanged."""
    if isinstance(error, StoreError):
        return error
    text = f"{path}: {error}" if path else str(error)
    match primary_code(error):
        case 5 | 6:
            return StoreBusy(
                f"{text}: the database is locked by another connection; nothing was written. "
                "Try again, or look for a long transaction."
            )
        case 13:
            return StoreFull(
                f"{text}: no room for the write; nothing was written. Free disk space on the "
                "volume; running jobs can still be settled once there is room."
            )
        case 8:
            return StoreFull(f"{text}: the database cannot be written. Check permissions.")
        case 10:
            return StoreError(
                f"{text}: the volume failed to read or write; nothing was written. Look at the "
                "disk and the system's log, then try again."
            )
        case 11 | 26:
            return StoreError(
                f"{text}: the file is damaged or no SQLite database. Stop all writers, keep "
                "the file with its -wal and -shm together, and check a copy with "
                "`millpond verify`."
            )
        case 14:
            return StoreError(f"{text}: the file cannot be opened. Check the path and its folder.")
        case _ if "closed database" in str(error):
            return StoreClosed(f"{text}: the store is closed.")
        case _:
            return StoreError(f"{text}")
