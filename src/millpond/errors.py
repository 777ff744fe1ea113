"""Everything millpond raises on purpose.

    MillpondError
    ├── Overloaded         enqueue was refused; carries reason and retry_after
    ├── LeaseLost          the handler no longer owns its job
    ├── JobNotFound        no job has this id
    ├── JobNotFinal        only a job that has ended can be put back or discarded
    ├── JobFailed          waited for a job that failed
    ├── JobCancelled       waited for a job that was cancelled
    ├── UnknownTask        no task has this name
    ├── BadPayload         arguments or result that cannot be stored and read back
    ├── BadConfig          settings that cannot work
    └── StoreError
        ├── StoreBusy       another process held the database longer than the budget
        ├── StoreFull       the disk or the database has no room
        ├── StoreClosed     the store was closed, or moved away
        ├── CommitUncertain the commit's outcome could not be read back
        ├── SchemaTooOld    run `millpond migrate`
        ├── SchemaTooNew    upgrade millpond
        ├── UnsafeStorage   the file cannot be used safely where it is
        └── InvariantBroken a bug: two parts of the store disagree

`Retry`, `Snooze` and `Fail` are not errors: a handler raises them to say how its attempt
ends. They derive from Exception directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from datetime import datetime

_SHOWN = 200
"""Characters of a refused value that an error message repeats."""

_LONGEST = 10 * 365 * 86_400
"""Seconds, ten years: what is longer is a mistake, and would leave the range of due times."""


class MillpondError(Exception):
    """Base of all errors of millpond."""


class Overloaded(MillpondError):
    """Admission refused the job: nothing was stored; try again after `retry_after` seconds.

    `retry_after` is None when nothing was measured yet. `limit` and `used` are in the unit
    of the reason (jobs or bytes), None where the reason has no number.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        queue: str,
        workload: str,
        retry_after: float | None = None,
        limit: int | None = None,
        used: int | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.queue = queue
        self.workload = workload
        self.retry_after = retry_after
        self.limit = limit
        self.used = used

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, which would call the class without its keyword arguments."""
        return _rebuild, (type(self), self.args, self.__dict__)


class LeaseLost(MillpondError):
    """The job is no longer owned by this attempt: stop, its result will be refused."""


class JobNotFound(MillpondError, LookupError):
    """No job has this id (it never existed, was pruned, or its transaction rolled back)."""


class JobNotFinal(MillpondError):
    """Only a job that has ended can be put back or discarded; `.state` is where this one stands."""

    def __init__(self, message: str, *, state: str) -> None:
        super().__init__(message)
        self.state = state

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, which would call the class without its keyword arguments."""
        return _rebuild, (type(self), self.args, self.__dict__)


class JobFailed(MillpondError):
    """The job that was waited for has failed for good; `.job` is its snapshot."""

    def __init__(self, message: str, job: object = None) -> None:
        super().__init__(message)
        self.job = job


class JobCancelled(MillpondError):
    """The job that was waited for, or is being run, was cancelled; `.job` is its snapshot."""

    def __init__(self, message: str, job: object = None) -> None:
        super().__init__(message)
        self.job = job


class UnknownTask(MillpondError, LookupError):
    """No task of this name is registered or known to the store."""


class BadPayload(MillpondError, ValueError):
    """Arguments, payload or result that cannot be stored and read back exactly."""


class BadConfig(MillpondError, ValueError):
    """Settings that cannot work; the message names them with their values."""


class StoreError(MillpondError):
    """The database refused or failed; the driver's error is the `__cause__`."""


class StoreBusy(StoreError):
    """The database stayed locked for the whole budget; nothing was written."""


class StoreFull(StoreError):
    """There is no room for the write; nothing was written."""


class StoreClosed(StoreError):
    """The store is closed, or its file was moved or replaced under it."""


class CommitUncertain(StoreError):
    """COMMIT failed and what it wrote could not be read back: check before trying again."""


class SchemaTooOld(StoreError):
    """The database lacks migrations that this version needs."""


class SchemaTooNew(StoreError):
    """The database was migrated past what this version can work with."""


class UnsafeStorage(StoreError):
    """The file cannot be used safely where and how it stands."""


class InvariantBroken(StoreError):
    """Two parts of the store disagree: a bug in millpond, nothing was written."""


class Retry(Exception):
    """Raise it in a handler to end this attempt and try again, at the earliest after `after` s.

    Raises ValueError when `after` is neither None nor a number from 0 to ten years.
    """

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = str(reason)  # often the exception that was caught
        self.after = None if after is None else _seconds("Retry(after=...)", after)


class Snooze(Exception):
    """Raise it in a handler to run again later without using an attempt.

    `until` is a number of seconds from now or an aware datetime; a moment that has passed
    means now. Raises ValueError for a naive datetime or a number outside 0 to ten years.
    """

    def __init__(self, until: float | datetime, reason: str = "") -> None:
        self.until = _until(until)
        super().__init__(reason or f"snoozed until {until}")
        self.reason = str(reason)

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, which would call the class with the message as `until`."""
        return _rebuild, (type(self), self.args, self.__dict__)


class Fail(Exception):
    """Raise it in a handler to fail the job for good, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = str(reason)


def refuse_setting(setting: str, value: object, allowed: str) -> NoReturn:
    """Raise the BadConfig for one setting: its name, the value given, and what is allowed."""
    msg = f"{setting} is {_shown(value)}: it must be {allowed}"
    raise BadConfig(msg)


def _seconds(what: str, value: object) -> float:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    # The comparison also refuses NaN, infinities and integers too large for a float.
    if numeric and 0 <= value <= _LONGEST:  # type: ignore[operator]
        return value  # type: ignore[return-value]
    msg = f"{what} is {_shown(value)}: it must be a number of seconds from 0 to {_LONGEST:,}"
    raise ValueError(msg)


def _until(value: float | datetime) -> float | datetime:
    # Asked by its method, so that this module, which the pure layers use, imports no clock.
    offset = getattr(value, "utcoffset", None)
    if offset is None:
        return _seconds("Snooze(until)", value)
    if offset() is None:
        msg = (
            f"Snooze(until) is {_shown(value)}, which has no time zone: use an aware datetime "
            "such as datetime.now(timezone.utc) + timedelta(hours=1), or a number of seconds"
        )
        raise ValueError(msg)
    return value


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  a message about a bad value must not fail on it
        text = f"<{type(value).__name__} that has no repr: {type(error).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _rebuild(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
