"""What users see of a job: frozen snapshots with aware datetimes and decoded data."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from millpond.codec.coder import Coder
from millpond.codec.place import Place
from millpond.errors import BadPayload
from millpond.model import FINAL_STATES, AttemptOutcome, AttemptRow, JobRow, LeaseInfo, State

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_JSON = Coder(Any)


@dataclass(frozen=True, slots=True)
class Lease:
    """The timed right to work on a running job; `claim` is the number that fences it."""

    owner: str
    expires_at: datetime | None
    claim: int

    @classmethod
    def of(cls, info: LeaseInfo) -> Lease:
        """Return the lease as the store tells it."""
        return cls(info.owner, maybe_moment(info.expires_at), info.claim)

    def to_json(self) -> dict[str, Any]:
        """Return the lease as JSON data."""
        expires_at = self.expires_at and rfc3339(self.expires_at)
        return {"owner": self.owner, "expires_at": expires_at, "claim": self.claim}


@dataclass(frozen=True, slots=True)
class Progress:
    """What a handler said last with `ctx.progress(...)`."""

    done: float
    total: float | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it stood when it was read; nothing in it changes afterwards.

    Lists leave out what may be large: `payload` and `result` of a job from `pond.jobs()` are
    None. `lease` is there while the job runs.
    """

    id: int
    task: str
    queue: str
    workload: str
    tenant: str | None
    state: State
    priority: int
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    attempts: int
    max_attempts: int
    crashes: int
    lease: Lease | None
    last_error: str | None
    reason: str | None
    operation_id: str
    key: str | None
    coalesce_key: str | None
    limit_key: str | None
    blocked_by: str | None
    cancel_requested: bool
    payload_bytes: int
    raw_payload: bytes | None = field(repr=False)
    raw_meta: bytes | None = field(repr=False)
    raw_result: bytes | None = field(repr=False)
    raw_progress: bytes | None = field(repr=False)

    @property
    def payload(self) -> dict[str, Any] | None:
        """The arguments by name, as JSON data; decoded at each access.

        Raises BadPayload when the stored bytes are not the JSON object they should be.
        """
        return None if self.raw_payload is None else _decoded(self.raw_payload, "payload")

    @property
    def meta(self) -> dict[str, Any] | None:
        """What the producer attached with `using(meta=...)`."""
        return None if self.raw_meta is None else _decoded(self.raw_meta, "meta")

    @property
    def result(self) -> Any:
        """What the handler returned, as JSON data; None while there is none."""
        return None if self.raw_result is None else _decoded(self.raw_result, "result")

    @property
    def progress(self) -> Progress | None:
        """The latest progress; None when the handler has reported none."""
        if self.raw_progress is None:
            return None
        return msgspec.json.decode(self.raw_progress, type=Progress)

    @property
    def final(self) -> bool:
        """Whether the job is completed, failed or cancelled."""
        return self.state in FINAL_STATES

    def to_json(self) -> dict[str, Any]:
        """Return the snapshot as JSON data, times in RFC 3339 with milliseconds."""
        plain = {name: getattr(self, name) for name in _SHOWN}
        return {
            **{name: _plain(value) for name, value in plain.items()},
            "payload": _shown(self.raw_payload),
            "meta": _shown(self.raw_meta),
            "result": _shown(self.raw_result),
            "progress": _shown(self.raw_progress),
            "lease": self.lease and self.lease.to_json(),
        }

    @classmethod
    def of(cls, row: JobRow) -> Job:
        """Return the snapshot of a row."""
        return cls(
            id=row.id,
            task=row.task,
            queue=row.queue,
            workload=row.workload,
            tenant=row.tenant,
            state=row.state,
            priority=row.priority,
            created_at=moment(row.created_at),
            due_at=moment(row.due_at),
            started_at=maybe_moment(row.started_at),
            finished_at=maybe_moment(row.finished_at),
            attempts=row.attempts,
            max_attempts=row.max_attempts,
            crashes=row.crashes,
            lease=None if row.lease is None else Lease.of(row.lease),
            last_error=row.last_error,
            reason=row.reason,
            operation_id=row.operation_id,
            key=row.key,
            coalesce_key=row.coalesce_key,
            limit_key=row.limit_key,
            blocked_by=row.blocked_by,
            cancel_requested=row.cancel_requested,
            payload_bytes=row.payload_bytes,
            raw_payload=row.payload,
            raw_meta=row.meta,
            raw_result=row.result,
            raw_progress=row.progress,
        )


_SHOWN = (
    *("id", "task", "queue", "workload", "tenant", "state", "priority"),
    *("created_at", "due_at", "started_at", "finished_at", "attempts", "max_attempts", "crashes"),
    *("last_error", "reason", "operation_id", "key", "coalesce_key", "limit_key", "blocked_by"),
    *("cancel_requested", "payload_bytes"),
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One entry of a job's history; `number` is None where no attempt was used."""

    job_id: int
    claim: int
    number: int | None
    worker: str | None
    claimed_at: datetime
    started_at: datetime | None
    ended_at: datetime
    outcome: AttemptOutcome
    error_type: str | None
    message: str | None
    traceback: str | None = field(repr=False)
    fingerprint: str | None = field(repr=False)
    signal: int | None
    late_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON data, times in RFC 3339 with milliseconds."""
        return {name: _plain(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def of(cls, row: AttemptRow) -> Attempt:
        """Return the snapshot of a row."""
        return cls(
            job_id=row.job_id,
            claim=row.claim,
            number=row.number,
            worker=row.owner,
            claimed_at=moment(row.claimed_at),
            started_at=maybe_moment(row.started_at),
            ended_at=moment(row.ended_at),
            outcome=row.outcome,
            error_type=row.error_type,
            message=row.message,
            traceback=row.traceback,
            fingerprint=row.fingerprint,
            signal=row.signal,
            late_at=maybe_moment(row.late_at),
        )


def moment(ms: int) -> datetime:
    """Return milliseconds since 1970 as an aware datetime, exactly."""
    return EPOCH + timedelta(milliseconds=ms)


def maybe_moment(ms: int | None) -> datetime | None:
    """Return the datetime of a moment that may not have come."""
    return None if ms is None else moment(ms)


def rfc3339(at: datetime) -> str:
    """Return an aware datetime as RFC 3339 in UTC, with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain(value: object) -> object:
    match value:
        case datetime():
            return rfc3339(value)
        case State() | AttemptOutcome():
            return value.value
        case _:
            return value


def _decoded(raw: bytes, root: str) -> Any:
    return _JSON.decode(raw, Place(root=root))


def _shown(raw: bytes | None) -> object:
    """Return stored JSON as data; what cannot be read is shown as text instead of raised."""
    if raw is None:
        return None
    try:
        return _decoded(raw, "")
    except BadPayload:
        return raw.decode("utf-8", "backslashreplace")
