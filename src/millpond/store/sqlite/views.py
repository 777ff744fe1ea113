"""Reads: one job, lists, history, status. Each function runs in one snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from millpond.config import TaskSettings
from millpond.model import (
    FINAL_STATES,
    AttemptOutcome,
    AttemptRow,
    JobFilter,
    JobId,
    JobRow,
    LaneCount,
    LeaseInfo,
    State,
    StatusSnapshot,
    WorkerBeat,
    WorkerId,
    WorkerRow,
)
from millpond.store.sqlite import gates
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Names, load

SCAN_ROWS = 100_000
"""Rows an unindexed filter looks at before it says so."""
BEATS_UNTIL_DEAD = 4
"""A worker is live while its last beat is younger than this many of its intervals."""
BEATS_UNTIL_LATE = 1.5
"""A beat is overdue after this many intervals: a busy moment delays one, but hardly by half."""

_SUMMED = (
    "scheduled", "ready", "blocked", "running", "completed", "failed", "cancelled", "retried",
    "oldest_due_at", "paused",
)  # fmt: skip

SHOWN_MS = 86_400_000
"""Workers that stopped beating without a goodbye are listed for a day."""

Execute = Callable[..., Any]


def get(execute: Execute, clock: Any, job_id: JobId, *, payload: bool) -> JobRow | None:
    """Return one job as it stands, None when it does not exist."""
    row = execute(SQL["get_job"], {"id": job_id, "with_payload": payload}).fetchone()
    return None if row is None else _job(execute, clock, row)


def _job(execute: Execute, clock: Any, row: Any) -> JobRow:
    (ident, task, queue, workload, tenant, priority, payload, meta, created, first_due,
     max_attempts, operation, key, coalesce_key, limit_key, size, again_due, attempts, crashes,
     claim, worker, run_due, claimed_at, _, lease_ms, cancel_at, final, finished_at, reason,
     lane, rank, queue_id, tenant_id, result, progress) = row  # fmt: skip
    due = again_due if again_due is not None else first_due
    if final is not None or claim is not None:
        state, blocked = State(final) if final else State.RUNNING, None
    else:
        limits = gates.gates_of(limit_key, tenant_id, queue_id)
        state, due, kind = _waiting(execute, ident, due, (lane, rank), limits)
        blocked = kind and f"{kind} {limit_key if kind == 'limit' else f'{queue}/{tenant}'}"
    if run_due is not None:
        due = run_due
    started, attempts, crashes = _started(execute, ident, claimed_at, attempts, crashes)
    lease = None
    if claim is not None:
        lease = _lease(execute, clock.domain, worker, claim, (claimed_at, lease_ms))
    return JobRow(
        id=ident, task=task, queue=queue, workload=workload, tenant=tenant, state=state,
        priority=priority, payload=payload, meta=meta, created_at=created, due_at=due,
        started_at=started, finished_at=finished_at, attempts=attempts, crashes=crashes,
        max_attempts=max_attempts, lease=lease, last_error=_last_error(execute, ident, state),
        reason=reason, operation_id=operation, key=key, coalesce_key=coalesce_key,
        limit_key=limit_key, blocked_by=blocked, cancel_requested=cancel_at is not None,
        result=result, progress=progress, payload_bytes=size,
    )  # fmt: skip


def _waiting(
    execute: Execute,
    ident: int,
    due: int,
    place: tuple[int, int],
    limits: tuple[gates.Gate, ...],
) -> tuple[State, int, str | None]:
    """Return where a waiting job stands, since or until when, and what kind of limit blocks it."""
    key = {"lane": place[0], "rank": place[1], "id": ident}
    ready = execute(SQL["ready_due"], key).fetchone()
    if ready is not None:
        return State.READY, ready[0], None
    if execute(SQL["is_scheduled"], {"due": due, "id": ident}).fetchone():
        return State.SCHEDULED, due, None
    for kind, ref in limits:
        if execute(SQL["is_blocked"], {**key, "kind": kind, "ref": ref}).fetchone():
            return State.READY, due, kind
    return State.READY, due, None


def _started(
    execute: Execute, ident: int, claimed_at: int | None, attempts: int, crashes: int
) -> tuple[int | None, int, int]:
    """Return the latest claim's start, the attempts used, this one included, and the crashes.

    What ended a job is in its history only.
    """
    if claimed_at is not None:
        return claimed_at, attempts + 1, crashes
    last = execute(SQL["last_attempt"], {"job": ident}).fetchone()
    if last is None:
        return None, attempts, crashes
    charged, crashed = execute(SQL["charged_number"], {"job": ident}).fetchone()
    started = last[1] if last[1] is not None else last[2]
    return started, max(attempts, charged or 0), max(crashes, crashed or 0)


def _last_error(execute: Execute, ident: int, state: State) -> str | None:
    """Return the newest error, none once the job is completed."""
    if state is State.COMPLETED:
        return None
    row = execute(SQL["last_error"], {"job": ident}).fetchone()
    return None if row is None else ": ".join(part for part in row if part)


def _lease(
    execute: Execute, domain: str, worker: int, claim: int, times: tuple[int, int]
) -> LeaseInfo:
    claimed_at, lease_ms = times
    row = execute(SQL["worker_row"], {"worker": worker}).fetchone()
    if row is None:
        return LeaseInfo(WorkerId(worker), "unknown", claim, None)
    host, pid, whose, beat_at, _, _ = row
    expires = max(claimed_at, beat_at) + lease_ms if whose == domain else None
    return LeaseInfo(WorkerId(worker), f"{host}:{pid}", claim, expires)


def find(
    execute: Execute, clock: Any, where: JobFilter, before: JobId | None, limit: int
) -> list[JobRow]:
    """Return jobs, newest first, without payloads; unindexed filters scan SCAN_ROWS at most."""
    key = {
        **_filters(execute, where), "before": before if before is not None else 1 << 62,
        "limit": limit, "scan": SCAN_ROWS, "operation_id": where.operation_id,
    }  # fmt: skip
    found = execute(SQL[_search(execute, where)], key).fetchall()
    rows = [get(execute, clock, ident, payload=False) for (ident,) in found]
    return [row for row in rows if row is not None and _fits(row, where)]


_TOLD_BY_PLACE = frozenset({"state", "queue", "workload", "task", "tenant", "key"})
_TOLD_BY_FINAL = frozenset({"state", "queue", "task", "reason", "fingerprint"})
_TOLD_BY_FAILED = _TOLD_BY_FINAL - {"reason"}


def _search(execute: Execute, where: JobFilter) -> str:
    """Return the statement that looks at the fewest rows, whatever else the store holds.

    Left to the scan of the newest jobs are lists over all states, a state in which more than
    SCAN_ROWS wait, and filters that neither the places nor the final rows can tell.
    """
    if where.operation_id is not None:
        return "find_operation"
    asked = {one.name for one in fields(where) if getattr(where, one.name) is not None}
    if where.state is None:
        return "scan_jobs" if asked else "newest_jobs"
    if where.state in FINAL_STATES:
        return _search_final(where.state, asked)
    if not asked <= _TOLD_BY_PLACE:
        return "scan_jobs"
    many = execute(SQL["count_places"], {"state": where.state}).fetchone()[0]
    return "find_placed" if many <= SCAN_ROWS else "scan_jobs"


def _search_final(state: State, asked: set[str]) -> str:
    if state is State.FAILED and asked <= _TOLD_BY_FAILED:
        return "find_failed"
    if asked == {"state"}:
        return "newest_final"
    return "find_final" if asked <= _TOLD_BY_FINAL else "scan_jobs"


def _filters(execute: Execute, where: JobFilter) -> dict[str, Any]:
    return {
        "queue": ident_of(execute, "queue_id", where.queue),
        "task": ident_of(execute, "task_id", where.task), "workload": where.workload,
        "tenant": where.tenant, "key": where.key, "reason": where.reason,
        "fingerprint": where.fingerprint, "state": where.state, "error": where.error,
        "created_after": where.created_after, "created_before": where.created_before,
        "finished_after": where.finished_after, "finished_before": where.finished_before,
    }  # fmt: skip


def ident_of(execute: Execute, name: str, value: str | None) -> int | None:
    """Return the number of a name, None for None and -1 for one that is not known."""
    if value is None:
        return None
    row = execute(SQL[name], {"name": value}).fetchone()
    return -1 if row is None else row[0]


def _fits(row: JobRow, where: JobFilter) -> bool:
    pairs = (
        (where.state, row.state), (where.queue, row.queue), (where.task, row.task),
        (where.workload, row.workload), (where.tenant, row.tenant), (where.key, row.key),
        (where.reason, row.reason),
    )  # fmt: skip
    if any(wanted is not None and wanted != found for wanted, found in pairs):
        return False
    spans = (
        (where.created_after, row.created_at, where.created_before),
        (where.finished_after, row.finished_at, where.finished_before),
    )
    return all(_within(*span) for span in spans) and (
        where.error is None or where.error.lower() in (row.last_error or row.reason or "").lower()
    )


def _within(least: int | None, moment: int | None, most: int | None) -> bool:
    if least is None and most is None:
        return True
    return moment is not None and (least or 0) <= moment <= (1 << 62 if most is None else most)


def attempts(execute: Execute, job_id: JobId) -> list[AttemptRow]:
    """Return the job's history, oldest first."""
    return [
        AttemptRow(
            job_id=row[0], claim=row[1], number=row[2], worker=row[3],
            owner=None if row[4] is None else f"{row[4]}:{row[5]}", claimed_at=row[6],
            started_at=row[7], ended_at=row[8], outcome=AttemptOutcome(row[9]),
            error_type=row[10], message=row[11], traceback=row[12], fingerprint=row[13],
            signal=row[14], late_at=row[15],
        )
        for row in execute(SQL["attempts_of"], {"job": job_id}).fetchall()
    ]  # fmt: skip


def workers(execute: Execute, now: int) -> list[WorkerRow]:
    """Return the registered keepers, newest beat first."""
    return [
        WorkerRow(
            id=row[0], host=row[1], pid=row[2], version=row[3], slots=row[4], beat_at=row[5],
            started_at=row[6], interval_ms=row[7], running=row[9],
            live=row[5] + BEATS_UNTIL_DEAD * row[7] >= now,
            tasks=tuple(sorted(row[10].split("\x1f"))) if row[10] else (),
            queues=tuple(part for part in row[8].split(",") if part),
            late=row[5] + BEATS_UNTIL_LATE * row[7] < now, lease_ends_at=row[11],
        )
        for row in execute(SQL["worker_status"], {"since": now - SHOWN_MS}).fetchall()
    ]  # fmt: skip


def status(execute: Execute, clock: Any) -> StatusSnapshot:
    """Return the state of everything from counters: O(lanes + workers + running)."""
    now = clock.now()
    names = load(execute, execute(SQL["read_meta"]).fetchone()[0])
    people = workers(execute, now)
    live = [worker for worker in people if worker.live]
    served = {task for worker in live for task in worker.tasks}
    lanes = _merge(names, execute(SQL["lane_status"]).fetchall(), served)
    expired = execute(SQL["count_expired"], {"domain": clock.domain, "mono": clock.mono()})
    first = execute(SQL["first_due"]).fetchone()
    tasks: dict[str, int] = {}
    queues: dict[str, int] = {}
    for lane in lanes:
        waiting = lane.ready + lane.blocked
        if waiting and lane.task not in served:
            tasks[lane.task] = tasks.get(lane.task, 0) + waiting
        if waiting and not any(_serves(worker, lane.queue) for worker in live):
            queues[lane.queue] = queues.get(lane.queue, 0) + waiting
    rows = execute(SQL["workload_status"]).fetchall()
    return StatusSnapshot(
        at=now, lanes=lanes, workers=people, expired_leases=expired.fetchone()[0],
        next_due_at=first and first[0], unserved_tasks=sorted(tasks.items()),
        unserved_queues=sorted(queues.items()),
        workload_jobs={(q, w): (jobs, size) for q, w, jobs, size in rows},
    )  # fmt: skip


def _serves(worker: WorkerRow, queue: str) -> bool:
    return not worker.queues or any(
        served.partition(":")[0].partition("/")[0] == queue for served in worker.queues
    )


def _merge(names: Names, rows: list[Any], served: set[str]) -> list[LaneCount]:
    """Add up the two lanes of the same work: its first claims and its later ones."""
    sums: dict[tuple[str, str, str], list[Any]] = {}
    for row in rows:
        lane = names.lanes[row[0]]
        key = (lane.queue.name, lane.workload.name, lane.task)
        total = sums.setdefault(key, [0] * 8 + [None, lane.queue.paused or lane.workload.paused])
        for at in range(8):
            total[at] += row[5 + at]
        if row[13] is not None:
            total[8] = row[13] if total[8] is None else min(total[8], row[13])
    return [
        LaneCount(
            queue=queue, workload=workload, task=task, served=task in served,
            **dict(zip(_SUMMED, total, strict=True)),
        )
        for (queue, workload, task), total in sorted(sums.items())
    ]  # fmt: skip


def tasks(execute: Execute) -> dict[str, TaskSettings]:
    """Return the settings of all tasks that were declared."""
    return {
        name: TaskSettings.from_json(settings)
        for name, settings in execute(SQL["known_tasks"]).fetchall()
        if settings is not None
    }


def beats(execute: Execute) -> dict[WorkerId, WorkerBeat]:
    """Return every worker that holds running jobs."""
    return {
        WorkerId(row[0]): WorkerBeat(row[1], row[2], row[6], row[3], row[4], row[5])
        for row in execute(SQL["worker_beats"]).fetchall()
    }
