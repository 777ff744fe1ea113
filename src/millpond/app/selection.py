"""A set of jobs that was counted and shown, and does not grow until it is acted on."""

from __future__ import annotations

import random
import re
import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, Protocol, TypeVar

from millpond.app.options import Length
from millpond.app.told import Done
from millpond.config.checks import check_int, check_who
from millpond.config.units import parse_duration
from millpond.errors import BadConfig, Overloaded
from millpond.model import FINAL_STATES, ActedBatch, JobFilter, JobId, Pin, Requeue, State
from millpond.policy.pacing import Pace, pause_s, spread_ms
from millpond.store.protocol import Store, Ticket
from millpond.task.jobs import Job

P = ParamSpec("P")
T = TypeVar("T")
Progress = Callable[[int, int], object]
"""Called with how many jobs are dealt with, and how many there are."""

SAMPLE = 10
"""Jobs that are shown of a selection, the newest."""

_PIN = re.compile(r"(\d{1,19})@(\d{1,19})", re.ASCII)


class Owner(Protocol):
    """What a selection asks of the pond."""

    def ready(self) -> Store:
        """Return the open store."""
        ...


class Selection:
    """The jobs that were found: `count` of them, some as a `sample`, `pinned` as a text.

    It holds the ids, eight bytes each. What is done is done to these jobs and no others, and
    only while they stand where they were found: a job that became final after the selection
    was made is left alone. An act that was interrupted may be repeated, here or on a selection
    made with the same arguments and `pinned`; what is done already is not done again.
    """

    def __init__(self, owner: Owner, states: Collection[State], pin: Pin, ids: array[int]) -> None:
        self._owner = owner
        self._states = frozenset(states)
        self._pin = pin
        self._ids = ids

    @property
    def count(self) -> int:
        """How many jobs were found, exactly."""
        return len(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """The ids, in the order in which they are acted on."""
        return self._ids

    @property
    def pinned(self) -> str:
        """What keeps a later selection with the same arguments from growing."""
        return pin_text(self._pin)

    @property
    def sample(self) -> list[Job]:
        """The ten newest that are still there, without payloads."""
        store = self._owner.ready()
        newest = sorted(self._ids, reverse=True)[:SAMPLE]
        rows = [store.get(JobId(ident), payload=False) for ident in newest]
        return [Job.of(row) for row in rows if row is not None]

    def requeue(
        self,
        *,
        by: str | None = None,
        note: str | None = None,
        attempts: int | None = None,
        spread: Length = 0,
        progress: Progress | None = None,
    ) -> Done:
        """Put the jobs back, in transactions of at most 500 that make room for others.

        `spread` sets their due times evenly over a length of time, so that they are no storm.
        Admission applies: raises Overloaded when it refuses the next job, with all before it
        put back.
        """
        self._require(FINAL_STATES, "requeue", "final jobs")
        check_who(by, note)
        if attempts is not None:
            check_int("attempts", attempts, 1)
        due = self._due_times(parse_duration(spread, "spread"))

        def step(store: Store, at: int, ids: Sequence[JobId]) -> Ticket[ActedBatch]:
            wishes = [
                Requeue(ident, attempts=attempts, due_at=due(at + offset))
                for offset, ident in enumerate(ids)
            ]
            return store.requeue(wishes, by=by, note=note, pin=self._pin)

        return self._act(step, progress)

    def discard(
        self, *, by: str | None = None, note: str | None = None, progress: Progress | None = None
    ) -> Done:
        """Delete the jobs with history, results and keys; events tell what they were."""
        self._require(FINAL_STATES, "discard", "final jobs")
        check_who(by, note)
        return self._act(
            lambda store, _, ids: store.discard(ids, by=by, note=note, pin=self._pin), progress
        )

    def cancel(
        self, *, by: str | None = None, note: str | None = None, progress: Progress | None = None
    ) -> Done:
        """Cancel the jobs that wait, and ask the handlers of those that run to stop."""
        self._require(frozenset(State) - FINAL_STATES, "cancel", "jobs that wait or run")
        check_who(by, note)
        return self._act(lambda store, _, ids: store.cancel_many(ids, by=by, note=note), progress)

    async def arequeue(self, **options: Any) -> Done:
        """Do what `requeue` does, awaited."""
        return await aside(self.requeue, **options)

    async def adiscard(self, **options: Any) -> Done:
        """Do what `discard` does, awaited."""
        return await aside(self.discard, **options)

    async def acancel(self, **options: Any) -> Done:
        """Do what `cancel` does, awaited."""
        return await aside(self.cancel, **options)

    def _require(self, allowed: Collection[State], act: str, what: str) -> None:
        wrong = sorted(state.value for state in self._states - frozenset(allowed))
        if wrong:
            raise BadConfig(
                f"this selection is of {', '.join(wrong)} jobs, and {act} is for {what}: select "
                "them with state="
            )

    def _due_times(self, length_ms: int) -> Callable[[int], int | None]:
        """Return when the job at a place is due: None for at once."""
        if not length_ms:
            return lambda _: None
        start = self._owner.ready().clock.now()
        return lambda at: start + spread_ms(at, self.count, length_ms, random.random())

    def _act(
        self,
        step: Callable[[Store, int, Sequence[JobId]], Ticket[ActedBatch]],
        progress: Progress | None,
    ) -> Done:
        store, pace, at = self._owner.ready(), Pace(), 0
        done, left = 0, Counter[str]()
        while at < self.count:
            ids = [JobId(ident) for ident in self._ids[at : at + pace.size]]
            try:
                answer = step(store, at, ids).result()
            except Overloaded:
                if len(ids) == 1:
                    raise
                # What is refused together may still fit in part.
                pace = replace(pace, size=len(ids) // 2, least=1)
                continue
            for acted in answer.jobs:
                done += acted.done
                if not acted.done:
                    left[acted.found.value if acted.found is not None else "gone"] += 1
            at += len(ids)
            pace = pace.after(len(ids), answer.held_us)
            if progress is not None:
                progress(at, self.count)
            if at < self.count:
                time.sleep(pause_s(answer.held_us))
        return Done.of(self.count, done, left)

    def __repr__(self) -> str:
        return f"<Selection of {self.count} jobs, pinned {self.pinned}>"


def found(
    owner: Owner,
    where: JobFilter,
    states: Collection[State],
    pin: Pin | None,
    progress: Progress | None,
) -> Selection:
    """Find all jobs of a pinned set; `progress` is called with how many were found so far."""
    store = owner.ready()
    pin = pin or store.pin()
    ids: array[int] = array("q")
    step = store.search(where, states, pin)
    ids.extend(step.ids)
    while step.after is not None:
        if progress is not None:
            progress(len(ids), 0)
        step = store.search(where, states, pin, step.after)
        ids.extend(step.ids)
    return Selection(owner, states, pin, _once(ids))


def _once(ids: array[int]) -> array[int]:
    """Drop what was found twice, since a waiting job may move on during the search."""
    if len(set(ids)) == len(ids):
        return ids
    return array("q", dict.fromkeys(ids))


def pin_text(pin: Pin) -> str:
    """Return a pin as a text."""
    return f"{pin.max_id}@{pin.ended_by}"


def parse_pin(text: str) -> Pin:
    """Return the pin of a text; raises BadConfig for one that is none."""
    parts = _PIN.fullmatch(text)
    if parts is None:
        raise BadConfig(f"pinned={text[:60]!r} is no pin: give what a selection's `pinned` was")
    return Pin(int(parts[1]), int(parts[2]))


async def aside(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a call in asyncio's thread pool."""
    from asyncio import to_thread

    return await to_thread(call, *args, **kwargs)
