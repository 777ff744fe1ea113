"""What becomes of a job when an attempt of it ends: the one place where that is decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from millpond.model import UNCHARGED, AttemptOutcome, State


@dataclass(frozen=True, slots=True)
class Held:
    """What the store knows of a claimed job: counts before this attempt, and a wish to cancel."""

    attempts: int
    crashes: int
    max_attempts: int
    cancel_requested: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """Where the job goes and how the attempt is written down.

    `state` SCHEDULED means again after the delay (READY when that is zero). `number` is the
    attempt's ordinal, None when it is not charged.
    """

    state: State
    outcome: AttemptOutcome
    number: int | None
    crashes: int
    exhausted: bool = False


def ending(outcome: AttemptOutcome, held: Held) -> Ending:
    """Decide from what happened and what the job has used.

    A wish to cancel turns every end but completed into cancelled. An attempt that may be
    tried again is retried while attempts are left and fails for good after the last one;
    its row keeps what happened (timed_out, lease_lost, crashed), except that a plain retry
    without attempts left is written as failed.
    """
    charged = outcome not in UNCHARGED
    number = held.attempts + 1 if charged else None
    crashes = held.crashes + (outcome is AttemptOutcome.CRASHED)
    if outcome is AttemptOutcome.COMPLETED:
        return Ending(State.COMPLETED, outcome, number, crashes)
    if held.cancel_requested:
        kept = outcome if _is_loss(outcome) else AttemptOutcome.CANCELLED
        return Ending(State.CANCELLED, kept, number, crashes)
    match outcome:
        case AttemptOutcome.FAILED:
            return Ending(State.FAILED, outcome, number, crashes)
        case AttemptOutcome.CANCELLED:
            return Ending(State.CANCELLED, outcome, number, crashes)
        case AttemptOutcome.SNOOZED | AttemptOutcome.RELEASED:
            return Ending(State.SCHEDULED, outcome, None, crashes)
        case (
            AttemptOutcome.RETRIED
            | AttemptOutcome.TIMED_OUT
            | AttemptOutcome.LEASE_LOST
            | AttemptOutcome.CRASHED
        ):
            return _again(outcome, held, crashes)
        case _:
            assert_never(outcome)


def _is_loss(outcome: AttemptOutcome) -> bool:
    return outcome in {AttemptOutcome.LEASE_LOST, AttemptOutcome.CRASHED}


def _again(outcome: AttemptOutcome, held: Held, crashes: int) -> Ending:
    number = held.attempts + 1
    if number < held.max_attempts:
        return Ending(State.SCHEDULED, outcome, number, crashes)
    last = AttemptOutcome.FAILED if outcome is AttemptOutcome.RETRIED else outcome
    return Ending(State.FAILED, last, number, crashes, exhausted=True)


def failure_reason(outcome: AttemptOutcome, held: Held, said: str | None) -> str:
    """Return the reason kept with a failed job, for people and for filters."""
    used = f"attempts used up ({held.attempts + 1} of {held.max_attempts})"
    match outcome:
        case AttemptOutcome.LEASE_LOST:
            return f"{said or 'lease lost'}; {used}"
        case AttemptOutcome.CRASHED:
            return f"{said or 'worker died'}; {used}"
        case AttemptOutcome.TIMED_OUT:
            return f"{said or 'timed out'}; {used}"
        case AttemptOutcome.RETRIED:
            return used
        case _:
            return said or "failed"
