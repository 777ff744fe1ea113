from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.store.kit import Bench, Dice, closing

from millpond.clock import ManualClock
from millpond.store import open_store
from millpond.store.protocol import Store

ENGINES: dict[str, Callable[[Path], str]] = {
    "memory": lambda _: ":memory:",
    "file": lambda folder: str(folder / "jobs.db"),
}
"""Every engine by the address of an empty store: the whole suite runs on each of them."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def dice() -> Dice:
    return Dice()


@pytest.fixture(params=ENGINES)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock, dice: Dice
) -> Iterator[Store]:
    yield from closing(open_store(ENGINES[request.param](tmp_path), clock=clock, roll=dice))


@pytest.fixture
def bench(store: Store, clock: ManualClock, dice: Dice) -> Bench:
    return Bench(store, clock, dice)
