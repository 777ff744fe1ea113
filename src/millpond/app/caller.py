"""The caller's own connection, in `tx=`: which kinds of it can carry a job."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from millpond.app.sqlalchemy import (
    Awaited,
    driver_of,
    has_begun,
    is_alchemy,
    is_awaited,
    run_beside,
)
from millpond.config.store import StoreConfig
from millpond.errors import BadConfig
from millpond.model import Connection

T = TypeVar("T")

_LIBRARIES = {"stdlib": "sqlite3", "pysqlite3": "pysqlite3"}


def is_open(tx: Connection, config: StoreConfig) -> bool:
    """Whether a transaction may be open on `tx`; raises BadConfig for what cannot carry a job."""
    if is_alchemy(tx):
        _check_file(config)
        return has_begun(tx, _LIBRARIES[config.sqlite])
    check_connection(tx, config)
    return bool(tx.in_transaction)


@contextmanager
def driver_connection(tx: Connection, config: StoreConfig) -> Iterator[Any]:
    """Give the connection that the job is written on, after `is_open` has looked at `tx`."""
    if not is_alchemy(tx):
        check_connection(tx, config)
        yield tx
        return
    with driver_of(tx) as connection:
        if not isinstance(connection, Awaited):
            check_connection(connection, config)
        yield connection


async def in_its_thread(tx: Connection, call: Callable[[Connection], T]) -> T:
    """Call with a connection whose statements run in the thread that it belongs to."""
    return await run_beside(tx, call) if is_awaited(tx) else call(tx)


def check_connection(tx: Any, config: StoreConfig) -> None:
    """Raise BadConfig unless `tx` is an open connection of the library that the store uses.

    Two SQLite libraries in one process undo each other's file locks.
    """
    _check_file(config)
    library = _LIBRARIES[config.sqlite]
    kind: Any = importlib.import_module(library).Connection
    if not isinstance(tx, kind):
        raise BadConfig(
            f"tx= got a {type(tx).__module__}.{type(tx).__qualname__}: give the open "
            f"{library}.Connection whose transaction the job belongs to{_hint(tx)}"
        )
    try:
        tx.cursor().close()
    except Exception as error:
        raise BadConfig(
            f"tx= got a connection that cannot be used here: {error}. Give an open one, in the "
            "thread that it belongs to"
        ) from error


def _check_file(config: StoreConfig) -> None:
    if config.address.memory:
        raise BadConfig(
            "tx= needs a store in a file: one in memory is seen by its own connection only, "
            "so nothing could commit together with it"
        )


def _hint(tx: object) -> str:
    if type(tx).__module__.partition(".")[0] == "sqlalchemy":
        return ", or the Connection, Session, AsyncConnection or AsyncSession that has it"
    if hasattr(tx, "connection"):
        return " (a cursor has it as cursor.connection)"
    return ""
