"""Processes that use one database file until they are killed; run by tests of this folder.

Each appends a line to its own log *after* it was told something ("accepted", "settled"),
so that the log never promises more than the store did.

    python -m tests.crash.roles ROLE DATABASE LOG SEED
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sqlite3
import sys
import threading
from pathlib import Path

from millpond.errors import StoreError
from millpond.model import AttemptOutcome, JobSpec, Settlement, Want, WorkerInfo
from millpond.store import open_store

LEASE_MS = 1_500
TASKS = ("alpha", "beta")
PAUSE = threading.Event()  # never set: a bounded wait that is no sleep


class Log:
    """Appends whole lines; what a killed process wrote stays, the page cache is not ours."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


def spec(roll: random.Random, **more: object) -> JobSpec:
    return JobSpec(
        task=roll.choice(TASKS),
        queue="q",
        workload=roll.choice(("user", "critical")),
        payload=b'{"n":%d}' % roll.randrange(1000),
        lease_ms=LEASE_MS,
        max_attempts=1_000,
        delay_ms=roll.choice((0, 0, 0, 50)),
        **more,  # type: ignore[arg-type]
    )


def producer(path: str, log: Log, roll: random.Random) -> None:
    store = open_store(path)
    while True:
        specs = [spec(roll) for _ in range(roll.choice((1, 1, 1, 5, 60)))]
        for admission in store.enqueue(specs).result():
            log.say("accepted", admission.job_id)
        PAUSE.wait(0.002)


def application(path: str, log: Log, roll: random.Random) -> None:
    """A process with tables of its own: its connection checkpoints by itself, as by default."""
    store = open_store(path)
    conn = sqlite3.connect(path, timeout=5)
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, job INTEGER)")
    conn.commit()
    while True:
        with contextlib.suppress(StoreError, sqlite3.OperationalError):
            conn.execute("BEGIN IMMEDIATE")
            order = conn.execute("INSERT INTO orders (job) VALUES (0)").lastrowid
            (admission,) = store.enqueue_in(conn, [spec(roll, origin=f"order-{order}")])
            conn.execute("UPDATE orders SET job = ? WHERE id = ?", (admission.job_id, order))
            if roll.random() < 0.3:
                conn.rollback()
            else:
                conn.commit()
                log.say("accepted", admission.job_id)
        if conn.in_transaction:
            conn.rollback()
        PAUSE.wait(0.005)


def reader(path: str, log: Log, roll: random.Random) -> None:
    """Pins the write-ahead log with long snapshots."""
    conn = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=5)
    while True:
        conn.execute("BEGIN")
        (jobs,) = conn.execute("SELECT count(*) FROM millpond_job").fetchone()
        PAUSE.wait(roll.random())
        (again,) = conn.execute("SELECT count(*) FROM millpond_job").fetchone()
        if again != jobs:
            log.say("torn", jobs, again)
        conn.execute("COMMIT")


def worker(path: str, log: Log, roll: random.Random) -> None:
    store = open_store(path)
    info = WorkerInfo("host", os.getpid(), None, "test", 300, TASKS)
    me = store.register(info).result()
    while True:
        store.recover(limit=100).result()
        batch = store.claim(me, [Want(20)], set(TASKS), 20).result()
        store.beat(me, [c.token for c in batch.claims], None, 300, 2_000).result()
        ends = [
            Settlement(
                token=taken.token,
                outcome=roll.choice(
                    (AttemptOutcome.COMPLETED, AttemptOutcome.COMPLETED, AttemptOutcome.RETRIED)
                ),
                started_at=taken.claimed_at,
                error_type="E",
                message="again",
                delay_ms=roll.choice((0, 20)),
            )
            for taken in batch.claims
        ]
        for end, settled in zip(ends, store.settle(me, ends).result(), strict=True):
            if settled.held and end.outcome is AttemptOutcome.COMPLETED:
                log.say("completed", end.token.job_id)
        if not batch.claims:
            PAUSE.wait(0.01)


def janitor(path: str, log: Log, roll: random.Random) -> None:
    """Purges now and then, so that pages are freed and used again."""
    store = open_store(path)
    while True:
        # Far enough back that no job of this run is due for purging; expired keys are.
        store.purge(
            completed_ms=3_600_000, failed_ms=3_600_000, cancelled_ms=3_600_000, limit=500
        ).result()
        store.tick()
        PAUSE.wait(0.05 + roll.random() / 10)
        log.say("swept")


ROLES = {f.__name__: f for f in (producer, application, reader, worker, janitor)}


def main() -> None:
    logging.disable(logging.CRITICAL)
    role, path, log, seed = sys.argv[1:5]
    ROLES[role](path, Log(log), random.Random(int(seed)))


if __name__ == "__main__":
    if Path(sys.argv[2]).parent.exists():
        main()
