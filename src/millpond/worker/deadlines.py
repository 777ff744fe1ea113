"""The end of jobs in processes of their own: told first, and killed when they do not heed it."""

from __future__ import annotations

import time

from millpond.context import Why
from millpond.worker import journal
from millpond.worker.crew import Member
from millpond.worker.holdings import Held
from millpond.worker.marks import Stage
from millpond.worker.shared import Shared

GRACE_S = 0.5
"""What a handler has for its `finally` blocks after a timeout or a cancel, before it is killed.
A lost lease gives none: the job may run elsewhere at this moment."""

AGAIN_S = 0.05
"""When a job is looked at again that has not begun, or whose end is about to be heard."""


class Deadlines:
    """Kills one-slot runners whose job has run past its time, was cancelled or is not ours."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._told: dict[int, float] = {}
        self._again: dict[int, float] = {}

    def turn(self) -> None:
        """Kill what is due; what ends is settled when the process is gone."""
        if not self._shared.holdings.solo:
            return
        now = time.monotonic()
        for member in self._busy():
            held = _front(member, now)
            moment, why = self._end_of(member, held, now)
            if moment is None or moment > now:
                continue
            if self._shared.marks.look(held.mark).stage is Stage.STARTED:
                member.doom = why
                journal.killing(held, why)
                member.handle.kill()
            else:
                member.front = (held.number, now)
                self._again[held.number] = now + AGAIN_S
        for moments in (self._told, self._again):
            for number in [each for each in moments if each not in self._shared.holdings.all]:
                del moments[number]

    def timeout(self) -> float | None:
        """Return in how many seconds one is due."""
        now = time.monotonic()
        ends = [self._end_of(member, _front(member, now), now)[0] for member in self._busy()]
        known = [moment - now for moment in ends if moment is not None]
        return max(min(known), 0) if known else None

    def _busy(self) -> list[Member]:
        members = self._shared.crew.members.values()
        return [each for each in members if each.solo is not None and each.fed and not each.doom]

    def _end_of(self, member: Member, held: Held, now: float) -> tuple[float | None, Why]:
        again = self._again.get(held.number, now)
        if held.gone:
            return again, "lease_lost"
        if held.cancelled:
            return max(self._told.setdefault(held.number, now) + GRACE_S, again), "cancelled"
        timeout_ms = held.claim.timeout_ms
        if timeout_ms is None or member.front is None:
            return None, "timeout"
        return member.front[1] + timeout_ms / 1000 + GRACE_S, "timeout"


def _front(member: Member, now: float) -> Held:
    """Return the job that a one-slot runner was fed first: it runs, or is the next to start."""
    held = next(iter(member.fed.values()))
    if member.front is None or member.front[0] != held.number:
        member.front = (held.number, now)
    return held
