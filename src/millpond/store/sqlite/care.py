"""Care of the data: cancel, memo and progress, workers, recounts and repairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from millpond.errors import InvariantBroken
from millpond.model import Drift, JobId, State, Token, WorkerId, WorkerInfo
from millpond.policy.fingerprint import fingerprint
from millpond.store.sqlite import gates
from millpond.store.sqlite.endings import settings_of
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context

DAY_MS = 86_400_000


class _Place(NamedTuple):
    id: int
    lane: int
    rank: int
    due: int
    tenant: int | None
    limit_key: str | None
    coalesce_key: str | None
    key: str | None
    size: int
    claim: int | None
    final: str | None


def event(
    tx: Context,
    who: str | None,
    what: str,
    which: object,
    note: str | None = None,
    *,
    before: str | None = None,
) -> None:
    """Write down who did what, in the transaction that does it."""
    row = {
        "id": tx.take("event", 1), "now": tx.now, "who": who, "what": what,
        "which": str(which), "note": note, "before": before, "after": None,
    }  # fmt: skip
    tx.execute(SQL["add_event"], row)


def cancel(tx: Context, job_id: JobId, by: str | None, note: str | None) -> State | None:
    """Cancel a waiting job now, ask a running one; return the state that was found."""
    row = tx.execute(SQL["job_place"], {"id": job_id}).fetchone()
    if row is None:
        return None
    place = _Place._make(row)
    if place.final is not None:
        return State(place.final)
    if place.claim is not None:
        key = {"id": job_id, "claim": place.claim, "now": tx.now, "who": by}
        tx.execute(SQL["ask_cancel"], key)
        tx.called.update(path for (path,) in tx.execute(SQL["wake_of_holder"], {"id": job_id}))
        found = State.RUNNING
    else:
        found = take_out(tx, place, State.CANCELLED, "cancelled")
    if by is not None:
        event(tx, by, "cancel", job_id, note, before=found)
    return found


def take_out(tx: Context, place: _Place, state: State, reason: str) -> State:
    """End a waiting job without an attempt; return the state it was in."""
    lane = tx.names.lanes[place.lane]
    found = _leave(tx, place, lane.queue.id)
    kind = fingerprint(lane.task, "", reason, "") if state is State.FAILED else None
    tx.execute(
        SQL["add_final"],
        (place.id, state, tx.now, lane.queue.id, lane.task_id, reason, kind),
    )
    tally = {
        "lane": lane.id,
        "cancelled": state is State.CANCELLED,
        "failed": state is State.FAILED,
    }
    tx.execute(SQL["count_cancelled"], tally)
    use = {"workload": lane.workload.id, "jobs": 1, "bytes": place.size}
    tx.execute(SQL["give_capacity"], use)
    scope = {"queue": lane.queue.id, "task": lane.task_id, "job": place.id}
    if place.tenant is not None:
        tx.execute(SQL["give_tenant"], {**use, "queue": lane.queue.id, "tenant": place.tenant})
    if place.key is not None or place.coalesce_key is not None:
        tx.execute(SQL["free_dedup"], {"job": place.id})
    if place.coalesce_key is not None:
        tx.execute(SQL["drop_coalesce_of"], {**scope, "key": place.coalesce_key})
    return found


def _leave(tx: Context, place: _Place, queue: int) -> State:
    """Take the job out of scheduled, ready or blocked, whichever holds it."""
    key = {"lane": place.lane, "rank": place.rank, "id": place.id, "due": place.due}
    counts = {"lane": place.lane, "scheduled": 0, "ready": 0, "blocked": 0}
    mine = gates.gates_of(place.limit_key, place.tenant, queue)
    if tx.execute(SQL["drop_ready"], key).rowcount == 1:
        tx.execute(SQL["move_counts"], {**counts, "ready": -1})
        gates.left_ready(tx, place.lane, mine)
        return State.READY
    if tx.execute(SQL["drop_scheduled"], key).rowcount == 1:
        tx.execute(SQL["move_counts"], {**counts, "scheduled": -1})
        return State.SCHEDULED
    for kind, ref in mine:
        if tx.execute(SQL["drop_blocked"], {**key, "kind": kind, "ref": ref}).rowcount == 1:
            tx.execute(SQL["move_counts"], {**counts, "blocked": -1})
            return State.READY
    msg = f"job {place.id} is neither waiting nor running nor final"
    raise InvariantBroken(msg)


def remember(tx: Context, worker: WorkerId, token: Token, value: bytes) -> bool:
    """Keep a value for later attempts of the operation, under the lease."""
    row = {"job": token.job_id, "claim": token.claim, "worker": worker, "value": value,
           "now": tx.now, "mono": tx.mono}  # fmt: skip
    return bool(tx.execute(SQL["put_memo"], row).rowcount == 1)


def progress(tx: Context, worker: WorkerId, items: Sequence[tuple[Token, bytes]]) -> None:
    """Keep the latest progress of running jobs, under their leases."""
    rows = [(t.job_id, t.claim, value, tx.now, worker, tx.mono) for t, value in items]
    tx.executemany(SQL["put_progress"], rows)


def register(tx: Context, info: WorkerInfo) -> WorkerId:
    """Write the worker and the tasks it serves under a new number."""
    ident = tx.take("worker", 1)
    tx.execute(
        SQL["add_worker"],
        {"id": ident, "domain": tx.domain, "host": info.host, "pid": info.pid,
         "wake": info.wake, "marks": info.marks, "version": info.version, "slots": info.slots,
         "queues": ",".join(info.queues), "interval_ms": info.interval_ms, "now": tx.now,
         "mono": tx.mono},
    )  # fmt: skip
    tx.executemany(SQL["add_worker_task"], [(tx.task(name), ident) for name in info.tasks])
    tx.renew_names()
    return WorkerId(ident)


def unregister(tx: Context, worker: WorkerId) -> None:
    """Note that a worker has ended; its row stays as long as history may name it."""
    tx.execute(SQL["end_worker"], {"worker": worker, "now": tx.now})
    tx.execute(SQL["drop_worker_tasks_of"], {"worker": worker})
    tx.renew_names()


def expire_unserved(tx: Context, limit: int, watched_ms: int | None) -> int:
    """Note which tasks are served; fail jobs whose task nobody has served for too long.

    Wall clocks of different processes and boots are compared here, so the caller also says
    for how long it has been watching by its own clock: a task's patience must fit in that.
    """
    clock = {"now": tx.now, "mono": tx.mono, "domain": tx.domain}
    tx.execute(SQL["note_served"], clock)
    failed = 0
    for lane, task, served_at in tx.execute(SQL["unserved_lanes"], clock).fetchall():
        patience = settings_of(tx, task).unknown_task_after_ms
        before = tx.now - patience
        if watched_ms is not None and patience > watched_ms:
            continue
        if served_at is not None and served_at > before:
            continue
        for ident in _unserved(tx, lane, before, limit - failed):
            row = tx.execute(SQL["job_place"], {"id": ident}).fetchone()
            take_out(tx, _Place._make(row), State.FAILED, "unknown_task")
            failed += 1
        if failed >= limit:
            break
    return failed


def _unserved(tx: Context, lane: int, before: int, limit: int) -> list[int]:
    """Return jobs of a lane that have been due for too long, those behind a limit as well."""
    key = {"lane": lane, "before": before}
    found: list[int] = []
    for name in ("waiting_in_lane", "blocked_in_lane"):
        rows = tx.execute(SQL[name], {**key, "limit": limit - len(found)}).fetchall()
        found += [row[0] for row in rows]
    return found


def forget_workers(tx: Context, window: int) -> None:
    """End workers that were silent for a day and hold nothing, forget those no history names.

    One that was only stopped learns it from its next beat and registers anew.
    """
    beating = {"domain": tx.domain, "since": tx.mono - DAY_MS}
    silent = {**beating, "before": tx.now - DAY_MS, "now": tx.now}
    ended = tx.execute(SQL["end_silent_workers"], silent).rowcount
    long_ago = {**beating, "before": tx.now - window - 7 * DAY_MS}
    forgotten = tx.execute(SQL["forget_workers"], long_ago).rowcount
    if ended or forgotten:
        tx.execute(SQL["drop_worker_tasks"])
        tx.renew_names()


LANE_COUNTERS = ("scheduled", "ready", "blocked", "running")


def drift(execute: Callable[..., Any]) -> list[Drift]:
    """Recount every counter in the snapshot behind `execute`; return those that differ."""
    found = []
    for row in execute(SQL["recount_lanes"]).fetchall():
        for at, name in enumerate(LANE_COUNTERS):
            if row[1 + at] != row[5 + at]:
                found.append(Drift(f"lane.n_{name}", str(row[0]), row[1 + at], row[5 + at]))
    for ident, jobs, size, n, b in execute(SQL["recount_workloads"]).fetchall():
        if jobs != n:
            found.append(Drift("workload.n_jobs", str(ident), jobs, n))
        if size != b:
            found.append(Drift("workload.n_bytes", str(ident), size, b))
    for queue, tenant, jobs, size, n, b in execute(SQL["recount_tenants"]).fetchall():
        if jobs != n:
            found.append(Drift("tenant.n_jobs", f"{queue}/{tenant}", jobs, n))
        if size != b:
            found.append(Drift("tenant.n_bytes", f"{queue}/{tenant}", size, b))
    found += [
        Drift("gate.n", f"{kind} {ref}", n, counted)
        for kind, ref, n, counted in execute(SQL["recount_gates"]).fetchall()
    ]
    return found


def mend(tx: Context) -> None:
    """Set every counter to what a recount under the write lock gives."""
    for row in tx.execute(SQL["recount_lanes"]).fetchall():
        counted = dict(zip(LANE_COUNTERS, row[5:9], strict=True))
        tx.execute(SQL["mend_lane"], {"id": row[0], **counted})
    for ident, _, _, jobs, size in tx.execute(SQL["recount_workloads"]).fetchall():
        tx.execute(SQL["mend_workload"], {"id": ident, "jobs": jobs, "bytes": size})
    for queue, tenant, _, _, jobs, size in tx.execute(SQL["recount_tenants"]).fetchall():
        row = {"queue": queue, "tenant": tenant, "jobs": jobs, "bytes": size}
        tx.execute(SQL["mend_tenant"], row)
    for kind, ref, _, n in tx.execute(SQL["recount_gates"]).fetchall():
        tx.execute(SQL["mend_gate"], {"kind": kind, "ref": ref, "n": n})
        gates.bring_back_fitting(tx, (kind, ref))


CHECKS = (
    ("nowhere", "job {} stands nowhere"),
    ("everywhere", "job {} stands in {} places at once ({})"),
    ("homeless", "{1} names job {0}, which does not exist"),
    ("wrong_place", "job {} waits at a place its row does not name"),
    ("ownerless", "job {} is run by worker {}, which does not exist: nobody can take it back"),
    ("charged_attempts", "job {} has used {} attempts, its history shows {}, the last is {}"),
    ("completed_twice", "job {} was completed {} times"),
    ("stuck", "job {} and {} more wait in lane {} for {} {}, which has room"),
    ("stray_coalesce", "coalesce key {!r} of task {} is held by job {}, which does not wait"),
    ("stray_key", "key {!r} of task {} is held for ever by job {}, which is not outstanding"),
)
"""Statements that find what may not be, each with what to say of a row."""


def verify(execute: Callable[..., Any]) -> list[str]:
    """Check the file's integrity, every job's place and every counter; return what is wrong."""
    wrong = [
        f"integrity_check: {row[0]}"
        for row in execute("PRAGMA integrity_check(20)").fetchall()
        if row[0] != "ok"
    ]
    for name, words in CHECKS:
        wrong += [words.format(*row) for row in execute(SQL[name]).fetchall()]
    wrong += [
        f"{d.what} of {d.which} says {d.counter}, a recount gives {d.counted}"
        for d in drift(execute)
    ]
    return wrong
