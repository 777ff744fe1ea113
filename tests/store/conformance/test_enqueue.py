"""Accepting jobs: all or none, in order, with every field kept and capacity counted."""

from __future__ import annotations

import pytest
from tests.store.kit import Bench, ids, spec, specs

from millpond.errors import StoreError
from millpond.model import State


def test_every_field_comes_back_by_get(bench: Bench):
    given = spec(
        task="order", queue="shop", workload="user", payload=b'{"a":1}', priority=-7,
        max_attempts=2, lease_ms=5_000, timeout_ms=9_000, operation_id="op-1", key="k",
        coalesce_key="c", limit_key="l", limit=3, tenant="t7", meta=b"{}",
    )  # fmt: skip
    (answer,) = bench.store.enqueue([given]).result()
    row = bench.row(answer.job_id)
    for name in [
        "task",
        "queue",
        "workload",
        "payload",
        "priority",
        "max_attempts",
        "operation_id",
        "key",
        "coalesce_key",
        "limit_key",
        "tenant",
        "meta",
    ]:
        assert getattr(row, name) == getattr(given, name), name
    assert (answer.answer, answer.operation_id) == ("admitted", "op-1")
    assert (row.state, row.attempts, row.crashes, row.lease) == (State.READY, 0, 0, None)
    assert row.created_at == row.due_at == bench.clock.now()
    assert (row.started_at, row.finished_at, row.cancel_requested) == (None, None, False)
    assert row.payload_bytes == len(b'{"a":1}') + len(b"{}")


def test_what_a_worker_needs_comes_with_the_claim(bench: Bench):
    keeper = bench.keeper("order")
    job = bench.job(
        task="order", payload=b"p", priority=3, max_attempts=4, lease_ms=5_000, timeout_ms=9_000,
        operation_id="op-1", meta=b"m", traceparent="00-1", delay_ms=1_000,
    )  # fmt: skip
    created = bench.clock.now()
    bench.clock.advance(ms=1_500)
    claim = keeper.one()
    assert claim.token.job_id == job
    assert (claim.task, claim.queue, claim.workload) == ("order", "default", "default")
    assert (claim.payload, claim.meta, claim.traceparent) == (b"p", b"m", "00-1")
    assert (claim.priority, claim.max_attempts, claim.operation_id) == (3, 4, "op-1")
    assert (claim.lease_ms, claim.timeout_ms) == (5_000, 9_000)
    assert (claim.created_at, claim.due_at) == (created, created + 1_000)
    assert (claim.claimed_at, claim.claimed_mono) == (bench.clock.now(), bench.clock.mono())
    assert (claim.attempts, claim.crashes, claim.remembered) == (0, 0, None)


@pytest.mark.parametrize("many", [1, 2, 16, 17, 300])
def test_jobs_of_one_moment_run_in_the_order_they_were_accepted(bench: Bench, many: int):
    keeper = bench.keeper()
    jobs = bench.put(*specs(many))
    assert jobs == sorted(set(jobs))
    assert ids(keeper.claim(many + 5)) == jobs


@pytest.mark.parametrize("many", [3, 40])
def test_a_batch_is_accepted_as_a_whole_or_not_at_all(bench: Bench, many: int):
    broken = [*specs(many), spec(priority=1 << 40), *specs(many)]
    with pytest.raises((StoreError, ValueError, OverflowError)):
        bench.store.enqueue(broken).result()
    assert bench.held() == 0
    assert bench.put(*specs(2))
    assert bench.held() == 2


def test_an_empty_batch_is_answered_with_nothing(bench: Bench):
    assert bench.store.enqueue([]).result() == []


@pytest.mark.parametrize("many", [4, 40])
def test_a_batch_over_several_lanes_counts_each(bench: Bench, many: int):
    mixed = [
        spec(task=f"t{at % 3}", queue=f"q{at % 2}", workload="w" if at % 5 else "critical",
             delay_ms=1_000 * (at % 4))
        for at in range(many)
    ]  # fmt: skip
    bench.put(*mixed)
    status = bench.store.status()
    assert sum(lane.scheduled + lane.ready for lane in status.lanes) == many
    assert sum(lane.ready for lane in status.lanes) == sum(at % 4 == 0 for at in range(many))
    assert sum(jobs for jobs, _ in status.workload_jobs.values()) == many


def test_operation_ids_are_unique_unless_given(bench: Bench):
    answers = bench.store.enqueue(specs(50)).result()
    assert len({a.operation_id for a in answers}) == 50
    same = bench.store.enqueue([spec(operation_id="op"), spec(operation_id="op")]).result()
    assert [a.operation_id for a in same] == ["op", "op"]
    assert same[0].job_id != same[1].job_id


@pytest.mark.parametrize("priority", [-32_768, -1, 0, 32_767])
@pytest.mark.parametrize("due", [0, 1, 1 << 46])
def test_the_ends_of_priority_and_time_are_kept(bench: Bench, priority: int, due: int):
    row = bench.row(bench.job(priority=priority, due_at=due))
    assert (row.priority, row.due_at) == (priority, due)
    assert row.state is (State.SCHEDULED if due > bench.clock.now() else State.READY)


@pytest.mark.parametrize("priority", [-32_769, 32_768, 1 << 63])
def test_a_priority_past_the_ends_writes_nothing(bench: Bench, priority: int):
    with pytest.raises((StoreError, ValueError, OverflowError)):
        bench.job(priority=priority)
    assert bench.held() == 0


@pytest.mark.parametrize("name", ["naïve ☃ 𐍈", "a\0b", "a'b", "ü" * 300, "0", " ", "a\x1fb"])
def test_any_text_can_be_a_name_or_a_key(bench: Bench, name: str):
    keeper = bench.keeper(name)
    job = bench.job(
        task=name, queue=name, workload=name, key=name, coalesce_key=name, limit_key=name,
        limit=1, tenant=name, operation_id=name, batch=name, traceparent=name,
    )  # fmt: skip
    row = bench.row(job)
    assert {row.task, row.queue, row.workload, row.key, row.limit_key, row.tenant} == {name}
    assert bench.answer(task=name, queue=name, key=name).answer == "duplicate"
    claim = keeper.one()
    assert (claim.task, claim.queue, claim.operation_id) == (name, name, name)
    assert keeper.complete(claim, result=b"1").held
    assert bench.store.result_of(name, name) == b"1"


@pytest.mark.parametrize("field", ["task", "queue", "key", "coalesce_key", "limit_key", "tenant"])
@pytest.mark.parametrize("many", [0, 40])
def test_a_text_that_is_no_text_is_refused_and_nothing_is_written(
    bench: Bench, field: str, many: int
):
    with pytest.raises(ValueError, match="surrogate"):
        bench.put(*specs(many), spec(**{field: "a\ud800"}))
    assert sum(jobs for jobs, _ in bench.store.status().workload_jobs.values()) == 0
    assert bench.put(spec())


def test_a_payload_may_be_any_bytes_of_any_size(bench: Bench):
    keeper = bench.keeper()
    payloads = [b"", b"\0", bytes(range(256)), b"x" * 3_000_000]
    for payload in payloads:
        bench.job(payload=payload)
    assert [claim.payload for claim in keeper.claim(9)] == payloads
    assert bench.bytes() == sum(map(len, payloads))


def test_ids_are_never_given_again(bench: Bench):
    keeper, first = bench.keeper(), bench.job()
    keeper.complete(keeper.one())
    bench.clock.advance(1)
    assert bench.store.purge(completed_ms=0, failed_ms=0, cancelled_ms=0, limit=10).result().jobs
    assert bench.store.get(first) is None
    assert bench.job() > first
