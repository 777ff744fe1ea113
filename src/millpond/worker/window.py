"""How many jobs a keeper takes beyond those that run: about half a second of measured work."""

from __future__ import annotations

_WEIGHT = 1 / 16
"""Weight of one run in the moving mean: a change of pace shows after some twenty runs."""

CEILING = 2048
"""The most jobs beyond what runs; past this a larger window gains nothing and holds more up."""


class Window:
    """Grows with fast handlers and closes at once for slow ones; reads no clock.

    `slots` jobs can run at once. Lengths are microseconds of measured run time. The window
    starts closed, since nothing is known about the handlers yet.
    """

    def __init__(self, slots: int, length_us: int, ceiling: int = CEILING) -> None:
        self.slots = slots
        self._length_us = length_us
        self._ceiling = ceiling
        self._mean_us: float | None = None
        self._beyond = 0

    @property
    def target(self) -> int:
        """How many jobs may be held in all, running ones included."""
        return self.slots + self._beyond

    @property
    def ahead(self) -> float:
        """How many jobs may wait for each slot."""
        return self._beyond / self.slots if self.slots else 0.0

    @property
    def mean_us(self) -> float | None:
        """The moving mean of run times; None before the first run."""
        return self._mean_us

    def observe(self, total_us: int, count: int) -> None:
        """Take `count` finished runs of `total_us` together into account."""
        if count <= 0:
            return
        latest = max(total_us, 0) / count
        weight = 1 - (1 - _WEIGHT) ** count
        before = latest if self._mean_us is None else self._mean_us
        self._mean_us = before + weight * (latest - before)
        # It at most doubles per look, as one lucky run must not fill the house.
        self._beyond = min(self._wanted(), 2 * self._beyond + self.slots)

    def stall(self, waited_us: int) -> None:
        """Nothing has ended for `waited_us`: what runs is slower than the mean says."""
        self._mean_us = max(self._mean_us or 0.0, float(waited_us))
        self._beyond = min(self._wanted(), self._beyond)

    def room(self, held: int) -> int:
        """How many more may be claimed while `held` are held."""
        return max(self.target - held, 0)

    def _wanted(self) -> int:
        if self._mean_us is None:
            return 0
        return min(int(self.slots * self._length_us / max(self._mean_us, 1.0)), self._ceiling)
