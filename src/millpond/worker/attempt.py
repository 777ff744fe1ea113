"""One attempt: the handler is called, and whatever it does becomes an Outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, assert_never

from msgspec.structs import replace

from millpond.clock import Clock
from millpond.context import Context, Control, Why
from millpond.errors import LeaseLost, MillpondError
from millpond.model import Claim
from millpond.policy.fingerprint import safe_message
from millpond.policy.retry import Complete, FailNow, RetryLater, SnoozeUntil
from millpond.worker.frames import End, Outcome
from millpond.worker.host import HostTask
from millpond.worker.trouble import describe, message_of, stopped_end

BAD_RESULT = "bad_result"
"""Reason of a job whose handler returned what cannot be stored: its work is done all the same."""


class Running:
    """A handler that is being called: how to tell it to stop, and since when it runs."""

    __slots__ = ("_begun_ns", "claim", "control", "deadline", "interrupt", "started_at", "task")

    def __init__(self, claim: Claim, task: HostTask, control: Control, started_at: int) -> None:
        self.claim = claim
        self.task = task
        self.control = control
        self.started_at = started_at
        self.interrupt: Callable[[], None] | None = None
        self._begun_ns = time.perf_counter_ns()
        timeout = claim.timeout_ms
        self.deadline = None if timeout is None else self._begun_ns + timeout * 1_000_000

    def stop(self, why: Why) -> bool:
        """Tell the handler to stop; the first reason stands. False when it had one already."""
        if self.control.why is not None:
            return False
        self.control.why = why
        if self.interrupt is not None:
            self.interrupt()
        return True

    def returned(self, value: Any, clock: Clock) -> Outcome:
        """Return the outcome of a handler that returned: completed, told to stop or not."""
        try:
            result = self.task.encode_result(value)
        except Exception as error:  # noqa: BLE001  an annotation's own code may raise anything
            ours = issubclass(type(error), MillpondError)
            reason = BAD_RESULT if ours else f"{BAD_RESULT}: {message_of(error)}"
            return self._ended(clock, End.FAIL, error=error, reason=reason)
        return Outcome(
            self.claim.token.claim,
            End.COMPLETED,
            self.started_at,
            clock.now(),
            (time.perf_counter_ns() - self._begun_ns) // 1000,
            result,
        )

    def raised(self, error: BaseException, clock: Clock) -> Outcome:
        """Return the outcome of a handler that raised, whatever it raised."""
        try:
            return self._judged(error, clock)
        except Exception:  # noqa: BLE001  an exception's own code, or a rule's, may raise anything
            return self._ended(clock, End.RETRY, error=error)

    def _judged(self, error: BaseException, clock: Clock) -> Outcome:
        unsaid = isinstance(error, LeaseLost) and self.control.why is None
        if unsaid and self.control.expired(clock.mono):
            # The handler noticed before anyone could tell it.
            self.control.why = "lease_lost"
        end = stopped_end(self.control.why, error)
        if end is not None:
            return self._stopped(clock, end, error)
        verdict = self.task.verdict(error, clock.now())
        match verdict:
            case Complete():
                return self._ended(clock, End.COMPLETED)
            case RetryLater(after_ms, note):
                return self._ended(clock, End.RETRY, error=error, reason=note, delay=after_ms)
            case SnoozeUntil(delay_ms, note):
                return self._ended(clock, End.SNOOZE, error=error, reason=note, delay=delay_ms)
            case FailNow(reason):
                return self._ended(clock, End.FAIL, error=error, reason=reason)
            case _:
                assert_never(verdict)

    def _stopped(self, clock: Clock, end: End, error: BaseException) -> Outcome:
        outcome = self._ended(clock, end, error=error)
        timeout = self.claim.timeout_ms
        trouble = outcome.trouble
        # A cancelled coroutine says nothing of why; whoever reads the history wants to know.
        if end is not End.TIMED_OUT or timeout is None or trouble is None or trouble.message:
            return outcome
        text = f"timed out after {timeout / 1000:g} s"
        return replace(outcome, trouble=replace(trouble, type="TimeoutError", message=text))

    def _ended(
        self,
        clock: Clock,
        end: End,
        *,
        error: BaseException | None = None,
        reason: str | None = None,
        delay: int | None = None,
    ) -> Outcome:
        ran_us = (time.perf_counter_ns() - self._begun_ns) // 1000
        return Outcome(
            self.claim.token.claim,
            end,
            self.started_at,
            clock.now(),
            ran_us,
            reason=None if reason is None else safe_message(reason),
            delay_ms=delay,
            trouble=None if error is None else describe(error, self.claim.task),
        )


def run_plain(running: Running, context: Context, clock: Clock) -> Outcome:
    """Call a plain handler in this thread."""
    task = running.task
    try:
        args, kwargs = task.decode(running.claim.payload)
        value = task.call(args, kwargs, context)
    except BaseException as error:  # noqa: BLE001  SystemExit in a handler ends it, not the runner
        return running.raised(error, clock)
    return running.returned(value, clock)


async def run_async(running: Running, context: Context, clock: Clock) -> Outcome:
    """Await an async handler in the current task, whose cancellation is its order to stop."""
    task = running.task
    try:
        args, kwargs = task.decode(running.claim.payload)
        value = await task.call(args, kwargs, context)
    except BaseException as error:  # noqa: BLE001  SystemExit in a handler ends it, not the runner
        _forget_cancellation()
        return running.raised(error, clock)
    return running.returned(value, clock)


def _forget_cancellation() -> None:
    """Take the cancellation back once it has become an outcome, or it would strike again."""
    current = asyncio.current_task()
    while current is not None and current.cancelling():
        current.uncancel()
