"""From outcomes to settlements: pure translation, dice come in as a number."""

from __future__ import annotations

import signal
from typing import assert_never

from millpond.context import Why
from millpond.model import AttemptOutcome, Claim, Settlement
from millpond.policy.backoff import Backoff, after_ms, delay_ms
from millpond.worker.frames import End, Outcome
from millpond.worker.marks import Mark, Stage

_OUTCOMES = {
    End.COMPLETED: AttemptOutcome.COMPLETED,
    End.RETRY: AttemptOutcome.RETRIED,
    End.SNOOZE: AttemptOutcome.SNOOZED,
    End.FAIL: AttemptOutcome.FAILED,
    End.CANCELLED: AttemptOutcome.CANCELLED,
    End.TIMED_OUT: AttemptOutcome.TIMED_OUT,
    End.LEASE_LOST: AttemptOutcome.LEASE_LOST,
    End.RELEASED: AttemptOutcome.RELEASED,
}


def settlement_of(
    outcome: Outcome, claim: Claim, rule: Backoff, result_ttl_ms: int, roll: float
) -> Settlement:
    """Return what the store is told of an attempt that a runner has reported."""
    if outcome.end is End.COMPLETED:
        return Settlement(
            claim.token,
            AttemptOutcome.COMPLETED,
            outcome.started_at,
            outcome.ended_at,
            0,
            outcome.result,
            result_ttl_ms,
        )
    trouble = outcome.trouble
    return Settlement(
        token=claim.token,
        outcome=_OUTCOMES[outcome.end],
        started_at=outcome.started_at,
        ended_at=outcome.ended_at,
        delay_ms=_delay(outcome, claim, rule, roll),
        reason=outcome.reason,
        error_type=None if trouble is None else trouble.type,
        message=None if trouble is None else trouble.message,
        traceback=None if trouble is None else trouble.traceback or None,
        fingerprint=None if trouble is None else trouble.fingerprint,
    )


def settlement_after_death(
    mark: Mark, claim: Claim, rule: Backoff, roll: float, *, how: str, number: int | None, now: int
) -> Settlement:
    """Return what the store is told of a job whose runner has died by itself.

    What never started goes back uncharged, what was started is charged, and only what had
    not returned is a crash: a handler that had returned did not kill anybody.
    """
    delay = delay_ms(claim.attempt, rule, roll)
    match mark.stage:
        case Stage.FREE | Stage.FED:
            return Settlement(claim.token, AttemptOutcome.RELEASED)
        case Stage.STARTED:
            return Settlement(
                token=claim.token,
                outcome=AttemptOutcome.CRASHED,
                started_at=mark.started_at,
                ended_at=now,
                delay_ms=delay,
                reason=how,
                message=how,
                signal=number,
            )
        case Stage.RETURNED:
            return returned_unheard(mark, claim, delay, now)
        case _:
            assert_never(mark.stage)


def settlement_after_kill(
    mark: Mark, claim: Claim, rule: Backoff, roll: float, now: int
) -> Settlement:
    """Return what the store is told of a job whose runner this keeper has ended itself.

    It surely does not run any more and it is not its fault: it goes back uncharged.
    """
    match mark.stage:
        case Stage.FREE | Stage.FED:
            return Settlement(claim.token, AttemptOutcome.RELEASED)
        case Stage.STARTED:
            return Settlement(
                token=claim.token,
                outcome=AttemptOutcome.RELEASED,
                started_at=mark.started_at,
                ended_at=now,
                reason="the worker was stopped",
            )
        case Stage.RETURNED:
            return returned_unheard(mark, claim, delay_ms(claim.attempt, rule, roll), now)
        case _:
            assert_never(mark.stage)


def settlement_after_doom(
    mark: Mark, claim: Claim, rule: Backoff, roll: float, *, why: Why, now: int
) -> Settlement:
    """Return what the store is told of a job that this keeper has killed for its own sake."""
    delay = delay_ms(claim.attempt, rule, roll)
    if mark.stage is Stage.RETURNED:
        return returned_unheard(mark, claim, delay, now)
    if why == "cancelled":
        return Settlement(claim.token, AttemptOutcome.CANCELLED, mark.started_at, now)
    outcome = AttemptOutcome.TIMED_OUT if why == "timeout" else AttemptOutcome.LEASE_LOST
    limit = f" after {(claim.timeout_ms or 0) / 1000:g} s" if why == "timeout" else ""
    said = f"timed out{limit}" if why == "timeout" else "the lease was lost"
    return Settlement(
        token=claim.token,
        outcome=outcome,
        started_at=mark.started_at,
        ended_at=now,
        delay_ms=delay,
        reason=said,
        message=f"{said}; the handler did not stop and its process was killed",
    )


def returned_unheard(mark: Mark, claim: Claim, delay: int, now: int) -> Settlement:
    """Return the end of an attempt whose work is done and whose result died with its runner."""
    message = "runner died after the handler returned"
    return Settlement(
        token=claim.token,
        outcome=AttemptOutcome.LEASE_LOST,
        started_at=mark.started_at,
        ended_at=now,
        delay_ms=delay,
        reason=message,
        message=message,
    )


def how_it_ended(returncode: int, memory: str | None = None) -> tuple[str, int | None]:
    """Say how a runner's process ended, by which signal, and with how much memory if killed."""
    if returncode == -signal.SIGKILL and memory is not None:
        return f"runner killed by signal 9 (SIGKILL); {memory}", 9
    if returncode >= 0:
        return f"runner exited with code {returncode}", None
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    return f"runner killed by signal {-returncode} ({name})", -returncode


def _delay(outcome: Outcome, claim: Claim, rule: Backoff, roll: float) -> int:
    match outcome.end:
        case End.RETRY if outcome.delay_ms is not None:
            return after_ms(outcome.delay_ms, claim.attempt, rule, roll)
        case End.RETRY | End.TIMED_OUT | End.LEASE_LOST:
            return delay_ms(claim.attempt, rule, roll)
        case End.SNOOZE:
            return outcome.delay_ms or 0
        case End.COMPLETED | End.FAIL | End.CANCELLED | End.RELEASED:
            return 0
        case _:
            assert_never(outcome.end)
