"""A rate kept by one integer: the generic cell rate algorithm, granting many at once.

The integer is the theoretical arrival time, in microseconds: when the bucket would be full
again if nothing more were granted. Tests of ATM switches named it; a token bucket needs two
numbers for the same.
"""

from __future__ import annotations

from dataclasses import dataclass

SECOND_US = 1_000_000
LONGEST_DEBT_US = 300 * SECOND_US
"""A bucket is never more than five minutes from full: a clock set back must not shut it."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One grant every `interval_us`, and `burst` of them at once after a rest."""

    interval_us: int
    burst: int = 1

    @classmethod
    def per_second(cls, rate: float, burst_s: float = 1.0) -> Limit | None:
        """Return the limit of a rate with a burst of `burst_s` of it; None grants nothing."""
        if rate * LONGEST_DEBT_US < SECOND_US:
            return None
        return cls(max(round(SECOND_US / rate), 1), max(round(rate * burst_s), 1))


@dataclass(frozen=True, slots=True)
class Taken:
    """How many were granted, and the integer to keep."""

    granted: int
    tat_us: int


def available(limit: Limit, tat_us: int, now_us: int) -> int:
    """Return how many would be granted at this moment."""
    return max(limit.burst - _owed(limit, tat_us, now_us), 0)


def full(limit: Limit, tat_us: int, now_us: int) -> bool:
    """Tell whether the bucket lacks nothing, so that one wish of any size is granted."""
    return _owed(limit, tat_us, now_us) == 0


def take(limit: Limit, tat_us: int, now_us: int, wanted: int, *, whole: bool = False) -> Taken:
    """Grant as many of `wanted` as there are; with `whole` all of them or none.

    In any window of w microseconds at most `burst + w / interval` are granted. A `whole`
    wish for more than the burst is granted by a full bucket, which then owes the rest: no
    later window makes up for it, so the rate holds, and the wish does not wait for ever.
    """
    owed = _owed(limit, tat_us, now_us)
    room = max(limit.burst - owed, 0)
    granted = min(wanted, room)
    if whole and granted < wanted:
        granted = wanted if owed == 0 else 0
    if granted <= 0:
        return Taken(0, tat_us)
    start = max(min(tat_us, now_us + LONGEST_DEBT_US), now_us)
    return Taken(granted, min(start + granted * limit.interval_us, now_us + LONGEST_DEBT_US))


def wait_us(limit: Limit, tat_us: int, now_us: int, wanted: int = 1) -> int:
    """Return how long until `wanted`, or a full bucket for more than that, is granted."""
    need = min(wanted, limit.burst)
    free_at = min(tat_us, now_us + LONGEST_DEBT_US) - (limit.burst - need) * limit.interval_us
    return max(free_at - now_us, 0)


def _owed(limit: Limit, tat_us: int, now_us: int) -> int:
    """Return how many grants the bucket lacks until it is full."""
    behind = max(min(tat_us, now_us + LONGEST_DEBT_US) - now_us, 0)
    return -(-behind // limit.interval_us)
