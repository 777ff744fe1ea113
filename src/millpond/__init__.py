"""A durable background job queue on one SQLite file."""

from __future__ import annotations

from millpond.app import Batch, Millpond, Status
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

__all__ = [
    "Attempt",
    "AttemptOutcome",
    "Backoff",
    "BadConfig",
    "BadPayload",
    "Batch",
    "CommitUncertain",
    "Context",
    "Fail",
    "InvariantBroken",
    "Job",
    "JobCancelled",
    "JobFailed",
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


def __getattr__(name: str) -> str:
    if name == "__version__":
        # Read when asked for: looking up the metadata takes longer than all other imports.
        from importlib.metadata import version

        return version("millpond")
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
