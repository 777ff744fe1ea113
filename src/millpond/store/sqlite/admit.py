"""Accepting jobs: one decision and one insert, in the caller's or our own transaction.

Nothing here uses temp tables, pragmas or more than one cursor, so that it also runs on a
connection that belongs to an application.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

from millpond.ids import uuid7_many
from millpond.model import Admission, JobId, JobSpec
from millpond.policy import admission, ordering
from millpond.store.sqlite import gates
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context, LaneName, QueueName, text
from millpond.store.sqlite.rows import insert

_DUE = 5
"""Where a job's row has its due time."""
_PLAIN = 12
"""So many columns every job has; what follows is for few."""
_NOTHING = (None,) * 10


_zeros = partial(defaultdict[int, int], int)
"""A counter; `Counter` takes longer to make than most enqueues have to count."""


@dataclass(slots=True)
class _Plan:
    """What one enqueue is about to insert."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    answers: list[Admission | None] = field(default_factory=list)
    ready: defaultdict[int, int] = field(default_factory=_zeros)
    scheduled: defaultdict[int, int] = field(default_factory=_zeros)
    jobs: defaultdict[int, int] = field(default_factory=_zeros)
    bytes: defaultdict[int, int] = field(default_factory=_zeros)
    coalesce_keys: set[tuple[int, int, str]] = field(default_factory=set)


def enqueue_all(tx: Context, groups: Sequence[Sequence[JobSpec]]) -> list[list[Admission]]:
    """Do the enqueues of several callers as one, so that they share its statements."""
    if len(groups) == 1:
        return [enqueue(tx, groups[0])]
    answers = enqueue(tx, [spec for specs in groups for spec in specs])
    ends = list(accumulate(len(specs) for specs in groups))
    return [answers[end - len(specs) : end] for specs, end in zip(groups, ends, strict=True)]


def enqueue(tx: Context, specs: Sequence[JobSpec]) -> list[Admission]:
    """Decide about every spec, insert what is admitted, move the counters.

    Cost: O(specs · log jobs) inserts; statements: a fixed number for plain specs.
    """
    tx.require_open()
    operations = uuid7_many(tx.now, len(specs))
    first = tx.take("job", len(specs))
    plan = _Plan()
    if len(specs) == 1:
        plan.answers.append(_admit(tx, plan, specs[0], first, operations[0]))
    else:
        for at, spec in enumerate(specs):
            plan.answers.append(_admit(tx, plan, spec, first + at, operations[at]))
    if plan.rows:
        decide(tx, plan.jobs, plan.bytes)
        _insert(tx, plan)
        _count(tx, plan)
    return [answer for answer in plan.answers if answer is not None]


def _admit(tx: Context, plan: _Plan, spec: JobSpec, ident: int, operation: str) -> Admission:
    lane = tx.names.lane_of.get((spec.queue, spec.workload, spec.task, False))
    if lane is None:
        lane = tx.lane(spec.queue, spec.workload, spec.task)
    if spec.key is not None or spec.coalesce_key is not None:
        found = _existing(tx, plan, lane, spec)
        if found is not None:
            return found
    operation = spec.operation_id or operation
    due = spec.due_at if spec.due_at is not None else tx.now + spec.delay_ms
    rank = _rank(lane.queue, spec.priority, due)
    size = len(spec.payload) + (len(spec.meta) if spec.meta else 0)
    tenant = None if spec.tenant is None else tx.tenant(spec.tenant)
    plan.rows.append(
        # The driver binds a bytearray as it is; for bytes it looks for an adapter first.
        (ident, lane.id, rank, spec.priority, tx.now, due, spec.max_attempts, spec.lease_ms,
         size, operation, spec.codec, bytearray(spec.payload), tenant, spec.timeout_ms, spec.key,
         spec.coalesce_key, spec.limit_key, spec.origin, spec.parent, spec.batch,
         spec.traceparent, spec.meta)
    )  # fmt: skip
    (plan.ready if due <= tx.now else plan.scheduled)[lane.id] += 1
    plan.jobs[lane.workload.id] += 1
    plan.bytes[lane.workload.id] += size
    if spec.key is not None or spec.coalesce_key is not None:
        _keep_keys(tx, lane, spec, ident, operation)
        if spec.coalesce_key is not None:
            plan.coalesce_keys.add((lane.queue.id, lane.task_id, spec.coalesce_key))
    if spec.limit_key is not None:
        gates.declare(tx, ("limit", spec.limit_key), spec.limit)
    if tenant is not None:
        use = {"queue": lane.queue.id, "tenant": tenant, "jobs": 1, "bytes": size}
        tx.execute(SQL["take_tenant"], use)
    return Admission("admitted", JobId(ident), operation)


def _rank(queue: QueueName, priority: int, due: int) -> int:
    if queue.ordering == "strict":
        return (priority << 47) + due
    return ordering.rank(priority, due, queue.ordering, queue.ageing_ms)  # type: ignore[arg-type]


def _existing(tx: Context, plan: _Plan, lane: LaneName, spec: JobSpec) -> Admission | None:
    scope = {"queue": lane.queue.id, "task": lane.task_id}
    if spec.key is not None:
        key = {**scope, "key": spec.key, "now": tx.now}
        row = tx.execute(SQL["find_dedup"], key).fetchone()
        if row is not None:
            return Admission("duplicate", JobId(row[0]), text(row[1]))
    if spec.coalesce_key is not None:
        key = {**scope, "key": spec.coalesce_key}
        if (lane.queue.id, lane.task_id, spec.coalesce_key) in plan.coalesce_keys:
            # The one it joins is in this very batch: insert first, then look again.
            _flush(tx, plan)
        row = tx.execute(SQL["find_coalesce"], key).fetchone()
        if row is not None:
            answer = _coalesce(tx, lane, spec, _Waiting._make(row))
            if spec.key is not None:
                # The same request sent again must find the job that took it in.
                _keep_key(tx, lane, spec, answer.job_id, answer.operation_id)
            return answer
    return None


def _flush(tx: Context, plan: _Plan) -> None:
    decide(tx, plan.jobs, plan.bytes)
    _insert(tx, plan)
    _count(tx, plan)
    for part in (
        plan.rows, plan.ready, plan.scheduled, plan.jobs, plan.bytes,
        plan.coalesce_keys,
    ):  # fmt: skip
        part.clear()


class _Waiting(NamedTuple):
    """The job that waits under a coalesce key, as `find_coalesce` reads it."""

    job: int
    operation_id: str
    bytes: int
    lane_first: int
    lane: int
    due: int
    rank: int
    priority: int
    tenant: int | None
    again: bool


def _coalesce(tx: Context, lane: LaneName, spec: JobSpec, there: _Waiting) -> Admission:
    """Join the waiting job: `first` leaves it, `latest` gives it this payload.

    The earlier of the two due times holds, so a request for now never waits for a later one.
    """
    answer = Admission("coalesced", JobId(there.job), text(there.operation_id))
    if spec.coalesce == "first":
        return answer
    size = len(spec.payload) + (len(spec.meta) if spec.meta else 0)
    row = {"job": there.job, "payload": spec.payload, "meta": spec.meta, "codec": spec.codec}
    tx.execute(SQL["replace_payload"], {**row, "bytes": size})
    workload = tx.names.lanes[there.lane_first].workload.id
    use = {"workload": workload, "jobs": 0, "bytes": size - there.bytes}
    tx.execute(SQL["take_capacity"], use)
    if there.tenant is not None:
        less = {"queue": lane.queue.id, "tenant": there.tenant, "jobs": 0}
        tx.execute(SQL["give_tenant"], {**less, "bytes": there.bytes - size})
    wanted = spec.due_at if spec.due_at is not None else tx.now + spec.delay_ms
    if wanted < there.due:
        _bring_forward(tx, lane, there, wanted)
    return answer


def _bring_forward(tx: Context, lane: LaneName, there: _Waiting, due: int) -> None:
    """Let a scheduled job fall due earlier; one that is ready stays where it is."""
    if tx.execute(SQL["drop_scheduled"], {"due": there.due, "id": there.job}).rowcount != 1:
        return
    rank = there.rank
    if there.again:
        tx.execute(SQL["again_due"], {"job": there.job, "due": due})
    else:
        rank = _rank(lane.queue, there.priority, due)
        tx.execute(SQL["first_due_and_rank"], {"job": there.job, "due": due, "rank": rank})
    tx.woken.add(lane.task_id)
    if due > tx.now:
        tx.execute(SQL["add_scheduled"], (due, there.job))
        return
    tx.execute(SQL["add_ready"], (there.lane, rank, there.job, due))
    count = {"lane": there.lane, "scheduled": -1, "ready": 1, "blocked": 0}
    tx.execute(SQL["move_counts"], count)


def _keep_keys(tx: Context, lane: LaneName, spec: JobSpec, ident: int, operation: str) -> None:
    if spec.key is not None:
        _keep_key(tx, lane, spec, ident, operation)
    if spec.coalesce_key is not None:
        scope = {"queue": lane.queue.id, "task": lane.task_id, "job": ident}
        tx.execute(SQL["put_coalesce"], {**scope, "key": spec.coalesce_key})


def _keep_key(tx: Context, lane: LaneName, spec: JobSpec, ident: int, operation: str) -> None:
    row = {
        "queue": lane.queue.id, "task": lane.task_id, "key": spec.key, "job": ident,
        "operation_id": operation, "ttl_ms": spec.key_ttl_ms,
    }  # fmt: skip
    tx.execute(SQL["put_dedup"], row)


def decide(tx: Context, jobs: Mapping[int, int], size: Mapping[int, int]) -> None:
    """Ask the policy for room, by workload, on counters that nobody else can move before we commit.

    Raises what admission refuses with; nothing was written then.
    """
    for workload, count in jobs.items():
        wanted = admission.Wanted(count, size[workload])
        row = tx.execute(SQL["read_capacity"], {"workload": workload}).fetchone()
        admission.decide(wanted, admission.Capacity(*row))


def _insert(tx: Context, plan: _Plan) -> None:
    rows = plan.rows
    if all(row[_PLAIN:] == _NOTHING for row in rows):
        insert(tx.execute, SQL["add_plain_job"], [row[:_PLAIN] for row in rows])
    else:
        insert(tx.execute, SQL["add_job"], rows)
    if len(rows) == 1:
        ident, lane, rank, due = rows[0][0], rows[0][1], rows[0][2], rows[0][_DUE]
        if plan.ready:
            tx.execute(SQL["add_ready"], (lane, rank, ident, due))
        else:
            tx.execute(SQL["add_scheduled"], (due, ident))
        return
    span = {"first": rows[0][0], "last": rows[-1][0], "now": tx.now}
    if plan.ready:
        tx.execute(SQL["add_ready_range"], span)
    if plan.scheduled:
        tx.execute(SQL["add_scheduled_range"], span)


def _count(tx: Context, plan: _Plan) -> None:
    for lane in plan.ready.keys() | plan.scheduled.keys():
        ready = plan.ready.get(lane, 0)
        count = {"lane": lane, "ready": ready, "scheduled": plan.scheduled.get(lane, 0)}
        tx.execute(SQL["count_accepted"], count)
        # Scheduled ones too: a keeper that sleeps must learn when to wake up.
        if ready or plan.scheduled.get(lane):
            tx.woken.add(tx.names.lanes[lane].task_id)
    for workload, jobs in plan.jobs.items():
        use = {"workload": workload, "jobs": jobs, "bytes": plan.bytes[workload]}
        tx.execute(SQL["take_capacity"], use)


def stands(execute: Callable[..., Any], answers: Sequence[Admission]) -> bool | None:
    """Read back whether an enqueue was committed: its own jobs tell. None: it made none."""
    admitted = [answer for answer in answers if answer.answer == "admitted"]
    if not admitted:
        return None
    return all(
        execute(
            SQL["job_with_operation"], {"job": one.job_id, "operation_id": one.operation_id}
        ).fetchone()
        for one in admitted
    )
