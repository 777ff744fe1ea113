"""What is kept of an exception: text that is safe to store, whatever the handler raised.

Nothing of the exception itself leaves the process. Some cannot be pickled or rebuilt, some
hold locks, some fail when they are printed; none of that may cost more than its message.
"""

from __future__ import annotations

import asyncio
import traceback
from types import TracebackType
from typing import assert_never

from millpond.context import Why
from millpond.errors import JobCancelled, LeaseLost
from millpond.policy.fingerprint import bounded_traceback, fingerprint, safe_message, storable
from millpond.worker.frames import End, Trouble

_LINKS = 16
_OWN = ("millpond.worker.", "millpond.task", "millpond.context")


def describe(error: BaseException, task: str) -> Trouble:
    """Return type, message, traceback and fingerprint of what ended a handler; never raises."""
    kind = type_name(error)
    message = message_of(error)
    trace = _handlers_part(_trace_of(error))
    return Trouble(
        type=kind,
        # Asked of the type: an exception may have a `__class__` of its own that raises.
        message=_with_memory(message) if issubclass(type(error), MemoryError) else message,
        traceback=bounded_traceback(_printed(error, trace)),
        fingerprint=fingerprint(task, kind, message, _innermost(trace)),
    )


def _with_memory(message: str) -> str:
    try:
        from millpond.worker.memory import own_peak

        return f"{message or 'out of memory'} (the process had {own_peak()})"
    except (MemoryError, OSError, ImportError):
        # What is left is too little to say so.
        return message


def type_name(error: BaseException) -> str:
    """Return the qualified name of an exception's class, without `builtins.`."""
    kind = type(error)
    module = getattr(kind, "__module__", None)
    prefix = f"{module}." if isinstance(module, str) and module != "builtins" else ""
    return storable(f"{prefix}{kind.__qualname__}")


def stopped_end(why: Why | None, error: BaseException) -> End | None:
    """Return how the attempt ended if `error` obeys the worker's order, None if it is its own.

    A handler may wrap the cancellation while it cleans up, so what led to the error counts
    as well. Without an order a cancellation is the handler's own doing.
    """
    if why is None or not _obeys(why, error):
        return None
    match why:
        case "cancelled":
            return End.CANCELLED
        case "timeout":
            return End.TIMED_OUT
        case "lease_lost":
            return End.LEASE_LOST
        case "shutdown":
            return End.RELEASED
        case _:
            assert_never(why)


def _obeys(why: Why, error: BaseException) -> bool:
    signs: tuple[type[BaseException], ...] = (asyncio.CancelledError, JobCancelled, LeaseLost)
    if why == "timeout":
        signs = (*signs, TimeoutError)
    current: BaseException | None = error
    for _ in range(_LINKS):
        if current is None:
            return False
        if isinstance(current, signs) or _grouped(current, signs):
            return True
        current = current.__cause__ or current.__context__
    return False


def _grouped(error: BaseException, signs: tuple[type[BaseException], ...]) -> bool:
    return isinstance(error, BaseExceptionGroup) and error.subgroup(signs) is not None


def message_of(error: BaseException) -> str:
    """Return what an exception says of itself; never raises."""
    for show in (str, repr):
        try:
            return safe_message(show(error))
        except Exception:  # noqa: BLE001, S112  an exception that cannot be printed is the case here
            continue
    return f"<{type(error).__name__} that cannot be printed>"


def _printed(error: BaseException, trace: TracebackType | None) -> str:
    try:
        return "".join(traceback.TracebackException(type(error), error, trace).format())
    except Exception:  # noqa: BLE001  what it holds besides its frames cannot be printed
        frames = "".join(traceback.format_tb(trace))
        return f"{frames}{type_name(error)}: <the rest of the traceback cannot be printed>"


def _trace_of(error: BaseException) -> TracebackType | None:
    try:
        return error.__traceback__
    except Exception:  # noqa: BLE001  its class may have a property of that name
        return None


def _handlers_part(trace: TracebackType | None) -> TracebackType | None:
    """Skip the worker's own frames at the top: they are the same for every job."""
    current = trace
    while current is not None:
        module = current.tb_frame.f_globals.get("__name__")
        if not (isinstance(module, str) and module.startswith(_OWN)):
            return current
        current = current.tb_next
    return trace


def _innermost(trace: TracebackType | None) -> str:
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    code = trace.tb_frame.f_code
    return f"{trace.tb_frame.f_globals.get('__name__')}.{code.co_qualname}"
