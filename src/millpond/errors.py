"""Everything millpond raises on purpose.

    MillpondError
    ├── Overloaded         enqueue was refused; carries reason and retry_after
    ├── LeaseLost          the handler no longer owns its job
    ├── JobNotFound        no job has this id
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

from datetime import datetime


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


class LeaseLost(MillpondError):
    """The job is no longer owned by this attempt: stop, its result will be refused."""


class JobNotFound(MillpondError, LookupError):
    """No job has this id (it never existed, was pruned, or its transaction rolled back)."""


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


class Retry(Exception):  # noqa: N818  a handler's verdict, not an error
    """Raise it in a handler to end this attempt and try again, at the earliest after `after` s."""

    def __init__(self, reason: str = "", *, after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Snooze(Exception):  # noqa: N818  a handler's verdict, not an error
    """Raise it in a handler to run again later without using an attempt.

    `until` is a number of seconds from now or an aware datetime.
    """

    def __init__(self, until: float | datetime, reason: str = "") -> None:
        super().__init__(reason or f"snoozed until {until}")
        self.until = until
        self.reason = reason


class Fail(Exception):  # noqa: N818  a handler's verdict, not an error
    """Raise it in a handler to fail the job for good, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
