"""What can be asked of a pond, and done to its jobs and queues, each call with an awaited twin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, Unpack

from millpond.app.filters import Where, job_filter
from millpond.app.status import Status
from millpond.codec import decode_result
from millpond.config.checks import check_int, check_text, check_who
from millpond.errors import BadConfig, JobNotFound
from millpond.model import Drift, JobId, State
from millpond.store.protocol import Store, Ticket
from millpond.task.jobs import Attempt, Job

P = ParamSpec("P")
T = TypeVar("T")

_LARGEST_ID = (1 << 63) - 1
_LONGEST_LIST = 10_000


class Narrowing(Where, total=False):
    """The arguments of `jobs`."""

    state: State | str | None
    limit: int
    before: int | None


class Operations:
    """The calls that need nothing of the application but its store.

    Reads of the awaited twins run in asyncio's thread pool; writes await the storage thread
    and hold no thread.
    """

    def ready(self) -> Store:
        """Return the open store, knowing all that was declared."""
        raise NotImplementedError

    async def aready(self) -> Store:
        """Do the same without blocking the event loop."""
        raise NotImplementedError

    def look(self, job_id: int, *, payload: bool = True) -> Job | None:
        """Return a job, None when there is none; without payload when it is not wanted."""
        row = self.ready().get(job_number(job_id), payload=payload)
        return None if row is None else Job.of(row)

    async def alook(self, job_id: int, *, payload: bool = True) -> Job | None:
        """Do what `look` does, awaited."""
        return await self._aside(self.look, job_id, payload=payload)

    def get(self, job_id: int) -> Job:
        """Return one job as it stands now; raises JobNotFound."""
        job = self.look(job_id)
        if job is None:
            raise not_found(job_id)
        return job

    async def aget(self, job_id: int) -> Job:
        """Do what `get` does, awaited."""
        return await self._aside(self.get, job_id)

    def jobs(
        self,
        *,
        state: State | str | None = None,
        limit: int = 100,
        before: int | None = None,
        **where: Unpack[Where],
    ) -> list[Job]:
        """Return jobs, newest first, without payloads and results.

        Each argument narrows; `error` is a part of the last error, in any case of letters.
        Page on with `before`, the id of the last job seen.
        """
        check_int("limit", limit, 1, _LONGEST_LIST)
        wanted = job_filter(state, where)
        from_id = None if before is None else job_number(before)
        return [Job.of(row) for row in self.ready().find(wanted, before=from_id, limit=limit)]

    async def ajobs(self, **where: Unpack[Narrowing]) -> list[Job]:
        """Do what `jobs` does, awaited."""
        return await self._aside(self.jobs, **where)

    def attempts(self, job_id: int) -> list[Attempt]:
        """Return a job's history, oldest first; raises JobNotFound."""
        store = self.ready()
        rows = store.attempts(job_number(job_id))
        if not rows and store.get(job_number(job_id), payload=False) is None:
            raise not_found(job_id)
        return [Attempt.of(row) for row in rows]

    async def aattempts(self, job_id: int) -> list[Attempt]:
        """Do what `attempts` does, awaited."""
        return await self._aside(self.attempts, job_id)

    def cancel(self, job_id: int, *, by: str | None = None, note: str | None = None) -> State:
        """Cancel a job that waits, or ask the handler of one that runs to stop.

        Returns the state that the job was found in; a final job stays as it is. `by` and
        `note` are kept as who asked and why. Raises JobNotFound.
        """
        check_who(by, note)
        return _found(job_id, self.ready().cancel(job_number(job_id), by=by, note=note).result())

    async def acancel(
        self, job_id: int, *, by: str | None = None, note: str | None = None
    ) -> State:
        """Do what `cancel` does, awaited."""
        check_who(by, note)
        store = await self.aready()
        return _found(job_id, await store.cancel(job_number(job_id), by=by, note=note))

    def pause(self, queue: str, *, by: str | None = None) -> None:
        """Start no more jobs of a queue; it goes on accepting, and what runs runs on."""
        _known(queue, _pausing(self.ready(), queue, by, paused=True).result())

    async def apause(self, queue: str, *, by: str | None = None) -> None:
        """Do what `pause` does, awaited."""
        _known(queue, await _pausing(await self.aready(), queue, by, paused=True))

    def resume(self, queue: str, *, by: str | None = None) -> None:
        """Start jobs of a paused queue again."""
        _known(queue, _pausing(self.ready(), queue, by, paused=False).result())

    async def aresume(self, queue: str, *, by: str | None = None) -> None:
        """Do what `resume` does, awaited."""
        _known(queue, await _pausing(await self.aready(), queue, by, paused=False))

    def status(self) -> Status:
        """Return counts, workers and warnings of one moment, cheap at any size."""
        return Status.of(self.ready().status())

    async def astatus(self) -> Status:
        """Do what `status` does, awaited."""
        return await self._aside(self.status)

    def result(self, operation_id: str, task: str | None = None, default: Any = None) -> Any:
        """Return the newest stored result of an operation as JSON data, `default` without one.

        Results outlive their jobs, for as long as the task's `result_ttl` says.
        """
        check_text("operation_id", operation_id)
        check_text("task", task)
        raw = self.ready().result_of(operation_id, task)
        return default if raw is None else decode_result(raw)

    async def aresult(self, operation_id: str, task: str | None = None, default: Any = None) -> Any:
        """Do what `result` does, awaited."""
        return await self._aside(self.result, operation_id, task, default)

    def reconcile(self, *, repair: bool = False) -> list[Drift]:
        """Recount all counters under the write lock; mend those that differ when asked."""
        return self.ready().reconcile(repair=repair).result()

    async def areconcile(self, *, repair: bool = False) -> list[Drift]:
        """Do what `reconcile` does, awaited."""
        return await (await self.aready()).reconcile(repair=repair)

    def verify(self) -> list[str]:
        """Check the file, every job's state and every counter; return what is wrong."""
        return self.ready().verify()

    async def averify(self) -> list[str]:
        """Do what `verify` does, awaited."""
        return await self._aside(self.verify)

    async def _aside(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # Imported where it is needed: asyncio takes as long to import as all of millpond.
        from asyncio import to_thread

        asked: Awaitable[T] = to_thread(call, *args, **kwargs)
        return await asked


def job_number(job_id: object) -> JobId:
    """Return a job's id; raises TypeError for no integer, JobNotFound for none there can be."""
    if not isinstance(job_id, int) or isinstance(job_id, bool):
        msg = f"a job id is an integer, not {job_id!r:.100} of type {type(job_id).__name__}"
        raise TypeError(msg)
    if not 0 <= job_id <= _LARGEST_ID:
        raise not_found(job_id)
    return JobId(job_id)


def not_found(job_id: int) -> JobNotFound:
    """Return the error that says so."""
    # Python refuses to print integers of more than 4,300 digits, so their size is told instead.
    short = abs(job_id) <= _LARGEST_ID << 64
    shown = str(job_id) if short else f"of {job_id.bit_length()} bits"
    outside = "" if 0 <= job_id <= _LARGEST_ID else ": ids are positive 64-bit integers"
    return JobNotFound(
        f"there is no job {shown}{outside}; it never existed, was pruned, or the transaction "
        "that enqueued it is not committed yet or was rolled back"
    )


def _found(job_id: int, state: State | None) -> State:
    if state is None:
        raise not_found(job_id)
    return state


def _pausing(store: Store, queue: str, by: str | None, *, paused: bool) -> Ticket[bool]:
    check_text("queue", queue)
    check_who(by)
    return store.pause(queue, paused, by=by)


def _known(queue: str, known: bool) -> None:  # noqa: FBT001
    if not known:
        msg = f"there is no queue {queue!r}: declare it with pond.queue(), or check the spelling"
        raise BadConfig(msg)
