"""The end of jobs in processes of their own: told first, and killed when they do not heed it."""

from __future__ import annotations

import time

from millpond.context import Why
from millpond.worker import journal
from millpond.worker.crew import Member
from millpond.worker.holdings import Held
from millpond.worker.shared import Shared

GRACE_S = 0.5
"""What a handler has for its `finally` blocks after a timeout or a cancel, before it is killed.
A lost lease gives none: the job may run elsewhere at this moment."""


class Deadlines:
    """Kills one-slot runners whose job has run past its time, was cancelled or is not ours."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._told: dict[int, float] = {}

    def turn(self) -> None:
        """Kill what is due; what ends is settled when the process is gone."""
        if not self._shared.holdings.solo:
            return
        now = time.monotonic()
        for member in self._solo():
            held = next(iter(member.fed.values()))
            moment, why = self._end_of(member, held, now)
            if moment is not None and moment <= now:
                member.doom = why
                journal.killing(held, why)
                member.handle.kill()
        self._told = {
            number: since
            for number, since in self._told.items()
            if number in self._shared.holdings.all
        }

    def timeout(self) -> float | None:
        """Return in how many seconds one is due."""
        now = time.monotonic()
        ends = [
            self._end_of(member, next(iter(member.fed.values())), now)[0] for member in self._solo()
        ]
        known = [moment - now for moment in ends if moment is not None]
        return max(min(known), 0) if known else None

    def _solo(self) -> list[Member]:
        members = self._shared.crew.members.values()
        return [each for each in members if each.solo is not None and each.fed and not each.doom]

    def _end_of(self, member: Member, held: Held, now: float) -> tuple[float | None, Why]:
        if held.gone:
            return now, "lease_lost"
        if held.cancelled:
            return self._told.setdefault(held.number, now) + GRACE_S, "cancelled"
        timeout_ms = held.claim.timeout_ms
        if timeout_ms is None:
            return None, "timeout"
        return member.fed_at + timeout_ms / 1000 + GRACE_S, "timeout"
