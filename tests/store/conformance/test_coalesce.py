"""Coalescing: while one job of a key waits, further requests join it."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, ids, spec, specs

from millpond.model import AttemptOutcome, State

OUT = AttemptOutcome


@pytest.mark.parametrize("mode", ["first", "latest"])
def test_a_hundred_requests_while_one_waits_are_one_job(bench: Bench, mode: str):
    keeper = bench.keeper()
    answers = [
        bench.answer(coalesce_key="dash", coalesce=mode, payload=b"%03d" % at) for at in range(100)
    ]
    assert [a.answer for a in answers] == ["admitted"] + ["coalesced"] * 99
    assert len({(a.job_id, a.operation_id) for a in answers}) == 1
    assert (bench.held(), bench.bytes()) == (1, 3)
    assert keeper.one().payload == (b"000" if mode == "first" else b"099")


@pytest.mark.parametrize("size", [0, 1, 5, 500])
@pytest.mark.parametrize("tenant", [None, "t7"])
def test_a_replaced_payload_moves_the_bytes_by_the_difference(
    bench: Bench, size: int, tenant: str | None
):
    keeper = bench.keeper()
    bench.answer(coalesce_key="c", payload=b"12345", meta=b"m", tenant=tenant)
    again = bench.answer(coalesce_key="c", payload=b"x" * size, tenant=tenant)
    assert bench.bytes() == size
    assert bench.row(again.job_id).payload_bytes == size
    assert bench.store.drift() == []
    claim = keeper.one()
    assert (claim.payload, claim.meta) == (b"x" * size, None)
    assert keeper.complete(claim).held
    assert (bench.held(), bench.bytes()) == (0, 0)


def test_a_running_job_takes_nobody_in(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(coalesce_key="c")
    keeper.one()
    second = bench.answer(coalesce_key="c")
    assert (second.answer, second.job_id != first.job_id) == ("admitted", True)
    assert bench.answer(coalesce_key="c").job_id == second.job_id


@pytest.mark.parametrize("end", ["retry", "snooze", "release", "lost"])
def test_a_job_that_waits_again_takes_in_what_comes(bench: Bench, end: str):
    keeper = bench.keeper()
    first = bench.answer(coalesce_key="c", payload=b"old")
    claim = keeper.one()
    if end == "lost":
        bench.clock.advance(ms=LEASE_MS)
        bench.store.recover(limit=5).result()
    else:
        outcome = {"retry": OUT.RETRIED, "snooze": OUT.SNOOZED, "release": OUT.RELEASED}[end]
        keeper.end(claim, outcome, delay_ms=500)
    again = bench.answer(coalesce_key="c", payload=b"newer", delay_ms=900)
    assert (again.answer, again.job_id) == ("coalesced", first.job_id)
    bench.clock.advance(60)
    assert keeper.one().payload == b"newer"


def test_a_job_that_waits_again_beside_another_of_its_key_stays_apart(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(coalesce_key="c", payload=b"1")
    claim = keeper.one()
    second = bench.answer(coalesce_key="c", payload=b"2")
    keeper.end(claim, OUT.RETRIED)
    third = bench.answer(coalesce_key="c", payload=b"3")
    assert third.job_id == second.job_id
    assert bench.row(first.job_id).payload == b"1"
    bench.store.cancel(first.job_id).result()
    assert bench.answer(coalesce_key="c").job_id == second.job_id


@pytest.mark.parametrize("other", [{"queue": "q2"}, {"task": "t2"}, {"coalesce_key": "C"}])
def test_the_scope_is_queue_and_task(bench: Bench, other: dict[str, str]):
    bench.answer(coalesce_key="c")
    assert bench.answer(**{"coalesce_key": "c"} | other).answer == "admitted"


def test_a_request_from_another_workload_joins_and_is_counted_where_the_job_is(bench: Bench):
    bench.answer(coalesce_key="c", payload=b"1")
    again = bench.answer(coalesce_key="c", payload=b"22", workload="critical")
    assert again.answer == "coalesced"
    assert (bench.bytes(), bench.held("critical")) == (2, 0)


@pytest.mark.parametrize("many", [3, 40])
@pytest.mark.parametrize("mode", ["first", "latest"])
def test_requests_of_one_batch_are_combined_too(bench: Bench, many: int, mode: str):
    keeper = bench.keeper()
    wanted = [
        spec(coalesce_key=f"c{at % 2}", coalesce=mode, payload=b"%02d" % at) for at in range(many)
    ]
    answers = bench.store.enqueue([*wanted, *specs(many)]).result()
    assert [a.answer for a in answers] == (
        ["admitted"] * 2 + ["coalesced"] * (many - 2) + ["admitted"] * many
    )
    assert bench.held() == 2 + many
    first = (b"00", b"01") if mode == "first" else (b"%02d" % (many - 2), b"%02d" % (many - 1))
    assert sorted(c.payload for c in keeper.claim(2)) == sorted(first)


def test_a_request_for_now_does_not_wait_for_a_later_one(bench: Bench):
    keeper = bench.keeper()
    later = bench.answer(coalesce_key="c", delay_ms=60_000)
    now = bench.answer(coalesce_key="c", payload=b"now")
    assert now.job_id == later.job_id
    assert bench.state(now.job_id) is State.READY
    claim = keeper.one()
    assert (claim.payload, claim.due_at) == (b"now", bench.clock.now())
    assert keeper.end(claim, OUT.RELEASED).state is State.READY
    assert bench.row(now.job_id).due_at == bench.clock.now()


def test_of_two_due_times_the_earlier_one_holds(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(coalesce_key="c", delay_ms=60_000)
    bench.answer(coalesce_key="c", delay_ms=10_000)
    bench.answer(coalesce_key="c", delay_ms=30_000)
    assert bench.row(first.job_id).due_at == bench.clock.now() + 10_000
    bench.clock.advance(ms=9_999)
    assert keeper.claim() == []
    bench.clock.advance(ms=1)
    assert keeper.one().token.job_id == first.job_id


def test_a_job_that_became_due_earlier_is_ranked_by_it(bench: Bench):
    keeper = bench.keeper()
    moved = bench.answer(coalesce_key="c", delay_ms=60_000)
    bench.answer(coalesce_key="c")
    bench.clock.advance(ms=5)
    later = bench.job()
    assert ids(keeper.claim(2)) == [moved.job_id, later]


def test_a_retry_that_became_due_earlier_keeps_its_attempts(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(coalesce_key="c")
    keeper.end(keeper.one(), OUT.RETRIED, delay_ms=60_000)
    bench.answer(coalesce_key="c")
    bench.answer(coalesce_key="c", delay_ms=30)
    claim = keeper.one()
    assert (claim.token.job_id, claim.attempts) == (first.job_id, 1)


@pytest.mark.parametrize("asked", [0, 10_000])
def test_a_job_moved_forward_can_be_cancelled_snoozed_and_found(bench: Bench, asked: int):
    keeper = bench.keeper()
    job = bench.answer(coalesce_key="c", delay_ms=60_000).job_id
    bench.answer(coalesce_key="c", delay_ms=asked)
    assert bench.store.verify() == []
    if asked:
        assert bench.store.cancel(job).result() is State.SCHEDULED
    else:
        keeper.end(keeper.one(), OUT.SNOOZED, delay_ms=7)
        assert bench.store.cancel(job).result() is State.SCHEDULED


def test_keep_first_leaves_payload_and_due_time_alone(bench: Bench):
    job = bench.answer(coalesce_key="c", coalesce="first", payload=b"1", delay_ms=9_000).job_id
    due = bench.row(job).due_at
    assert bench.answer(coalesce_key="c", coalesce="first", payload=b"22").answer == "coalesced"
    assert (bench.row(job).payload, bench.row(job).due_at) == (b"1", due)
    assert bench.bytes() == 1


def test_a_blocked_job_takes_in_what_comes(bench: Bench):
    keeper = bench.keeper()
    bench.job(limit_key="l", limit=1)
    claim = keeper.one()
    waiting = bench.answer(coalesce_key="c", limit_key="l", limit=1, payload=b"1")
    assert keeper.claim() == []
    assert bench.row(waiting.job_id).blocked_by == "limit l"
    again = bench.answer(coalesce_key="c", limit_key="l", limit=1, payload=b"22")
    assert again.job_id == waiting.job_id
    keeper.complete(claim)
    assert keeper.one().payload == b"22"


@pytest.mark.parametrize("end", ["failed", "cancelled"])
def test_a_final_job_takes_nobody_in(bench: Bench, end: str):
    keeper = bench.keeper()
    first = bench.answer(coalesce_key="c")
    if end == "failed":
        keeper.end(keeper.one(), OUT.FAILED)
    else:
        bench.store.cancel(first.job_id).result()
    assert bench.answer(coalesce_key="c").answer == "admitted"
