from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import ManualClock, Millpond


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return ":memory:" if request.param == "memory" else str(tmp_path / "jobs.db")


@pytest.fixture
def pond(url: str, clock: ManualClock) -> Iterator[Millpond]:
    pond = Millpond(url, clock=clock)
    yield pond
    pond.close()


@pytest.fixture
def file_pond(tmp_path: Path, clock: ManualClock) -> Iterator[Millpond]:
    pond = Millpond(tmp_path / "jobs.db", clock=clock)
    yield pond
    pond.close()
