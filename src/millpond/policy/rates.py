"""Rates from counters that only grow, looked at from time to time."""

from __future__ import annotations

import math
from dataclasses import dataclass

HORIZONS_S = (5.0, 30.0, 300.0, 3_000.0)
FAST, USUAL, LONG = HORIZONS_S[0], HORIZONS_S[1], HORIZONS_S[2]
ENOUGH = 10
"""Events that a horizon must hold before its rate says anything."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Events a second, each horizon an exponential mean that is unbiased from the start.

    A mean that starts at 0 is too low until its horizon has passed, as if the workers of a
    service had been idle before it was started; so each is divided by what it has seen.
    """

    seen_s: float = 0.0
    means: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def after(self, events: int, seconds: float) -> Rate:
        """Return the rate after `events` more in the next `seconds`."""
        if seconds <= 0:
            return self
        now = events / seconds
        means = [
            mean + (now - mean) * -math.expm1(-seconds / horizon)
            for mean, horizon in zip(self.means, HORIZONS_S, strict=True)
        ]
        return Rate(self.seen_s + seconds, (means[0], means[1], means[2], means[3]))

    def over(self, horizon_s: float) -> float:
        """Return events a second over about `horizon_s`, one of the horizons; 0 if unseen."""
        if self.seen_s <= 0:
            return 0.0
        mean = self.means[HORIZONS_S.index(horizon_s)]
        return mean / -math.expm1(-self.seen_s / horizon_s)

    def measured(self, shortest_s: float = USUAL, events: int = ENOUGH) -> float | None:
        """Return the rate over the shortest horizon that has held enough events, else None.

        A job of ten minutes ends now and then: over half a minute that is a rate of 0, or of
        twenty an hour, and neither is true.
        """
        for horizon in HORIZONS_S:
            if horizon >= shortest_s:
                rate = self.over(horizon)
                if rate * min(horizon, self.seen_s) >= events:
                    return rate
        return None


def horizon_for(rate: float, events: int) -> float | None:
    """Return the shortest horizon in which `events` are expected, None when there is none."""
    return next((each for each in HORIZONS_S if rate * each >= events), None)
