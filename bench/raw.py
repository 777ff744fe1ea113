"""The engine's own statements in a bare loop: what SQLite alone takes for the same work.

The statements and their parameters are those of the engine, taken from its files, so that
this loop stays in step with it. What is left out is everything in Python that is no
statement: decisions, checks, tickets, the storage thread, tokens and answers.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from bench.stores import PAYLOAD
from millpond.clock import SystemClock
from millpond.ids import uuid7_many
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.rows import insert

_encode = msgspec.json.encode
_NO_COUNTS = dict.fromkeys(
    ("ready", "scheduled", "failed", "cancelled", "retried", "snoozed", "released", "lost"), 0
)


def claim_and_settle(conn: sqlite3.Connection, batch: int) -> int:
    """Take and complete all ready jobs, a batch each transaction; return how many."""
    clock = SystemClock()
    (lane,) = conn.execute("SELECT id FROM millpond_lane WHERE n_ready > 0").fetchone()
    (worker,) = conn.execute("SELECT max(id) FROM millpond_worker").fetchone()
    queue, workload, task = conn.execute(
        "SELECT queue, workload, task FROM millpond_lane WHERE id = ?", (lane,)
    ).fetchone()
    done = 0
    held: list[tuple[int, int]] = []
    while True:
        conn.execute("BEGIN IMMEDIATE")
        conn.execute(SQL["read_meta"]).fetchone()
        now, mono = clock.now(), clock.mono()
        if held:
            _settle(conn, held, now=now, lane=lane, queue=queue, workload=workload, task=task)
            done += len(held)
        held = _claim(conn, batch, worker=worker, now=now, mono=mono)
        conn.execute("COMMIT")
        if not held:
            return done


def _claim(
    conn: sqlite3.Connection, batch: int, *, worker: int, now: int, mono: int
) -> list[tuple[int, int]]:
    conn.execute(SQL["first_due"]).fetchone()
    heads = msgspec.json.decode(conn.execute(SQL["heads"]).fetchone()[0])
    if not heads:
        return []
    lane = heads[0][0]
    rows = conn.execute(SQL["chunk_first"], {"lane": lane, "limit": batch}).fetchall()
    count = len(rows)
    (last,) = conn.execute(SQL["take_seq"], {"n": count, "name": "claim"}).fetchone()
    first = last - count + 1
    conn.execute(SQL["claim_ready_to"], (lane, *rows[-1][:2]))
    param = {"rows": _encode([(lane, *row) for row in rows]).decode()}
    start = {**param, "claim": first, "worker": worker, "now": now, "mono": mono}
    conn.execute(SQL["claim_running"], start)
    conn.execute(SQL["count_claimed"], {"lanes": f"[{lane}]", "n": count})
    conn.execute(SQL["any_memo"]).fetchone()
    ids = {"ids": _encode([row[1] for row in rows]).decode()}
    jobs = conn.execute(SQL["claimed"], ids).fetchall()
    return [(job[0], first + at) for at, job in enumerate(jobs)]


def _settle(
    conn: sqlite3.Connection,
    held: list[tuple[int, int]],
    *,
    now: int,
    lane: int,
    queue: int,
    workload: int,
    task: int,
) -> None:
    ids = _encode([job for job, _ in held]).decode()
    rows = conn.execute(SQL["held_jobs"], {"ids": ids}).fetchall()
    conn.execute(SQL["drop_running_many"], {"ids": ids})
    attempts = [(row[1], row[2], 1, row[8], row[5], now, now) for row in rows]
    insert(conn.execute, SQL["add_completed"], attempts)
    final = {"ids": ids, "now": now, "queue": queue, "task": task}
    conn.execute(SQL["add_completed_finals"], final)
    conn.execute(SQL["any_progress"]).fetchone()
    count = {"lane": lane, "running": len(rows), "completed": len(rows), **_NO_COUNTS}
    conn.execute(SQL["count_ended"], count)
    use = {"workload": workload, "jobs": len(rows), "bytes": sum(row[7] for row in rows)}
    conn.execute(SQL["give_capacity"], use)


class Enqueuer:
    """Inserts the rows of a job by the engine's statements."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._clock = SystemClock()
        self._lane, self._workload, self._task = conn.execute(
            "SELECT id, workload, task FROM millpond_lane"
        ).fetchone()

    def one(self) -> None:
        """Insert one job in a transaction of its own, with sequence and counters."""
        conn = self._conn
        conn.execute("BEGIN IMMEDIATE")
        conn.execute(SQL["read_meta"]).fetchone()
        now = self._clock.now()
        (ident,) = conn.execute(SQL["take_seq"], {"n": 1, "name": "job"}).fetchone()
        (operation,) = uuid7_many(now, 1)
        row = self._row(ident, operation, now)
        conn.execute(SQL["read_capacity"], {"workload": self._workload}).fetchone()
        conn.execute(SQL["add_plain_job"], row)
        conn.execute(SQL["add_ready"], (self._lane, row[2], ident, now))
        conn.execute(SQL["count_accepted"], {"lane": self._lane, "ready": 1, "scheduled": 0})
        use = {"workload": self._workload, "jobs": 1, "bytes": len(PAYLOAD)}
        conn.execute(SQL["take_capacity"], use)
        conn.execute("COMMIT")

    def only_row(self, ident: int) -> None:
        """Insert nothing but a job's row, in a transaction of its own."""
        now = self._clock.now()
        (operation,) = uuid7_many(now, 1)
        self._conn.execute("BEGIN IMMEDIATE")
        self._conn.execute(SQL["add_plain_job"], self._row(ident, operation, now))
        self._conn.execute("COMMIT")

    def rows(self, count: int) -> list[tuple[Any, ...]]:
        """Return the rows of that many jobs, ready made."""
        now = self._clock.now()
        (last,) = self._conn.execute("SELECT coalesce(max(id), 0) FROM millpond_job").fetchone()
        return [
            self._row(last + 1 + at, operation, now)
            for at, operation in enumerate(uuid7_many(now, count))
        ]

    def many(self, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows ready made in one transaction: jobs, then ready, by executemany."""
        conn = self._conn
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany(SQL["add_plain_job"], rows)
        conn.executemany(SQL["add_ready"], [(row[1], row[2], row[0], row[5]) for row in rows])
        conn.execute("COMMIT")

    def _row(self, ident: int, operation: str, now: int) -> tuple[Any, ...]:
        return (
            ident, self._lane, (100 << 47) + now, 100, now, now, 5, 60_000, len(PAYLOAD),
            operation, "json", bytearray(PAYLOAD),
        )  # fmt: skip
