"""The control line: how fast a workload may come in, instead of a cliff at which it stops.

The shape is the one by which Linux slows writers of dirty pages (mm/page-writeback.c): twice
the balance where the free run ends, the balance at the set point, nothing at the limit, and a
cube between them, which is flat where it should rest and steep where it must act.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """Utilisations: below `free` nothing is slowed, at `goal` the level rests, at `end` 0."""

    free: float = 0.50
    goal: float = 0.70
    end: float = 0.90


def factor(utilisation: float, line: Line) -> float:
    """Return by what the balance is multiplied, from 2 where the free run ends to 0."""
    half = line.goal - line.free if utilisation < line.goal else line.end - line.goal
    return min(max(1 + ((line.goal - utilisation) / half) ** 3, 0.0), 2.0)


def rate(drain: float, higher: float, utilisation: float, line: Line) -> float | None:
    """Return how many jobs a second may come in, None for as many as like.

    `drain` is what ends a second, `higher` what more important workloads bring in of it.
    Without subtracting those the level rests above the goal, in room that is theirs.
    """
    if utilisation < line.free:
        return None
    return max(drain - higher, 0.0) * factor(utilisation, line)
