"""Limits on running jobs of one key or tenant: never exceeded, and never a place left empty."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, Keeper, ids, spec, specs

from millpond.model import AttemptOutcome, State, Token, Want

OUT = AttemptOutcome


def drain(keeper: Keeper, limit: int = 50) -> list[int]:
    """Claim until the store says that nothing is left to do."""
    taken: list[int] = []
    for _ in range(100):
        batch = keeper.batch(limit)
        taken += ids(batch.claims)
        if not batch.claims and not batch.more:
            return taken
    raise AssertionError("the claims never came to an end")


def test_only_so_many_of_a_key_run_and_the_next_starts_when_one_ends(bench: Bench):
    keeper = bench.keeper()
    jobs = bench.put(*specs(6, limit_key="shop", limit=2))
    assert drain(keeper) == jobs[:2]
    assert [bench.row(job).blocked_by for job in jobs[2:]] == ["limit shop"] * 4
    assert all(bench.state(job) is State.READY for job in jobs[2:])
    running = {}
    for claim_id in jobs[:2]:
        lease = bench.row(claim_id).lease
        assert lease is not None
        running[claim_id] = lease.claim
    for at, job in enumerate(jobs[:4]):
        row = bench.row(job)
        assert row.lease is not None
        keeper.complete(Token(job, row.lease.claim))
        assert drain(keeper) == jobs[2 + at : 3 + at]


@pytest.mark.parametrize("end", list(OUT))
def test_every_end_of_an_attempt_frees_its_place(bench: Bench, end: AttemptOutcome):
    keeper = bench.keeper()
    first, second = bench.put(*specs(2, limit_key="k", limit=1))
    claim = keeper.one()
    assert keeper.claim(5) == []
    keeper.end(claim, end, delay_ms=60_000)
    # A released job is back in its place and goes first.
    assert ids(keeper.claim(5)) == [first if end is OUT.RELEASED else second]


def test_a_lost_lease_frees_its_place_too(bench: Bench):
    keeper = bench.keeper()
    _, second = bench.put(*specs(2, limit_key="k", limit=1))
    keeper.one()
    assert keeper.claim(5) == []
    bench.clock.advance(ms=LEASE_MS)
    assert keeper.claim(5) == [], "an expired holder holds its place until it is taken back"
    bench.store.recover(limit=5).result()
    assert ids(keeper.claim(5)) == [second]


def test_a_key_is_shared_by_tasks_and_queues(bench: Bench):
    keeper = bench.keeper("a", "b")
    bench.put(
        spec(task="a", queue="x", limit_key="k", limit=1),
        spec(task="b", queue="y", limit_key="k", limit=1),
    )
    assert len(drain(keeper)) == 1


def test_blocked_jobs_do_not_hold_up_others(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(5, limit_key="k", limit=1, priority=1))
    others = bench.put(*specs(3, priority=200))
    assert set(others) <= set(drain(keeper))


def test_thousands_behind_one_key_are_set_aside_in_bounded_steps(bench: Bench):
    keeper = bench.keeper()
    jobs = bench.put(*specs(1_300, limit_key="k", limit=1, priority=1))
    behind = bench.job(priority=200)
    batch = keeper.batch(5)
    assert (ids(batch.claims), batch.more) == ([jobs[0]], True)
    assert sum(lane.blocked for lane in bench.store.status().lanes) == 500
    assert drain(keeper) == [behind]
    assert sum(lane.blocked for lane in bench.store.status().lanes) == 1_299
    assert not keeper.batch(5).more


def test_a_freed_place_reaches_the_lane_that_can_use_it(bench: Bench):
    """The head of every lane comes back, since the worker at hand may serve only one of them."""
    all_of_it, narrow = bench.keeper("a", "b"), bench.keeper("b")
    first = bench.job(task="a", limit_key="k", limit=1)
    bench.job(task="a", limit_key="k", limit=1)
    other = bench.job(task="b", limit_key="k", limit=1)
    claim = all_of_it.one()
    assert claim.token.job_id == first
    assert drain(all_of_it) == []
    all_of_it.complete(claim)
    assert drain(narrow) == [other]


def test_a_woken_job_that_another_limit_stops_hands_its_place_on(bench: Bench):
    """Both limits of a job must be free; the place it was woken for must not be forgotten."""
    bench.store.set_gate("limit", "shop", 1).result()
    keeper = bench.keeper()
    queue = bench.row(bench.job(tenant="t", limit_key="seed", limit=None)).queue
    keeper.complete(keeper.one())
    bench.store.set_gate("tenant", f"{queue}/t", 1).result()
    shop = bench.job(limit_key="shop", limit=1)
    tenant = bench.job(tenant="t")
    holds_shop, holds_tenant = keeper.claim(2)
    assert (holds_shop.token.job_id, holds_tenant.token.job_id) == (shop, tenant)
    both = bench.job(limit_key="shop", limit=1, tenant="t")
    only_shop = bench.job(limit_key="shop", limit=1)
    assert drain(keeper) == []
    keeper.complete(holds_shop)
    assert drain(keeper) == [only_shop]
    assert bench.state(both) is State.READY
    keeper.complete(holds_tenant)
    assert drain(keeper) == []


@pytest.mark.parametrize("limit", [3, None])
def test_a_raised_or_lifted_limit_starts_as_many_as_it_allows(bench: Bench, limit: int | None):
    keeper = bench.keeper()
    bench.put(*specs(6, limit_key="k", limit=1))
    assert len(drain(keeper)) == 1
    bench.store.set_gate("limit", "k", limit).result()
    assert len(drain(keeper)) == (2 if limit else 5)


def test_a_lowered_limit_lets_what_runs_finish_and_starts_nothing_until_there_is_room(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(6, limit_key="k", limit=3))
    claims = keeper.claim(6)
    assert len(claims) == 3
    bench.store.set_gate("limit", "k", 1).result()
    for claim in claims[:2]:
        assert keeper.complete(claim).held
        assert drain(keeper) == []
    keeper.complete(claims[2])
    assert len(drain(keeper)) == 1


def test_a_limit_of_none_at_all_starts_nothing(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2, limit_key="k", limit=1))
    bench.store.set_gate("limit", "k", 0).result()
    assert drain(keeper) == []
    bench.store.set_gate("limit", "k", 5).result()
    assert len(drain(keeper)) == 2


def test_the_last_enqueue_sets_the_limit(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3, limit_key="k", limit=1))
    assert len(drain(keeper)) == 1
    bench.job(limit_key="k", limit=3)
    assert len(drain(keeper)) == 2
    bench.job(limit_key="k", limit=None)
    assert len(drain(keeper)) == 2, "None lifts the limit"


def test_a_limit_set_while_jobs_run_counts_them(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3, limit_key="k"))
    assert len(keeper.claim(2)) == 2
    bench.store.set_gate("limit", "k", 2).result()
    assert drain(keeper) == []
    assert bench.store.drift() == []


def test_a_limit_set_under_running_jobs_of_a_tenant_counts_them(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3, tenant="t"), spec(tenant="u"), spec(tenant="t", queue="q2"))
    assert len(keeper.claim(2, Want(2, "default"))) == 2
    bench.store.set_gate("tenant", "default/t", 2).result()
    assert bench.store.drift() == []
    left = {(bench.row(job).tenant, bench.row(job).queue) for job in drain(keeper)}
    assert ("u", "default") in left
    assert ("t", "q2") in left, "a tenant's limit holds in one queue"


def test_a_tenant_is_named_by_queue_and_name_even_before_it_exists(bench: Bench):
    keeper = bench.keeper()
    bench.store.set_gate("tenant", "default/new/one", 1).result()
    jobs = bench.put(*specs(3, tenant="new/one"))
    assert drain(keeper) == jobs[:1]
    assert bench.row(jobs[1]).blocked_by == "tenant default/new/one"


def test_many_lanes_behind_one_key_share_its_places_by_rank(bench: Bench):
    tasks = [f"t{at}" for at in range(9)]
    keeper = bench.keeper(*tasks)
    jobs = [bench.job(task=task, limit_key="k", limit=2) for task in reversed(tasks)]
    taken: list[int] = []
    for _ in range(9):
        claims = keeper.claim(9)
        taken += ids(claims)
        for claim in claims:
            keeper.complete(claim)
    assert taken == jobs


def test_limits_hold_for_workers_that_claim_one_and_many(bench: Bench):
    keepers = [bench.keeper() for _ in range(4)]
    bench.put(*specs(40, limit_key="k", limit=3))
    done = 0
    while done < 40:
        claims = [(k, c) for at, k in enumerate(keepers) for c in k.claim(at + 1)]
        running = sum(lane.running for lane in bench.store.status().lanes)
        assert 1 <= running <= 3
        for keeper, claim in claims[:2]:
            assert keeper.complete(claim).held
            done += 1
        for keeper, claim in claims[2:]:
            keeper.end(claim, OUT.RELEASED)


def test_serial_jobs_run_one_after_the_other_in_order(bench: Bench):
    keeper = bench.keeper()
    jobs = bench.put(*specs(20, limit_key="order-7", limit=1))
    taken = []
    while claims := keeper.claim(5):
        assert len(claims) == 1
        taken += ids(claims)
        keeper.complete(claims[0])
    assert taken == jobs


def test_a_job_whose_place_was_freed_can_be_expired_without_losing_it(bench: Bench):
    keeper = bench.keeper("served")
    bench.put(spec(task="served", limit_key="k", limit=1))
    claim = keeper.one()
    typo = bench.job(task="unserved", limit_key="k", limit=1, priority=1)
    both = bench.keeper("served", "unserved")
    bench.store.unregister(both.id).result()
    good = bench.job(task="served", limit_key="k", limit=1)
    assert drain(keeper) == []
    keeper.complete(claim)
    bench.store.cancel(typo).result()
    assert drain(keeper) == [good]
