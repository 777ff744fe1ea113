"""What a worker needs of an application: its tasks, its declarations and its store.

The worker stands below the application in the layers, so it names the application's object
only by these protocols.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from millpond.config import QueueSettings, StoreConfig, TaskSettings
from millpond.context import Context
from millpond.errors import BadConfig
from millpond.policy.retry import Verdict
from millpond.store.protocol import Store
from millpond.worker.importing import missing, parts_of


class HostTask(Protocol):
    """One task as a runner calls it."""

    @property
    def is_async(self) -> bool:
        """Whether `call` returns a coroutine, to be run on the event loop."""
        ...

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments; raises BadPayload for bytes that do not fit the function."""
        ...

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: Context) -> Any:
        """Call the handler, or return its coroutine."""
        ...

    def verdict(self, exc: BaseException, now: int) -> Verdict:
        """Say what the exception that ended an attempt means; `now` is the wall clock in ms."""
        ...

    def encode_result(self, value: Any) -> bytes | None:
        """Return the result as stored; raises BadPayload when it is no data or too large."""
        ...


class Declarations(Protocol):
    """What an application has declared, as plain settings."""

    @property
    def url(self) -> str:
        """The store's address."""
        ...

    @property
    def store(self) -> StoreConfig:
        """How the store is opened."""
        ...

    @property
    def queues(self) -> Sequence[QueueSettings]:
        """The declared queues."""
        ...

    @property
    def tasks(self) -> Sequence[TaskSettings]:
        """The registered tasks."""
        ...


class Host(Protocol):
    """The application's object: `pond`."""

    @property
    def registry(self) -> Mapping[str, HostTask]:
        """The tasks by name."""
        ...

    def declarations(self) -> Declarations:
        """Return what a keeper must know, which never imports the application."""
        ...

    @property
    def store(self) -> Store:
        """The process's own connection to the store, opened at first use."""
        ...

    def close(self) -> None:
        """Close the store if it was opened."""
        ...


_HOST = ("registry", "declarations", "store", "close")


def load_host(app: str) -> Host:
    """Import `module:attribute` and return the object, with the working directory importable.

    Raises BadConfig for a name that is not of that form, a module that is not there and what
    is no application; whatever else the import raises passes through, as its traceback tells
    most.
    """
    module_name, attribute = parts_of(app)
    if os.getcwd() not in sys.path:  # noqa: PTH109  sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    found: Any = _imported(app, module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise BadConfig(
                f"{app!r}: {module_name} has no {attribute!r}; name its Millpond object"
                f"{_ponds(found)}"
            )
        found = getattr(found, name)
    # Asked of the class: to ask the object for its store would open it.
    if not all(hasattr(type(found), name) for name in _HOST):
        raise BadConfig(f"{app!r} is a {type(found).__name__}; name a Millpond object")
    host: Host = found
    return host


def _imported(app: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        unfound = missing(app, module, error)
        if unfound is None:
            raise
        raise unfound from error


def _ponds(module: Any) -> str:
    """Return a hint at what in a module is an application."""
    names = [
        name
        for name, value in list(vars(module).items())
        if all(hasattr(type(value), known) for known in _HOST)
    ]
    return f": {', '.join(names[:3])}" if names else ""
