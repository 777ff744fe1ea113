"""When a refused caller should come back: at the rate at which there will be room.

Every refusal of a workload takes the next place of a line that moves at the measured rate, so
callers who obey return one after the other instead of all at once. It is the ghost of a queue:
it holds nobody's work, only when each may knock again.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORTEST_S = 1.0
LONGEST_S = 300.0
SPREAD = 0.2
"""Of the answer, added at random: callers of one batch were refused in one moment."""


@dataclass(frozen=True, slots=True)
class Ghost:
    """The end of the line of refused callers, in microseconds of wall-clock time."""

    end_us: int = 0

    def after(self, jobs: int, rate: float, now_us: int) -> Ghost:
        """Return the line with `jobs` more behind its end, which moves at `rate` a second.

        It is never longer than the longest answer: more could not be told apart.
        """
        longest = now_us + round(LONGEST_S * 1_000_000)
        start = max(min(self.end_us, longest), now_us)
        return Ghost(min(start + round(jobs * 1_000_000 / rate), longest))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a refused caller is told in seconds, None for nothing, and the line behind it."""

    after_s: float | None
    ghost: Ghost


def answer(
    ghost: Ghost,
    rate: float | None,
    now_us: int,
    roll: float,
    *,
    jobs: int = 1,
    probe_us: int | None = None,
) -> Answer:
    """Return the answer for a refusal of `jobs`, given the rate at which room appears.

    `rate` None is not measured, 0 is measured and nothing ends: then the next probe of what
    is broken, at `probe_us`, is when to come back, else the longest answer. `roll` in [0, 1)
    spreads it by a fifth.
    """
    if rate is None or rate * LONGEST_S < 1:
        if probe_us is not None:
            return Answer(_spread((probe_us - now_us) / 1_000_000, roll), ghost)
        return Answer(None if rate is None else _spread(LONGEST_S, roll), ghost)
    moved = ghost.after(jobs, rate, now_us)
    return Answer(_spread((moved.end_us - now_us) / 1_000_000, roll), moved)


def _spread(seconds: float, roll: float) -> float:
    return min(max(seconds, SHORTEST_S), LONGEST_S) * (1 + SPREAD * roll)
