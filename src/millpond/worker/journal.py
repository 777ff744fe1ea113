"""The keeper's log: one structured line for each step of a job (R51), and for its own troubles.

Lines of single jobs cost more than a small job itself, so whether anybody wants them is asked
once a batch. Claims and starts are for debugging; ends are for everybody.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from millpond.log import Line, event
from millpond.model import (
    AttemptOutcome,
    Claim,
    Purged,
    Recovered,
    Settled,
    Settlement,
    State,
    Token,
)
from millpond.policy.steering import PressureChange
from millpond.worker.holdings import Held
from millpond.worker.report import DrainReport

_log = logging.getLogger("millpond.worker")

_DEBUG, _INFO, _WARNING, _ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


def _job(held: Held) -> dict[str, Any]:
    claim = held.claim
    return {
        "job": claim.token.job_id,
        "attempt": claim.attempt,
        "task": claim.task,
        "queue": claim.queue,
    }


# --- jobs ---------------------------------------------------------------------------------------


def claimed(taken: Sequence[Held]) -> None:
    """Jobs were claimed."""
    if _log.isEnabledFor(_DEBUG):
        for held in taken:
            claim = held.claim
            wait = claim.claimed_at - claim.due_at
            event(_log, _DEBUG, Line.CLAIMED, **_job(held), wait_ms=wait)


def settled(
    ended: Sequence[Held],
    settlements: Sequence[Settlement],
    answers: Sequence[Settled],
    *,
    plain: bool,
) -> None:
    """Ends of attempts are committed; `plain` says that all of them are completed."""
    wanted = _log.isEnabledFor(_INFO)
    if plain and not wanted:
        return
    for held, settlement, answer in zip(ended, settlements, answers, strict=True):
        if wanted or not answer.held or answer.state is State.FAILED:
            _settled(held, settlement, answer)


def _settled(held: Held, settlement: Settlement, answer: Settled) -> None:
    claim, started, ended = held.claim, settlement.started_at, settlement.ended_at
    run = None if started is None or ended is None else ended - started
    wait = None if started is None else started - claim.due_at
    times: dict[str, Any] = {"wait_ms": wait, "run_ms": run}
    error = settlement.error_type and f"{settlement.error_type}: {settlement.message}"
    if not answer.held:
        event(
            _log, _WARNING, Line.LEASE_LOST, **_job(held), **times,
            note="the job belongs to another claim now; this end of it was refused",
        )  # fmt: skip
        return
    match answer.state:
        case State.COMPLETED:
            event(_log, _INFO, Line.FINISHED, **_job(held), **times)
        case State.CANCELLED:
            event(_log, _INFO, Line.CANCELLED, **_job(held), **times)
        case State.FAILED:
            reason = settlement.reason or _why_final(settlement, claim)
            event(
                _log, _ERROR, Line.FAILED, **_job(held), max_attempts=claim.max_attempts,
                reason=reason, error=error, **times,
            )  # fmt: skip
        case State.SCHEDULED | State.READY | State.RUNNING | None:
            _again(held, settlement, answer, error, times)


def _again(
    held: Held,
    settlement: Settlement,
    answer: Settled,
    error: str | None,
    times: dict[str, Any],
) -> None:
    match settlement.outcome:
        case AttemptOutcome.RELEASED:
            event(_log, _INFO, Line.RELEASED, **_job(held), **times)
        case AttemptOutcome.SNOOZED:
            event(_log, _INFO, Line.SNOOZED, **_job(held), next_due=_moment(answer.due_at), **times)
        case _:
            event(
                _log, _WARNING, Line.RETRIED, **_job(held), max_attempts=held.claim.max_attempts,
                next_due=_moment(answer.due_at), outcome=settlement.outcome,
                error=error or settlement.reason, **times,
            )  # fmt: skip


def _why_final(settlement: Settlement, claim: Claim) -> str:
    if settlement.outcome is AttemptOutcome.RETRIED:
        return f"attempts used up ({claim.attempt} of {claim.max_attempts})"
    return settlement.outcome


def _moment(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC)


def lease_lost(held: Held, why: str) -> None:
    """A held job is no longer, or no longer surely, this worker's."""
    event(_log, _WARNING, Line.LEASE_LOST, **_job(held), reason=why)


def crashed(held: Held, how: str) -> None:
    """A started job lost its runner."""
    event(_log, _WARNING, "runner_died_in_job", **_job(held), reason=how)


def recovered(recovered: Recovered) -> None:
    """Expired leases of other workers were taken back."""
    event(
        _log, _WARNING, Line.RECOVERED, jobs=[token.job_id for token in recovered.tokens],
        retried=recovered.retried, failed=recovered.failed, cancelled=recovered.cancelled,
        released=recovered.released,
    )  # fmt: skip


def pressure_changed(change: PressureChange) -> None:
    """A queue's mode, or the cause of its overload, has changed."""
    event(
        _log, _WARNING, "pressure_changed", queue=change.queue, mode=change.mode.value,
        signal=change.signal, cause=change.cause.value, detail=change.detail,
        utilisation=change.figures.get("utilisation"),
    )  # fmt: skip


def released_unknown(tokens: Sequence[Token]) -> None:
    """The store had jobs for this worker that it never heard of."""
    event(_log, _WARNING, Line.RELEASED, jobs=[token.job_id for token in tokens],
          reason="their claim never reached this worker")  # fmt: skip


# --- the worker itself --------------------------------------------------------------------------


def started(worker: int, store: str, tasks: Sequence[str], queues: str, slots: int) -> None:
    """The worker is registered and begins to claim."""
    event(
        _log, _INFO, "worker_started", worker=worker, store=store, tasks=tasks, queues=queues,
        slots=slots,
    )  # fmt: skip


def nobody_serves(tasks: dict[str, int], queues: dict[str, int]) -> None:
    """Jobs wait for tasks that no live worker has, or in queues that none serves."""
    notes = []
    if tasks:
        notes.append("no live worker has these tasks: start one whose application imports them")
    if queues:
        notes.append("no live worker serves these queues: start one for them")
    event(
        _log, _WARNING, "nobody_serves", tasks=tasks or None, queues=queues or None,
        note="; ".join(notes),
    )  # fmt: skip


def stopping(signal: str | None, running: int) -> None:
    """The worker was told to stop."""
    event(_log, _INFO, "worker_stopping", signal=signal, held=running)


def halting(running: int) -> None:
    """The drain time is over and jobs still run."""
    event(_log, _WARNING, "drain_over", running=running,
          note="they are told to stop, then ended; their jobs go back")  # fmt: skip


def stopped(report: DrainReport, margin: float) -> None:
    """The worker has ended; its last line."""
    event(_log, _INFO, "worker_stopped", summary=str(report), smallest_margin=round(margin, 2))


def keeper_died(error: BaseException) -> None:
    """The keeper's own loop has failed; nobody renews the leases any more."""
    event(_log, _ERROR, "worker_died", error=str(error), exc_info=error)


def runner_died(index: int, how: str, pause: float) -> None:
    """A runner has ended by itself and is started again."""
    event(_log, _WARNING, "runner_died", runner=index, reason=how, again_in_s=pause)


def runner_killed(index: int, why: str) -> None:
    """A runner with one slot is gone because of the job in it; the next job gets another."""
    event(_log, logging.DEBUG, "runner_killed", runner=index, reason=why)


def killing(held: Held, why: str) -> None:
    """A job in a process of its own did not heed an order to stop."""
    claim = held.claim
    event(
        _log, _WARNING, "killing", job=claim.token.job_id, attempt=claim.attempt, task=claim.task,
        queue=claim.queue, reason=why,
    )  # fmt: skip


def no_process(tasks: list[str]) -> None:
    """Tasks want a process of their own and get a thread of this one."""
    event(
        _log, _WARNING, "no_process", tasks=",".join(tasks),
        note="they run in threads here, which nothing can kill; millpond worker gives processes",
    )  # fmt: skip


def runner_broken(index: int, message: str) -> None:
    """A runner says that its own machinery has failed."""
    event(_log, _ERROR, "runner_broken", runner=index, reason=message)


def no_place(error: OSError) -> None:
    """There is no place for marks or the wake-up socket."""
    event(
        _log, _WARNING, "no_marks_or_socket", error=str(error),
        note="jobs start at the next poll, and all jobs of a dead worker count as started",
    )  # fmt: skip


# --- the store ----------------------------------------------------------------------------------


def claim_refused(error: Exception) -> None:
    """A claim was not written; the next one follows after a pause."""
    event(_log, _WARNING, "claim_refused", error=str(error))


def read_refused(error: Exception) -> None:
    """The store could not be read for a moment."""
    event(_log, _WARNING, "read_refused", error=str(error))


def settle_refused(count: int, error: Exception) -> None:
    """Ends of attempts could not be written yet."""
    event(_log, _WARNING, "settle_postponed", jobs=count, error=str(error))


def beat_failed(error: Exception) -> None:
    """A beat could not be written; the leases go on running."""
    event(_log, _WARNING, "beat_failed", error=str(error))


def margin_low(margin: float, lease_ms: int | None) -> None:
    """A beat came so late that little of a lease was left."""
    event(_log, _WARNING, "lease_margin_low", left=round(margin, 3), shortest_lease_ms=lease_ms)


def progress_lost(error: Exception) -> None:
    """Progress could not be written; the next value follows."""
    event(_log, _DEBUG, "progress_lost", error=str(error))


def care_postponed(error: Exception) -> None:
    """Recovery or housekeeping waits for a busy or full store."""
    event(_log, _INFO, "maintenance_postponed", error=str(error))


def care_failed(error: Exception) -> None:
    """Recovery or housekeeping failed; it is tried again later."""
    event(_log, _ERROR, "maintenance_failed", error=str(error))


def purged(purged: Purged) -> None:
    """Old final jobs were deleted."""
    if purged.jobs:
        event(_log, _DEBUG, "purged", jobs=purged.jobs)


def unserved_failed(count: int) -> None:
    """Jobs of tasks that no worker serves have waited long enough."""
    if count:
        event(_log, _WARNING, "unserved_failed", jobs=count,
              note="no live worker serves their task; they failed as unknown_task")  # fmt: skip
