"""Due times: honoured to the millisecond, in one line with what is due now."""

from __future__ import annotations

import pytest
from tests.store.kit import Bench, ids, spec, specs

from millpond.model import State


def test_a_job_is_ready_at_its_millisecond_and_not_before(bench: Bench):
    keeper, job = bench.keeper(), bench.job(delay_ms=10_000)
    assert (bench.state(job), bench.row(job).attempts) == (State.SCHEDULED, 0)
    assert bench.row(job).lease is None
    bench.clock.advance(ms=9_999)
    batch = keeper.batch()
    assert (batch.claims, batch.next_due_at) == ([], bench.row(job).due_at)
    bench.clock.advance(ms=1)
    assert keeper.one().token.job_id == job
    assert bench.store.next_due() is None


def test_moment_and_delay_mean_the_same(bench: Bench):
    late = bench.job(due_at=bench.clock.now() + 1_000)
    later = bench.job(delay_ms=1_001)
    assert bench.row(later).due_at - bench.row(late).due_at == 1
    past = bench.job(due_at=bench.clock.now() - 1)
    assert bench.state(past) is State.READY


def test_within_one_priority_the_earlier_due_goes_first_whenever_it_came(bench: Bench):
    keeper = bench.keeper()
    late = bench.job(delay_ms=2_000)
    early = bench.job(delay_ms=1_000)
    bench.clock.advance(ms=3_000)
    now = bench.job()
    assert ids(keeper.claim(3)) == [early, late, now]


def test_many_due_at_once_are_promoted_in_bounded_steps_until_none_is_left(bench: Bench):
    keeper = bench.keeper()
    jobs = bench.put(*specs(1_200, delay_ms=1))
    bench.clock.advance(ms=1)
    taken, rounds, more = [], 0, True
    while more:
        batch = keeper.batch(1)
        taken += ids(batch.claims)
        more, rounds = batch.more, rounds + 1
        assert rounds < 10
    assert taken == jobs[:rounds]
    status = bench.store.status()
    assert sum(lane.scheduled for lane in status.lanes) == 0
    assert ids(keeper.claim(1_200)) == jobs[rounds:]


@pytest.mark.parametrize("many", [1, 3, 30])
def test_promotion_over_many_lanes_keeps_count(bench: Bench, many: int):
    keeper = bench.keeper(*[f"t{at}" for at in range(many)])
    bench.put(*[spec(task=f"t{at}", delay_ms=at + 1) for at in range(many)])
    bench.clock.advance(ms=many)
    assert len(keeper.claim(many)) == many


def test_the_next_due_time_is_told_even_when_nothing_else_is(bench: Bench):
    keeper = bench.keeper()
    due = bench.clock.now() + 5_000
    bench.job(due_at=due)
    assert keeper.batch().next_due_at == due
    assert bench.store.next_due() == due
    assert bench.store.status().next_due_at == due


def test_a_wall_clock_that_jumps_ahead_makes_jobs_due_and_back_delays_them(bench: Bench):
    keeper, job = bench.keeper(), bench.job(delay_ms=60_000)
    bench.clock.jump(-3_600)
    bench.clock.advance(120)
    assert keeper.claim() == []
    bench.clock.jump(3_600)
    assert keeper.one().token.job_id == job


def test_jobs_of_a_task_nobody_serves_do_not_delay_the_promotion_of_others(bench: Bench):
    keeper = bench.keeper("mine")
    bench.put(*specs(20, task="other", delay_ms=1))
    mine = bench.job(task="mine", delay_ms=2)
    bench.clock.advance(ms=2)
    assert ids(keeper.claim()) == [mine]


def test_claimable_sees_ready_and_due_jobs_of_the_tasks_asked(bench: Bench):
    assert not bench.store.claimable(["mine"])
    bench.job(task="other")
    assert not bench.store.claimable(["mine"])
    bench.job(task="mine", delay_ms=1_000)
    assert not bench.store.claimable(["mine"])
    bench.clock.advance(ms=1_000)
    assert bench.store.claimable(["mine"])
