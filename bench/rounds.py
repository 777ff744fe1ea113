"""Comparing two things on a noisy machine: in pairs, one after the other, in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes, without the garbage of what ran before."""
    gc.collect()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def pairs(
    rounds: int, left: Callable[[], float], right: Callable[[], float]
) -> list[tuple[float, float]]:
    """Measure both each round, next to each other in time; who is first alternates."""
    found = []
    for turn in range(rounds):
        if turn % 2:
            second = right()
            found.append((left(), second))
        else:
            first = left()
            found.append((first, right()))
    return found
