"""SQLAlchemy's connections and sessions, in `tx=`: down to the driver's own connection.

Nothing here imports SQLAlchemy. Whoever has an object of its has imported it, so what is not
among the loaded modules cannot be what was given.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from millpond.errors import BadConfig

T = TypeVar("T")

_SESSIONS = ("sqlalchemy.orm", ("Session", "scoped_session"))
_ASYNC = ("sqlalchemy.ext.asyncio", ("AsyncConnection", "AsyncSession", "async_scoped_session"))
_SCOPED = ("scoped_session", "async_scoped_session")


def is_alchemy(tx: object) -> bool:
    """Whether this is a connection or session of SQLAlchemy, awaited or not."""
    return _is(tx, "sqlalchemy", ("Connection",)) or _is(tx, *_SESSIONS) or is_awaited(tx)


def is_awaited(tx: object) -> bool:
    """Whether this is one of SQLAlchemy's that are awaited."""
    return _is(tx, *_ASYNC)


def has_begun(tx: Any, library: str) -> bool:
    """Whether SQLAlchemy has begun a transaction, although the driver perhaps has not.

    Raises BadConfig for another database than SQLite, and for another library than `library`,
    before any connection is made with it.
    """
    own = _own(tx)
    with _told(own):
        _check_dialect(own, library)
        return bool(own.in_transaction())


async def run_beside(tx: Any, call: Callable[[Any], T]) -> T:
    """Call with the synchronous twin, so that its statements run in the driver's thread."""
    own = _own(tx)
    with _told(own):
        running: Awaitable[T] = own.run_sync(call)
        return await running


@contextmanager
def driver_of(tx: Any) -> Iterator[Any]:
    """Give the driver's connection, in a transaction that SQLAlchemy will end.

    When there was none, one is begun, and rolled back if the block fails: a commit of
    SQLAlchemy does nothing to a transaction that it has not begun itself. Raises BadConfig
    where the job could not commit with the caller's rows.
    """
    if is_awaited(tx):
        raise BadConfig(
            f"tx= got an {_kind(tx)}, which only coroutines can wait for: use await "
            "….aenqueue() and not enqueue()"
        )
    own = _own(tx)
    began = not own.in_transaction()
    try:
        with _told(own):
            driver = _driver(_begun(own))
        yield driver
    except BaseException:
        if began and own.in_transaction():
            own.rollback()
        raise


def _begun(own: Any) -> Any:
    """Return the Connection, with a transaction on it that its commit() will end."""
    # A session begins by itself when it is asked for its connection.
    connection = own.connection() if _is(own, *_SESSIONS) else own
    if not connection.in_transaction():
        connection.begin()
    return connection


def _check_dialect(own: Any, library: str) -> None:
    dialect = (own.get_bind() if hasattr(own, "get_bind") else own).dialect
    if dialect.name != "sqlite":
        raise BadConfig(
            f"tx= got a {_kind(own)} on {dialect.name}, but the jobs are in an SQLite file and "
            "can commit together with that file alone: give one of an engine of sqlite:///… or "
            "sqlite+aiosqlite:///… on it, or leave tx= out"
        )
    module = getattr(dialect.dbapi, "sqlite", dialect.dbapi).__name__.partition(".")[0]
    if module != library:
        raise BadConfig(
            f"tx= got a {_kind(own)} that uses {module}, but the store uses {library}, and two "
            "SQLite libraries in one process undo each other's file locks: use one for both, "
            f"by create_engine(…, module={library}) or by the store's setting sqlite="
        )


def _driver(connection: Any) -> Any:
    proxied = connection.connection
    adapted = hasattr(proxied.dbapi_connection, "run_async")
    driver = Awaited(proxied.dbapi_connection) if adapted else proxied.driver_connection
    if not driver.in_transaction and _commits_by_itself(proxied.driver_connection):
        raise BadConfig(
            "tx= got a connection of SQLAlchemy in AUTOCOMMIT: each statement commits by itself, "
            "so your rows and the job could not commit together. Use the default isolation "
            "level for this connection, or leave tx= out"
        )
    return driver


def _commits_by_itself(driver: Any) -> bool:
    # Python 3.12 has a second switch, which aiosqlite does not show on its own connection.
    inner = getattr(driver, "_conn", driver)
    return driver.isolation_level is None or getattr(inner, "autocommit", False) is True


class Awaited:
    """A connection of an asynchronous driver, used like one of sqlite3.

    Every call waits for the driver's own thread through SQLAlchemy's greenlet, which leaves
    the event loop free meanwhile.
    """

    def __init__(self, adapted: Any) -> None:
        self._adapted = adapted

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, as the driver knows it."""
        return bool(self._adapted.driver_connection.in_transaction)

    @property
    def text_factory(self) -> Any:
        """What makes a text."""
        return self._adapted.driver_connection.text_factory

    @text_factory.setter
    def text_factory(self, factory: Any) -> None:
        self._adapted.driver_connection.text_factory = factory

    def cursor(self) -> AwaitedCursor:
        """Return a cursor of its own."""
        return AwaitedCursor(self._adapted.run_async)


class AwaitedCursor:
    """A cursor whose rows are all there when a statement returns."""

    def __init__(self, wait: Callable[[Callable[[Any], Awaitable[Any]]], Any]) -> None:
        self._wait = wait
        self._cursor = wait(lambda driver: driver.cursor())
        self._rows: Iterator[Any] = iter(())

    @property
    def row_factory(self) -> Any:
        """What makes a row; None for plain tuples."""
        return self._cursor.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._cursor.row_factory = factory

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""
        return int(self._cursor.rowcount)

    def execute(self, sql: str, values: Any = ()) -> AwaitedCursor:
        """Run a statement."""
        self._rows = iter(self._wait(lambda _: self._run(self._cursor.execute, sql, values)))
        return self

    def executemany(self, sql: str, values: Any) -> AwaitedCursor:
        """Run a statement once for each of the values."""
        self._rows = iter(self._wait(lambda _: self._run(self._cursor.executemany, sql, values)))
        return self

    def fetchone(self) -> Any:
        """Return the next row, None after the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows

    def close(self) -> None:
        """Give back what the statement holds."""
        self._wait(lambda _: self._cursor.close())

    async def _run(self, call: Callable[..., Awaitable[Any]], sql: str, values: Any) -> Any:
        await call(sql, values)
        return () if self._cursor.description is None else await self._cursor.fetchall()


def _is(tx: object, module: str, names: Sequence[str]) -> bool:
    library = sys.modules.get(module)
    kinds = (getattr(library, name, None) for name in names)
    return isinstance(tx, tuple(kind for kind in kinds if isinstance(kind, type)))


def _own(tx: Any) -> Any:
    """Return what a scoped session stands for in this thread or task; others stay."""
    scoped = _is(tx, "sqlalchemy.orm", _SCOPED) or _is(tx, "sqlalchemy.ext.asyncio", _SCOPED)
    return tx.registry() if scoped else tx


def _kind(tx: object) -> str:
    return f"{type(tx).__module__.partition('.')[0]} {type(tx).__qualname__}"


@contextmanager
def _told(own: Any) -> Iterator[None]:
    """Say what SQLAlchemy does not allow as what is wrong with `tx=`."""
    refused: type[Exception] = sys.modules["sqlalchemy.exc"].InvalidRequestError
    try:
        yield
    except refused as error:
        raise BadConfig(f"tx= got a {_kind(own)} that cannot be used here: {error}") from error
