"""A large store in a minute: rows by set-based statements, names and counters as the engine's."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path

from bench.stores import PAYLOAD, bare, opened, spec_for, worker_info

DAY_MS = 86_400_000
FOREIGN = "elsewhere"
"""A task that nobody here serves."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How many jobs stand where; ready ones are spread over `lanes`, each a task of its own."""

    lanes: int
    ready: int
    final: int = 0
    future: int = 0
    foreign: int = 1

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that are served."""
        return tuple(f"task{number}" for number in range(self.lanes))


@dataclass(frozen=True, slots=True)
class Part:
    """Jobs that stand in one place, due one a millisecond from `due` on."""

    place: str
    lanes: list[int]
    count: int
    due: int


def built(path: Path, shape: Shape) -> Path:
    """Make a store of this shape.

    Raises RuntimeError when a recount of all rows gives other numbers than the counters.
    """
    with opened(path) as store:
        store.register(worker_info(*shape.tasks)).result()
        for task in (*shape.tasks, FOREIGN):
            store.enqueue([spec_for(task)]).result()
    with bare(path) as conn:
        _fill(conn, shape)
    with opened(path) as store:
        drift = store.drift()
    if drift:
        msg = f"the built store counts wrongly: {drift[:3]}"
        raise RuntimeError(msg)
    return path


def _fill(conn: sqlite3.Connection, shape: Shape) -> None:
    for pragma in ("synchronous=OFF", "cache_size=-400000"):
        conn.execute(f"PRAGMA {pragma}").fetchall()
    first, now = conn.execute("SELECT max(id), max(created_at) FROM millpond_job").fetchone()
    lanes = dict(
        conn.execute(
            "SELECT t.name, l.id FROM millpond_lane l JOIN millpond_task t ON t.id = l.task"
        ).fetchall()
    )
    served, foreign = [lanes[task] for task in shape.tasks], [lanes[FOREIGN]]
    conn.execute("BEGIN IMMEDIATE")
    at = int(first)
    # Final ones are the oldest, as they would be.
    for part in (
        Part("final", served, shape.final, now - DAY_MS),
        Part("ready", served, shape.ready - len(served), now - DAY_MS // 2),
        Part("ready", foreign, shape.foreign - 1, now - DAY_MS // 2),
        Part("scheduled", served, shape.future, now + 300 * DAY_MS),
    ):
        at = _jobs(conn, at, part)
    conn.execute("UPDATE millpond_seq SET value = ?1 WHERE name IN ('job', 'claim')", (at,))
    _count(conn, shape.final)
    conn.execute("COMMIT")
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _jobs(conn: sqlite3.Connection, first: int, part: Part) -> int:
    """Insert the jobs of a part, lane after lane, and return the last id."""
    if part.count <= 0:
        return first
    conn.execute("CREATE TEMP TABLE lane_at (at INTEGER PRIMARY KEY, lane INTEGER)")
    conn.executemany("INSERT INTO temp.lane_at VALUES (?, ?)", enumerate(part.lanes))
    conn.execute(
        _ADD_JOBS,
        {"first": first, "count": part.count, "due": part.due, "n": len(part.lanes),
         "payload": PAYLOAD},
    )  # fmt: skip
    conn.execute(_PLACE[part.place], {"first": first})
    if part.place == "final":
        conn.execute(_ADD_ATTEMPTS, {"first": first})
    conn.execute("DROP TABLE temp.lane_at")
    return first + part.count


_ADD_JOBS = """
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < :count)
INSERT INTO millpond_job (id, lane, rank, priority, created_at, first_due, max_attempts, lease_ms,
  charged_bytes, operation_id, codec, payload)
SELECT :first + i, x.lane, (100 << 47) + :due + i, 100, :due + i, :due + i, 5, 60000,
  length(:payload), printf('%08x-%04x-7abc-8def-%012x', i >> 16, i & 65535, :first + i), 'json',
  :payload
  FROM k CROSS JOIN temp.lane_at x ON x.at = i % :n
"""

_PLACE = {
    "ready": "INSERT INTO millpond_ready (lane, rank, id, due)"
    " SELECT lane, rank, id, first_due FROM millpond_job WHERE id > :first ORDER BY lane, rank, id",
    "scheduled": "INSERT INTO millpond_scheduled (due, id)"
    " SELECT first_due, id FROM millpond_job WHERE id > :first ORDER BY first_due, id",
    "final": "INSERT INTO millpond_final (id, state, finished_at, queue, task)"
    " SELECT j.id, 'completed', j.first_due, l.queue, l.task FROM millpond_job j"
    " JOIN millpond_lane l ON l.id = j.lane WHERE j.id > :first",
}

_ADD_ATTEMPTS = """
INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, started_at, ended_at, outcome)
SELECT id, id, 1, 1, first_due, first_due, first_due, 'completed'
  FROM millpond_job WHERE id > :first
"""


def _count(conn: sqlite3.Connection, final: int) -> None:
    """Set the counters to what was inserted."""
    conn.execute(
        "UPDATE millpond_lane SET"
        " n_ready = (SELECT count(*) FROM millpond_ready r WHERE r.lane = millpond_lane.id)"
    )
    scheduled = conn.execute(
        "SELECT j.lane, count(*) FROM millpond_scheduled s JOIN millpond_job j ON j.id = s.id"
        " GROUP BY j.lane"
    ).fetchall()
    conn.executemany("UPDATE millpond_lane SET n_scheduled = ?2 WHERE id = ?1", scheduled)
    conn.execute(
        "UPDATE millpond_lane SET total_accepted = n_ready + n_scheduled, total_completed = ?1"
        " WHERE id = (SELECT min(id) FROM millpond_lane)",
        (final,),
    )
    conn.execute(
        "UPDATE millpond_workload SET (n_jobs, n_bytes) ="
        " (SELECT sum(n_ready + n_scheduled), sum(n_ready + n_scheduled) * ?1 FROM millpond_lane)",
        (len(PAYLOAD),),
    )
