"""What the parts of the engine that stand in files of their own need of the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from millpond.clock import Clock
from millpond.config import StoreConfig
from millpond.store.sqlite.names import Context
from millpond.store.sqlite.tickets import Ticket

T = TypeVar("T")


class Part:
    """Base of the engine's parts; the engine itself says how to read and write."""

    path: str
    clock: Clock
    config: StoreConfig
    _module: Any
    _first: Any
    _turns: Iterator[int]
    roll: Callable[[], float]

    def _read(self, look: Callable[[Any], T]) -> T:
        """Run `look(execute)` in one snapshot."""
        raise NotImplementedError

    def _write(self, run: Callable[[Context], T], **options: Any) -> Ticket[T]:
        """Hand `run(context)` to the storage thread."""
        raise NotImplementedError


def timed(run: Callable[[Context], T]) -> Callable[[Context], tuple[T, int]]:
    """Return `run` with the microseconds that it took, all of them under the write lock."""

    def measured(tx: Context) -> tuple[T, int]:
        started = time.perf_counter()
        value = run(tx)
        return value, int((time.perf_counter() - started) * 1e6)

    return measured
