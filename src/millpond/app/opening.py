"""The lazily opened store of a pond: one a process, made by the first that needs it."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from millpond.errors import MillpondError, StoreClosed
from millpond.store import forking
from millpond.store.protocol import Store


@dataclass(slots=True, eq=False)
class Opened:
    """A store as this process has it open; `declared` counts what it was told of the app."""

    store: Store
    pid: int
    declared: int = 0


class Opening:
    """Opens a store at first use, once however many threads ask, and anew after a fork.

    A forked child must not touch what its parent opened, not even to close it: SQLite's
    file locks belong to a process. The parent's store is put aside there and never freed.
    """

    def __init__(self, name: str, open_it: Callable[[], Store]) -> None:
        self._name = name
        self._open_it = open_it
        self._opened: Opened | None = None
        self._closed = False
        self.lock = forking.guard
        _openings.add(self)

    @property
    def opened(self) -> Opened:
        """The open store.

        Raises StoreClosed after `close`, and whatever the store says when it cannot be opened.
        """
        opened = self._opened
        # The comparison covers forks that bypass Python's hooks.
        if opened is not None and opened.pid == os.getpid():
            return opened
        with self.lock:
            return self._opened_now()

    @property
    def is_open(self) -> bool:
        """Whether this process has the store open."""
        return self._opened is not None and self._opened.pid == os.getpid()

    def close(self) -> None:
        """Finish the writes handed over and close; a store that was never opened stays so."""
        with self.lock:
            opened, self._opened = self._opened, None
            self._closed = True
        if opened is not None and opened.pid == os.getpid():
            opened.store.close()

    def reopen(self) -> None:
        """Allow the next use to open again after a `close`."""
        with self.lock:
            self._closed = False

    def _opened_now(self) -> Opened:
        if self._closed:
            msg = f"{self._name} was closed: call open() to use it again"
            raise StoreClosed(msg)
        opened = self._opened
        if opened is not None and opened.pid != os.getpid():
            _put_aside.append(opened)
            opened = None
        if opened is None:
            opened = self._opened = Opened(self._open_it(), os.getpid())
        return opened

    def forget(self) -> None:
        """Put the parent's store aside, in a child that was just forked."""
        if self._opened is not None:
            _put_aside.append(self._opened)
            self._opened = None


_openings: weakref.WeakSet[Opening] = weakref.WeakSet()
_put_aside: list[Opened] = []


def _forget_all() -> None:
    for opening in list(_openings):
        opening.forget()


@atexit.register
def _close_all() -> None:
    # A script that ends without close() should leave no write-ahead log behind.
    for opening in list(_openings):
        with contextlib.suppress(MillpondError):
            opening.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
