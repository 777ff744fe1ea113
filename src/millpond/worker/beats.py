"""The beat: one row that renews every lease, and what the keeper learns from its answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond import fault
from millpond.errors import StoreClosed, StoreError
from millpond.model import AttemptOutcome, BeatAnswer, Settlement, Token
from millpond.store.protocol import Ticket
from millpond.worker import journal, leases
from millpond.worker.holdings import Held
from millpond.worker.shared import Shared, WorkerFailed
from millpond.worker.staff import Staff

AGAIN_MS = 50
"""After a beat that could not be written: the lease goes on running meanwhile."""

LOW_MARGIN = 1 / 3
"""Less of a lease left at its renewal means that one more missed beat would have lost it."""

REGISTER_S = 30.0

SILENT_MS = 60_000
"""A storage thread that leaves a beat unanswered so much longer than it may take is dead."""


LAST_CHANCE_MS = 5_000


class Beats:
    """Beats in time; one under way at most. Moments are the store's monotonic milliseconds."""

    def __init__(
        self, shared: Shared, staff: Staff, settle: Callable[[Held, Settlement], None]
    ) -> None:
        self._shared = shared
        self._staff = staff
        self._settle = settle
        now: int = shared.clock.mono()
        self._timer = leases.BeatTimer(shared.config.beat_ms, now)
        self._under_way: tuple[Ticket[BeatAnswer], int] | None = None
        self._committed = now
        self._doubted = False
        self._hurried = False
        self._progress: dict[int, tuple[Token, bytes]] = {}
        self._progress_ticket: Ticket[None] | None = None
        self.generation = 0
        """Changes with every change of settings in the store, pauses included."""
        self.smallest_margin = 1.0
        """The smallest part of a lease that was left at a renewal."""

    def due(self, now: int) -> int:
        """Return when `turn` has something to do."""
        shortest = self._shared.holdings.shortest_lease_ms
        if self._under_way is None:
            return now if self._hurried else self._timer.due(shortest)
        watch = self._committed + leases.watch_ms(shortest)
        return watch if watch > now else now + AGAIN_MS

    def note_progress(self, held: Held, value: bytes) -> None:
        """Keep the latest progress of a job until it is written."""
        self._progress[held.number] = (held.claim.token, value)

    def hurry(self) -> None:
        """Beat at the next turn: somebody says that the answer brings news."""
        self._hurried = True

    def turn(self, now: int, *, claiming: bool) -> None:
        """Take an answer, beat when it is due, and stop what may be lost without one.

        `claiming` says that a claim is under way, whose jobs are not known here yet.
        Raises WorkerFailed when the storage thread is dead.
        """
        self._collect(now)
        shortest = self._shared.holdings.shortest_lease_ms
        if self._under_way is None and (self._hurried or now >= self._timer.due(shortest)):
            self._beat(now, shortest, claiming=claiming)
        if now - self._committed >= leases.watch_ms(shortest):
            self._stop_what_may_be_lost(now)
        self._write_progress()

    def _beat(self, now: int, shortest: int | None, *, claiming: bool) -> None:
        fault.point("beat")
        self._hurried = False
        shared = self._shared
        interval = self._timer.interval(shortest)
        known = (shared.holdings.newest or 0) if claiming else None
        held = shared.holdings.tokens()
        budget = leases.budget_ms(shortest, interval)
        ticket = shared.launch(
            lambda: shared.store.beat(shared.worker, held, known, interval, budget)
        )
        self._timer.beaten(now, interval)
        self._under_way = (ticket, now + budget + SILENT_MS)

    def _collect(self, now: int) -> None:
        if self._under_way is None:
            return
        ticket, dead_at = self._under_way
        if not ticket.done():
            if now >= dead_at:
                self._give_up_or_wait(ticket, now)
            return
        self._under_way = None
        self._doubted = False
        try:
            answer = ticket.result(0)
        except StoreClosed as error:
            raise WorkerFailed(f"leases cannot be renewed: {error}") from error
        except StoreError as error:
            journal.beat_failed(error)
            self._timer.again(now, AGAIN_MS)
        else:
            self._learn(answer)

    def _give_up_or_wait(self, ticket: Ticket[BeatAnswer], now: int) -> None:
        """End the worker at the second look: the first may follow a standstill of all threads."""
        if self._doubted:
            raise WorkerFailed("the storage thread does not answer: the worker ends")
        self._doubted = True
        self._under_way = (ticket, now + LAST_CHANCE_MS)

    def _learn(self, answer: BeatAnswer) -> None:
        shared = self._shared
        claims = [held.claim for held in shared.holdings.all.values()]
        margin = leases.margin(claims, self._committed, answer.beat_mono)
        if margin is not None:
            self.smallest_margin = min(self.smallest_margin, margin)
            if margin < LOW_MARGIN:
                journal.margin_low(margin, shared.holdings.shortest_lease_ms)
        self._committed = answer.beat_mono
        self.generation = answer.generation
        if not answer.registered:
            self._register_anew()
        shared.marks.renew(answer.beat_mono)
        self._staff.renew(answer.beat_mono)
        self._lose([token.claim for token in answer.lost], "the store says so")
        self._cancel([token.claim for token in answer.cancel])
        if answer.released:
            journal.released_unknown(answer.released)

    def _register_anew(self) -> None:
        """Take another number after a standstill in which the store has given this worker up.

        Waiting for the store does no harm here: nothing is held any more.
        """
        shared = self._shared
        try:
            shared.worker = shared.store.register(shared.info).result(REGISTER_S)
        except (StoreError, TimeoutError) as error:
            raise WorkerFailed(f"the store has forgotten this worker: {error}") from error
        begin = self._staff.begin
        if begin is not None:
            self._staff.rename(msgspec.structs.replace(begin, worker=int(shared.worker)))

    def _stop_what_may_be_lost(self, now: int) -> None:
        ending = [
            held.number
            for held in self._shared.holdings.all.values()
            if now >= leases.stop_at(held.claim, self._committed)
        ]
        if ending:
            self._lose(ending, "no beat could be written in time")

    def _lose(self, numbers: list[int], why: str) -> None:
        holdings = self._shared.holdings
        found = [held for number in numbers if (held := holdings.all.get(number))]
        lost = [held for held in found if not held.settling]
        for held in [each for each in lost if not each.gone]:
            held.gone = True
            journal.lease_lost(held, why)
            if held.member is None:
                holdings.waiting[held.group].remove(held)
                holdings.remove(held)
                holdings.tally.lost += 1
        # Told at every beat: an order can meet a job between its line and its start.
        if lost:
            self._staff.halt([held.number for held in lost], "lease_lost")

    def _cancel(self, numbers: list[int]) -> None:
        holdings = self._shared.holdings
        found = [held for number in numbers if (held := holdings.all.get(number))]
        asked = [held for held in found if not (held.settling or held.gone)]
        for held in [each for each in asked if not each.cancelled]:
            held.cancelled = True
            if held.member is None:
                holdings.waiting[held.group].remove(held)
                self._settle(held, Settlement(held.claim.token, AttemptOutcome.CANCELLED))
        if asked:
            self._staff.halt([held.number for held in asked], "cancelled")

    def _write_progress(self) -> None:
        """Write what gathered; runners send each job's progress at most once a second."""
        if self._progress_ticket is not None:
            if not self._progress_ticket.done():
                return
            ticket, self._progress_ticket = self._progress_ticket, None
            try:
                ticket.result(0)
            except StoreError as error:
                journal.progress_lost(error)
        if self._progress:
            shared = self._shared
            items, self._progress = list(self._progress.values()), {}
            self._progress_ticket = shared.launch(
                lambda: shared.store.progress(shared.worker, items)
            )
