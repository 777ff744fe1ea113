"""When to beat, and how long what is held is surely ours: pure, moments are monotonic ms."""

from __future__ import annotations

from collections.abc import Iterable

from millpond.config.worker import DEFAULT_BEAT_MS, beat_interval_ms
from millpond.model import Claim

GUARD = 10
"""A tenth of a lease before its end a handler is told to stop, when no beat came through."""


def budget_ms(shortest_lease: int | None, interval: int) -> int:
    """Return how long a beat may wait for a busy database: a third of the shortest lease."""
    return max((shortest_lease or 4 * interval) // 3, 1)


def expires(claim: Claim, beat: int) -> int:
    """Return when a lease ends: its length after the claim or the last beat, the later one."""
    return max(claim.claimed_mono, beat) + claim.lease_ms


def margin(claims: Iterable[Claim], before: int, beat: int) -> float | None:
    """Return the smallest part of a lease that was left when `beat` renewed it, 0 to 1."""
    left = [(expires(claim, before) - beat) / claim.lease_ms for claim in claims]
    return max(min(left), 0.0) if left else None


def stop_at(claim: Claim, beat: int) -> int:
    """Return when a handler must be told to stop unless another beat is committed."""
    return expires(claim, beat) - max(claim.lease_ms // GUARD, 1)


def watch_ms(shortest_lease: int | None) -> int:
    """Return how long after a committed beat no lease can be near its end."""
    if shortest_lease is None:
        return 1 << 40
    return shortest_lease - max(shortest_lease // GUARD, 1)


class BeatTimer:
    """Knows when the next beat is due; keeps what it promised to those who watch."""

    def __init__(self, configured: int | None, now: int) -> None:
        self._configured = configured
        self._last = now
        self._promised = self.interval(None)

    def interval(self, shortest_lease: int | None) -> int:
        """Return the present time between beats."""
        if shortest_lease is None:
            return self._configured or DEFAULT_BEAT_MS
        return beat_interval_ms(self._configured, shortest_lease)

    def due(self, shortest_lease: int | None) -> int:
        """Return when to beat next.

        The interval of the last beat was told to others, who count four of them as death: a
        longer one is kept to only after it was told.
        """
        return self._last + min(self._promised, self.interval(shortest_lease))

    def beaten(self, now: int, promised: int) -> None:
        """Note that a beat is handed over which promises the next after `promised`."""
        self._last = now
        self._promised = promised

    def again(self, now: int, pause: int) -> None:
        """Note that a beat could not be written: try again after a short pause."""
        self._last = now
        self._promised = pause
