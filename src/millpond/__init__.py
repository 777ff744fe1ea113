"""A durable background job queue on one SQLite file.

The public names; each is loaded when it is first asked for, so that a command, a worker's
keeper or a module of millpond's own loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.app import (
        Backup,
        Batch,
        Done,
        Event,
        Failure,
        Failures,
        Millpond,
        Selection,
        Status,
    )
    from millpond.clock import ManualClock, SystemClock
    from millpond.codec import PayloadTooLarge
    from millpond.config.store import StoreConfig
    from millpond.context import Context
    from millpond.errors import (
        BadConfig,
        BadPayload,
        CommitUncertain,
        Fail,
        InvariantBroken,
        JobCancelled,
        JobFailed,
        JobNotFinal,
        JobNotFound,
        LeaseLost,
        MillpondError,
        Overloaded,
        Retry,
        SchemaTooNew,
        SchemaTooOld,
        Snooze,
        StoreBusy,
        StoreClosed,
        StoreError,
        StoreFull,
        UnknownTask,
        UnsafeStorage,
    )
    from millpond.model import AttemptOutcome, State
    from millpond.policy.backoff import Backoff
    from millpond.task import Attempt, Job, JobRef, Lease, Progress, Task

    __version__: str

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Backoff",
    "Backup",
    "BadConfig",
    "BadPayload",
    "Batch",
    "CommitUncertain",
    "Context",
    "Done",
    "Event",
    "Fail",
    "Failure",
    "Failures",
    "InvariantBroken",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFinal",
    "JobNotFound",
    "JobRef",
    "Lease",
    "LeaseLost",
    "ManualClock",
    "Millpond",
    "MillpondError",
    "Overloaded",
    "PayloadTooLarge",
    "Progress",
    "Retry",
    "SchemaTooNew",
    "SchemaTooOld",
    "Selection",
    "Snooze",
    "State",
    "Status",
    "StoreBusy",
    "StoreClosed",
    "StoreConfig",
    "StoreError",
    "StoreFull",
    "SystemClock",
    "Task",
    "UnknownTask",
    "UnsafeStorage",
    "__version__",
]

_NAMES = {
    "millpond.app": "Backup Batch Done Event Failure Failures Millpond Selection Status",
    "millpond.clock": "ManualClock SystemClock",
    "millpond.codec": "PayloadTooLarge",
    "millpond.config.store": "StoreConfig",
    "millpond.context": "Context",
    "millpond.errors": (
        "BadConfig BadPayload CommitUncertain Fail InvariantBroken JobCancelled JobFailed "
        "JobNotFinal JobNotFound LeaseLost MillpondError Overloaded Retry SchemaTooNew "
        "SchemaTooOld Snooze StoreBusy StoreClosed StoreError StoreFull UnknownTask UnsafeStorage"
    ),
    "millpond.model": "AttemptOutcome State",
    "millpond.policy.backoff": "Backoff",
    "millpond.task": "Attempt Job JobRef Lease Progress Task",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

# Hidden from type checkers, which would otherwise accept any name at all.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("millpond")
        if name not in _HOMES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
