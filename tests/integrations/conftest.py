from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    Session,
)
from tests.integrations.shop import (
    CONTROLS,
    Report,
    Tx,
    arguments,
    controlled,
    open_connection,
)

from millpond import Millpond


@pytest.fixture
def pond(tmp_path: Path) -> Iterator[Millpond]:
    pond = Millpond(tmp_path / "shop.db", busy="50ms")
    yield pond
    pond.close()


@pytest.fixture
def report(pond: Millpond) -> Report:
    @pond.task
    def report(number: int) -> None: ...

    pond.open()
    with sqlite3.connect(pond.url) as conn:
        conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        # Refuses one job after the first statements of its enqueue were written.
        conn.execute(
            "CREATE TRIGGER no_room BEFORE INSERT ON millpond_job WHEN NEW.key = 'two' "
            "BEGIN SELECT RAISE(ABORT, 'no room for two'); END"
        )
    conn.close()
    return report


@pytest.fixture(params=CONTROLS)
def engine(request: pytest.FixtureRequest, report: Report, pond: Millpond) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{pond.url}", **arguments(request.param))
    controlled(engine, request.param)
    yield engine
    engine.dispose()


@pytest.fixture
def plain_engine(report: Report, pond: Millpond) -> Iterator[sa.Engine]:
    engine = sa.create_engine(f"sqlite:///{pond.url}", **arguments("legacy"))
    yield engine
    engine.dispose()


@pytest.fixture(params=[Session, open_connection], ids=["session", "connection"])
def tx(request: pytest.FixtureRequest, engine: sa.Engine) -> Iterator[Tx]:
    with request.param(engine) as tx:
        yield tx
