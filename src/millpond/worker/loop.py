"""The event loop of a runner: one thread that runs all async handlers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from millpond.worker.frames import Fed


class LoopThread:
    """Runs `attempt(job)` for each job as a task of its own; made when first needed.

    `died` is called with a sentence when the loop ends though nobody closed it, as a handler
    that stops its loop can cause.
    """

    def __init__(
        self,
        attempt: Callable[[Fed], Coroutine[Any, Any, None]],
        died: Callable[[str], None],
    ) -> None:
        self._attempt = attempt
        self._died = died
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def busy(self) -> bool:
        """Whether async handlers are running."""
        return bool(self._tasks)

    @property
    def ident(self) -> int | None:
        """The loop thread's identity, to look at its stack."""
        return None if self._thread is None else self._thread.ident

    def start(self, jobs: list[Fed]) -> None:
        """Run these jobs, from any thread."""
        self._call(self.begin, jobs)

    def begin(self, jobs: list[Fed]) -> None:
        """Run these jobs; only in the loop's own thread."""
        loop = asyncio.get_running_loop()
        for job in jobs:
            task = loop.create_task(self._attempt(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def ping(self, answer: Callable[[], None]) -> None:
        """Call `answer` in the loop as soon as it turns."""
        self._call(answer)

    def close(self) -> None:
        """Cancel what still runs and stop the loop."""
        with self._lock:
            self._closing = True
            loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)

    def join(self, timeout: float) -> bool:
        """Wait for the thread; tell whether it has ended."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(timeout, 0))
        return not thread.is_alive()

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        loop = self._loop or self._make()
        # A closed loop runs nothing more; its end has been, or is being, reported.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(function, *args)

    def _make(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._run, args=(self._loop,), name="millpond-loop", daemon=True
                )
                self._thread.start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        why = "something stopped it"
        try:
            loop.run_forever()
        except BaseException as error:  # noqa: BLE001  reported, and the process ends
            why = repr(error)
        if not self._closing:
            self._died(f"the event loop of this runner has ended: {why}")
        self._finish(loop)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        for task in list(self._tasks):
            task.cancel()
        with contextlib.suppress(Exception):
            if self._tasks:
                loop.run_until_complete(asyncio.wait(self._tasks, timeout=1))
            loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
