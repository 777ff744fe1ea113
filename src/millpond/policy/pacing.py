"""How long work in batches may hold the write lock, and how what is put back is spread in time."""

from __future__ import annotations

from dataclasses import dataclass

TARGET_US = 5_000
"""Microseconds that a batch should hold the write lock: what a claim then waits at most for it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The size of the next batch, learnt from how long the last one held the lock."""

    size: int = 100
    least: int = 10
    most: int = 500
    target_us: int = TARGET_US

    def after(self, jobs: int, held_us: int) -> Pace:
        """Return the pace after a batch of `jobs` held the lock for `held_us`.

        The size at most doubles or halves at a time, since one slow commit proves little. A
        batch that was not full has shown nothing about a larger one.
        """
        if jobs <= 0:
            return self
        wanted = jobs * self.target_us // max(held_us, 1)
        most = self.size * 2 if jobs >= self.size else self.size
        size = min(max(wanted, self.size // 2), most)
        return Pace(min(max(size, self.least), self.most), self.least, self.most, self.target_us)


def pause_s(held_us: int, *, least_s: float = 0.005, most_s: float = 0.1) -> float:
    """Return how long to stay away after a batch: twice as long as it held the lock."""
    return min(max(2 * held_us / 1_000_000, least_s), most_s)


def spread_ms(at: int, count: int, length_ms: int, roll: float) -> int:
    """Return when, from 0 to `length_ms`, the job number `at` of `count` falls due.

    Each job has a part of the length to itself, and `roll` in [0, 1) places it there: no
    second gets more than its share, and no two stores march in step.
    """
    if count <= 0 or not 0 <= at < count:
        msg = f"job number {at} of {count} has no place"
        raise ValueError(msg)
    return min(int((at + roll) * length_ms / count), length_ms)
