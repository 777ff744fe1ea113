"""What keepers ask of the store: to be known, to claim, settle, beat and recover."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from millpond.model import (
    BeatAnswer,
    ClaimBatch,
    Observation,
    Recovered,
    Settled,
    Settlement,
    Token,
    Want,
    WorkerId,
    WorkerInfo,
)
from millpond.policy.steering import PressureChange, QueuePressure
from millpond.store.sqlite import care, claims, endings, steer
from millpond.store.sqlite.part import Part
from millpond.store.sqlite.tickets import Ticket


class DutyPart(Part):
    """The verbs of a keeper; see `millpond.store.protocol` for what each promises."""

    def register(self, info: WorkerInfo) -> Ticket[WorkerId]:
        """Make a keeper known."""
        return self._write(lambda tx: care.register(tx, info))

    def unregister(self, worker: WorkerId) -> Ticket[None]:
        """Forget a keeper."""
        return self._write(lambda tx: care.unregister(tx, worker))

    def claim(
        self, worker: WorkerId, wants: Sequence[Want], tasks: Collection[str], limit: int
    ) -> Ticket[ClaimBatch]:
        """Take up to `limit` jobs."""
        turn = next(self._turns)
        return self._write(
            lambda tx: claims.claim(tx, worker, wants, tasks, limit, turn=turn),
            check=lambda conn, batch: claims.stands(conn.execute, worker, batch),
        )

    def settle(
        self, worker: WorkerId, settlements: Sequence[Settlement], *, budget_ms: int = 60_000
    ) -> Ticket[list[Settled]]:
        """Record how attempts ended; ahead of other writes, as long as the leases may last."""
        return self._write(
            lambda tx: endings.settle(tx, worker, settlements),
            urgent=True,
            budget_s=budget_ms / 1000,
            check=lambda conn, answers: endings.stands(conn.execute, settlements, answers),
        )

    def beat(
        self,
        worker: WorkerId,
        held: Collection[Token],
        known_claim: int | None,
        interval_ms: int,
        budget_ms: int,
    ) -> Ticket[BeatAnswer]:
        """Renew every lease the worker holds, after taking back what has expired."""
        return self._write(
            lambda tx: endings.beat(tx, worker, held, known_claim, interval_ms),
            urgent=True,
            budget_s=budget_ms / 1000,
        )

    def recover(
        self,
        *,
        limit: int,
        observed: Sequence[Observation] = (),
        unstarted: Collection[Token] = (),
        rolls: Callable[[], float] | None = None,
    ) -> Ticket[Recovered]:
        """Take back expired leases."""
        roll = rolls or self.roll
        return self._write(lambda tx: endings.recover(tx, limit, observed, unstarted, roll))

    def remember(self, worker: WorkerId, token: Token, value: bytes) -> Ticket[bool]:
        """Keep a small value for later attempts."""
        return self._write(lambda tx: care.remember(tx, worker, token, value))

    def progress(self, worker: WorkerId, items: Sequence[tuple[Token, bytes]]) -> Ticket[None]:
        """Keep the latest progress of running jobs."""
        return self._write(lambda tx: care.progress(tx, worker, items))

    def expire_unserved(self, limit: int, *, watched_ms: int | None = None) -> Ticket[int]:
        """Fail waiting jobs that nobody has served for too long."""
        return self._write(lambda tx: care.expire_unserved(tx, limit, watched_ms))

    def pressure(self) -> list[QueuePressure]:
        """Return how every queue that was ever looked at stands."""
        return self._read(steer.shown)

    def pressed(self) -> bool:
        """Tell whether a look at the queues could lead to anything."""
        now = self.clock.now()
        return self._read(lambda run: steer.pressed(run, now))

    def steer(self) -> Ticket[list[PressureChange]]:
        """Look at the queues in use and decide their modes."""
        return self._write(steer.look_at_all)
