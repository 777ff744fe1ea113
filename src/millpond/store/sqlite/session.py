"""What the storage thread is handed, and what it needs of the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.store.sqlite.tickets import Ticket


@dataclass(slots=True, eq=False)
class Write:
    """One operation handed to the storage thread: `run` on `item` and its neighbours' items.

    Neighbours with the same `run` share one call, which returns a value for each item.
    `weight` is the number of jobs in it. `check` reads back, after an unclear COMMIT, whether
    what `run` wrote stands, None when that cannot be told from it.
    """

    run: Callable[[Any, Sequence[Any]], Sequence[Any]]
    item: Any
    ticket: Ticket[Any]
    deadline: float
    urgent: bool = False
    weight: int = 1
    hint: str | None = None
    check: Callable[[Any, Any], bool | None] | None = None
    value: Any = None
    error: BaseException | None = None
    handed: float = field(default_factory=time.perf_counter)


class Rest:
    """A request to the storage thread: close the connection, and wait until told to go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.over = threading.Event()


class Session:
    """What the storage thread needs of the engine; the engine subclasses it."""

    path = ""

    def open(self) -> Any:
        """Open the write connection, in the storage thread."""
        raise NotImplementedError

    def lay_down(self) -> None:
        """Close the write connection, in the storage thread; `open` opens it again."""
        raise NotImplementedError

    def start(self, conn: Any) -> Any:
        """Make the transaction context after the lock is held; the clock is read here."""
        raise NotImplementedError

    def undone(self, context: Any) -> None:
        """An operation was undone: forget what it may have cached."""

    def unclear(self, context: Any) -> None:
        """COMMIT has failed, and may have written all the same: keep nothing that was made."""

    def committed(self, context: Any) -> None:
        """COMMIT has returned: keep what may be cached, nudge who waits."""

    def waiting_long(self) -> None:
        """Another connection has held the lock for over a second: say who, if it is known."""

    def gap(self, conn: Any, transactions: int, *, idle: bool) -> None:
        """Between transactions: checkpoint when it is due; `transactions` since the last call."""
