"""Watches a runner's running handlers: timeouts, leases, progress, and a loop that is blocked."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable

from millpond.clock import Clock
from millpond.worker.attempt import Running
from millpond.worker.loop import LoopThread
from millpond.worker.standing import standing

TICK_S = 0.25
"""While handlers run; idle it does not tick at all."""

BLOCKED_S = 1.0
"""A loop that has not turned for this long keeps its other handlers waiting noticeably."""

_log = logging.getLogger("millpond.worker")


class Monitor:
    """One thread, made when first needed, asleep while nothing runs."""

    def __init__(
        self,
        running: Callable[[], Iterable[Running]],
        loop: LoopThread,
        clock: Clock,
        flush: Callable[[], None],
    ) -> None:
        self._running = running
        self._loop = loop
        self._clock = clock
        self._flush = flush
        self._news = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._pulse = LoopPulse(loop, running)
        self.awake = False

    def notice(self) -> None:
        """Say that a handler starts, or that one with a short timeout does."""
        self.awake = True
        if self._thread is None:
            self._make()
        self._news.set()

    def close(self, timeout: float = 1.0) -> bool:
        """End the thread; tell whether it has ended."""
        self._closing = True
        self._news.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(timeout, 0))
        return not thread.is_alive()

    def _make(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._watch, name="millpond-monitor", daemon=True
                )
                self._thread.start()

    def _watch(self) -> None:
        wait: float | None = None
        while not self._closing:
            self._news.wait(wait)
            self._news.clear()
            wait = self.look()

    def look(self) -> float | None:
        """Look at every handler once; return how long to sleep, None until `notice`."""
        # Set first: a handler that starts while this looks must wake it again.
        self.awake = False
        watched = list(self._running())
        now_ns = time.perf_counter_ns()
        soonest = TICK_S
        for running in watched:
            if running.control.why is None and running.control.expired(self._clock.mono):
                running.stop("lease_lost")
            if running.deadline is not None:
                left = (running.deadline - now_ns) / 1e9
                if left <= 0:
                    running.stop("timeout")
                else:
                    soonest = min(soonest, left)
        self._flush()
        self._pulse.look()
        if not watched and not self._loop.busy:
            return None
        self.awake = True
        return soonest


class LoopPulse:
    """Asks the loop to turn while it has handlers, and says where it hangs when it does not."""

    def __init__(self, loop: LoopThread, running: Callable[[], Iterable[Running]]) -> None:
        self._loop = loop
        self._running = running
        self._asked: float | None = None
        self._warned = BLOCKED_S

    def look(self) -> None:
        """Ask again when answered, warn when the answer is overdue, at doubling intervals."""
        if self._asked is None:
            if self._loop.busy:
                self._asked = time.monotonic()
                self._loop.ping(self._answered)
            return
        blocked = time.monotonic() - self._asked
        if blocked >= self._warned:
            self._warned = blocked * 2
            self._warn(blocked)

    def _answered(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and self._warned > BLOCKED_S:
            _log.warning("event loop runs again after %.1f s", time.monotonic() - asked)
        self._warned = BLOCKED_S

    def _warn(self, blocked: float) -> None:
        jobs = ", ".join(
            f"{running.claim.task} (job {running.claim.token.job_id})"
            for running in list(self._running())
            if running.interrupt is not None
        )
        frame = sys._current_frames().get(self._loop.ident or 0)  # noqa: SLF001
        _log.warning(
            "event loop blocked %.1f s at %s; by one of: %s. Call blocking code in a plain handler "
            "or with asyncio.to_thread",
            blocked,
            standing(frame),
            jobs or "no running job",
        )
