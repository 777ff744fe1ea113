"""The handle of an enqueued job: look at it, or wait for its result."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from millpond.context import current_context
from millpond.errors import JobCancelled, JobFailed, JobNotFound
from millpond.model import Admission, Answer, State
from millpond.task.foreign import no_such
from millpond.task.jobs import Job

R = TypeVar("R")

WAIT_DEFAULT = 60.0
"""Seconds that `wait` waits unless told otherwise: no wait of ours is endless by accident."""

_FIRST_LOOK = 0.001
_LAST_LOOK = 0.1
_GROWTH = 0.1


class Looker(Protocol):
    """What a ref asks of the pond."""

    def look(self, job_id: int, *, payload: bool = True) -> Job | None:
        """Return a job, None when there is none."""
        ...

    async def alook(self, job_id: int, *, payload: bool = True) -> Job | None:
        """Do the same, awaited."""
        ...


class JobRef(Generic[R]):
    """What `enqueue` returns: the job's id, and how it was answered.

    `answer` is "admitted" for a new job, "duplicate" when its key names a job that is there
    already (which keeps its own arguments, whatever was given now), "coalesced" when it was
    merged into a waiting one; id and operation id are then
    that job's. The ref checks both: an id handed out inside a caller's transaction that
    rolled back goes to another job, and that one is never shown here.
    """

    __slots__ = ("_decode", "_pond", "answer", "id", "operation_id")

    def __init__(
        self, pond: Looker, admission: Admission, decode: Callable[[bytes], Any] | None = None
    ) -> None:
        self._pond = pond
        self._decode = decode
        self.id: int = admission.job_id
        self.answer: Answer = admission.answer
        self.operation_id = admission.operation_id

    def job(self) -> Job:
        """Return the job as it stands now.

        Raises JobNotFound when it was pruned or its transaction rolled back.
        """
        return self._mine(self._pond.look(self.id))

    async def ajob(self) -> Job:
        """Return the job as it stands now, awaited."""
        return self._mine(await self._pond.alook(self.id))

    def wait(self, timeout: float | None = WAIT_DEFAULT) -> R:
        """Wait until the job is final and return its result, at most `timeout` seconds.

        None waits without end. Raises JobFailed, JobCancelled, JobNotFound, and TimeoutError
        while the job is not final. Warns inside a handler, which holds the very slot that the
        other job may need.
        """
        _warn_inside_a_handler()
        for pause in looks(timeout):
            if self._mine(self._pond.look(self.id, payload=False)).final:
                # A requeue may come between the two looks: then go on waiting.
                job = self.job()
                if job.final:
                    return self._outcome(job)
            time.sleep(pause)
        return self._outcome(self.job(), timeout)

    async def await_(self, timeout: float | None = WAIT_DEFAULT) -> R:
        """Do what `wait` does, awaited."""
        from asyncio import sleep

        _warn_inside_a_handler()
        for pause in looks(timeout):
            if self._mine(await self._pond.alook(self.id, payload=False)).final:
                job = await self.ajob()
                if job.final:
                    return self._outcome(job)
            await sleep(pause)
        return self._outcome(await self.ajob(), timeout)

    def _mine(self, job: Job | None) -> Job:
        if job is None or job.operation_id != self.operation_id:
            msg = (
                f"job {self.id} (operation {self.operation_id}) is not in the store: it was "
                "pruned, or its transaction is not committed yet or was rolled back"
            )
            raise JobNotFound(msg)
        return job

    def _outcome(self, job: Job, timeout: float | None = None) -> R:
        match job.state:
            case State.COMPLETED:
                return self._result(job)
            case State.FAILED:
                msg = f"job {job.id} of task {job.task!r} failed: {_why(job)}"
                raise JobFailed(msg, job)
            case State.CANCELLED:
                raise JobCancelled(f"job {job.id} of task {job.task!r} was cancelled", job)
            case State.SCHEDULED | State.READY | State.RUNNING:
                msg = (
                    f"job {job.id} of task {job.task!r} is still {job.state} after {timeout} s: "
                    f"wait longer, or see whether a worker serves queue {job.queue!r}"
                )
                raise TimeoutError(msg)

    def _result(self, job: Job) -> R:
        if job.raw_result is None or self._decode is None:
            return job.result  # type: ignore[no-any-return]
        return self._decode(job.raw_result)  # type: ignore[no-any-return]

    # Hidden from type checkers, which would otherwise accept any name, and an await.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_such(self, "JobRef", name)

        def __await__(self) -> NoReturn:
            msg = (
                f"job {self.id} is stored, and enqueue() has returned already: in async code "
                "write `ref = await task.aenqueue(...)`, and `await ref.await_()` for its result"
            )
            raise TypeError(msg)

    def __repr__(self) -> str:
        return f"<JobRef {self.id} {self.answer} operation={self.operation_id}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobRef):
            return NotImplemented
        return (self.id, self.operation_id) == (other.id, other.operation_id)

    def __hash__(self) -> int:
        return hash((self.id, self.operation_id))


def looks(timeout: float | None) -> Iterator[float]:
    """Yield the pauses between looks: short at first, then a tenth of the time waited.

    A job of milliseconds is noticed at once, and a job of minutes costs ten looks a second.
    """
    start = time.monotonic()
    while True:
        waited = time.monotonic() - start
        pause = min(_FIRST_LOOK + waited * _GROWTH, _LAST_LOOK)
        if timeout is not None:
            if waited >= timeout:
                return
            pause = min(pause, timeout - waited)
        yield pause


def _why(job: Job) -> str:
    return job.last_error or job.reason or "no reason was recorded"


def _warn_inside_a_handler() -> None:
    context = current_context.get()
    if context is not None:
        warnings.warn(
            f"job {context.job_id} waits for another job and keeps its worker's slot meanwhile: "
            "when all slots wait, none is left to run what they wait for",
            RuntimeWarning,
            stacklevel=3,
        )
