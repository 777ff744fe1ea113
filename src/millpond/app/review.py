"""Review of final jobs: put back, correct, discard, group failures, act on many."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Unpack

from millpond.app.eager import run_now
from millpond.app.filters import Where, job_filter, one_state
from millpond.app.operations import Operations, job_number, not_found
from millpond.app.options import Length
from millpond.app.selection import Progress, Selection, found, parse_pin
from millpond.app.told import Event, Failures
from millpond.codec import encode_json
from millpond.config.checks import check_int, check_optional_int, check_text, check_who
from millpond.config.store import StoreConfig
from millpond.errors import JobNotFinal
from millpond.model import Acted, Admission, JobId, JobSpec, Requeue, State
from millpond.task.options import read_options
from millpond.task.refs import JobRef
from millpond.task.task import Task

_MOST_GROUPS = 10_000
_LONGEST_LIST = 10_000
_NOTHING = JobSpec(task="", queue="", workload="")


class Reviewing(Operations):
    """The calls for people who look after jobs that ended."""

    config: StoreConfig

    @property
    def registry(self) -> Mapping[str, Task[..., Any, Any]]:
        """The registered tasks by name."""
        raise NotImplementedError

    @property
    def _runs_now(self) -> bool:
        raise NotImplementedError

    def requeue(
        self,
        job_id: int,
        *,
        by: str | None = None,
        note: str | None = None,
        payload: Mapping[str, Any] | None = None,
        attempts: int | None = None,
        at: datetime | None = None,
        delay: Length | None = None,
        operation_id: str | None = None,
    ) -> JobRef[Any]:
        """Put a final job back, through admission, with its history.

        It gets as many attempts as it was enqueued with (or `attempts`) on top of those used,
        and keeps its operation id unless another is given. `payload` replaces its arguments;
        where the task is known they must fit it. `by` and `note` are kept as who and why.

        Raises JobNotFound, JobNotFinal, BadPayload, and Overloaded when there is no room.
        """
        check_who(by, note)
        wish = self._wish(job_id, payload, attempts, at=at, delay=delay, operation_id=operation_id)
        (acted,) = self.ready().requeue([wish], by=by, note=note).result().jobs
        ref = self._put_back(acted)
        if self._runs_now:
            run_now(self, [_admission(acted)])  # type: ignore[arg-type]
        return ref

    async def arequeue(
        self,
        job_id: int,
        *,
        by: str | None = None,
        note: str | None = None,
        payload: Mapping[str, Any] | None = None,
        attempts: int | None = None,
        at: datetime | None = None,
        delay: Length | None = None,
        operation_id: str | None = None,
    ) -> JobRef[Any]:
        """Do what `requeue` does, awaited."""
        check_who(by, note)
        wish = await self._aside(
            self._wish, job_id, payload, attempts, at=at, delay=delay, operation_id=operation_id
        )
        (acted,) = (await (await self.aready()).requeue([wish], by=by, note=note)).jobs
        ref = self._put_back(acted)
        if self._runs_now:
            await self._aside(run_now, self, [_admission(acted)])  # type: ignore[arg-type]
        return ref

    def discard(self, job_id: int, *, by: str | None = None, note: str | None = None) -> None:
        """Delete a final job with its history, result and key; an event tells what it was.

        Raises JobNotFound and JobNotFinal.
        """
        check_who(by, note)
        answer = self.ready().discard([job_number(job_id)], by=by, note=note).result()
        _require(answer.jobs[0], "discarded")

    async def adiscard(
        self, job_id: int, *, by: str | None = None, note: str | None = None
    ) -> None:
        """Do what `discard` does, awaited."""
        check_who(by, note)
        store = await self.aready()
        answer = await store.discard([job_number(job_id)], by=by, note=note)
        _require(answer.jobs[0], "discarded")

    def failures(self, *, limit: int = 100) -> Failures:
        """Return the failed jobs by kind of error, the largest group first.

        The newest 100,000 are looked at; `limit` is how many groups are returned.
        """
        check_int("limit", limit, 1, _MOST_GROUPS)
        return Failures.of(self.ready().failures(limit=limit))

    async def afailures(self, *, limit: int = 100) -> Failures:
        """Do what `failures` does, awaited."""
        return await self._aside(self.failures, limit=limit)

    def events(
        self,
        job_id: int | None = None,
        *,
        queue: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[Event]:
        """Return what people did, newest first: to all, to one job, or to one queue.

        `what` narrows to one kind: "cancel", "requeue", "discard", "pause", "resume". Page on
        with `before`, the id of the last event seen.
        """
        check_int("limit", limit, 1, _LONGEST_LIST)
        check_text("queue", queue)
        check_text("what", what)
        check_optional_int("before", before, 0)
        which = queue if job_id is None else str(job_number(job_id))
        rows = self.ready().events(which, what=what, before=before, limit=limit)
        return [Event.of(row) for row in rows]

    async def aevents(
        self,
        job_id: int | None = None,
        *,
        queue: str | None = None,
        what: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> list[Event]:
        """Do what `events` does, awaited."""
        return await self._aside(
            self.events, job_id, queue=queue, what=what, limit=limit, before=before
        )

    def select(
        self,
        state: State | str | tuple[State | str, ...] = State.FAILED,
        *,
        pinned: str | None = None,
        progress: Progress | None = None,
        **where: Unpack[Where],
    ) -> Selection:
        """Find all jobs that fit, to look at and then to requeue, discard or cancel together.

        `state` is one or several. The set is pinned: jobs that come or end later are not in
        it, also not when it is made anew with the `pinned` of the first. Every job that fits
        is found, however many there are; `progress` is called with how many were so far.
        """
        states = tuple(state) if isinstance(state, tuple) else (state,)
        wanted = [each for each in map(one_state, states) if each is not None]
        pin = None if pinned is None else parse_pin(pinned)
        return found(self, job_filter(None, where), wanted, pin, progress)

    async def aselect(
        self,
        state: State | str | tuple[State | str, ...] = State.FAILED,
        *,
        pinned: str | None = None,
        progress: Progress | None = None,
        **where: Unpack[Where],
    ) -> Selection:
        """Do what `select` does, awaited."""
        return await self._aside(self.select, state, pinned=pinned, progress=progress, **where)

    def _wish(
        self,
        job_id: int,
        payload: Mapping[str, Any] | None,
        attempts: int | None,
        **options: Any,
    ) -> Requeue:
        """Return what is to change, checked as an enqueue would."""
        ident = job_number(job_id)
        if attempts is not None:
            check_int("attempts", attempts, 1)
        spec = read_options(
            _NOTHING, {name: value for name, value in options.items() if value is not None}
        )
        encoded = None if payload is None else self._corrected(ident, payload)
        return Requeue(ident, encoded, attempts, spec.due_at, spec.delay_ms, spec.operation_id)

    def _corrected(self, job_id: JobId, payload: Mapping[str, Any]) -> bytes:
        job = self.look(job_id, payload=False)
        if job is None:
            raise not_found(job_id)
        encoded = encode_json(payload, task=job.task, max_bytes=self.config.max_payload)
        task = self.registry.get(job.task)
        if task is not None:
            task.signature.check(encoded)
        return encoded

    def _put_back(self, acted: Acted) -> JobRef[Any]:
        _require(acted, "put back")
        job = self.ready().get(acted.job_id, payload=False)
        task = None if job is None else self.registry.get(job.task)
        decode = None if task is None else task.decode_result
        return JobRef(self, _admission(acted), decode)


def _admission(acted: Acted) -> Admission:
    return Admission("admitted", acted.job_id, acted.operation_id or "")


def _require(acted: Acted, what: str) -> None:
    if acted.found is None:
        raise not_found(acted.job_id)
    if not acted.done:
        state = acted.found
        raise JobNotFinal(
            f"job {acted.job_id} is {state} and cannot be {what}: only completed, failed and "
            "cancelled jobs can; cancel it first, or wait for its end",
            state=state.value,
        )
