"""Where time comes from: one clock a store, injectable, so that tests move it by hand."""

from __future__ import annotations

import math
import os
import threading
import time
from functools import cache
from pathlib import Path
from typing import NewType, Protocol

from millpond.errors import refuse_setting

Millis = NewType("Millis", int)
"""Milliseconds: since 1970-01-01 UTC for moments, since an arbitrary start for `mono`."""


class Clock(Protocol):
    """Wall time for due times and history, monotonic time for leases."""

    def now(self) -> Millis:
        """Return the wall clock, which may jump either way."""
        ...

    def mono(self) -> Millis:
        """Return the monotonic clock, comparable between the processes of one `domain`."""
        ...

    @property
    def domain(self) -> str:
        """Name the set of processes whose `mono` readings may be compared."""
        ...


@cache
def host_domain() -> str:
    """Return boot id plus time namespace: monotonic readings compare only inside one of them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        # Without a boot id, the boot moment in whole minutes is the best that can be had.
        boot = f"boot-{round((time.time() - time.monotonic()) / 60)}"
    try:
        namespace = str(Path("/proc/self/ns/time").readlink())
    except OSError:
        namespace = "time"
    return f"{boot}/{namespace}"


_FURTHEST_OFFSET = 100 * 365 * 86_400
"""Seconds, a hundred years: farther moments would leave what a datetime can show."""


class SystemClock:
    """The host's clocks; `offset` seconds are added to wall time (`MILLPOND_CLOCK_OFFSET`).

    Raises BadConfig for an offset that is no number or farther than a hundred years.
    """

    def __init__(self, offset: float | None = None) -> None:
        given = os.environ.get("MILLPOND_CLOCK_OFFSET") or 0 if offset is None else offset
        self._offset_ns = _offset_ns(given)

    def now(self) -> Millis:
        """Return the host's wall clock plus the offset."""
        return Millis((time.time_ns() + self._offset_ns) // 1_000_000)

    def mono(self) -> Millis:
        """Return the system-wide monotonic clock."""
        return Millis(time.monotonic_ns() // 1_000_000)

    @property
    def domain(self) -> str:
        """Return the host's boot and time namespace."""
        return host_domain()


def _offset_ns(given: str | float) -> int:
    try:
        seconds = float(given)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not abs(seconds) <= _FURTHEST_OFFSET:  # written so that NaN is refused too
        allowed = f"a number of seconds, at most {_FURTHEST_OFFSET:,} either way"
        refuse_setting("MILLPOND_CLOCK_OFFSET", given, allowed)
    return round(seconds * 1e9)


class ManualClock:
    """A clock that stands still until `advance` or `jump` is called."""

    def __init__(self, now: int = 1_700_000_000_000, mono: int = 1_000_000) -> None:
        self._now = now
        self._mono = mono
        self._domain = "manual"
        self._lock = threading.Lock()

    def now(self) -> Millis:
        """Return the wall time last set."""
        return Millis(self._now)

    def mono(self) -> Millis:
        """Return the monotonic time last set."""
        return Millis(self._mono)

    @property
    def domain(self) -> str:
        """Return the name of the current domain."""
        return self._domain

    def advance(self, seconds: float = 0, *, ms: int = 0) -> None:
        """Move both clocks forward together, as time does."""
        step = round(seconds * 1000) + ms
        if step < 0:
            msg = f"time cannot pass backwards ({step} ms); use jump() to set the wall clock"
            raise ValueError(msg)
        with self._lock:
            self._now += step
            self._mono += step

    def jump(self, seconds: float) -> None:
        """Step the wall clock only, forward or back, as an operator or NTP may."""
        with self._lock:
            self._now += round(seconds * 1000)

    def reboot(self, domain: str = "manual-2", mono: int = 1_000) -> None:
        """Start another monotonic domain, as a reboot does."""
        with self._lock:
            self._domain = domain
            self._mono = mono
