"""Says how often something that goes on and on is worth a line in the log."""

from __future__ import annotations

from collections.abc import Callable


class Seldom:
    """Lets the first one pass, then at most one in so many seconds."""

    def __init__(self, period_s: float, mono: Callable[[], float]) -> None:
        self._period_s = period_s
        self._mono = mono
        self._next: float | None = None

    def now(self) -> bool:
        """Tell whether to say it this time."""
        moment = self._mono()
        if self._next is not None and moment < self._next:
            return False
        self._next = moment + self._period_s
        return True

    def over(self) -> None:
        """It has ended: the next one is the first again."""
        self._next = None
