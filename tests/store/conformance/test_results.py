"""Results, remembered values, progress: under the lease, by operation, for as long as promised."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, spec, specs

from millpond.model import AttemptOutcome, Settlement

OUT = AttemptOutcome
PURGE = {"completed_ms": 0, "failed_ms": 0, "cancelled_ms": 0, "limit": 100}


def test_a_result_is_found_by_operation_and_with_the_job(bench: Bench):
    keeper = bench.keeper()
    job = bench.job(operation_id="op")
    assert bench.store.result_of("op") is None
    keeper.complete(keeper.one(), result=b"\x00\xff")
    assert bench.store.result_of("op") == b"\x00\xff"
    assert bench.store.result_of("op", "mail") == b"\x00\xff"
    assert bench.store.result_of("op", "other") is None
    assert bench.row(job).result == b"\x00\xff"
    assert bench.store.get(job, payload=False).result is None  # type: ignore[union-attr]


def test_results_of_many_that_end_at_once_are_each_their_own(bench: Bench):
    """Plain ones and such with keys, limits and tenants, in one settle."""
    keeper = bench.keeper()
    more: list[dict[str, object]] = [
        {},
        {"key": "k"},
        {"tenant": "t"},
        {"limit_key": "l", "limit": 50},
    ]
    jobs = bench.put(*[spec(operation_id=f"op-{at}", **_own(more[at % 4], at)) for at in range(60)])
    claims = keeper.claim(60)
    ends = [
        Settlement(
            claim.token, OUT.COMPLETED, started_at=1, ended_at=2,
            result=None if at % 3 == 0 else b"%d" % at,
        )
        for at, claim in enumerate(claims)
    ]  # fmt: skip
    assert all(answer.held for answer in keeper.settle(*ends))
    for at, job in enumerate(jobs):
        wanted = None if at % 3 == 0 else b"%d" % at
        assert bench.store.result_of(f"op-{at}") == bench.row(job).result == wanted
        assert bench.outcomes(job) == [("completed", 1)]
    assert (bench.held(), bench.bytes()) == (0, 0)


def _own(given: dict[str, object], at: int) -> dict[str, object]:
    return {name: f"k{at}" if name == "key" else value for name, value in given.items()}


def test_an_empty_result_is_a_result(bench: Bench):
    keeper = bench.keeper()
    bench.job(operation_id="op")
    keeper.complete(keeper.one(), result=b"")
    assert bench.store.result_of("op") == b""


def test_only_a_completed_job_keeps_a_result(bench: Bench):
    keeper = bench.keeper()
    bench.job(operation_id="op", max_attempts=99)
    for outcome in (OUT.RETRIED, OUT.SNOOZED, OUT.TIMED_OUT, OUT.RELEASED, OUT.FAILED):
        keeper.end(keeper.one(), outcome, result=b"1")
    assert bench.store.result_of("op") is None


def test_the_newest_result_of_an_operation_wins(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2, operation_id="op"))
    first, second = keeper.claim(2)
    keeper.complete(second, result=b"2")
    keeper.complete(first, result=b"1")
    assert bench.store.result_of("op") == b"2"


def test_a_result_lives_for_its_window_whatever_becomes_of_the_job(bench: Bench):
    keeper = bench.keeper()
    job = bench.job(operation_id="op")
    keeper.complete(keeper.one(), result=b"1", result_ttl_ms=5_000)
    bench.clock.advance(ms=4_999)
    assert bench.store.purge(**PURGE).result().jobs == 1
    assert bench.store.get(job) is None
    assert bench.store.result_of("op") == b"1"
    bench.clock.advance(ms=1)
    assert bench.store.result_of("op") is None
    bench.store.purge(**PURGE).result()


def test_a_remembered_value_comes_with_the_next_attempt(bench: Bench):
    keeper = bench.keeper()
    bench.job(operation_id="op")
    claim = keeper.one()
    assert claim.remembered is None
    assert bench.store.remember(keeper.id, claim.token, b"half").result()
    assert bench.store.remember(keeper.id, claim.token, b"more").result()
    keeper.end(claim, OUT.RETRIED)
    assert keeper.one().remembered == b"more"


def test_values_are_remembered_by_operation_and_task(bench: Bench):
    keeper = bench.keeper("a", "b")
    bench.put(spec(task="a", operation_id="op"))
    first = keeper.one()
    bench.store.remember(keeper.id, first.token, b"1").result()
    bench.put(spec(task="a", operation_id="op"), spec(task="b", operation_id="op"))
    second, third = keeper.claim(2)
    assert (second.remembered, third.remembered) == (b"1", None)


@pytest.mark.parametrize("why", ["expired", "settled", "thief", "older claim"])
def test_only_the_holder_of_an_unexpired_lease_can_remember_and_report(bench: Bench, why: str):
    keeper, thief = bench.keeper(), bench.keeper()
    job = bench.job(operation_id="op")
    claim, who = keeper.one(), keeper.id
    if why == "expired":
        bench.clock.advance(ms=LEASE_MS)
    elif why == "settled":
        keeper.complete(claim)
    elif why == "thief":
        who = thief.id
    else:
        keeper.end(claim, OUT.RELEASED)
        keeper.one()
    assert not bench.store.remember(who, claim.token, b"1").result()
    bench.store.progress(who, [(claim.token, b"50 %")]).result()
    assert bench.row(job).progress is None
    bench.job(operation_id="op")
    assert all(again.remembered is None for again in thief.claim(9))


def test_a_remembered_value_goes_with_the_last_job_of_its_operation(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2, operation_id="op"))
    first, second = keeper.claim(2)
    bench.store.remember(keeper.id, first.token, b"1").result()
    keeper.complete(first)
    bench.clock.advance(ms=1)
    assert bench.store.purge(**PURGE).result().jobs == 1
    keeper.end(second, OUT.RETRIED)
    again = keeper.one()
    assert again.remembered == b"1"
    keeper.complete(again)
    bench.clock.advance(ms=1)
    assert bench.store.purge(**PURGE).result().jobs == 1
    bench.job(operation_id="op")
    assert keeper.one().remembered is None


def test_progress_keeps_the_latest_value_of_every_job(bench: Bench):
    keeper = bench.keeper()
    a, b = bench.put(*specs(2))
    one, two = keeper.claim(2)
    bench.store.progress(keeper.id, [(one.token, b"1"), (two.token, b"2")]).result()
    bench.store.progress(keeper.id, [(one.token, b"3"), (one.token, b"4")]).result()
    bench.store.progress(keeper.id, []).result()
    assert (bench.row(a).progress, bench.row(b).progress) == (b"4", b"2")


@pytest.mark.parametrize("outcome", OUT)
def test_progress_ends_with_the_attempt(bench: Bench, outcome: AttemptOutcome):
    keeper = bench.keeper()
    jobs = bench.put(*specs(12))
    claims = keeper.claim(12)
    bench.store.progress(keeper.id, [(claim.token, b"1") for claim in claims]).result()
    for claim in claims:
        keeper.end(claim, outcome)
    assert {bench.row(job).progress for job in jobs} == {None}
