"""Cancelling: a waiting job at once, a running one when its attempt ends."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, ids, spec, specs

from millpond.model import AttemptOutcome, JobId, State

OUT = AttemptOutcome


@pytest.mark.parametrize("where", ["ready", "scheduled", "blocked", "retrying", "snoozed"])
def test_a_waiting_job_is_cancelled_at_once_wherever_it_waits(bench: Bench, where: str):
    keeper = bench.keeper()
    if where == "blocked":
        other = bench.job(limit_key="k", limit=1)
        job = bench.job(limit_key="k", limit=1)
        assert ids(keeper.claim(5)) == [other]
    else:
        job = bench.job(delay_ms=5_000 if where == "scheduled" else 0, key="k")
    if where in {"retrying", "snoozed"}:
        keeper.end(keeper.one(), OUT.RETRIED if where == "retrying" else OUT.SNOOZED, delay_ms=9)
    found = State.SCHEDULED if where in {"scheduled", "retrying", "snoozed"} else State.READY
    held = bench.held()
    assert bench.store.cancel(job, by="ann", note="wrong shop").result() is found
    row = bench.row(job)
    assert (row.state, row.finished_at) == (State.CANCELLED, bench.clock.now())
    assert bench.held() == held - 1
    bench.clock.advance(60)
    assert job not in ids(keeper.claim(5))


def test_cancelling_twice_or_what_is_not_there_says_so(bench: Bench):
    job = bench.job()
    assert bench.store.cancel(job).result() is State.READY
    assert bench.store.cancel(job).result() is State.CANCELLED
    assert bench.store.cancel(JobId(999)).result() is None
    assert bench.held() == 0


@pytest.mark.parametrize("outcome", OUT)
def test_a_running_job_asked_to_stop_is_cancelled_by_every_end_but_completion(
    bench: Bench, outcome: AttemptOutcome
):
    keeper, job = bench.keeper(), bench.job(key="k")
    claim = keeper.one()
    assert bench.store.cancel(job).result() is State.RUNNING
    assert bench.row(job).cancel_requested
    assert bench.held() == 1, "capacity is freed by the end, not by the wish"
    assert bench.answer(key="k").answer == "duplicate"
    answer = keeper.end(claim, outcome, delay_ms=5)
    wanted = State.COMPLETED if outcome is OUT.COMPLETED else State.CANCELLED
    assert (answer.held, answer.state) == (True, wanted)
    assert bench.state(job) is wanted
    assert bench.held() == 0
    numbers = [number for _, number in bench.outcomes(job)]
    assert numbers == ([None] if outcome in {OUT.SNOOZED, OUT.RELEASED} else [1])
    free = bench.answer(key="k").answer
    assert free == ("duplicate" if outcome is OUT.COMPLETED else "admitted")


def test_a_running_job_whose_worker_dies_is_cancelled_by_recovery(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    keeper.one()
    bench.store.cancel(job).result()
    bench.clock.advance(ms=LEASE_MS)
    assert bench.store.recover(limit=5).result().cancelled == 1
    assert bench.state(job) is State.CANCELLED
    assert bench.outcomes(job) == [("lease_lost", 1)]


def test_the_wish_to_cancel_survives_until_the_end_only(bench: Bench):
    keeper = bench.keeper()
    first, second = bench.put(*specs(2))
    one, two = keeper.claim(2)
    bench.store.cancel(first).result()
    keeper.end(two, OUT.RETRIED)
    assert not bench.row(second).cancel_requested
    keeper.complete(one)
    assert not bench.row(first).cancel_requested


def test_a_cancelled_job_frees_the_place_it_was_woken_for(bench: Bench):
    """A job that was brought back for a free place and is cancelled must hand the place on."""
    keeper = bench.keeper()
    running, woken, next_one = bench.put(*specs(3, limit_key="k", limit=1))
    claim = keeper.one()
    assert keeper.claim(5) == []
    keeper.complete(claim)
    bench.store.cancel(woken).result()
    assert ids(keeper.claim(5)) == [next_one]
    assert bench.state(running) is State.COMPLETED


def test_a_cancelled_waiting_job_lets_another_take_its_coalesce_key(bench: Bench):
    first = bench.answer(coalesce_key="c")
    bench.store.cancel(first.job_id).result()
    assert bench.answer(coalesce_key="c").answer == "admitted"


@pytest.mark.parametrize("many", [0, 3])
def test_bytes_and_tenants_are_freed_as_well(bench: Bench, many: int):
    bench.put(*specs(many, payload=b"12", tenant="t"))
    job = bench.job(payload=b"12345", meta=b"67", tenant="t")
    assert bench.bytes() == 2 * many + 7
    bench.store.cancel(job).result()
    assert bench.bytes() == 2 * many


def test_history_of_a_cancelled_job_stays(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    keeper.end(keeper.one(), OUT.RETRIED, delay_ms=10, error_type="E", message="m")
    bench.store.cancel(job).result()
    assert bench.outcomes(job) == [("retried", 1)]
    assert bench.row(job).attempts == 1


def test_a_spec_with_everything_can_be_cancelled(bench: Bench):
    everything = spec(
        key="k", coalesce_key="c", limit_key="l", limit=1, tenant="t", meta=b"m", delay_ms=3,
        operation_id="o", workload="critical",
    )  # fmt: skip
    (job,) = bench.put(everything)
    bench.store.cancel(job, by="ann").result()
    (again,) = bench.put(everything)
    assert bench.state(again) is State.SCHEDULED
