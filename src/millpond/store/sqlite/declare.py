"""Settings from code: queues, workloads and tasks; and pausing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millpond.config import PressureSettings, QueueSettings, TaskSettings
from millpond.errors import BadConfig
from millpond.store.sqlite.care import event
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context

RERANK_AT_ONCE = 100_000
"""Outstanding jobs that are ranked anew while the queue runs; more need a pause."""


def put_queue(tx: Context, settings: QueueSettings) -> None:
    """Write a queue's settings if they differ; counters are never touched."""
    row = {
        "name": settings.name, "ordering": settings.order, "ageing_ms": settings.ageing_ms,
        "max_jobs": settings.max_jobs, "max_bytes": settings.max_bytes,
        "max_running": settings.running, "full_policy": settings.full,
        "pressure": _pressure(settings),
    }  # fmt: skip
    before = tx.execute(SQL["queue_settings"], {"name": settings.name}).fetchone()
    changed = before is None or before[1:] != tuple(row.values())[1:]
    if changed:
        if before is not None and before[1:3] != (settings.order, settings.ageing_ms):
            _rerank(tx, before[0], settings)
        tx.execute(SQL["put_queue"], row)
    queue = tx.execute(SQL["queue_id"], {"name": settings.name}).fetchone()[0]
    for workload in settings.workloads:
        changed |= _put_workload(tx, queue, workload)
    if changed:
        tx.renew_names()


def _pressure(settings: QueueSettings) -> str | None:
    plain = settings.pressure == PressureSettings()
    return None if plain else settings.pressure.to_json()


def _put_workload(tx: Context, queue: int, workload: Any) -> bool:
    row = {
        "strict": int(workload.is_strict), "weight": workload.weight,
        "borrow": int(workload.borrow), "full_policy": workload.full,
        "reserved_jobs": workload.reserved, "reserved_bytes": workload.reserved_bytes,
        "max_jobs": workload.max_jobs, "max_bytes": workload.max_bytes,
        "max_running": workload.running, "effect": workload.effect,
        "deadline_ms": workload.deadline_ms,
    }  # fmt: skip
    key = {"queue": queue, "name": workload.name}
    before = tx.execute(SQL["workload_settings"], key).fetchone()
    if before == tuple(row.values()):
        return False
    tx.execute(SQL["put_workload"], {**key, **row})
    return True


def _rerank(tx: Context, queue: int, settings: QueueSettings) -> None:
    """Rank every outstanding job anew, running ones included, in this transaction."""
    name = tx.names.queues[queue]
    jobs = tx.execute(SQL["outstanding_of_queue"], {"queue": queue}).fetchone()[0]
    if jobs > RERANK_AT_ONCE and not name.paused:
        msg = (
            f"queue {settings.name!r} holds {jobs} jobs; its order can change to "
            f"{settings.order!r} while they are more than {RERANK_AT_ONCE} only if the queue is "
            f"paused. Pause it, start again, resume it."
        )
        raise BadConfig(msg)
    key = {"queue": queue, "ordering": settings.order, "ageing_ms": settings.ageing_ms}
    for statement in ("rerank_jobs", "rerank_again", "rerank_ready", "rerank_blocked"):
        tx.execute(SQL[statement], key)


def put_tasks(tx: Context, settings: Sequence[TaskSettings]) -> None:
    """Write tasks' settings where they differ, and make the queues that they name.

    A queue can then be paused before its first job.
    """
    known = tx.names.task_ids
    if all(s.name in known and tx.names.settings[known[s.name]] == s.to_json() for s in settings):
        return
    for each in settings:
        row = {"id": tx.task(each.name), "settings": each.to_json(), "version": 0}
        tx.execute(SQL["put_task"], row)
        tx.execute(SQL["add_queue"], {"name": each.queue})
    tx.renew_names()


def pause(tx: Context, queue: str, by: str | None, *, paused: bool) -> bool:
    """Stop or resume the starting of a queue's jobs; False when there is no such queue."""
    row = tx.execute(SQL["pause_queue"], {"paused": int(paused), "name": queue}).fetchone()
    if row is None:
        return False
    event(tx, by, "pause" if paused else "resume", queue)
    names = tx.renew_names()
    if paused:
        tx.called.update(path for known in names.wake.values() for path, _, _ in known)
    else:
        tx.woken.update(lane.task_id for lane in names.lanes.values() if lane.queue.name == queue)
    return True
