"""Keys: the same request is one job, while it is outstanding and for a while after it completed."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, ids, spec, specs

from millpond.model import AttemptOutcome, State

OUT = AttemptOutcome
DAY_MS = 86_400_000


def test_the_same_key_is_the_same_job_in_every_waiting_and_running_state(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k", delay_ms=10)
    for _ in range(2):
        again = bench.answer(key="k")
        assert (again.answer, again.job_id) == ("duplicate", first.job_id)
        assert again.operation_id == first.operation_id
    bench.clock.advance(ms=10)
    assert bench.answer(key="k").job_id == first.job_id
    claim = keeper.one()
    assert bench.answer(key="k").answer == "duplicate"
    keeper.end(claim, OUT.RETRIED, delay_ms=5)
    assert bench.answer(key="k").answer == "duplicate"
    bench.clock.advance(ms=5)
    keeper.one()
    bench.clock.advance(ms=LEASE_MS)
    bench.store.recover(limit=5).result()
    assert bench.answer(key="k").job_id == first.job_id
    assert bench.held() == 1


def test_after_completion_the_key_holds_for_its_window(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k", key_ttl_ms=5_000)
    keeper.complete(keeper.one())
    bench.clock.advance(ms=4_999)
    assert bench.answer(key="k").job_id == first.job_id
    bench.clock.advance(ms=1)
    assert bench.answer(key="k").answer == "admitted"


def test_the_default_window_is_a_day_from_completion(bench: Bench):
    keeper = bench.keeper()
    bench.answer(key="k", delay_ms=DAY_MS)
    bench.clock.advance(ms=DAY_MS)
    keeper.complete(keeper.one())
    bench.clock.advance(ms=DAY_MS - 1)
    assert bench.answer(key="k").answer == "duplicate"
    bench.clock.advance(ms=1)
    assert bench.answer(key="k").answer == "admitted"


@pytest.mark.parametrize("end", ["failed", "cancelled", "dead"])
def test_failed_and_cancelled_jobs_free_the_key_at_once(bench: Bench, end: str):
    keeper = bench.keeper()
    first = bench.answer(key="k", max_attempts=1)
    claim = keeper.one()
    if end == "failed":
        keeper.end(claim, OUT.FAILED)
    elif end == "cancelled":
        bench.store.cancel(first.job_id).result()
        keeper.end(claim, OUT.RETRIED)
    else:
        bench.clock.advance(ms=LEASE_MS)
        bench.store.recover(limit=5).result()
    second = bench.answer(key="k")
    assert (second.answer, second.job_id != first.job_id) == ("admitted", True)


@pytest.mark.parametrize("other", [{"queue": "q2"}, {"task": "t2"}, {"key": "K"}])
def test_the_scope_of_a_key_is_queue_and_task(bench: Bench, other: dict[str, str]):
    first = bench.answer(key="k")
    second = bench.answer(**{"key": "k"} | other)
    assert (second.answer, second.job_id != first.job_id) == ("admitted", True)


def test_another_workload_is_the_same_scope(bench: Bench):
    first = bench.answer(key="k")
    assert bench.answer(key="k", workload="critical").job_id == first.job_id


@pytest.mark.parametrize("many", [2, 40])
def test_the_same_key_twice_in_a_batch_is_one_job(bench: Bench, many: int):
    answers = bench.store.enqueue(specs(many, key="k")).result()
    assert [a.answer for a in answers] == ["admitted"] + ["duplicate"] * (many - 1)
    assert {a.job_id for a in answers} == {answers[0].job_id}
    assert bench.held() == 1


def test_a_duplicate_changes_neither_payload_nor_counters(bench: Bench):
    first = bench.answer(key="k", payload=b"old")
    bench.answer(key="k", payload=b"newer", priority=1, limit_key="l", limit=1, tenant="t")
    row = bench.row(first.job_id)
    assert (row.payload, row.priority) == (b"old", 100)
    assert (bench.held(), bench.bytes()) == (1, 3)


def test_a_second_holder_does_not_lose_the_key_to_the_first_ones_end(bench: Bench):
    """The window of the first ended while it was waiting for nothing: the key is the second's."""
    keeper = bench.keeper()
    first = bench.answer(key="k", key_ttl_ms=10)
    keeper.complete(keeper.one())
    bench.clock.advance(ms=10)
    second = bench.answer(key="k")
    assert second.answer == "admitted"
    bench.clock.advance(1)
    bench.store.purge(completed_ms=0, failed_ms=0, cancelled_ms=0, limit=10).result()
    assert bench.store.get(first.job_id) is None
    assert bench.answer(key="k").job_id == second.job_id


def test_a_purged_job_still_answers_for_its_window(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k", operation_id="op", key_ttl_ms=100_000)
    keeper.complete(keeper.one())
    bench.clock.advance(1)
    bench.store.purge(completed_ms=0, failed_ms=0, cancelled_ms=0, limit=10).result()
    again = bench.answer(key="k")
    assert (again.answer, again.job_id, again.operation_id) == ("duplicate", first.job_id, "op")


def test_the_purge_of_keys_leaves_those_that_hold(bench: Bench):
    keeper = bench.keeper()
    bench.put(spec(key="a", key_ttl_ms=10), spec(key="b", key_ttl_ms=10_000), spec(key="c"))
    for claim in keeper.claim(2):
        keeper.complete(claim)
    bench.clock.advance(ms=11)
    purged = bench.store.purge(completed_ms=DAY_MS, failed_ms=DAY_MS, cancelled_ms=DAY_MS, limit=9)
    assert purged.result().jobs == 0
    assert [bench.answer(key=key).answer for key in "abc"] == ["admitted", "duplicate", "duplicate"]


def test_a_window_of_nothing_frees_the_key_with_completion(bench: Bench):
    keeper = bench.keeper()
    bench.answer(key="k", key_ttl_ms=0)
    keeper.complete(keeper.one())
    assert bench.answer(key="k").answer == "admitted"


def test_key_and_coalesce_key_together_stay_one_job_for_a_repeated_request(bench: Bench):
    """A request that was merged and is sent again is still the request that was merged."""
    keeper = bench.keeper()
    bench.answer(coalesce_key="dash")
    merged = bench.answer(coalesce_key="dash", key="req-1", payload=b"2")
    assert merged.answer == "coalesced"
    claim = keeper.one()
    again = bench.answer(coalesce_key="dash", key="req-1", payload=b"2")
    assert (again.job_id, again.answer) == (merged.job_id, "duplicate")
    keeper.complete(claim)
    assert bench.answer(coalesce_key="dash", key="req-1").answer == "duplicate"


def test_claims_run_each_job_of_a_key_once(bench: Bench):
    keeper = bench.keeper()
    jobs = {bench.answer(key=f"k{at % 5}").job_id for at in range(50)}
    assert set(ids(keeper.claim(99))) == jobs
    assert all(bench.state(job) is State.RUNNING for job in jobs)
