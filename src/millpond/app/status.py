"""The state of a whole store at one moment, from its counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from millpond.model import LaneCount, State, StatusSnapshot, WorkerRow
from millpond.task.jobs import maybe_moment, moment, rfc3339


@dataclass(frozen=True, slots=True)
class Status:
    """Counts, workers and warnings; `lanes` has a row for each queue, workload and task.

    Of waiting and running jobs the counts are of this moment, of final ones they are of all
    that ever ended so, pruned or not. `unserved_tasks` and `unserved_queues` have jobs that
    no live worker would take, with their number.
    """

    at: datetime
    lanes: tuple[LaneCount, ...]
    workers: tuple[WorkerRow, ...]
    expired_leases: int
    next_due_at: datetime | None
    unserved_tasks: tuple[tuple[str, int], ...]
    unserved_queues: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, snapshot: StatusSnapshot) -> Status:
        """Return the store's snapshot with datetimes."""
        return cls(
            at=moment(snapshot.at),
            lanes=tuple(snapshot.lanes),
            workers=tuple(snapshot.workers),
            expired_leases=snapshot.expired_leases,
            next_due_at=maybe_moment(snapshot.next_due_at),
            unserved_tasks=tuple(snapshot.unserved_tasks),
            unserved_queues=tuple(snapshot.unserved_queues),
        )

    @property
    def queues(self) -> Mapping[str, Mapping[State, int]]:
        """Counts by state of each queue; jobs that wait for a limit key count as ready."""
        found: dict[str, dict[State, int]] = {}
        for lane in self.lanes:
            counts = found.setdefault(lane.queue, dict.fromkeys(State, 0))
            for state, count in _counts(lane).items():
                counts[state] += count
        return found

    @property
    def counts(self) -> Mapping[State, int]:
        """Counts by state over all queues."""
        lanes = [_counts(lane) for lane in self.lanes]
        return {state: sum(counts[state] for counts in lanes) for state in State}

    @property
    def outstanding(self) -> int:
        """Jobs that are accepted and not final."""
        counts = self.counts
        return counts[State.SCHEDULED] + counts[State.READY] + counts[State.RUNNING]

    def to_json(self) -> dict[str, Any]:
        """Return the status as JSON data, times in RFC 3339 with milliseconds."""
        return {
            "at": rfc3339(self.at),
            "counts": _plain(self.counts),
            "queues": {name: _plain(counts) for name, counts in self.queues.items()},
            "lanes": [_timed(asdict(lane)) for lane in self.lanes],
            "workers": [_timed(asdict(worker)) for worker in self.workers],
            "expired_leases": self.expired_leases,
            "next_due_at": self.next_due_at and rfc3339(self.next_due_at),
            "unserved_tasks": dict(self.unserved_tasks),
            "unserved_queues": dict(self.unserved_queues),
        }


def _counts(lane: LaneCount) -> dict[State, int]:
    return {
        State.SCHEDULED: lane.scheduled,
        State.READY: lane.ready + lane.blocked,
        State.RUNNING: lane.running,
        State.COMPLETED: lane.completed,
        State.FAILED: lane.failed,
        State.CANCELLED: lane.cancelled,
    }


def _plain(counts: Mapping[State, int]) -> dict[str, int]:
    return {state.value: count for state, count in counts.items()}


def _timed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: _shown(name, value) for name, value in row.items()}


def _shown(name: str, value: object) -> object:
    if name.endswith("_at") and isinstance(value, int):
        return rfc3339(moment(value))
    return list(value) if isinstance(value, tuple) else value
