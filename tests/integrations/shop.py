"""A shop's database that millpond shares, and the ways to reach it with SQLAlchemy."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncEngine,
    AsyncSession,
    create_async_engine,
)
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    Session,
    mapped_column,
)
from sqlalchemy.pool import NullPool

from millpond import Millpond, StoreError, Task


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


Tx = Session | sa.Connection
AsyncTx = AsyncSession | AsyncConnection
Report = Task[[int], None, None]

INSERT = sa.insert(Order).values(item="tea")
LEVEL = {"isolation_level": "AUTOCOMMIT"}

EVENTS = "events"
CONTROLS = ["legacy", EVENTS]
if sys.version_info >= (3, 12):
    CONTROLS.append("attribute")  # the driver's own switch, which came with that version


def controlled(engine: sa.Engine, control: str) -> None:
    """Let SQLAlchemy begin transactions, as its manual shows it for SQLite."""
    if control != EVENTS:
        return

    @sa.event.listens_for(engine, "connect")
    def driver_begins_nothing(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def arguments(control: str) -> dict[str, Any]:
    extra = {"autocommit": False} if control == "attribute" else {}
    return {"connect_args": {"timeout": 0, **extra}, "poolclass": NullPool}


def open_connection(engine: sa.Engine) -> sa.Connection:
    return engine.connect()


def connecting(engine: AsyncEngine) -> AsyncConnection:
    return engine.connect()


@asynccontextmanager
async def awaited(
    pond: Millpond, kind: Callable[[AsyncEngine], AsyncTx], control: str = "legacy"
) -> AsyncIterator[AsyncTx]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{pond.url}", **arguments(control))
    controlled(engine.sync_engine, control)
    try:
        async with kind(engine) as tx:
            yield tx
    finally:
        await engine.dispose()


def seen(pond: Millpond) -> tuple[int, int]:
    """Orders and jobs that another connection sees."""
    conn = sqlite3.connect(pond.url)
    (orders,) = conn.execute("SELECT count(*) FROM orders").fetchone()
    conn.close()
    return orders, len(pond.jobs())


def script(code: str, path: Path) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def driver_of(tx: Session | sa.Connection) -> Any:
    connection = tx.connection() if isinstance(tx, Session) else tx
    return connection.connection.driver_connection


def opaque_row(cursor: Any, values: tuple[Any, ...]) -> object:
    """Stand for a row factory of an application whose rows are no tuples."""
    return object()


def overfill(pond: Millpond, report: Report, tx: Any) -> None:
    """Ask for two jobs of which the second is refused."""
    batch = pond.batch(tx=tx)
    batch.add(report.using(key="one"), 1)
    batch.add(report.using(key="two"), 2)
    with pytest.raises(StoreError, match="no room for two"), batch:
        pass


async def aoverfill(pond: Millpond, report: Report, tx: Any) -> None:
    """Do the same, awaited."""
    batch = pond.batch(tx=tx)
    batch.add(report.using(key="one"), 1)
    batch.add(report.using(key="two"), 2)
    with pytest.raises(StoreError, match="no room for two"):
        async with batch:
            pass
