"""Counters: compared with a recount, explained, and mended under the write lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.kit import Bench, Dice, sound, specs

from millpond.clock import ManualClock
from millpond.model import AttemptOutcome
from millpond.store import open_store

OUT = AttemptOutcome


def busy_life(bench: Bench) -> None:
    keeper = bench.keeper("mail", "other")
    bench.put(*specs(10, tenant="t", payload=b"12"), *specs(5, limit_key="k", limit=1))
    bench.put(*specs(5, task="other", workload="w", delay_ms=50))
    for at, claim in enumerate(keeper.claim(12)):
        keeper.end(claim, list(OUT)[at % len(OUT)], delay_ms=at % 3)
    keeper.claim(3)


def test_counters_agree_after_a_busy_life(bench: Bench):
    busy_life(bench)
    assert bench.store.reconcile().result() == []
    assert bench.store.reconcile(repair=True).result() == []


@pytest.fixture
def broken(tmp_path: Path, clock: ManualClock, dice: Dice) -> Iterator[tuple[Bench, Path]]:
    """A store in a file that a test may damage from outside; not required to be sound."""
    path = tmp_path / "jobs.db"
    store = open_store(str(path), clock=clock, roll=dice)
    yield Bench(store, clock, dice), path
    store.close()


ATTEMPT = (
    "INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, ended_at, outcome)"
    " SELECT {}, 900, 9, 1, 1, 1, {}"
)


def damage(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        for statement in statements:
            conn.execute(statement)


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("UPDATE millpond_lane SET n_ready = n_ready + 1 WHERE id = 1", "lane.n_ready"),
        ("UPDATE millpond_lane SET n_scheduled = 77 WHERE id = 1", "lane.n_scheduled"),
        ("UPDATE millpond_lane SET n_blocked = 77 WHERE id = 1", "lane.n_blocked"),
        ("UPDATE millpond_lane SET n_running = 77 WHERE id = 1", "lane.n_running"),
        ("UPDATE millpond_workload SET n_jobs = n_jobs + 3 WHERE id = 1", "workload.n_jobs"),
        ("UPDATE millpond_workload SET n_bytes = 0 WHERE id = 1", "workload.n_bytes"),
        ("UPDATE millpond_tenant_use SET n_jobs = 77", "tenant.n_jobs"),
        ("UPDATE millpond_tenant_use SET n_bytes = 77", "tenant.n_bytes"),
        ("DELETE FROM millpond_tenant_use", "tenant.n_jobs"),
        ("UPDATE millpond_gate SET n = 77", "gate.n"),
    ],
)
def test_every_kind_of_drift_is_found_explained_and_mended(
    broken: tuple[Bench, Path], statement: str, what: str
):
    bench, path = broken
    busy_life(bench)
    damage(path, statement)
    found = bench.store.drift()
    assert what in {drift.what for drift in found}
    assert all(drift.counter != drift.counted for drift in found)
    assert any(what in line for line in bench.store.verify())
    assert bench.store.reconcile().result() == found, "a look changes nothing"
    assert bench.store.drift() == found
    assert bench.store.reconcile(repair=True).result() == found
    sound(bench.store)


def test_a_mended_limit_starts_what_it_had_held_back(broken: tuple[Bench, Path]):
    bench, path = broken
    keeper = bench.keeper()
    bench.put(*specs(2, limit_key="k", limit=2))
    damage(path, "UPDATE millpond_gate SET n = 2")
    assert keeper.claim(5) == []
    bench.store.reconcile(repair=True).result()
    assert len(keeper.claim(5)) == 2


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM millpond_ready WHERE id = :ready", "stands nowhere"),
        ("DELETE FROM millpond_running WHERE id = :running", "stands nowhere"),
        ("INSERT INTO millpond_scheduled VALUES (5, :ready)", "stands in 2 places"),
        ("DELETE FROM millpond_job WHERE id = :ready", "which does not exist"),
        ("UPDATE millpond_ready SET rank = 5 WHERE id = :ready", "waits at a place"),
        ("UPDATE millpond_blocked SET rank = 5 WHERE id = :blocked", "waits at a place"),
        ("UPDATE millpond_running SET worker = 999", "which does not exist: nobody"),
        (ATTEMPT.format(":ready", "'retried'"), "has used 0 attempts, its history shows 1"),
        (ATTEMPT.format(":done", "'completed'"), "completed 2 times"),
        ("UPDATE millpond_gate SET max = 9", "which has room"),
        ("INSERT INTO millpond_coalesce SELECT 1, 1, 'c', :running", "which does not wait"),
        ("INSERT INTO millpond_dedup SELECT 1, 1, 'k', :done, 'o', 5, NULL", "held for ever"),
    ],
)  # fmt: skip
def test_every_kind_of_disorder_is_told(broken: tuple[Bench, Path], statement: str, words: str):
    bench, path = broken
    keeper = bench.keeper()
    places = {"done": bench.job()}
    keeper.complete(keeper.one())
    places["running"] = bench.job(limit_key="k", limit=1)
    keeper.one()
    places["blocked"] = bench.job(limit_key="k", limit=1)
    keeper.batch(1)
    places["ready"] = bench.job(queue="other")
    assert bench.store.verify() == []
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute(statement, places)
    told = bench.store.verify()
    assert any(words in line for line in told), told
