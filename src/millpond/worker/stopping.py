"""How a keeper stops: hand back what has not started, let the rest end, then end the rest."""

from __future__ import annotations

import time

from millpond.worker import journal
from millpond.worker.floor import Floor
from millpond.worker.shared import Shared
from millpond.worker.staff import Staff

GRACE_S = 1.0
"""After the drain time, handlers that are told to stop may clean up this long."""

LAST_WRITES_S = 10.0
"""How long the last settlements may wait for a busy database, beyond a drain's own time."""


class Stopping:
    """The steps of a stop, each taken once; `hurry` leaves the waiting out."""

    def __init__(self, shared: Shared, staff: Staff, floor: Floor, *, kills: bool) -> None:
        self._shared = shared
        self._staff = staff
        self._floor = floor
        self._kills = kills
        self._halt_at: float | None = None
        self._kill_at: float | None = None
        self._over_at: float | None = None
        self._hurried = False
        self.gave_up = False
        """Threads that do not return are left to run; their jobs' leases end by themselves."""

    @property
    def begun(self) -> bool:
        """Whether the keeper was told to stop."""
        return self._shared.stopping

    def begin(self) -> None:
        """Claim nothing more, hand back what has not started, give the rest its time."""
        if self.begun:
            return
        self._shared.stopping = True
        self._staff.ending = True
        self._halt_at = time.monotonic() + self._shared.config.drain_ms / 1000
        self._floor.release_waiting()
        for member in self._staff.members:
            self._staff.drop_all(member)

    def hurry(self) -> None:
        """End everything now: no handler is waited for."""
        self.begin()
        if self._hurried:
            return
        self._hurried = True
        self._kill_at = time.monotonic()
        # A handler that obeys an order in its last moment would end unheard, and be charged.
        self._halt_at = None if self._kills else self._kill_at

    def turn(self) -> None:
        """Take the steps that are due."""
        now = time.monotonic()
        if self._halt_at is not None and now >= self._halt_at:
            self._halt_at = None
            if any(member.fed for member in self._staff.members):
                journal.halting(sum(len(member.fed) for member in self._staff.members))
                self._staff.halt_all("shutdown")
            self._kill_at = min(self._kill_at or now + GRACE_S, now + GRACE_S)
        if self._kill_at is not None and self._halt_at is None and now >= self._kill_at:
            self._kill_at = None
            self._over_at = now + LAST_WRITES_S
            if self._kills:
                self._staff.kill_all()
            else:
                self.gave_up = True

    def over(self, *, settled: bool) -> bool:
        """Tell whether the keeper may end: all is settled, or nothing more can be waited for."""
        if settled and (not self._shared.holdings.all or self._only_left_behind()):
            return True
        return self._over_at is not None and time.monotonic() >= self._over_at

    def timeout(self) -> float | None:
        """Return in how many seconds a step is due."""
        moments = [each for each in (self._halt_at, self._kill_at, self._over_at) if each]
        return max(min(moments) - time.monotonic(), 0) if moments else None

    def _only_left_behind(self) -> bool:
        running = sum(len(member.fed) for member in self._staff.members)
        return self.gave_up and running == len(self._shared.holdings.all)
