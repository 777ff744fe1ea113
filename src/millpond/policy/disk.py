"""How much of a disk is really left, what that means for new work, and when to look again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, assert_never

from millpond.policy.effects import Effect

MIB = 1 << 20
LEAST, MOST, SHARE = 256 * MIB, 4096 * MIB, 20
"""The first limit is a twentieth of the volume, within these."""
SMALL_SHARE = 4
"""On a volume so small that the least limit were most of it, a quarter of it is the limit."""
BALLAST_SHARE = 8
"""The ballast takes at most this part of a small volume."""

SLOWEST_S, FASTEST_S = 10.0, 0.1
RESTRICTED_S = 1.0
"""Under a restriction, room that came back is seen within this."""
LOOKS = 10
"""Looks between now and the moment at which the next limit would be reached."""
CALMING_S = 30.0
"""How long a measured growth is still reckoned with, once nothing grows any more."""
LEAVE_SHARE = 10
"""A level is left a tenth above its limit, so that it is not entered again at once."""

HOLD_S, LONGEST_HOLD_S = 1.0, 60.0
SOON_S = 60.0
"""A write that fails so soon after the last recovery doubles the wait for the next one."""


class Level(IntEnum):
    """How short a disk is, the higher the shorter."""

    AMPLE = 0
    LOW = 1
    SHORT = 2
    FULL = 3


class Limits(NamedTuple):
    """Usable bytes below which a disk is low, and below which it is short."""

    low: int
    short: int


class Space(NamedTuple):
    """What was read of a volume and of what millpond owes it, in bytes.

    The whole log counts as owed: it may fill up to its size without asking for more room, and
    all of it is then to be written once more, into the database.
    """

    total: int
    free: int
    log: int = 0
    ballast: int = 0
    ballast_wanted: int = 0
    promised: int = 0

    @property
    def usable(self) -> int:
        """What new work may still take; below 0 when more is owed than there is."""
        debt = max(self.ballast_wanted - self.ballast, 0)
        return self.free - debt - self.log - self.promised


def limits(total: int, told: int | None = None) -> Limits:
    """Return the limits for a volume; `told` is a first limit that was set instead."""
    low = told
    if low is None:
        low = min(max(total // SHARE, LEAST), MOST, max(total, 0) // SMALL_SHARE)
    return Limits(low, low // 4)


def ballast_for(total: int, told: int) -> int:
    """Return how large the ballast should be: as told, less on a small volume."""
    return min(told, max(total, 0) // BALLAST_SHARE)


def level(usable: int, limit: Limits, before: Level = Level.AMPLE) -> Level:
    """Return the level by room alone: entered at once, left a tenth above its limit."""
    found = Level.SHORT if usable < limit.short else Level.AMPLE
    if found is Level.AMPLE and usable < limit.low:
        found = Level.LOW
    if before >= Level.SHORT and usable < limit.short + limit.short // LEAVE_SHARE:
        return Level.SHORT
    if before >= Level.LOW and usable < limit.low + limit.low // LEAVE_SHARE:
        return max(found, Level.LOW)
    return found


def turns_away(at: Level, effect: Effect, *, bound: bool) -> bool:
    """Tell whether work of a class has to wait for room on the disk.

    `bound` tells that somebody's work matters more: without that there is nobody to keep the
    first part of the room for, only the last one.
    """
    match at:
        case Level.AMPLE:
            return False
        case Level.LOW:
            return bound and effect in {Effect.ROUTINE, Effect.SHEDDABLE}
        case Level.SHORT:
            return effect is not Effect.CRITICAL
        case Level.FULL:
            return True
        case _:
            assert_never(at)


def growth(before: float, lost: int, seconds: float) -> float:
    """Return the bytes a second that are being used up, after `lost` in the last `seconds`.

    Up at once and down slowly: a pause between two bursts is no reason to look away.
    """
    if seconds <= 0:
        return before
    return max(lost / seconds, before * math.exp(-seconds / CALMING_S), 0.0)


def interval_s(usable: int, limit: Limits, grows: float) -> float:
    """Return in how many seconds to look again: the closer the next limit, the sooner."""
    slowest = SLOWEST_S if usable >= limit.low else RESTRICTED_S
    reached = next((each for each in (*limit, 0) if usable > each), None)
    if reached is None:
        return RESTRICTED_S
    if grows <= 0:
        return slowest
    return min(max((usable - reached) / grows / LOOKS, FASTEST_S), slowest)


@dataclass(frozen=True, slots=True)
class Fullness:
    """Whether a write has failed for want of room, and for how long that is believed at least.

    Moments are seconds of a monotonic clock. Room may seem to be there and not be given, as
    under a quota; then every recovery waits longer than the last.
    """

    since_s: float | None = None
    hold_s: float = HOLD_S
    over_s: float | None = None

    @property
    def full(self) -> bool:
        """Whether nothing but completions may be written."""
        return self.since_s is not None

    def failed(self, now_s: float) -> Fullness:
        """A write has failed."""
        if self.since_s is not None:
            return self
        soon = self.over_s is not None and now_s - self.over_s < SOON_S
        hold = min(self.hold_s * 2, LONGEST_HOLD_S) if soon else HOLD_S
        return Fullness(now_s, hold, self.over_s)

    def recovers(self, now_s: float, usable: int, limit: Limits) -> bool:
        """Tell whether there is room again, for the ballast and a little more."""
        if self.since_s is None or now_s - self.since_s < self.hold_s:
            return False
        return usable >= limit.short // 2

    def over(self, now_s: float) -> Fullness:
        """There is room again, and the ballast stands."""
        return Fullness(None, self.hold_s, now_s)


class Sample(NamedTuple):
    """What stood on a volume at a moment, in milliseconds and bytes: millpond's own, and free."""

    at: int
    used: int
    free: int


class Trend(NamedTuple):
    """Bytes an hour that millpond's files grow by, and milliseconds until no room is left."""

    per_hour: int
    full_in_ms: int | None


HOUR_MS = 3_600_000
ENOUGH_MS = 60_000


def trend(samples: Sequence[Sample], now: Sample, usable: int) -> Trend | None:
    """Compare with the oldest sample of the last hour; None without one of a minute ago."""
    past = [each for each in samples if ENOUGH_MS <= now.at - each.at <= HOUR_MS * 5 // 4]
    if not past:
        return None
    first = min(past)
    passed = now.at - first.at
    lost = first.free - now.free
    full_in = usable * passed // lost if lost > 0 and usable > 0 else None
    return Trend((now.used - first.used) * HOUR_MS // passed, full_in)
