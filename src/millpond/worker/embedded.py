"""A worker inside the application's own process: keeper and runner in threads of it.

What lapses against runner processes: a handler that holds the interpreter delays the beat and
may lose leases, and a handler that ends the process ends the keeper with it, so that its
crash shows only when the lease has run out. A thread that does not return cannot be ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from millpond.config import WorkerConfig
from millpond.worker import journal
from millpond.worker.bell import Bell
from millpond.worker.forms import ThreadForm
from millpond.worker.host import Host
from millpond.worker.keeper import Keeper, Until
from millpond.worker.opening import join
from millpond.worker.report import DrainReport
from millpond.worker.shared import WorkerFailed
from millpond.worker.signals import Signals

JOIN_S = 15.0
"""Beyond the drain time, how long `stop` waits for the last writes before it gives up."""


class EmbeddedWorker:
    """Works for `host` in this process; use it once: `start` and `stop`, or `run`, or `drain`.

    As a context manager it starts and stops.
    """

    def __init__(self, host: Host, config: WorkerConfig | None = None) -> None:
        self._host = host
        self._config = replace(config or WorkerConfig(), processes=0)
        self._bell = Bell()
        self._asked = 0
        self._here = False
        self._thread: threading.Thread | None = None
        self._report: DrainReport | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Work in a thread of its own; return once the worker is registered.

        Raises what keeps the worker from starting.
        """
        if self._thread is not None:
            raise WorkerFailed("this worker was started before: make a new one")
        ready = threading.Event()
        keeper = self._keeper(Until.STOPPED, on_ready=ready.set)
        self._thread = threading.Thread(
            target=self._serve, args=(keeper, ready), name="millpond-keeper", daemon=True
        )
        self._thread.start()
        ready.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self, timeout: float | None = None) -> DrainReport:
        """Stop in order: running jobs get the drain time, then they are told to stop.

        `timeout` seconds shorten the wait: after it nothing is waited for any more. Returns
        the counts; raises what the worker died of.
        """
        thread = self._thread
        if thread is None:
            raise WorkerFailed("this worker was not started")
        self._ask()
        thread.join(self._config.drain_ms / 1000 + JOIN_S if timeout is None else timeout)
        if thread.is_alive():
            self._ask()
            thread.join(JOIN_S)
        if self._error is not None:
            raise self._error
        return self._report or DrainReport()

    @property
    def alive(self) -> bool:
        """Whether the worker is working: it was started, or `run` or `drain` is under way."""
        return self._here or self.started

    @property
    def started(self) -> bool:
        """Whether the worker is working in a thread of its own."""
        return self._thread is not None and self._thread.is_alive()

    def run(self, until: Until = Until.STOPPED) -> DrainReport:
        """Work in this thread; in the main thread SIGTERM, SIGINT and SIGHUP stop it."""
        with self._signals() as signals:
            return self._work(until, signals)

    def drain(self) -> DrainReport:
        """Work in this thread until nothing is ready and nothing runs; return the counts.

        What falls due later is not waited for. Leaves no threads behind.
        """
        return self._work(Until.IDLE, None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[Signals | None]:
        if threading.current_thread() is not threading.main_thread():
            yield None
            return
        with Signals(self._bell) as signals:
            yield signals

    def _work(self, until: Until, signals: Signals | None) -> DrainReport:
        self._here = True
        try:
            return self._keeper(until, signals).run()
        finally:
            self._here = False
            self._bell.close()

    def _keeper(
        self,
        until: Until,
        signals: Signals | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> Keeper:
        store = self._host.store
        return Keeper(
            ThreadForm(self._host, store.clock, self._bell),
            self._config,
            join(store, self._config),
            bell=self._bell,
            stops=lambda: self._asked + (signals.stops if signals else 0),
            until=until,
            signal=lambda: signals.last if signals else None,
            on_ready=on_ready,
        )

    def _serve(self, keeper: Keeper, ready: threading.Event) -> None:
        try:
            self._report = keeper.run()
        except BaseException as error:  # noqa: BLE001  raised again by stop
            self._error = error
            journal.keeper_died(error)
        finally:
            self._bell.close()
            ready.set()

    def _ask(self) -> None:
        self._asked += 1
        self._bell.ring()
