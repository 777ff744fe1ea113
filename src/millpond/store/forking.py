"""Forks: no connection of ours crosses one.

SQLite keeps its file locks per process and its book of them in plain memory. A forked child
inherits the book and not the locks, so a connection that crosses a fork, or a new one opened
beside it, believes in locks that it does not have: commits go into a log that others delete.
So before a fork every store of the process closes its connections, with its storage thread
at rest and no other thread of ours inside SQLite; the parent opens them again at the next
use, the child makes stores of its own. A store that cannot come to rest in time is refused in
the child, by path.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from millpond.errors import StoreClosed

REST_S = 15.0
"""How long a fork waits for a store's transaction to end, or for the lock it waits for."""


class Forked(Protocol):
    """What a store does about a fork."""

    path: str

    def rest(self) -> bool:
        """Close every connection and hold all threads off; False when that was not possible."""
        ...

    def resume(self) -> None:
        """In the parent: go on."""
        ...

    def abandon(self) -> None:
        """In the child: forget everything that was inherited."""
        ...


stores: weakref.WeakSet[Forked] = weakref.WeakSet()
guard = threading.RLock()
"""Held while a store is opened or closed, and what opening imports is imported: no fork meets
one half way, or leaves its child with an import that another thread will never finish."""

_inherited: set[str] = set()
_restless: list[str] = []


def refuse_inherited(path: str) -> None:
    """Raise StoreClosed for a file that this process inherited open from its parent."""
    if path in _inherited:
        msg = (
            f"{path} was in use by the parent at the very moment this process was forked, so "
            "this process cannot use it safely. Open the store after the fork, or start the "
            "process anew (multiprocessing: the spawn method)."
        )
        raise StoreClosed(msg)


def _before() -> None:
    guard.acquire()
    _restless[:] = [store.path for store in list(stores) if not store.rest()]


def _in_parent() -> None:
    for store in list(stores):
        store.resume()
    guard.release()


def _in_child() -> None:
    _inherited.update(_restless)
    for store in list(stores):
        store.abandon()
    stores.clear()
    guard.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
