"""The state machine of a job: every transition there is, and nothing else may happen.

A job is made by `enqueue` and waits in scheduled or ready; a claim makes it running; the end
of its attempt makes it final or lets it wait again. Only an operator takes a job out of a
final state. Being deleted (discard, prune) is no transition: the job is gone. A job that
waits for a limit stays in ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from millpond.errors import InvariantBroken
from millpond.model import FINAL_STATES, UNCHARGED, AttemptOutcome, State


class Event(StrEnum):
    """What moves a job from one state to the next."""

    ENQUEUE = "enqueue"
    """It was admitted, due later or now."""
    DUE = "due"
    """Its due time has come, or a newer request with its coalesce key is due now."""
    CLAIM = "claim"
    """A worker took it."""
    COMPLETE = "complete"
    """Its handler returned."""
    FAIL = "fail"
    """Its attempt ended for good, or used up the attempts."""
    RETRY = "retry"
    """Its attempt failed and attempts are left."""
    SNOOZE = "snooze"
    """Its handler asked to run later, uncharged."""
    RELEASE = "release"
    """Its worker handed it back unfinished, uncharged."""
    RECOVER = "recover"
    """Its lease ran out or its runner died, and attempts are left."""
    CANCEL = "cancel"
    """It was cancelled while it waited, or its attempt ended after that was asked."""
    EXPIRE = "expire"
    """It waited too long for a worker that knows its task."""
    REQUEUE = "requeue"
    """An operator put it back."""


_WAITING = frozenset({State.SCHEDULED, State.READY})

TRANSITIONS: Mapping[tuple[State | None, Event], frozenset[State]] = MappingProxyType(
    {
        (None, Event.ENQUEUE): _WAITING,
        (State.SCHEDULED, Event.DUE): frozenset({State.READY}),
        (State.SCHEDULED, Event.CANCEL): frozenset({State.CANCELLED}),
        (State.SCHEDULED, Event.EXPIRE): frozenset({State.FAILED}),
        (State.READY, Event.CLAIM): frozenset({State.RUNNING}),
        (State.READY, Event.CANCEL): frozenset({State.CANCELLED}),
        (State.READY, Event.EXPIRE): frozenset({State.FAILED}),
        (State.RUNNING, Event.COMPLETE): frozenset({State.COMPLETED}),
        (State.RUNNING, Event.FAIL): frozenset({State.FAILED}),
        (State.RUNNING, Event.RETRY): _WAITING,
        (State.RUNNING, Event.SNOOZE): _WAITING,
        (State.RUNNING, Event.RELEASE): frozenset({State.READY}),
        (State.RUNNING, Event.RECOVER): _WAITING,
        (State.RUNNING, Event.CANCEL): frozenset({State.CANCELLED}),
        (State.COMPLETED, Event.REQUEUE): _WAITING,
        (State.FAILED, Event.REQUEUE): _WAITING,
        (State.CANCELLED, Event.REQUEUE): _WAITING,
    }
)
"""From a state (None: the job does not exist yet), by an event, to one of these states."""

_REACHABLE = frozenset(
    (source, target) for (source, _), targets in TRANSITIONS.items() for target in targets
)


def is_final(state: State) -> bool:
    """Whether a job in this state is done and holds no capacity."""
    return state in FINAL_STATES


def is_charged(outcome: AttemptOutcome) -> bool:
    """Whether an attempt that ended like this counts against `max_attempts`."""
    return outcome not in UNCHARGED


def allows(source: State | None, event: Event, target: State) -> bool:
    """Whether `event` may take a job from `source` to `target`."""
    return target in TRANSITIONS.get((source, event), ())


def check(source: State | None, target: State, event: Event | None = None) -> None:
    """Raise InvariantBroken unless a job may go from `source` to `target`, by `event` if given."""
    sound = (source, target) in _REACHABLE if event is None else allows(source, event, target)
    if not sound:
        by = "" if event is None else f" by {event}"
        msg = (
            f"no job may go from {source or 'nothing'} to {target}{by}: a bug in millpond, "
            "nothing was written; please report it with this message"
        )
        raise InvariantBroken(msg)
