"""Claiming: the right jobs, in order, each to one worker, under the limits of its places."""

from __future__ import annotations

import pytest
from tests.store.kit import Bench, ids, spec, specs

from millpond.config import QueueSettings, TaskSettings, WorkloadSettings
from millpond.model import AttemptOutcome, State, Want, WorkerId


def test_a_claimed_job_is_running_under_a_fresh_token(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    row = bench.row(job)
    assert (row.state, row.attempts, row.started_at) == (State.RUNNING, 1, bench.clock.now())
    assert row.lease is not None
    assert (row.lease.worker, row.lease.claim) == (keeper.id, claim.token.claim)
    assert row.lease.expires_at == bench.clock.now() + 60_000
    assert row.lease.owner == "host:1"


def test_nothing_is_claimed_twice(bench: Bench):
    one, two = bench.keeper(), bench.keeper()
    jobs = bench.put(*specs(7))
    taken = ids(one.claim(3)) + ids(two.claim(3)) + ids(one.claim(9))
    assert taken == jobs
    assert two.claim(9) == []


def test_claim_numbers_only_grow(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(9))
    seen = [c.token.claim for _ in range(3) for c in keeper.claim(3)]
    assert seen == sorted(set(seen))


def test_a_critical_job_is_next_behind_thousands_of_others(bench: Bench):
    keeper = bench.keeper("routine", "report", "alarm")
    bench.put(*specs(5_000, task="routine"), *specs(200, task="report", priority=50))
    alarm = bench.job(task="alarm", priority=10)
    assert ids(keeper.claim()) == [alarm]


def test_order_is_priority_then_due_then_id_over_all_lanes_of_a_queue(bench: Bench):
    tasks = ("a", "b", "c")
    keeper = bench.keeper(*tasks)
    wanted = []
    for at in range(60):
        priority, delay = (at * 7) % 5, (at * 11) % 13
        ident = bench.job(
            task=tasks[at % 3], workload="w" if at % 2 else "v", priority=priority, delay_ms=delay
        )
        wanted.append((priority, delay, ident))
    bench.clock.advance(ms=100)
    taken = [job for _ in range(9) for job in ids(keeper.claim(7))]
    assert taken == [ident for _, _, ident in sorted(wanted)]


def test_ageing_lets_a_waiting_job_pass_after_its_bound(bench: Bench):
    bench.store.put_queue(QueueSettings("default", order="ageing", ageing_ms=1_000)).result()
    keeper = bench.keeper()
    low = bench.job(priority=103)
    bench.clock.advance(ms=2_999)
    high = bench.job(priority=100)
    bench.clock.advance(ms=2)
    late = bench.job(priority=100)
    assert ids(keeper.claim(3)) == [high, low, late]


def test_a_worker_gets_only_its_tasks(bench: Bench):
    keeper = bench.keeper("mine")
    bench.put(*specs(3, task="other", priority=1))
    mine = bench.job(task="mine")
    assert ids(keeper.claim(9)) == [mine]


def test_wants_bound_queue_and_workload(bench: Bench):
    keeper = bench.keeper()
    for queue in ("a", "b"):
        for workload in ("v", "w"):
            bench.put(*specs(3, queue=queue, workload=workload))
    got = keeper.claim(99, Want(2, "a", "v"), Want(1, "b"))
    places = [(c.queue, c.workload) for c in got]
    assert sorted(places) == [("a", "v"), ("a", "v"), ("b", "v")]
    assert len(keeper.claim(99, Want(99, "b", "w"))) == 3
    assert keeper.claim(99, Want(5, "c")) == []


def test_the_most_specific_want_is_used_first(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2, workload="v"), *specs(2, workload="w"))
    got = keeper.claim(9, Want(1), Want(1, "default", "v"), Want(1, "default"))
    assert sorted(c.workload for c in got) == ["v", "v", "w"]


@pytest.mark.parametrize("limit", [0, -1])
def test_no_more_than_the_limit_is_taken(bench: Bench, limit: int):
    keeper = bench.keeper()
    bench.put(*specs(3))
    assert keeper.claim(limit, Want(5)) == []
    assert len(keeper.claim(2, Want(5))) == 2
    assert keeper.claim(5, Want(0)) == []


def test_critical_lanes_of_all_queues_go_first(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3, queue="a", priority=-5), *specs(3, queue="b", priority=-5))
    first = bench.job(queue="b", workload="critical", priority=200)
    second = bench.job(queue="a", workload="critical", priority=200)
    assert set(ids(keeper.claim(2))) == {first, second}


def test_a_workload_is_strict_because_it_was_declared_so(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3, priority=-5), *specs(2, workload="critical", priority=200))
    urgent = bench.job(workload="vip", priority=200)
    workloads = (WorkloadSettings("vip", strict=True), WorkloadSettings("critical", strict=False))
    bench.store.put_queue(QueueSettings("default", workloads=workloads)).result()
    assert ids(keeper.claim()) == [urgent]
    assert keeper.one().workload == "default"


def test_queues_are_served_in_turn_by_a_claim_of_many(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(50, queue="long"), *specs(3, queue="short"))
    assert sorted(c.queue for c in keeper.claim(6)) == ["long"] * 3 + ["short"] * 3


def test_queues_are_served_in_turn_by_claims_of_one(bench: Bench):
    """A worker with a single slot must not serve the same queue for ever."""
    keeper = bench.keeper()
    bench.put(*specs(20, queue="long"), *specs(20, queue="other"))
    served = [keeper.one().queue for _ in range(10)]
    assert served.count("long") == served.count("other") == 5


def test_a_queue_never_runs_more_than_it_may(bench: Bench):
    bench.store.put_queue(QueueSettings("narrow", running=2)).result()
    one, two = bench.keeper(), bench.keeper()
    bench.put(*specs(5, queue="narrow"), *specs(2, queue="wide"))
    got = one.claim(9)
    assert sorted(c.queue for c in got) == ["narrow"] * 2 + ["wide"] * 2
    assert two.claim(9) == []
    one.complete(next(c for c in got if c.queue == "narrow"))
    assert [c.queue for c in two.claim(9)] == ["narrow"]


def test_a_workload_never_runs_more_than_it_may(bench: Bench):
    workloads = (WorkloadSettings("w", running=1),)
    bench.store.put_queue(QueueSettings("default", running=3, workloads=workloads)).result()
    keeper = bench.keeper("a", "b")
    bench.put(
        *specs(4, task="a", workload="w"), *specs(4, task="b", workload="w"), *specs(9, task="a")
    )
    assert sorted(c.workload for c in keeper.claim(9)) == ["default", "default", "w"]


def test_a_task_runs_no_more_than_it_may_in_all_queues_together(bench: Bench):
    bench.store.put_tasks([TaskSettings("mail", running=2), TaskSettings("other")]).result()
    bench.put(*specs(3), *specs(3, queue="second"), spec(task="other"))
    keeper = bench.keeper("mail", "other")
    first = keeper.claim(9)
    assert sorted(claim.task for claim in first) == ["mail", "mail", "other"]
    assert keeper.claim(9) == []
    keeper.complete(next(claim for claim in first if claim.task == "mail"))
    assert len(keeper.claim(9)) == 1


def test_running_limits_count_lanes_of_later_attempts_too(bench: Bench):
    bench.store.put_queue(QueueSettings("default", running=1)).result()
    keeper = bench.keeper()
    bench.put(*specs(2))
    keeper.end(keeper.one(), AttemptOutcome.RETRIED)
    assert len(keeper.claim(9)) == 1
    assert keeper.claim(9) == []


@pytest.mark.parametrize("lanes", [1, 3, 64])
@pytest.mark.parametrize("size", [1, 5, 300])
def test_any_size_of_claim_over_any_number_of_lanes_takes_all_in_order(
    bench: Bench, lanes: int, size: int
):
    keeper = bench.keeper(*[f"t{at}" for at in range(lanes)])
    jobs = bench.put(*[spec(task=f"t{at % lanes}", priority=at % 3) for at in range(300)])
    order = sorted(range(300), key=lambda at: (at % 3, at))
    taken = []
    while got := keeper.claim(size):
        taken += ids(got)
    assert taken == [jobs[at] for at in order]


def test_a_worker_that_is_not_registered_gets_nothing(bench: Bench):
    """Its row is gone after a long sleep: what it took would never be given back."""
    keeper, job = bench.keeper(), bench.job()
    bench.store.unregister(keeper.id).result()
    for worker in (keeper.id, WorkerId(999)):
        assert bench.store.claim(worker, [Want(1)], ["mail"], 1).result().claims == []
    assert bench.state(job) is State.READY
    assert bench.keeper().one().token.job_id == job
