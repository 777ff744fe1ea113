"""The nouns of millpond: frozen data, no behaviour, no I/O.

Moments are `Millis` of the wall clock (UTC), names end in `_at`; lengths are milliseconds,
names end in `_ms`. The four nouns on the hot path are msgspec structs, made ten times as fast
as frozen dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, NewType

import msgspec

JobId = NewType("JobId", int)
WorkerId = NewType("WorkerId", int)


class State(StrEnum):
    """Where a job stands; the last three are final."""

    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_STATES = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})


class AttemptOutcome(StrEnum):
    """How one attempt ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    RETRIED = "retried"
    SNOOZED = "snoozed"
    RELEASED = "released"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    LEASE_LOST = "lease_lost"
    CRASHED = "crashed"


UNCHARGED = frozenset({AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED})
"""Outcomes that use no attempt."""

Answer = Literal["admitted", "coalesced", "duplicate", "refused"]
Coalesce = Literal["first", "latest"]


class JobSpec(msgspec.Struct, frozen=True, gc=False):
    """One piece of work as the caller asks for it, payload already encoded.

    `due_at` is a moment, `delay_ms` a length counted from the transaction's own clock
    reading; at most one of them is set, neither means now.
    """

    task: str
    queue: str
    workload: str
    payload: bytes = b"{}"
    priority: int = 100
    max_attempts: int = 5
    lease_ms: int = 60_000
    timeout_ms: int | None = None
    due_at: int | None = None
    delay_ms: int = 0
    operation_id: str | None = None
    key: str | None = None
    key_ttl_ms: int = 86_400_000
    coalesce_key: str | None = None
    coalesce: Coalesce = "latest"
    limit_key: str | None = None
    limit: int | None = None
    tenant: str | None = None
    meta: bytes | None = None
    origin: str | None = None
    parent: int | None = None
    batch: str | None = None
    traceparent: str | None = None
    codec: str = "json"


class Admission(msgspec.Struct, frozen=True, gc=False):
    """The answer to one JobSpec; `job_id` is the existing job's for coalesced and duplicate."""

    answer: Answer
    job_id: JobId
    operation_id: str


class Token(NamedTuple):
    """What proves a lease: the job and the claim's number, which is never given twice."""

    job_id: JobId
    claim: int


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One job as a worker receives it; it may start only because the claim is committed.

    `attempts` counts the charged attempts before this one, `crashes` those that took their
    runner with them. The lease runs `lease_ms` from `claimed_mono` or the worker's latest
    beat, whichever is later.
    """

    token: Token
    task: str
    queue: str
    workload: str
    payload: bytes
    attempts: int
    max_attempts: int
    crashes: int
    lease_ms: int
    timeout_ms: int | None
    operation_id: str
    priority: int
    created_at: int
    due_at: int
    claimed_at: int
    claimed_mono: int
    meta: bytes | None = None
    traceparent: str | None = None
    remembered: bytes | None = None

    @property
    def attempt(self) -> int:
        """The ordinal of this attempt among the charged ones, from 1."""
        return self.attempts + 1


@dataclass(frozen=True, slots=True)
class ClaimBatch:
    """What one claim took; `more` says that bounded clean-up left work for the next claim."""

    claims: list[Claim]
    more: bool = False
    next_due_at: int | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """What a claim may take: up to `slots` jobs of queue, workload and tasks (None: any)."""

    slots: int
    queue: str | None = None
    workload: str | None = None
    tasks: frozenset[str] | None = None


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """How a claimed job's attempt ended, as its keeper reports it.

    `outcome` is what happened; whether a failed attempt is retried the store decides, from
    the attempts used. `delay_ms` is when to try again, counted from the settle, for retried,
    snoozed, timed_out, crashed and lease_lost. `started_at` None means that the handler was
    never called: a released job then leaves no history row.
    """

    token: Token
    outcome: AttemptOutcome
    started_at: int | None = None
    ended_at: int | None = None
    delay_ms: int = 0
    result: bytes | None = None
    result_ttl_ms: int = 604_800_000
    reason: str | None = None
    error_type: str | None = None
    message: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None
    signal: int | None = None


class Settled(NamedTuple):
    """The store's answer to a Settlement: `held` False means that another owns the job now."""

    held: bool
    state: State | None
    due_at: int | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What a keeper says of itself when it registers."""

    host: str
    pid: int
    wake: str | None
    version: str
    interval_ms: int
    tasks: tuple[str, ...]
    queues: tuple[str, ...] = ()
    slots: int = 1
    marks: str | None = None


class WorkerBeat(NamedTuple):
    """A worker that holds running jobs: whose clock, its last beat, its newest claim, its marks."""

    domain: str
    beat: int
    claim: int
    host: str
    pid: int
    marks: str | None


@dataclass(frozen=True, slots=True)
class BeatAnswer:
    """What the keeper learns from its beat."""

    beat_mono: int
    lost: tuple[Token, ...] = ()
    cancel: tuple[Token, ...] = ()
    released: tuple[Token, ...] = ()
    generation: int = 0
    registered: bool = True


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one pass of recovery did."""

    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    released: int = 0
    tokens: tuple[Token, ...] = ()
    more: bool = False

    @property
    def total(self) -> int:
        """All jobs that were taken back."""
        return self.retried + self.failed + self.cancelled + self.released


@dataclass(frozen=True, slots=True)
class Observation:
    """A worker of another clock domain as this keeper has watched it.

    `beat` and `claim` are what was seen, unchanged for `unchanged_ms` of the watcher's clock.
    """

    worker: WorkerId
    beat: int
    claim: int
    unchanged_ms: int


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """Who holds a running job, until when (wall clock, as far as it can be told)."""

    worker: WorkerId
    owner: str
    claim: int
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job as the store sees it at one moment."""

    id: JobId
    task: str
    queue: str
    workload: str
    tenant: str | None
    state: State
    priority: int
    payload: bytes | None
    meta: bytes | None
    created_at: int
    due_at: int
    started_at: int | None
    finished_at: int | None
    attempts: int
    crashes: int
    max_attempts: int
    lease: LeaseInfo | None
    last_error: str | None
    reason: str | None
    operation_id: str
    key: str | None
    coalesce_key: str | None
    limit_key: str | None
    blocked_by: str | None
    cancel_requested: bool
    result: bytes | None
    progress: bytes | None
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One row of a job's history; `number` is None where no attempt was charged."""

    job_id: JobId
    claim: int
    number: int | None
    worker: WorkerId
    owner: str | None
    claimed_at: int
    started_at: int | None
    ended_at: int
    outcome: AttemptOutcome
    error_type: str | None
    message: str | None
    traceback: str | None
    fingerprint: str | None
    signal: int | None
    late_at: int | None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are meant; every field narrows, None does not.

    `error` is a part of the last error, or of the reason where there is none, in any case of
    letters. The moments include the jobs of that very millisecond.
    """

    state: State | None = None
    queue: str | None = None
    workload: str | None = None
    task: str | None = None
    tenant: str | None = None
    key: str | None = None
    operation_id: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    error: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    finished_after: int | None = None
    finished_before: int | None = None


@dataclass(frozen=True, slots=True)
class LaneCount:
    """The counters of one queue, workload and task."""

    queue: str
    workload: str
    task: str
    scheduled: int
    ready: int
    blocked: int
    running: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    oldest_due_at: int | None
    paused: bool
    served: bool


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A registered keeper; it is `late` when a beat is overdue, not `live` after four of them.

    `lease_ends_at` is when the first of its leases ends unless it beats again, by the wall
    clock; None when it holds no job.
    """

    id: WorkerId
    host: str
    pid: int
    version: str
    slots: int
    running: int
    beat_at: int
    started_at: int
    interval_ms: int
    live: bool
    tasks: tuple[str, ...]
    queues: tuple[str, ...]
    late: bool = False
    lease_ends_at: int | None = None


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """What `millpond status` shows: one moment, from counters, whatever the size."""

    at: int
    lanes: list[LaneCount]
    workers: list[WorkerRow]
    expired_leases: int
    next_due_at: int | None
    unserved_tasks: list[tuple[str, int]]
    unserved_queues: list[tuple[str, int]]
    workload_jobs: Mapping[tuple[str, str], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that differs from what a recount of the rows gives."""

    what: str
    which: str
    counter: int
    counted: int


@dataclass(frozen=True, slots=True)
class TransactionFigures:
    """Lengths of write transactions and waits for the lock, in microseconds (R6)."""

    count: int
    held_p50: int
    held_p99: int
    held_max: int
    wait_p50: int
    wait_p99: int
    wait_max: int
    busy: int = 0


@dataclass(frozen=True, slots=True)
class Purged:
    """What one purge batch deleted; `more` when the batch was full.

    `held_us` is how long its statements held the write lock, in microseconds.
    """

    jobs: int
    more: bool
    held_us: int = 0


@dataclass(frozen=True, slots=True)
class Requeue:
    """A final job to put back, with what is to change; None leaves it.

    `attempts` is how many more it gets (None: as many as it was enqueued with). At most one
    of `due_at` and `delay_ms` is set, as in a JobSpec.
    """

    job_id: JobId
    payload: bytes | None = None
    attempts: int | None = None
    due_at: int | None = None
    delay_ms: int = 0
    operation_id: str | None = None


class Acted(NamedTuple):
    """What became of one job of a batch: `found` is the state before, None when it was not there.

    Not `done` means that it was left as it is: it was not there, its state did not allow it,
    or it became final after the batch's set was pinned.
    """

    job_id: JobId
    found: State | None
    done: bool
    operation_id: str | None = None


@dataclass(frozen=True, slots=True)
class ActedBatch:
    """What became of the jobs of a batch, in order, and how long it held the write lock."""

    jobs: tuple[Acted, ...]
    held_us: int = 0


class Pin(NamedTuple):
    """Keeps a set of jobs from growing: ids up to `max_id`, ended no later than `ended_by`."""

    max_id: int
    ended_by: int


@dataclass(frozen=True, slots=True)
class Found:
    """One step of a search: jobs that fit, in its order, and where to look on (None: the end)."""

    ids: tuple[JobId, ...]
    after: tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed jobs of one task that failed alike; `samples` are ids, the newest first.

    `error_type`, `message` and `reason` are those of the newest.
    """

    fingerprint: str | None
    task: str
    queues: tuple[str, ...]
    count: int
    first_at: int
    last_at: int
    samples: tuple[JobId, ...]
    error_type: str | None
    message: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The failed jobs by kind of error, the largest group first.

    `counted` jobs were looked at, the newest ones; not `complete` means that there are older
    ones beside. `more` groups were left out, the smallest.
    """

    groups: tuple[FailureGroup, ...]
    counted: int
    complete: bool
    more: int


@dataclass(frozen=True, slots=True)
class EventRow:
    """What somebody did, to which job or queue, and why; `before` and `after` are JSON."""

    id: int
    at: int
    who: str | None
    what: str
    which: str | None
    note: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A copy of the store that was made and checked, in bytes and as of a moment."""

    path: str
    size: int
    at: int


Dice = Callable[[], float]
"""Returns a number in [0, 1)."""

Connection = Any
"""The caller's own database connection, in `tx=`."""
