"""A job that was tried moves to the lane of those that were: counted there, claimed by its rank."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, ids, specs

from millpond.model import AttemptOutcome, JobId, State

OUT = AttemptOutcome


def lane_of(bench: Bench, job: JobId) -> tuple[int, int]:
    """Return the lane in which a job stands now, and whether that is one of jobs tried before."""
    read = bench.store._read  # type: ignore[attr-defined]
    sql = (
        "SELECT l.id, l.again FROM millpond_lane l WHERE l.id = coalesce("
        " (SELECT lane FROM millpond_running WHERE id = :id),"
        " (SELECT lane FROM millpond_again WHERE id = :id),"
        " (SELECT lane FROM millpond_job WHERE id = :id))"
    )
    found: tuple[int, int] = read(lambda run: run(sql, {"id": job}).fetchone())
    return found


def counts(bench: Bench) -> dict[int, tuple[int, int, int]]:
    """Return scheduled, ready and running of the lanes of first and of later tries."""
    read = bench.store._read  # type: ignore[attr-defined]
    sql = "SELECT again, n_scheduled, n_ready, n_running FROM millpond_lane"
    return {row[0]: row[1:] for row in read(lambda run: run(sql).fetchall())}


@pytest.mark.parametrize("how", ["retried", "timed out", "lost"])
def test_a_job_that_used_an_attempt_moves_to_the_again_lane(bench: Bench, how: str) -> None:
    first, fresh = bench.put(*specs(2))
    keeper = bench.keeper()
    claim = keeper.one()
    home, again = lane_of(bench, first)
    assert again == 0
    if how == "lost":
        bench.dice.numbers = [1.0]
        bench.clock.advance(ms=LEASE_MS)
        assert bench.store.recover(limit=5).result().retried == 1
    else:
        keeper.end(claim, OUT.RETRIED if how == "retried" else OUT.TIMED_OUT, delay_ms=1_000)
    moved, again = lane_of(bench, first)
    assert (again, moved != home) == (1, True)
    assert lane_of(bench, fresh) == (home, 0)
    assert counts(bench) == {0: (0, 1, 0), 1: (1, 0, 0)}
    bench.clock.advance(ms=3_600_000)
    assert sorted(ids(keeper.claim(5))) == sorted([first, fresh])
    assert counts(bench) == {0: (0, 0, 1), 1: (0, 0, 1)}
    assert bench.store.verify() == []


def test_a_job_that_was_handed_back_uncharged_stays_in_its_first_lane(bench: Bench) -> None:
    job = bench.job()
    keeper = bench.keeper()
    home = lane_of(bench, job)
    keeper.end(keeper.one(), OUT.RELEASED)
    assert lane_of(bench, job) == home
    assert bench.state(job) is State.READY
