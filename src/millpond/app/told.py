"""What review and retention tell: frozen, with aware datetimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import msgspec

from millpond.model import BackedUp, EventRow, FailureGroup, FailureGroups, State
from millpond.task.jobs import moment, rfc3339


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed jobs of one task that failed alike, by their `fingerprint`.

    `samples` are ids of some of them, the newest first; `error_type`, `message` and `reason`
    are those of the newest.
    """

    fingerprint: str | None
    task: str
    queues: tuple[str, ...]
    count: int
    first_at: datetime
    last_at: datetime
    samples: tuple[int, ...]
    error_type: str | None
    message: str | None
    reason: str | None

    @classmethod
    def of(cls, group: FailureGroup) -> Failure:
        """Return the group as the store tells it."""
        moments = {"first_at": moment(group.first_at), "last_at": moment(group.last_at)}
        return cls(**{**asdict(group), **moments})

    def to_json(self) -> dict[str, Any]:
        """Return the group as JSON data."""
        moments = {"first_at": rfc3339(self.first_at), "last_at": rfc3339(self.last_at)}
        lists = {"queues": list(self.queues), "samples": list(self.samples)}
        return {**asdict(self), **moments, **lists}


@dataclass(frozen=True, slots=True)
class Failures:
    """The failed jobs by kind of error, the largest group first.

    The newest 100,000 are looked at: `counted` were there, and `complete` is False when there
    are older ones. `more` groups, the smallest, are not among `groups`.
    """

    groups: tuple[Failure, ...]
    counted: int
    complete: bool
    more: int

    @classmethod
    def of(cls, found: FailureGroups) -> Failures:
        """Return the groups as the store tells them."""
        groups = tuple(map(Failure.of, found.groups))
        return cls(groups, found.counted, found.complete, found.more)

    def to_json(self) -> dict[str, Any]:
        """Return the groups as JSON data."""
        return {
            "groups": [group.to_json() for group in self.groups],
            "counted": self.counted,
            "complete": self.complete,
            "more": self.more,
        }


@dataclass(frozen=True, slots=True)
class Event:
    """What somebody did: `what` to `which` job or queue, and why.

    `before` and `after` tell what it changed, as JSON data.
    """

    id: int
    at: datetime
    who: str | None
    what: str
    which: str | None
    note: str | None
    before: Any = field(repr=False)
    after: Any = field(repr=False)

    @classmethod
    def of(cls, row: EventRow) -> Event:
        """Return the event as the store tells it."""
        before, after = _data(row.before), _data(row.after)
        return cls(row.id, moment(row.at), row.who, row.what, row.which, row.note, before, after)

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON data."""
        return {**asdict(self), "at": rfc3339(self.at)}


def _data(text: str | None) -> Any:
    """Return what was kept as JSON; an event may also hold a plain word."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


@dataclass(frozen=True, slots=True)
class Done:
    """What an act on many jobs has done: `done` of `count`; `left` by the reason they were.

    The reasons are the states in which jobs were found that do not allow the act or that
    they reached after the selection was made, and "gone" for jobs that were not there.
    """

    count: int
    done: int
    left: Mapping[str, int]

    @classmethod
    def of(cls, count: int, done: int, left: Counter[str]) -> Done:
        """Return the tally."""
        return cls(count, done, MappingProxyType(dict(sorted(left.items()))))

    def to_json(self) -> dict[str, Any]:
        """Return the tally as JSON data."""
        return {"count": self.count, "done": self.done, "left": dict(self.left)}


@dataclass(frozen=True, slots=True)
class Backup:
    """A copy of the store that was made and checked: its file, its bytes, its moment."""

    path: str
    size: int
    at: datetime

    @classmethod
    def of(cls, made: BackedUp) -> Backup:
        """Return the copy as the store tells of it."""
        return cls(made.path, made.size, moment(made.at))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON data."""
        return {"path": self.path, "size": self.size, "at": rfc3339(self.at)}


def by_state(counts: Mapping[State, int]) -> dict[str, int]:
    """Return counts by the names of states."""
    return {state.value: count for state, count in counts.items()}
