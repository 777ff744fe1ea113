"""Care that every worker takes: recovery of what others left, and the elected housekeeping.

Nothing here waits: each step hands one small write over and the next turn goes on from its
answer, so that claims and settles of other processes come in between.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from millpond.errors import StoreBusy, StoreClosed, StoreError, StoreFull
from millpond.model import (
    JobFilter,
    JobId,
    Observation,
    Purged,
    Recovered,
    State,
    Token,
    WorkerBeat,
    WorkerId,
)
from millpond.policy.pacing import Pace
from millpond.policy.steering import PressureChange
from millpond.store.protocol import Ticket
from millpond.worker import journal, marks
from millpond.worker.marks import Mark, Stage
from millpond.worker.shared import Shared, WorkerFailed

RECOVER_BATCH = 500
PURGE_PAUSE_S = 0.05
"""Between two batches of a purge, so that claims of other processes come in between."""

PURGE_EVERY_S = 60.0
UNSERVED_EVERY_S = 30.0
TICK_S = 1.0
STEER_EVERY_S = 1.0
UNSERVED_BATCH = 500


class Care:
    """Recovery, purging and the store's own chores; one write under way at most.

    `returned` is called when jobs were taken back, some of which may be ready. The first
    recovery is due at once, as a worker is often started because another one has died.
    """

    def __init__(self, shared: Shared, returned: Callable[[], None]) -> None:
        self._shared = shared
        self._watching_since = shared.clock.mono()
        self._returned = returned
        self._watch = Watch(shared)
        self._under_way: tuple[Ticket[Any], Callable[[Any], None]] | None = None
        now = time.monotonic()
        self._recover_at = now
        self._purge_at = now + self._jitter(PURGE_EVERY_S)
        self._unserved_at = now + self._jitter(UNSERVED_EVERY_S)
        self._tick_at = now + TICK_S
        self._steer_at = now
        self._pace = Pace()

    @property
    def recovering(self) -> bool:
        """Whether recovery is due or something is under way."""
        return self._under_way is not None or time.monotonic() >= self._recover_at

    def timeout(self) -> float:
        """Return how many seconds may pass before `turn` has something to do."""
        if self._under_way is not None:
            return TICK_S
        now = time.monotonic()
        return max(min(self._recover_at, self._tick_at) - now, 0)

    def turn(self) -> None:
        """Take an answer, or start what is due.

        Raises WorkerFailed when the store cannot be used any more.
        """
        if self._under_way is not None:
            self._collect()
            return
        now = time.monotonic()
        if now >= self._recover_at:
            self._recover()
        elif now >= self._tick_at:
            self._tick_at = now + TICK_S
            self._check_store()
            if self._shared.look(self._shared.store.elected, instead=False):
                self._steer(now)

    def _check_store(self) -> None:
        try:
            self._shared.store.tick()
        except StoreClosed as error:
            raise WorkerFailed(str(error)) from error

    def _collect(self) -> None:
        if self._under_way is None or not self._under_way[0].done():
            return
        ticket, then = self._under_way
        self._under_way = None
        try:
            answer = ticket.result(0)
        except StoreClosed as error:
            raise WorkerFailed(f"maintenance cannot go on: {error}") from error
        except (StoreBusy, StoreFull) as error:
            journal.care_postponed(error)
        except StoreError as error:
            journal.care_failed(error)
        else:
            then(answer)

    def _recover(self) -> None:
        shared = self._shared
        pause = self._jitter(shared.config.recover_ms / 1000)
        self._recover_at = time.monotonic() + pause
        nobody: list[Observation] = []
        observed = shared.look(self._watch.observed, nobody)
        if not observed and not shared.look(shared.store.expired, instead=False):
            return
        unstarted: set[Token] | None = shared.look(self._watch.unstarted, None)
        if unstarted is None:
            # To recover without the marks would charge what never started.
            return
        known = unstarted
        self._start(
            lambda: shared.store.recover(
                limit=RECOVER_BATCH, observed=observed, unstarted=known, rolls=shared.dice
            ),
            self._recovered,
        )

    def _recovered(self, recovered: Recovered) -> None:
        if recovered.total:
            journal.recovered(recovered)
            self._returned()
        if recovered.more:
            self._recover_at = 0.0
        else:
            self._shared.look(self._watch.forget_marks, None)

    def _steer(self, now: float) -> None:
        """Decide the modes of the queues in use, then go on with what is less urgent."""
        store = self._shared.store
        if now < self._steer_at or not self._shared.look(store.pressed, instead=False):
            self._keep_house(now)
            return
        self._steer_at = now + STEER_EVERY_S * 0.9
        self._start(store.steer, self._steered)

    def _steered(self, changes: list[PressureChange]) -> None:
        for change in changes:
            journal.pressure_changed(change)
        self._keep_house(time.monotonic())

    def _keep_house(self, now: float) -> None:
        shared = self._shared
        keep = shared.config.retention
        if now >= self._purge_at:
            self._purge_at = now + PURGE_EVERY_S
            self._start(
                lambda: shared.store.purge(
                    completed_ms=keep.completed_ms,
                    failed_ms=keep.failed_ms,
                    cancelled_ms=keep.cancelled_ms,
                    limit=self._pace.size,
                ),
                self._purged,
            )
        elif now >= self._unserved_at:
            self._unserved_at = now + UNSERVED_EVERY_S
            watched = shared.clock.mono() - self._watching_since
            self._start(
                lambda: shared.store.expire_unserved(UNSERVED_BATCH, watched_ms=watched),
                journal.unserved_failed,
            )

    def _purged(self, purged: Purged) -> None:
        journal.purged(purged)
        self._pace = self._pace.after(purged.jobs, purged.held_us)
        if purged.more:
            self._purge_at = self._tick_at = time.monotonic() + PURGE_PAUSE_S

    def _start(self, make: Callable[[], Ticket[Any]], then: Callable[[Any], None]) -> None:
        self._under_way = (self._shared.launch(make), then)

    def _jitter(self, seconds: float) -> float:
        """Return between three quarters and five quarters of a pause: keepers must not march."""
        return seconds * (0.75 + self._shared.dice() / 2)


class Watch:
    """What this keeper has seen of the others: beats of other clock domains, marks of the dead."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._seen: dict[WorkerId, tuple[WorkerBeat, int]] = {}
        self._read: dict[WorkerId, str] = {}

    def observed(self) -> list[Observation]:
        """Return how long workers of other domains have shown no beat, by our own clock."""
        clock = self._shared.clock
        beats = self._shared.store.beats()
        now, before, self._seen = clock.mono(), self._seen, {}
        for worker, beat in beats.items():
            if beat.domain != clock.domain:
                seen = before.get(worker)
                known = seen is not None and _same(seen[0], beat)
                self._seen[worker] = seen if seen is not None and known else (beat, now)
        return [
            Observation(worker, beat.beat, beat.claim, now - since)
            for worker, (beat, since) in self._seen.items()
            if now > since
        ]

    def unstarted(self) -> set[Token]:
        """Return the jobs of dead workers on this host that their marks show as never started."""
        stages = {}
        for worker, beat in self._shared.store.beats().items():
            if worker == self._shared.worker or beat.marks is None:
                continue
            if beat.domain == self._shared.clock.domain:
                found = marks.read(beat.marks)
                if found is not None:
                    stages[worker] = found
                    self._read[worker] = beat.marks
        return {
            token
            for worker, token in (self._running() if stages else ())
            if worker in stages and _unstarted(stages[worker].get(token))
        }

    def forget_marks(self) -> None:
        """Delete the marks of dead workers of which nothing is left to recover."""
        if self._read:
            holding = self._shared.store.beats()
            for worker in [each for each in self._read if each not in holding]:
                marks.remove(self._read.pop(worker))

    def _running(self) -> Iterator[tuple[WorkerId, Token]]:
        before: JobId | None = None
        while page := self._shared.store.find(
            JobFilter(state=State.RUNNING), before=before, limit=RECOVER_BATCH
        ):
            for job in page:
                if job.lease is not None:
                    yield job.lease.worker, Token(job.id, job.lease.claim)
            before = page[-1].id


def _same(one: WorkerBeat, other: WorkerBeat) -> bool:
    return (one.beat, one.claim) == (other.beat, other.claim)


def _unstarted(mark: Mark | None) -> bool:
    """Tell whether a job never started: it is entered before it is fed, and nowhere else."""
    return mark is None or mark.stage is Stage.FED
