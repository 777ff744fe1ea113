"""What review costs in a store with years of ended jobs: measured behind the soak marker."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.kit import info, spec

from millpond.model import JobFilter, JobId, State
from millpond.store import open_store
from millpond.store.protocol import Store

log = logging.getLogger(__name__)

MANY = 5_000_000
EVERY = 50
"""One job in so many has failed: they lie far apart among the completed ones."""
KINDS = 300
AGE_MS = 20 * 86_400_000

_JOBS = """
WITH RECURSIVE k(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM k WHERE i < :many)
INSERT INTO millpond_job (id, lane, rank, priority, created_at, first_due, max_attempts, lease_ms,
  charged_bytes, operation_id, codec, payload)
SELECT :first + i, 1 + i % 2, i, 100, :start + i, :start + i, 1, 60000, 40,
  printf('%08x-%04x-7abc-8def-%012x', i >> 16, i & 65535, i), 'json',
  CAST('{"report_id": 812, "format": "pdf", "n": 1}' AS BLOB) FROM k
"""
_FINALS = """
INSERT INTO millpond_final (id, state, finished_at, queue, task, reason, fingerprint)
SELECT j.id, CASE WHEN j.id % :every = 0 THEN 'failed' ELSE 'completed' END, j.first_due + 5,
  l.queue, l.task, CASE WHEN j.id % :every = 0 THEN 'attempts used up (1 of 1)' END,
  CASE WHEN j.id % :every = 0 THEN printf('%016x', j.id / :every % :kinds) END
  FROM millpond_job j JOIN millpond_lane l ON l.id = j.lane WHERE j.id > :first
"""
_ATTEMPTS = """
INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, started_at, ended_at,
  outcome, error_type, message, fingerprint)
SELECT j.id, j.id, 1, 1, j.first_due, j.first_due, f.finished_at, f.state,
  CASE f.state WHEN 'failed' THEN 'ValueError' END,
  CASE f.state WHEN 'failed' THEN 'order ' || j.id || ' not found' END, f.fingerprint
  FROM millpond_job j JOIN millpond_final f ON f.id = j.id WHERE j.id > :first
"""


def build(path: Path, many: int) -> None:
    """Make a store in which so many jobs have ended, by statements on whole sets."""
    store = open_store(str(path))
    store.register(info("mail", "bill")).result()
    first = len(store.enqueue([spec(), spec("bill", queue="bulk")]).result())
    start = store.clock.now() - AGE_MS
    store.close()
    given = {"first": first, "many": many, "start": start, "every": EVERY, "kinds": KINDS}
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous=OFF")
        conn.execute("PRAGMA cache_size=-400000")
        conn.execute("BEGIN IMMEDIATE")
        for statement in (_JOBS, _FINALS, _ATTEMPTS):
            conn.execute(statement, given)
        conn.execute(
            "UPDATE millpond_seq SET value = ? WHERE name IN ('job', 'claim')", (first + many,)
        )
        conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def best_ms(call: Callable[[], object]) -> float:
    """Return the least processor time of some runs: others share the machine, not this figure."""
    times = []
    for _ in range(7):
        began = time.thread_time()
        call()
        times.append((time.thread_time() - began) * 1e3)
    return min(times)


def walked(store: Store, where: JobFilter) -> tuple[int, float]:
    """Return how many failed jobs a whole search finds, and its longest step in milliseconds."""
    pin, after, found, longest = store.pin(), None, 0, 0.0
    while True:
        began = time.perf_counter()
        step = store.search(where, [State.FAILED], pin, after)
        longest = max(longest, (time.perf_counter() - began) * 1e3)
        found, after = found + len(step.ids), step.after
        if after is None:
            return found, longest


def test_a_generated_store_is_one_that_the_store_itself_finds_sound(tmp_path: Path) -> None:
    """What the long run measures is no fantasy: the same statements make a store that verifies."""
    build(tmp_path / "jobs.db", 3_000)
    store = open_store(str(tmp_path / "jobs.db"))
    try:
        assert store.verify() == []
        found = store.failures()
        assert found.counted == 3_000 // EVERY
        assert found.complete
        assert (
            walked(store, JobFilter(queue="bulk"))[0] + walked(store, JobFilter(queue="default"))[0]
            == found.counted
        )
    finally:
        store.close()


@pytest.mark.soak
def test_failures_are_grouped_at_once_among_five_million_ended_jobs(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    build(path, MANY)
    store = open_store(str(path))
    try:
        found = store.failures()
        assert (found.counted, len(found.groups), found.more) == (100_000, 100, KINDS - 100)
        times = {
            "failures": best_ms(store.failures),
            "job": best_ms(lambda: store.get(JobId(MANY // 2))),
            "status": best_ms(store.status),
            "events": best_ms(store.events),
        }
        kind = found.groups[0].fingerprint
        count, longest = walked(store, JobFilter(fingerprint=kind))
        assert count == found.groups[0].count
        log.info("%s, longest step of a search %.0f ms", times, longest)
        assert max(times.values()) < 300, times
        assert longest < 1_000
    finally:
        store.close()
