"""Stores to measure on, and the same tables without the engine."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.figures import percentile
from millpond.config import StoreConfig
from millpond.model import JobSpec, WorkerInfo
from millpond.store.sqlite.connect import open_connection
from millpond.store.sqlite.engine import SqliteStore

PAYLOAD = b'{"report_id":812,"fmt":"pdf"}'
TASK = "noop"
QUEUE = "bench"
WORKLOAD = "default"

SPEC = JobSpec(task=TASK, queue=QUEUE, workload=WORKLOAD, payload=PAYLOAD)
"""The job of all benchmarks: small typed arguments, no keys, no limits."""

# Each store opened warns of an old SQLite library; one line of the machine says its version.
logging.getLogger("millpond.store").setLevel(logging.ERROR)

CHECKPOINT_PAGES = StoreConfig().checkpoint_pages


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    """Open a store and close it at the end."""
    store = SqliteStore(str(path), config=StoreConfig(url=str(path)))
    try:
        yield store
    finally:
        store.close()


@contextmanager
def bare(path: Path) -> Iterator[sqlite3.Connection]:
    """Open the same file with the engine's settings and SQLite's own checkpoints."""
    conn: sqlite3.Connection = open_connection(sqlite3, str(path))
    conn.execute(f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}").fetchall()
    try:
        yield conn
    finally:
        conn.close()


def worker_info(*tasks: str) -> WorkerInfo:
    """Return a keeper's introduction that asks for no wake-ups."""
    return WorkerInfo("bench", os.getpid(), None, "0", 15_000, tasks or (TASK,))


def spec_for(task: str) -> JobSpec:
    """Return the job of all benchmarks, for another task."""
    return msgspec.structs.replace(SPEC, task=task)


def preloaded(path: Path, jobs: int, task: str = TASK) -> Path:
    """Make a store that holds this many ready jobs, and close it."""
    spec = spec_for(task)
    with opened(path) as store:
        store.register(worker_info()).result()
        for start in range(0, jobs, 1000):
            store.enqueue([spec] * min(1000, jobs - start)).result()
    return path


def copied(source: Path, target: Path) -> Path:
    """Copy a closed store, and let the copy reach the disk before anything is timed."""
    remove(target)
    shutil.copyfile(source, target)
    os.sync()
    return target


def remove(path: Path) -> None:
    """Delete a store with its side files."""
    for end in ("", "-wal", "-shm", "-millpond-lock"):
        Path(f"{path}{end}").unlink(missing_ok=True)


class SyncProbe:
    """A file that stands like a write-ahead log of its full size: a commit writes over old pages.

    A disk that has rested takes longer for a sync than one that has just done one, so a figure
    that counts syncs after a pause asks for one after a pause, and makes no other before it.
    """

    PAGE = 4096
    PAGES = 256

    def __init__(self, folder: Path) -> None:
        self._path = folder / "sync-probe-log"
        self._file = self._path.open("wb", buffering=0)
        self._file.write(b"x" * self.PAGE * self.PAGES)
        os.fsync(self._file.fileno())
        self._at = 0

    def seconds(self, pages: int) -> float:
        """Write over so many pages and return how long the sync took."""
        self._at = 0 if self._at + pages > self.PAGES else self._at
        self._file.seek(self._at * self.PAGE)
        self._file.write(b"y" * self.PAGE * pages)
        self._at += pages
        started = time.perf_counter()
        os.fdatasync(self._file.fileno())
        return time.perf_counter() - started

    def close(self) -> None:
        """Close and remove the file."""
        self._file.close()
        self._path.unlink()


def sync_seconds(folder: Path, times: int = 200) -> float:
    """Return how long it takes to write 4 KiB over old ones and sync, the median of `times`.

    Over old ones, because that is what a write-ahead log does once it has its size.
    """
    path = folder / "sync-probe"
    taken = []
    with path.open("wb", buffering=0) as file:
        file.write(b"x" * 4096 * times)
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(times):
            file.write(b"y" * 4096)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - started)
    path.unlink()
    return percentile(taken, 0.5)
