"""What a handler gets to know and may do about the job that it is working on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, assert_never

from millpond.clock import Clock, SystemClock
from millpond.codec.coder import Coder
from millpond.codec.place import Place
from millpond.errors import BadPayload, JobCancelled, LeaseLost
from millpond.ids import uuid7
from millpond.model import Claim, JobId, Token

Why = Literal["cancelled", "lease_lost", "timeout", "shutdown"]

REMEMBERED_MAX = 64 * 1024
"""Bytes of JSON that `remember` keeps; what is larger belongs into a file that it names."""

_TEXT_MAX = 1_000
_FOREVER = 1 << 62
_HOST_CLOCK = SystemClock(0)
_JSON = Coder(Any)
_REMEMBERED = Place(root="remembered")
_PROGRESS = Place(root="progress")
_META = Place(root="meta")

_log = logging.getLogger("millpond.job")


def _nothing_newer() -> None:
    """Stand for a worker that has told all that it knows."""


@dataclass(slots=True)
class Control:
    """What the worker tells a running handler; written by the worker, read by the handler.

    `lease_until` is a reading of the host's monotonic clock in milliseconds. `catch_up` asks
    for a renewal that was made and not heard of yet: a process that stood still, or whose
    interpreter was held, may look at its leases before it hears what came meanwhile.
    """

    why: Why | None = None
    lease_until: int = 0
    catch_up: Callable[[], None] = _nothing_newer

    def expired(self, mono: Callable[[], int]) -> bool:
        """Tell whether the lease has ended by this clock, whatever was renewed unheard."""
        if mono() < self.lease_until:
            return False
        self.catch_up()
        return mono() >= self.lease_until


class ContextHost(Protocol):
    """What a Context asks of the worker that runs it."""

    @property
    def worker(self) -> str:
        """Name the worker, as it is shown in the history of a job."""
        ...

    def mono(self) -> int:
        """Return the monotonic clock that leases are measured by."""
        ...

    def progress(self, token: Token, value: bytes) -> None:
        """Keep the latest progress; written out with the beat, at most once a second."""
        ...

    def remember(self, token: Token, value: bytes) -> bool:
        """Store the value and return after the commit; False when the lease is gone."""
        ...


current_context: ContextVar[Context | None] = ContextVar("millpond-context", default=None)
"""The context of the handler that this thread, or asyncio task, is in."""


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Adds job, attempt, task and operation id to every record."""

    def process(
        self,
        msg: Any,
        kwargs: MutableMapping[str, Any],
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Merge the job's fields with the call's own `extra`."""
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """One attempt of one job, as its handler sees it.

    A handler gets it by a keyword-only parameter, `*, ctx: Context`, or by
    `Context.current()`. Everything that touches the store is fenced by the attempt's lease:
    once another attempt may own the job, nothing is written.
    """

    injected: ClassVar[Context]
    """A default for that parameter, `*, ctx: Context = Context.injected`.

    Type checkers then accept an `enqueue` without it, as it is meant; what a handler gets is
    always its own context.
    """

    def __init__(self, claim: Claim, control: Control, host: ContextHost) -> None:
        self._claim = claim
        self._control = control
        self._host = host
        self._remembered = claim.remembered

    @classmethod
    def local(cls, task: str = "", *, clock: Clock | None = None) -> Context:
        """Return a context without job, worker and store, as a plain call of a task gets it.

        Progress is dropped, and what is remembered lasts as long as this object.
        """
        return cls(_local_claim(task), Control(lease_until=_FOREVER), _LocalHost(clock))

    @staticmethod
    def current() -> Context:
        """Return the context of the job that the calling handler works on.

        Raises LookupError outside of a handler.
        """
        context = current_context.get()
        if context is None:
            msg = "no job is running here: Context.current() answers only inside a handler"
            raise LookupError(msg)
        return context

    @property
    def job_id(self) -> JobId:
        """The job's id; 0 in a plain call."""
        return self._claim.token.job_id

    @property
    def attempt(self) -> int:
        """The ordinal of this attempt, from 1; snoozed and released ones are not counted."""
        return self._claim.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts the job has."""
        return self._claim.max_attempts

    @property
    def operation_id(self) -> str:
        """The same in every attempt: give it to an API that refuses to do a thing twice."""
        return self._claim.operation_id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._claim.task

    @property
    def queue(self) -> str:
        """The name of the queue that the job came from."""
        return self._claim.queue

    @property
    def workload(self) -> str:
        """The workload that the job belongs to."""
        return self._claim.workload

    @property
    def worker(self) -> str:
        """The name of the worker that runs this attempt."""
        return self._host.worker

    @cached_property
    def meta(self) -> Mapping[str, Any]:
        """What the producer attached with `using(meta=...)`."""
        raw = self._claim.meta
        return {} if raw is None else dict(_JSON.decode(raw, _META))

    @cached_property
    def log(self) -> JobLog:
        """A logger whose records carry job, attempt, task and operation id."""
        return JobLog(
            _log,
            {
                "job": self.job_id,
                "attempt": self.attempt,
                "task": self.task,
                "operation_id": self.operation_id,
            },
        )

    @property
    def lease_remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed, by the worker's own clock."""
        return max(0, self._control.lease_until - self._host.mono()) / 1000

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: cancelled, timed out, shut down, or no longer owner."""
        return self._stopped_by() is not None

    def check_cancelled(self) -> None:
        """Raise when the handler should stop, return otherwise; cheap enough for a loop.

        Raises JobCancelled when someone cancelled the job or the worker shuts down (the job
        then goes back unharmed), LeaseLost when another attempt may own the job, and
        TimeoutError when the task's timeout has passed.
        """
        why = self._stopped_by()
        match why:
            case None:
                return
            case "cancelled":
                raise JobCancelled(f"job {self.job_id} was cancelled: clean up and return")
            case "shutdown":
                raise JobCancelled(
                    f"the worker of job {self.job_id} shuts down: stop here, the job goes back "
                    "to its queue and no attempt is used"
                )
            case "lease_lost":
                raise LeaseLost(
                    f"job {self.job_id} is no longer owned by attempt {self.attempt}: stop, "
                    "another attempt may be running and this result will be refused"
                )
            case "timeout":
                raise TimeoutError(
                    f"job {self.job_id} ran longer than the {self._claim.timeout_ms} ms that "
                    f"task {self.task!r} allows"
                )
            case _:
                assert_never(why)

    def progress(self, done: float, total: float | None = None, text: str | None = None) -> None:
        """Say how far the work is; the latest value is kept, at most one write a second.

        Raises BadPayload for what is no finite number or no text.
        """
        for number in (done, total):
            if number is not None and not isinstance(number, (int, float)):
                msg = f"progress({number!r}) cannot be stored: give numbers for done and total"
                raise BadPayload(msg)
        short = None if text is None else text[:_TEXT_MAX]
        told = {"done": done, "total": total, "text": short}
        self._host.progress(self._claim.token, _JSON.encode(told, _PROGRESS, REMEMBERED_MAX))

    def remember(self, value: Any) -> None:
        """Keep a small JSON value for later attempts of the same operation and task.

        Returns after the commit. Raises BadPayload for what is not JSON or larger than
        64 KiB, LeaseLost when this attempt no longer owns the job.
        """
        encoded = _JSON.encode(value, _REMEMBERED, REMEMBERED_MAX)
        if not self._host.remember(self._claim.token, encoded):
            msg = (
                f"job {self.job_id} is no longer owned by attempt {self.attempt}: "
                "nothing was remembered; stop, another attempt may be running"
            )
            raise LeaseLost(msg)
        self._remembered = encoded

    async def aremember(self, value: Any) -> None:
        """Do what `remember` does without blocking the event loop."""
        from asyncio import to_thread

        await to_thread(self.remember, value)

    @property
    def remembered(self) -> Any:
        """What an earlier attempt, or this one, remembered last; None when nothing was."""
        raw = self._remembered
        return None if raw is None else _JSON.decode(raw, _REMEMBERED)

    def _stopped_by(self) -> Why | None:
        if self._control.why is not None:
            return self._control.why
        # The worker may be too busy to say it: an expired lease is lost, whoever has noticed.
        return "lease_lost" if self._control.expired(self._host.mono) else None

    def __repr__(self) -> str:
        return f"<Context job={self.job_id} task={self.task!r} attempt={self.attempt}>"


class _LocalHost:
    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock or _HOST_CLOCK
        self.worker = "local"

    def mono(self) -> int:
        return self._clock.mono()

    def progress(self, token: Token, value: bytes) -> None:
        """Nobody is there to see it."""

    def remember(self, token: Token, value: bytes) -> bool:  # noqa: ARG002
        return True


def _local_claim(task: str) -> Claim:
    now = _HOST_CLOCK.now()
    return Claim(
        token=Token(JobId(0), 0),
        task=task,
        queue="",
        workload="",
        payload=b"{}",
        attempts=0,
        max_attempts=1,
        crashes=0,
        lease_ms=_FOREVER,
        timeout_ms=None,
        operation_id=uuid7(now),
        priority=100,
        created_at=now,
        due_at=now,
        claimed_at=now,
        claimed_mono=0,
    )


Context.injected = Context.local()
