"""The standing checks that end every scenario, counted here anew and not by millpond's code."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from millpond.store import open_store

_CAPACITY = """
SELECT q.name, w.name, w.n_jobs, w.n_bytes, w.n_held, w.n_held_bytes,
  (SELECT count(*) FROM millpond_job j JOIN millpond_lane l ON l.id = j.lane
    WHERE l.workload = w.id AND j.id NOT IN (SELECT id FROM millpond_final)),
  (SELECT coalesce(sum(j.charged_bytes), 0) FROM millpond_job j JOIN millpond_lane l
      ON l.id = j.lane
    WHERE l.workload = w.id AND j.id NOT IN (SELECT id FROM millpond_final)),
  (SELECT coalesce(sum(r.n), 0) FROM millpond_reservation r WHERE r.workload = w.id),
  (SELECT coalesce(sum(r.bytes), 0) FROM millpond_reservation r WHERE r.workload = w.id)
FROM millpond_workload w JOIN millpond_queue q ON q.id = w.queue
"""

_PLACES = """
SELECT id, 'scheduled' FROM millpond_scheduled UNION ALL
SELECT id, 'ready' FROM millpond_ready UNION ALL
SELECT id, 'blocked' FROM millpond_blocked UNION ALL
SELECT id, 'running' FROM millpond_running UNION ALL
SELECT id, state FROM millpond_final
"""

_FINAL = {"completed", "failed", "cancelled"}
_SPENT = {"failed", "timed_out", "lease_lost", "crashed"}
"""Outcomes of the attempt that ends a failed job."""


def complaints(path: Path, accepted: Iterable[int] = ()) -> list[str]:
    """Return everything that contradicts S1 to S3; only when no process has the file open."""
    if not path.exists():
        return [f"job {job} was accepted and there is no store" for job in accepted]
    store = open_store(str(path))
    try:
        wrong = store.verify() + [str(drift) for drift in store.drift()]
    finally:
        store.close()
    with closing(sqlite3.connect(path)) as conn:
        wrong += [text for (text,) in conn.execute("PRAGMA integrity_check") if text != "ok"]
        wrong += _capacity(conn)
        wrong += _jobs(conn, set(accepted))
    return wrong


def _capacity(conn: sqlite3.Connection) -> list[str]:
    return [
        f"{queue}/{workload}: counters {counted[:4]}, rows {counted[4:]}"
        for queue, workload, *counted in conn.execute(_CAPACITY)
        if counted[:4] != counted[4:]
    ]


def _jobs(conn: sqlite3.Connection, accepted: set[int]) -> list[str]:
    places: defaultdict[int, list[str]] = defaultdict(list)
    for job, place in conn.execute(_PLACES):
        places[job].append(place)
    limits = dict(conn.execute("SELECT id, max_attempts FROM millpond_job"))
    wrong = [f"job {job} was accepted and is gone" for job in accepted - limits.keys()]
    wrong += [f"job {job} stands in {places[job]}" for job in limits if len(places[job]) != 1]
    history: defaultdict[int, list[tuple[int | None, str]]] = defaultdict(list)
    rows = conn.execute("SELECT job, number, outcome FROM millpond_attempt ORDER BY job, claim")
    for job, number, outcome in rows:
        history[job].append((number, outcome))
    for job, most in limits.items():
        state = places[job][0] if places[job] else ""
        wrong += [f"job {job}: {text}" for text in _history(state, most, history[job])]
    return wrong


def _history(state: str, most: int, rows: list[tuple[int | None, str]]) -> list[str]:
    wrong = []
    charged = [number for number, _ in rows if number is not None]
    if charged != list(range(1, len(charged) + 1)):
        wrong.append(f"its attempts are numbered {charged}")
    if len(charged) > most:
        wrong.append(f"{len(charged)} attempts are charged and {most} allowed")
    outcomes = [outcome for _, outcome in rows]
    if state not in _FINAL and set(outcomes) & {"completed", "failed", "cancelled"}:
        wrong.append(f"{state} after {outcomes}")
    if outcomes.count("completed") != (state == "completed"):
        wrong.append(f"{state} with {outcomes.count('completed')} completed attempts")
    if state == "completed" and outcomes[-1] != "completed":
        wrong.append(f"went on after it was completed: {outcomes}")
    if state == "failed" and outcomes and outcomes[-1] not in _SPENT:
        wrong.append(f"failed after {outcomes}")
    return wrong
