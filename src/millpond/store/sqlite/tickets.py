"""The promise of one write, waited for by threads and awaited by loops alike."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("millpond.store")

T = TypeVar("T")


class Ticket(Generic[T]):
    """The promise of one write; see `millpond.store.protocol.Ticket`."""

    __slots__ = ("_callbacks", "_done", "_error", "_latch", "_value")

    def __init__(self) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._done = False
        self._latch = threading.Lock()
        self._latch.acquire()
        self._callbacks: list[Callable[[], None]] = []

    def done(self) -> bool:
        """Tell whether the answer is there."""
        return self._done

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer and return it, or raise what went wrong."""
        if not self._done:
            if not self._latch.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
                msg = f"the write was not committed within {timeout} s; it may still be"
                raise TimeoutError(msg)
            self._latch.release()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the answer is there, in the storage thread."""
        self._callbacks.append(callback)
        if self._done:
            self._call_back()

    def resolve(self, value: T) -> None:
        """Give the answer."""
        self._value = value
        self._finish()

    def reject(self, error: BaseException) -> None:
        """Give the error."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._done = True
        self._latch.release()
        if self._callbacks:
            self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                callback()
            except Exception:  # a waiter's mistake must not end the thread that all wait for
                log.exception("a callback of a write failed")

    def __await__(self) -> Generator[Any, None, T]:
        """Await the answer without holding a thread."""
        if not self._done:
            from asyncio import get_running_loop

            loop = get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            self.then(lambda: _tell(loop, future))
            yield from future
        return self.result(0)


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    def set_result() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(set_result)
    except RuntimeError:
        return  # the loop was closed: nobody waits any more
