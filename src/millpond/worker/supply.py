"""Where a keeper's work comes from: when to claim, how much, and when to look again."""

from __future__ import annotations

import time

from millpond import fault
from millpond.errors import CommitUncertain, StoreBusy, StoreClosed, StoreFull
from millpond.model import Claim, ClaimBatch, Want
from millpond.store.protocol import Ticket
from millpond.worker import journal
from millpond.worker.shared import Shared, WorkerFailed

SHARED_POLL_S = 0.05
"""How often a file is asked for commits of connections that send no wake-up."""

BUSY_PAUSE_S = 0.05
FULL_PAUSE_S = 1.0


class Supply:
    """One claim under way at most; claims only what the windows have room for.

    `allowance` is how many more jobs may be claimed in all, None for no bound.
    """

    def __init__(self, shared: Shared, allowance: int | None = None) -> None:
        self._shared = shared
        self._tasks = tuple(shared.tasks)
        self._under_way: tuple[Ticket[ClaimBatch], int] | None = None
        self._due_at: int | None = None
        self._next_poll = 0.0
        self._next_change = 0.0
        self._rest_until = 0.0
        self._tx_users = False
        self._nudged = False
        self.allowance = allowance
        self.hungry = True
        self.dry = False
        """The latest claim was handed over after everything was settled and found nothing."""

    @property
    def claiming(self) -> bool:
        """Whether a claim is under way."""
        return self._under_way is not None

    def look_again(self) -> None:
        """Something may be there: look before sleeping again, whatever a claim under way finds."""
        self._next_poll = 0.0
        self._nudged = self._under_way is not None
        self.dry = False

    def woken(self) -> None:
        """A commit made jobs ready or told of a moment: claim without looking first."""
        self.look_again()
        self.hungry = True

    def due(self, moment: int) -> None:
        """A job falls due at `moment` (wall clock)."""
        self.dry = False
        if self._due_at is None or moment < self._due_at:
            self._due_at = moment

    def timeout(self) -> float:
        """Return how many seconds may pass before `turn` has something to do."""
        now = time.monotonic()
        if self._under_way is not None or not self._room():
            return self._shared.config.poll_ms / 1000
        if self.hungry:
            return max(self._rest_until - now, 0)
        waits = [self._next_poll - now]
        if self._due_at is not None:
            waits.append((self._due_at - self._shared.clock.now()) / 1000)
        if self._tx_users:
            waits.append(self._next_change - now)
        return max(min(waits), 0)

    def collect(self) -> list[Claim]:
        """Return the jobs of a claim that has been committed.

        Raises WorkerFailed when the store cannot be used any more.
        """
        if self._under_way is None or not self._under_way[0].done():
            return []
        ticket, asked = self._under_way
        self._under_way = None
        try:
            batch = ticket.result(0)
        except (StoreBusy, CommitUncertain, StoreFull) as error:
            # After an unclear commit the next beat hands back what nobody here knows of.
            journal.claim_refused(error)
            pause = FULL_PAUSE_S if isinstance(error, StoreFull) else BUSY_PAUSE_S
            self._rest_until = time.monotonic() + pause
            return []
        except StoreClosed as error:
            raise WorkerFailed(f"no more jobs can be claimed: {error}") from error
        if batch.claims:
            fault.point("claim-committed")
        self._learn(batch, asked)
        return batch.claims

    def turn(self, *, settled: bool, coming: int = 0) -> None:
        """Look and claim as far as there is room; `settled` says that places became free.

        `coming` jobs are added to what is held in a moment (when negative, removed).
        """
        if settled:
            self.dry = False
        if self._under_way is not None:
            return
        room = self._room(coming)
        if not room:
            return
        now = time.monotonic()
        if not self.hungry and self._may_look(now, settled=settled):
            self._look(now)
        if self.hungry and now >= self._rest_until:
            self._claim(room, coming)

    def _claim(self, room: int, coming: int) -> None:
        shared = self._shared
        wants = self._wants(coming)
        limit = min(room, shared.config.batch)
        ticket = shared.launch(lambda: shared.store.claim(shared.worker, wants, self._tasks, limit))
        self._under_way = (ticket, limit)

    def _wants(self, coming: int) -> list[Want]:
        shared = self._shared
        wants = []
        for group, window, held in zip(
            shared.groups, shared.windows, shared.holdings.counts, strict=True
        ):
            room = window.room(held + coming)
            if room and not group.serves:
                wants.append(Want(room, tasks=group.tasks))
            elif room:
                wants += [
                    Want(room, serve.queue, serve.workload, group.tasks) for serve in group.serves
                ]
        return wants

    def _room(self, coming: int = 0) -> int:
        shared = self._shared
        if shared.stopping:
            return 0
        room = sum(
            window.room(held + coming)
            for window, held in zip(shared.windows, shared.holdings.counts, strict=True)
        )
        return room if self.allowance is None else min(room, self.allowance)

    def _learn(self, batch: ClaimBatch, asked: int) -> None:
        taken = len(batch.claims)
        if self.allowance is not None:
            self.allowance -= taken
        self.hungry = batch.more or taken >= asked
        self.dry = not self.hungry and taken == 0
        now = time.monotonic()
        if not self._nudged:
            self._next_poll = now + self._shared.config.poll_ms / 1000
        self._nudged = False
        soonest = batch.next_due_at
        # What was due and not taken is paused, limited or not ours: polling is enough for it.
        ahead = soonest is not None and soonest > self._shared.clock.now()
        self._due_at = soonest if ahead else None

    def _may_look(self, now: float, *, settled: bool) -> bool:
        if settled or now >= self._next_poll:
            return True
        if self._due_at is not None and self._due_at <= self._shared.clock.now():
            return True
        if self._tx_users and now >= self._next_change:
            self._next_change = now + SHARED_POLL_S
            return self._shared.look(self._shared.store.changed, instead=True)
        return False

    def _look(self, now: float) -> None:
        """Read, without a write lock, whether a claim is worth its transaction."""
        self._next_poll = now + self._shared.config.poll_ms / 1000
        self._shared.look(self._read, None)

    def _read(self) -> None:
        store = self._shared.store
        self.hungry = store.claimable(self._tasks)
        if self.hungry:
            # The claim tells the rest, and whoever enqueued waits for it.
            return
        self._tx_users = store.shared()
        wall = self._shared.clock.now()
        soonest = store.next_due()
        self._due_at = soonest if soonest is not None and soonest > wall else None
