"""The caller's own connection, in `tx=`: which kinds of it can carry a job."""

from __future__ import annotations

import importlib
from typing import Any

from millpond.config.store import StoreConfig
from millpond.errors import BadConfig

_LIBRARIES = {"stdlib": "sqlite3", "pysqlite3": "pysqlite3"}


def check_connection(tx: Any, config: StoreConfig) -> None:
    """Raise BadConfig unless `tx` is an open connection of the library that the store uses.

    Two SQLite libraries in one process undo each other's file locks.
    """
    if config.address.memory:
        raise BadConfig(
            "tx= needs a store in a file: one in memory is seen by its own connection only, "
            "so nothing could commit together with it"
        )
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


def _hint(tx: object) -> str:
    if type(tx).__module__.partition(".")[0] == "sqlalchemy":
        return " (of an SQLAlchemy connection: connection.connection.driver_connection)"
    if hasattr(tx, "connection"):
        return " (a cursor has it as cursor.connection)"
    return ""
