"""Limits that go while another process looks: none is forgotten, and none is believed in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.kit import Bench, Dice, ids, sound, spec, specs

from millpond.clock import ManualClock
from millpond.model import State
from millpond.store import open_store

NOW = {"completed_ms": 0, "failed_ms": 0, "cancelled_ms": 0}


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[list[Bench]]:
    """Two stores on one file, as two processes have them."""
    clock, dice = ManualClock(), Dice()
    stores = [open_store(str(tmp_path / "jobs.db"), clock=clock, roll=dice) for _ in range(2)]
    yield [Bench(store, clock, dice) for store in stores]
    sound(stores[0])
    for store in stores:
        store.close()


@pytest.fixture
def bench(benches: list[Bench]) -> Bench:
    return benches[0]


@pytest.fixture
def twin(benches: list[Bench]) -> Bench:
    return benches[1]


def gates(bench: Bench) -> dict[str, int | None]:
    read = bench.store._read  # type: ignore[attr-defined]
    sql = "SELECT ref, max FROM millpond_gate ORDER BY ref"
    return dict(read(lambda run: run(sql).fetchall()))


def sweep(bench: Bench, limit: int = 100) -> int:
    """Purge until there is no more; return in how many steps."""
    for step in range(1, 100):
        if not bench.store.purge(**NOW, limit=limit).result().more:
            return step
    raise AssertionError("the purge never came to an end")


def done(bench: Bench, count: int, **more: str | int) -> None:
    """Run jobs to their end, each with a limit key of its own."""
    bench.put(*(spec(limit_key=f"key {n:03}", limit=1, **more) for n in range(count)))
    keeper = bench.keeper()
    for claim in keeper.claim(count):
        keeper.complete(claim)


def test_a_limit_that_comes_back_after_the_last_one_went_is_seen_by_all(
    bench: Bench, twin: Bench
) -> None:
    elsewhere = twin.keeper()
    done(bench, 1)
    bench.clock.advance(ms=1)
    sweep(bench)
    assert gates(bench) == {}
    assert elsewhere.claim(5) == [], "it believes in no limits now"
    one, other = bench.put(*specs(2, limit_key="k", limit=1))
    assert ids(elsewhere.claim(5)) == [one]
    assert bench.row(other).blocked_by == "limit k"


def test_a_limit_that_goes_while_others_claim_is_made_anew_by_the_next_job(
    bench: Bench, twin: Bench
) -> None:
    done(bench, 2)
    bench.clock.advance(ms=1)
    twin.put(spec(limit_key="key 000", limit=1))
    sweep(bench)
    assert list(gates(bench)) == ["key 000"]
    jobs = twin.put(*specs(2, limit_key="key 001", limit=1))
    keeper = bench.keeper()
    assert len(keeper.claim(9)) == 2, "one of each key"
    assert [bench.state(job) for job in jobs] == [State.RUNNING, State.READY]
