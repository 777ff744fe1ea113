"""Purging: only final jobs past their state's window, in bounded steps, with all that is theirs."""

from __future__ import annotations

import pytest
from tests.store.kit import Bench, spec, specs

from millpond.model import AttemptOutcome, JobFilter, State

OUT = AttemptOutcome
DAY_MS = 86_400_000


def purge(bench: Bench, completed: int = DAY_MS, failed: int = DAY_MS, cancelled: int = DAY_MS,
          limit: int = 100):  # fmt: skip
    return bench.store.purge(
        completed_ms=completed, failed_ms=failed, cancelled_ms=cancelled, limit=limit
    ).result()


def test_only_final_jobs_past_their_own_window_go(bench: Bench):
    keeper = bench.keeper()
    done, bad, off, waits, later, runs, again = bench.put(
        *specs(4), spec(delay_ms=9 * DAY_MS), spec(), spec()
    )
    for claim in keeper.claim(2):
        keeper.end(claim, OUT.COMPLETED if claim.token.job_id == done else OUT.FAILED)
    bench.store.cancel(off).result()
    for claim in keeper.claim(3):
        if claim.token.job_id == again:
            keeper.end(claim, OUT.RETRIED, delay_ms=9 * DAY_MS)
        elif claim.token.job_id == waits:
            keeper.end(claim, OUT.RELEASED)
    bench.clock.advance(ms=1_000)
    assert purge(bench, 1_000, 1_000, 1_000).jobs == 0, "a window ends after its last millisecond"
    bench.clock.advance(ms=1)
    assert purge(bench, 1_000, 9_000, 9_000).jobs == 1
    assert bench.store.get(done) is None
    assert purge(bench, 9_000, 1_000, 9_000).jobs == 1
    assert bench.store.get(bad) is None
    assert purge(bench, 9_000, 9_000, 1_000).jobs == 1
    assert bench.store.get(off) is None
    assert purge(bench, 0, 0, 0).jobs == 0
    states = [bench.state(job) for job in (waits, later, runs, again)]
    assert states == [State.READY, State.SCHEDULED, State.RUNNING, State.SCHEDULED]


def test_the_history_goes_with_the_job(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    keeper.end(keeper.one(), OUT.RETRIED, traceback="tb", error_type="E")
    keeper.complete(keeper.one())
    bench.clock.advance(ms=1)
    assert purge(bench, 0).jobs == 1
    assert bench.store.attempts(job) == []
    assert bench.store.find(JobFilter()) == []


def test_batches_are_bounded_oldest_first_and_say_that_more_is_left(bench: Bench):
    keeper = bench.keeper()
    for _ in range(25):
        bench.job()
        keeper.complete(keeper.one())
        bench.clock.advance(ms=1)
    first = purge(bench, 0, limit=10)
    assert (first.jobs, first.more) == (10, True)
    left = [row.id for row in bench.store.find(JobFilter())]
    assert left == list(range(25, 10, -1))
    assert purge(bench, 0, limit=10).jobs == 10
    last = purge(bench, 0, limit=10)
    assert (last.jobs, last.more) == (5, False)


def test_one_batch_is_shared_by_the_states(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(9))
    for at, claim in enumerate(keeper.claim(6)):
        keeper.end(claim, OUT.COMPLETED if at % 2 else OUT.FAILED)
    for row in bench.store.find(JobFilter(state=State.READY)):
        bench.store.cancel(row.id).result()
    bench.clock.advance(ms=1)
    assert [purge(bench, 0, 0, 0, limit=4).jobs for _ in range(3)] == [4, 4, 1]


@pytest.mark.parametrize("many", [1, 600])
def test_counters_of_what_ended_stay(bench: Bench, many: int):
    keeper = bench.keeper()
    bench.put(*specs(many))
    for claim in keeper.claim(many):
        keeper.complete(claim)
    bench.clock.advance(ms=1)
    while purge(bench, 0, limit=500).more:
        pass
    (lane,) = bench.store.status().lanes
    assert (lane.completed, lane.ready, lane.running) == (many, 0, 0)


def test_a_clock_set_back_purges_nothing_early(bench: Bench):
    keeper = bench.keeper()
    bench.job()
    keeper.complete(keeper.one())
    bench.clock.jump(-86_400)
    assert purge(bench, 0, 0, 0).jobs == 0


def test_a_late_settle_of_a_purged_job_changes_nothing(bench: Bench):
    keeper, job = bench.keeper(), bench.job(max_attempts=1)
    claim = keeper.one()
    bench.clock.advance(ms=60_000)
    bench.store.recover(limit=1).result()
    bench.clock.advance(ms=1)
    assert purge(bench, 0, 0, 0).jobs == 1
    assert not keeper.complete(claim).held
    assert keeper.beat(claim.token).lost == (claim.token,)
    assert bench.store.cancel(job).result() is None
