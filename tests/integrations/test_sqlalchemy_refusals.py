"""Connections and sessions of SQLAlchemy that cannot carry a job, and what is said then."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    create_async_engine,
)
from sqlalchemy.orm import (
    Session,
    sessionmaker,
)
from sqlalchemy.pool import NullPool
from tests.integrations.shop import (
    INSERT,
    LEVEL,
    Order,
    Report,
    Tx,
    driver_of,
    open_connection,
    script,
    seen,
)

from millpond import BadConfig, Millpond

# --- AUTOCOMMIT ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "autocommits",
    [
        lambda url: sa.create_engine(url, poolclass=NullPool, **LEVEL),
        lambda url: sa.create_engine(url, poolclass=NullPool).execution_options(**LEVEL),
        lambda url: sa.create_engine(
            url, poolclass=NullPool, connect_args={"isolation_level": None}
        ),
    ],
    ids=["engine", "option", "driver"],
)
@pytest.mark.parametrize("open_tx", [Session, open_connection], ids=["session", "connection"])
def test_where_each_statement_commits_by_itself_a_job_is_refused(
    pond: Millpond,
    report: Report,
    autocommits: Callable[[str], sa.Engine],
    open_tx: Callable[[sa.Engine], Tx],
) -> None:
    with open_tx(autocommits(f"sqlite:///{pond.url}")) as tx:
        with pytest.raises(BadConfig, match="in AUTOCOMMIT"):
            report.using(tx=tx).enqueue(1)
        assert not tx.in_transaction()
        assert not driver_of(tx).in_transaction
    assert seen(pond) == (0, 0)


def test_a_transaction_begun_by_hand_in_autocommit_carries_the_job(
    pond: Millpond, report: Report, plain_engine: sa.Engine
) -> None:
    with plain_engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        connection.execute(INSERT)
        report.using(tx=connection).enqueue(1)
        assert seen(pond) == (0, 0)
        connection.exec_driver_sql("COMMIT")
    assert seen(pond) == (1, 1)


if sys.version_info >= (3, 12):
    SWITCH: dict[str, Any] = {"connect_args": {"autocommit": True}, "poolclass": NullPool}

    def test_the_drivers_own_autocommit_is_refused_too(pond: Millpond, report: Report) -> None:
        with (
            Session(sa.create_engine(f"sqlite:///{pond.url}", **SWITCH)) as session,
            pytest.raises(BadConfig, match="in AUTOCOMMIT"),
        ):
            report.using(tx=session).enqueue(1)

    def test_the_awaited_drivers_own_autocommit_is_refused_too(
        pond: Millpond, report: Report
    ) -> None:
        async def story() -> None:
            engine = create_async_engine(f"sqlite+aiosqlite:///{pond.url}", **SWITCH)
            async with AsyncSession(engine) as tx:
                with pytest.raises(BadConfig, match="in AUTOCOMMIT"):
                    await report.using(tx=tx).aenqueue(1)

        asyncio.run(story())


# --- what cannot carry a job --------------------------------------------------------------------


@pytest.mark.parametrize("open_tx", [Session, open_connection], ids=["session", "connection"])
def test_a_session_on_another_file_is_refused_with_both_files(
    report: Report,
    tmp_path: Path,
    open_tx: Callable[[sa.Engine], Tx],
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}", poolclass=NullPool)
    with open_tx(engine) as tx:
        with pytest.raises(BadConfig, match=r"other\.db.*shop\.db"):
            report.using(tx=tx).enqueue(1)
        assert not tx.in_transaction()


def test_a_session_in_memory_is_refused(report: Report) -> None:
    with (
        Session(sa.create_engine("sqlite://", poolclass=NullPool)) as session,
        pytest.raises(BadConfig, match="the same file"),
    ):
        report.using(tx=session).enqueue(1)


class Elsewhere(sa.engine.default.DefaultDialect):
    """A database that this machine has not; nothing may be asked of it."""

    name = "elsewhere"
    driver = "none"

    @classmethod
    def import_dbapi(cls) -> Any:
        return sqlite3

    def connect(self, *_: Any, **__: Any) -> Any:
        pytest.fail("the other database was asked for a connection")


sa.dialects.registry.register("elsewhere", __name__, "Elsewhere")


def test_another_database_is_refused_before_it_is_asked_for_anything(report: Report) -> None:
    sys.modules.setdefault(__name__, sys.modules[Elsewhere.__module__])
    with Session(sa.create_engine("elsewhere://host/db")) as session:
        with pytest.raises(BadConfig, match=r"Session on elsewhere.*sqlite:///.*aiosqlite"):
            report.using(tx=session).enqueue(1)
        assert not session.in_transaction()


def test_a_store_in_memory_has_no_transactions_to_share(plain_engine: sa.Engine) -> None:
    with Millpond(":memory:") as pond, Session(plain_engine) as session:
        task = pond.task(name="task")(lambda: None)
        with pytest.raises(BadConfig, match="store in a file"):
            task.using(tx=session).enqueue()


def test_a_session_without_an_engine_is_refused(report: Report) -> None:
    with Session() as session, pytest.raises(BadConfig, match=r"Session that cannot be used.*bind"):
        report.using(tx=session).enqueue(1)


def test_a_closed_connection_is_refused(report: Report, plain_engine: sa.Engine) -> None:
    connection = plain_engine.connect()
    connection.close()
    with pytest.raises(BadConfig, match="closed"):
        report.using(tx=connection).enqueue(1)


def test_a_session_that_must_be_rolled_back_first_says_so(
    pond: Millpond, report: Report, plain_engine: sa.Engine
) -> None:
    with Session(plain_engine) as session:
        session.add(Order(id=1, item="tea"))
        session.flush()
        session.add(Order(id=1, item="coffee"))
        with pytest.raises(sa.exc.IntegrityError):
            session.flush()
        with pytest.raises(BadConfig, match="rolled back"):
            report.using(tx=session).enqueue(1)
    assert seen(pond) == (0, 0)


@pytest.mark.parametrize("name", ["engine", "sessionmaker", "raw"])
def test_what_only_makes_connections_is_told_what_to_give(
    report: Report, plain_engine: sa.Engine, name: str
) -> None:
    given = {"engine": plain_engine, "sessionmaker": sessionmaker(plain_engine)}
    wrong: Any = given.get(name) or plain_engine.raw_connection()
    with pytest.raises(BadConfig, match="or the Connection, Session, AsyncConnection or Async"):
        report.using(tx=wrong).enqueue(1)
    if name == "raw":
        wrong.close()


@pytest.fixture
def other(tmp_path: Path) -> Report:
    """A task whose store uses the other library; a process can open stores with one only."""
    pond = Millpond(tmp_path / "other.db", sqlite="pysqlite3")

    @pond.task
    def other(number: int) -> None: ...

    return other


def test_the_other_library_is_refused_before_it_opens_the_file(other: Report) -> None:
    def creator() -> Any:
        pytest.fail("the file was opened with the other library")

    with (
        Session(sa.create_engine("sqlite://", creator=creator)) as session,
        pytest.raises(BadConfig, match=r"uses sqlite3, but the store uses pysqlite3.*module="),
    ):
        other.using(tx=session).enqueue(1)


def test_the_awaited_other_library_is_refused_before_it_opens_the_file(
    other: Report, tmp_path: Path
) -> None:
    async def story() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'other.db'}")
        async with AsyncSession(engine) as tx:
            with pytest.raises(BadConfig, match="uses sqlite3, but the store uses pysqlite3"):
                await other.using(tx=tx).aenqueue(1)

    asyncio.run(story())
    assert not (tmp_path / "other.db").exists()


OWN_LIBRARY = """
import pysqlite3, sqlalchemy, sys
from sqlalchemy.orm import Session
from millpond import Millpond
pond = Millpond(sys.argv[1], sqlite="pysqlite3")
task = pond.task(name="task")(lambda: None)
with Session(sqlalchemy.create_engine("sqlite:///" + sys.argv[1], module=pysqlite3)) as session:
    ref = task.using(tx=session).enqueue()
    print(pond.jobs())
    session.commit()
print(ref.job().state)
pond.close()
"""


def test_an_engine_of_the_stores_own_library_carries_the_job(tmp_path: Path) -> None:
    assert script(OWN_LIBRARY, tmp_path / "shop.db") == "[]\nready\n"


# --- the dependency -----------------------------------------------------------------------------

PROBE = """
import sqlite3, sys
from millpond import Millpond
pond = Millpond(sys.argv[1])
task = pond.task(name="task")(lambda: None)
pond.open()
connection = sqlite3.connect(sys.argv[1])
task.using(tx=connection).enqueue()
connection.commit()
connection.close()
pond.close()
print({"sqlalchemy", "greenlet", "aiosqlite"} & set(sys.modules))
"""


def test_sqlalchemy_is_not_loaded_by_those_who_do_not_use_it(tmp_path: Path) -> None:
    assert script(PROBE, tmp_path / "shop.db") == "set()\n"
