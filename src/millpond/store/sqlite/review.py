"""Review of final jobs by people: put back, discard, group by kind of error, find a pinned set.

A batch is one transaction: what it may do to its jobs it does to all of them, and each job
that it may not touch is answered with the state that was found.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from millpond.errors import InvariantBroken
from millpond.model import (
    Acted,
    ActedBatch,
    EventRow,
    FailureGroup,
    FailureGroups,
    Found,
    JobFilter,
    JobId,
    Pin,
    Requeue,
    State,
)
from millpond.policy import ordering
from millpond.store.sqlite import admit, care, retention
from millpond.store.sqlite.endings import settings_of
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context, LaneName, text
from millpond.store.sqlite.part import Part, timed
from millpond.store.sqlite.search import matching
from millpond.store.sqlite.tickets import Ticket

FAILURES_SCANNED = 100_000
"""Failed jobs that are grouped at most, the newest ones."""
BATCH = 500
"""Jobs of one transaction at most: bounds how long it holds the write lock."""
_TICK_S = 0.005

Execute = Callable[..., Any]
_encode = msgspec.json.encode


class Job(NamedTuple):
    """A job as `final_jobs` reads it; `final` is None for one that is not final."""

    id: int
    lane: int
    tenant: int | None
    priority: int
    max_attempts: int
    first_attempts: int | None
    size: int
    meta_size: int
    operation_id: str
    key: str | None
    coalesce_key: str | None
    final: str | None
    finished_at: int
    reason: str | None
    state: str
    used: int
    crashes: int

    def within(self, pin: Pin | None) -> bool:
        """Tell whether the job is final and was so already when the set was pinned."""
        if self.final is None:
            return False
        return pin is None or (self.id <= pin.max_id and self.finished_at <= pin.ended_by)


def _final_jobs(tx: Context, ids: Iterable[int]) -> dict[int, Job]:
    param = {"ids": _encode(list(ids)).decode()}
    return {row[0]: Job._make(row) for row in tx.execute(SQL["final_jobs"], param).fetchall()}


def requeue(
    tx: Context, wishes: Sequence[Requeue], by: str | None, note: str | None, pin: Pin | None
) -> tuple[Acted, ...]:
    """Put final jobs back through admission: all of them that may be, or none.

    Cost: O(jobs · log n), in a fixed number of statements beside those for keys and tenants.
    """
    tx.require_open()
    found = _final_jobs(tx, [wish.job_id for wish in wishes])
    back, answers = _Back(tx), []
    for wish in wishes:
        job = found.get(wish.job_id)
        if job is None:
            answers.append(Acted(wish.job_id, None, done=False))
        elif not job.within(pin) or job.id in back.states:
            # One that is named twice is put back once.
            state = back.states.get(job.id, State(job.state))
            answers.append(Acted(wish.job_id, state, done=False))
        else:
            operation = back.add(job, wish)
            answers.append(Acted(wish.job_id, State(job.state), True, operation))
    back.write(by, note)
    return tuple(answers)


class _Back:
    """Gathers the jobs that are put back, then writes them set by set."""

    def __init__(self, tx: Context) -> None:
        self.tx = tx
        self.states: dict[int, State] = {}
        self.jobs: list[tuple[Any, ...]] = []
        self.again: list[tuple[int, ...]] = []
        self.fresh: list[tuple[int]] = []
        self.holding: list[tuple[int, str, int]] = []
        self.ready: list[tuple[int, int, int, int]] = []
        self.scheduled: list[tuple[int, int]] = []
        self.counts: Counter[tuple[int, str]] = Counter()
        self.use: Counter[int] = Counter()
        self.bytes: Counter[int] = Counter()
        self.rest: list[tuple[Job, Requeue, LaneName, int]] = []
        self.events: list[tuple[int, object, object]] = []

    def add(self, job: Job, wish: Requeue) -> str:
        """Plan one job's return and give its operation id."""
        tx, name = self.tx, self.tx.names.lanes[job.lane]
        due = wish.due_at if wish.due_at is not None else tx.now + wish.delay_ms
        rank = ordering.rank(
            job.priority, due, name.queue.ordering, name.queue.ageing_ms  # type: ignore[arg-type]
        )  # fmt: skip
        grants = job.first_attempts or job.max_attempts
        most = job.used + (wish.attempts or grants)
        size = job.size if wish.payload is None else len(wish.payload) + job.meta_size
        self.jobs.append((job.id, rank, due, most, grants))
        lane = self._lane(job, name, due, rank)
        self._place(job.id, lane, rank, due)
        self.use[name.workload.id] += 1
        self.bytes[name.workload.id] += size
        self.rest.append((job, wish, name, size))
        operation = wish.operation_id or job.operation_id
        if job.final == State.COMPLETED:
            self.holding.append((job.id, operation, tx.now))
        self._note(job, wish, due, most)
        return operation

    def _lane(self, job: Job, name: LaneName, due: int, rank: int) -> int:
        """Return the lane it waits in: that of first claims only when none was charged."""
        if not job.used:
            self.fresh.append((job.id,))
            return name.id
        lane = self.tx.lane(name.queue.name, name.workload.name, name.task, again=True)
        self.again.append((job.id, lane.id, due, rank, job.used, job.crashes))
        return lane.id

    def _place(self, ident: int, lane: int, rank: int, due: int) -> None:
        ready = due <= self.tx.now
        if ready:
            self.ready.append((lane, rank, ident, due))
        else:
            self.scheduled.append((due, ident))
        self.counts[lane, "ready" if ready else "scheduled"] += 1
        self.states[ident] = State.READY if ready else State.SCHEDULED

    def _note(self, job: Job, wish: Requeue, due: int, most: int) -> None:
        before: dict[str, Any] = {
            "state": job.state, "finished_at": job.finished_at, "reason": job.reason,
            "attempts": job.used, "max_attempts": job.max_attempts,
        }  # fmt: skip
        after: dict[str, Any] = {
            "state": self.states[job.id].value, "due_at": due, "max_attempts": most,
        }  # fmt: skip
        if wish.payload is not None:
            row = self.tx.execute(SQL["payload_of"], {"id": job.id}).fetchone()
            before["payload"], after["payload"] = _json(row[0]), _json(wish.payload)
        if wish.operation_id is not None:
            before["operation_id"], after["operation_id"] = job.operation_id, wish.operation_id
        self.events.append((job.id, before, after))

    def write(self, by: str | None, note: str | None) -> None:
        """Ask admission, then write all that was gathered."""
        if not self.jobs:
            return
        admit.decide(self.tx, self.use, self.bytes)
        many = self.tx.executemany
        gone = many(SQL["drop_final"], [(ident,) for ident in self.states]).rowcount
        if gone != len(self.states):
            msg = f"{len(self.states)} final jobs were to be put back and {gone} were final"
            raise InvariantBroken(msg)
        for name, rows in (
            ("requeue_job", self.jobs),
            ("put_again", self.again),
            ("drop_again", self.fresh),
            ("hold_keys", self.holding),
            ("add_ready", self.ready),
            ("add_scheduled", self.scheduled),
        ):
            if rows:
                many(SQL[name], rows)
        self._count()
        for job, wish, lane, size in self.rest:
            self._finish(job, wish, lane, size)
        write_events(self.tx, "requeue", by, note, self.events)

    def _count(self) -> None:
        tx = self.tx
        for lane in {lane for lane, _ in self.counts}:
            ready = self.counts[lane, "ready"]
            count = {"lane": lane, "ready": ready, "scheduled": self.counts[lane, "scheduled"]}
            tx.execute(SQL["count_accepted"], count)
            if ready:
                tx.woken.add(tx.names.lanes[lane].task_id)
        for workload, jobs in self.use.items():
            use = {"workload": workload, "jobs": jobs, "bytes": self.bytes[workload]}
            tx.execute(SQL["take_capacity"], use)

    def _finish(self, job: Job, wish: Requeue, lane: LaneName, size: int) -> None:
        """Write what few jobs have: a correction, a new operation, keys, a tenant."""
        tx = self.tx
        if wish.payload is not None:
            row = {"id": job.id, "payload": wish.payload, "bytes": size}
            tx.execute(SQL["correct_payload"], row)
        operation = wish.operation_id or job.operation_id
        if operation != job.operation_id:
            tx.execute(SQL["rename_operation"], {"id": job.id, "operation_id": operation})
            tx.execute(SQL["drop_memo"], {"operation_id": job.operation_id})
        scope = {"queue": lane.queue.id, "task": lane.task_id, "job": job.id}
        if job.key is not None:
            _retake(tx, {**scope, "key": job.key, "operation_id": operation})
        if job.coalesce_key is not None:
            tx.execute(SQL["rejoin_coalesce"], {**scope, "key": job.coalesce_key})
        if job.tenant is not None:
            use = {"queue": lane.queue.id, "tenant": job.tenant, "jobs": 1, "bytes": size}
            tx.execute(SQL["take_tenant"], use)


def _retake(tx: Context, row: dict[str, Any]) -> None:
    """Take the key when nobody holds it, or this very job; else the job runs beside its holder."""
    held = tx.execute(SQL["holder_of_key"], row).fetchone()
    mine = held is not None and held[0] == row["job"]
    free = held is None or (held[2] is not None and held[2] <= tx.now)
    if mine or free:
        ttl = held[1] if mine else settings_of(tx, row["task"]).key_ttl_ms
        tx.execute(SQL["put_dedup"], {**row, "ttl_ms": ttl})


def discard(
    tx: Context, ids: Sequence[JobId], by: str | None, note: str | None, pin: Pin | None
) -> tuple[Acted, ...]:
    """Delete final jobs with all that belongs to them, and write down what they were."""
    found = _final_jobs(tx, ids)
    gone: dict[int, Job] = {}
    answers = []
    for ident in ids:
        job = found.get(ident)
        done = job is not None and job.within(pin) and ident not in gone
        if job is not None and done:
            gone[ident] = job
        there = job is not None and (done or ident not in gone)
        state = State(job.state) if job is not None and there else None
        answers.append(Acted(ident, state, done))
    if gone:
        param = {"ids": _encode(list(gone)).decode()}
        tx.execute(SQL["discard_results"], param)
        tx.execute(SQL["discard_keys"], param)
        retention.delete_jobs(tx, gone)
        events = [(job.id, _summary(tx, job), None) for job in gone.values()]
        write_events(tx, "discard", by, note, events)
    return tuple(answers)


def _summary(tx: Context, job: Job) -> dict[str, Any]:
    lane = tx.names.lanes[job.lane]
    return {
        "task": lane.task, "queue": lane.queue.name, "workload": lane.workload.name,
        "state": job.state, "finished_at": job.finished_at, "reason": job.reason,
        "attempts": job.used, "payload_bytes": job.size, "operation_id": job.operation_id,
        "key": job.key,
    }  # fmt: skip


def cancel(
    tx: Context, ids: Sequence[JobId], by: str | None, note: str | None
) -> tuple[Acted, ...]:
    """Cancel jobs that wait, ask those that run; the others are answered with their state."""
    answers = []
    for ident in ids:
        found = care.cancel(tx, ident, by, note)
        done = found in {State.SCHEDULED, State.READY, State.RUNNING}
        answers.append(Acted(ident, found, done))
    return tuple(answers)


def write_events(
    tx: Context,
    what: str,
    by: str | None,
    note: str | None,
    items: Sequence[tuple[int, object, object]],
) -> None:
    """Write one event a job: who did what to it, why, and what it was before and after."""
    first = tx.take("event", len(items))
    tx.executemany(
        SQL["put_event"],
        [
            (first + at, tx.now, by, what, str(ident), note, _text(before), _text(after))
            for at, (ident, before, after) in enumerate(items)
        ],
    )


def _text(value: object) -> str | None:
    return None if value is None else _encode(value).decode()


def _json(raw: bytes | None) -> Any:
    """Return stored JSON as it is, to stand inside other JSON; as text when it is none."""
    if raw is None:
        return None
    try:
        msgspec.json.decode(raw)
    except ValueError:
        return raw.decode("utf-8", "backslashreplace")
    return msgspec.Raw(raw)


def failures(execute: Execute, limit: int) -> FailureGroups:
    """Group the newest failed jobs by kind of error, the largest group first."""
    merged: dict[tuple[Any, int], list[Any]] = {}
    for row in execute(SQL["failure_groups"], {"scan": FAILURES_SCANNED}).fetchall():
        merged.setdefault((row[0], row[1]), []).append(row)
    counted = sum(row[3] for rows in merged.values() for row in rows)
    more = execute(SQL["more_failures"], {"scan": FAILURES_SCANNED}).fetchone()[0]
    ranked = sorted(merged.items(), key=_weight, reverse=True)
    queues = dict(_names(execute, "all_queues"))
    tasks = dict(_names(execute, "all_tasks"))
    groups = [
        _group(execute, key[0], tasks[key[1]], [queues[row[2]] for row in rows], rows)
        for key, rows in ranked[:limit]
    ]
    return FailureGroups(tuple(groups), counted, not more, max(len(ranked) - limit, 0))


def _weight(item: tuple[Any, list[Any]]) -> tuple[int, int]:
    rows = item[1]
    return sum(row[3] for row in rows), max(row[5] for row in rows)


def _names(execute: Execute, name: str) -> list[tuple[int, str]]:
    return [(row[0], text(row[1])) for row in execute(SQL[name]).fetchall()]


def _group(
    execute: Execute, fingerprint: str | None, task: str, queues: list[str], rows: list[Any]
) -> FailureGroup:
    ids = sorted({row[6] for row in rows} | {row[7] for row in rows}, reverse=True)
    error_type, message, reason = execute(SQL["failure_sample"], {"id": ids[0]}).fetchone()
    return FailureGroup(
        fingerprint=fingerprint, task=task, queues=tuple(sorted(set(queues))),
        count=sum(row[3] for row in rows), first_at=min(row[4] for row in rows),
        last_at=max(row[5] for row in rows), samples=tuple(ids), error_type=error_type,
        message=message, reason=reason,
    )  # fmt: skip


def events(
    execute: Execute, which: str | None, what: str | None, before: int | None, limit: int
) -> list[EventRow]:
    """Return what people did, newest first; to one job or queue when it is named."""
    key = {"before": before if before is not None else 1 << 62, "what": what, "limit": limit}
    if which is None:
        rows = execute(SQL["events"], key)
    else:
        rows = execute(SQL["events_of"], {**key, "which": which})
    return [EventRow(*row) for row in rows.fetchall()]


class ReviewPart(Part):
    """The engine's methods for review; see `millpond.store.protocol` for what each promises."""

    def requeue(
        self,
        wishes: Sequence[Requeue],
        *,
        by: str | None = None,
        note: str | None = None,
        pin: Pin | None = None,
    ) -> Ticket[ActedBatch]:
        """Put final jobs back."""
        return self._act(len(wishes), lambda tx: requeue(tx, wishes, by, note, pin))

    def discard(
        self,
        ids: Sequence[JobId],
        *,
        by: str | None = None,
        note: str | None = None,
        pin: Pin | None = None,
    ) -> Ticket[ActedBatch]:
        """Delete final jobs with all that belongs to them."""
        return self._act(len(ids), lambda tx: discard(tx, ids, by, note, pin))

    def cancel_many(
        self, ids: Sequence[JobId], *, by: str | None = None, note: str | None = None
    ) -> Ticket[ActedBatch]:
        """Cancel waiting jobs, ask running ones."""
        return self._act(len(ids), lambda tx: cancel(tx, ids, by, note))

    def _act(self, many: int, run: Callable[[Context], tuple[Acted, ...]]) -> Ticket[ActedBatch]:
        if many > BATCH:
            msg = f"a batch has at most {BATCH} jobs, not {many}: a larger one holds the lock"
            raise ValueError(msg)
        measured = timed(run)
        return self._write(lambda tx: ActedBatch(*measured(tx)))

    def pin(self) -> Pin:
        """Return a pin for what is final and accepted now."""
        by = self.clock.now()
        # Whoever ends a job from now on must read a later time, or the pin would let it in. A
        # clock that is moved by hand stands still, and is not waited for.
        until = time.monotonic() + _TICK_S
        while self.clock.now() <= by and time.monotonic() < until:
            time.sleep(_TICK_S / 20)
        # An empty write: every transaction that read an earlier time has ended after it.
        last = self._write(lambda tx: int(tx.execute(SQL["last_job"]).fetchone()[0])).result()
        return Pin(last, by)

    def search(
        self,
        where: JobFilter,
        states: Collection[State],
        pin: Pin,
        after: tuple[int | str, ...] | None = None,
    ) -> Found:
        """Return the next jobs of a pinned set."""
        return self._read(lambda run: matching(run, where, states, pin, after))

    def failures(self, *, limit: int = 100) -> FailureGroups:
        """Return the failed jobs by kind of error."""
        return self._read(lambda run: failures(run, limit))

    def events(
        self,
        which: str | None = None,
        *,
        what: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[EventRow]:
        """Return what people did."""
        return self._read(lambda run: events(run, which, what, before, limit))
