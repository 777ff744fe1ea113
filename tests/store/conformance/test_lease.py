"""Leases: they hang on the worker's beat, expire by monotonic time, and never come back."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, ids, spec, specs

from millpond.model import AttemptOutcome, Observation, State, Token

OUT = AttemptOutcome


def test_a_beat_lengthens_every_lease_its_worker_holds(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3), spec(lease_ms=5_000))
    claims = keeper.claim(9)
    for _ in range(50):
        bench.clock.advance(ms=4_900)
        answer = keeper.beat(*[claim.token for claim in claims])
        assert (answer.lost, answer.cancel, answer.released) == ((), (), ())
        assert answer.beat_mono == bench.clock.mono()
    assert all(keeper.complete(claim).held for claim in claims)


def test_the_shortest_lease_goes_first_and_the_others_stay(bench: Bench):
    keeper = bench.keeper()
    short, long = bench.put(spec(lease_ms=2_000), spec(lease_ms=9_000))
    a, b = keeper.claim(2)
    bench.clock.advance(ms=2_000)
    answer = keeper.beat(a.token, b.token)
    assert answer.lost == (a.token,)
    assert bench.state(long) is State.RUNNING
    assert bench.outcomes(short) == [("lease_lost", 1)]


def test_no_beat_revives_a_lease_that_has_ended(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.clock.advance(ms=LEASE_MS)
    answer = keeper.beat(claim.token)
    assert answer.lost == (claim.token,)
    assert not keeper.complete(claim).held
    assert bench.state(job) is not State.RUNNING


def test_one_missed_beat_loses_nothing_and_start_age_never_counts(bench: Bench):
    keeper, other = bench.keeper(), bench.keeper()
    bench.job()
    claim = keeper.one()
    for _ in range(20):
        bench.clock.advance(ms=LEASE_MS * 2 // 3)
        keeper.beat(claim.token)
        assert bench.store.recover(limit=10).result().total == 0
    assert other.claim() == []
    assert keeper.complete(claim).held


def test_a_claim_after_a_beat_has_its_whole_lease(bench: Bench):
    keeper = bench.keeper()
    bench.clock.advance(ms=LEASE_MS - 1)
    bench.job()
    claim = keeper.one()
    bench.clock.advance(ms=LEASE_MS - 1)
    assert keeper.complete(claim).held


def test_a_step_of_the_wall_clock_neither_ends_nor_lengthens_a_lease(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2))
    one, two = keeper.claim(2)
    bench.clock.jump(-86_400)
    bench.clock.advance(ms=LEASE_MS - 1)
    bench.clock.jump(9 * 86_400)
    assert bench.store.recover(limit=10).result().total == 0
    assert keeper.complete(one).held
    bench.clock.jump(-9 * 86_400)
    bench.clock.advance(ms=1)
    assert not keeper.complete(two).held


def test_recovery_tells_what_it_took_and_where_it_went(bench: Bench):
    keeper = bench.keeper()
    again, last, asked, fresh = bench.put(
        spec(), spec(max_attempts=1), spec(), spec(lease_ms=2 * LEASE_MS)
    )
    claims = keeper.claim(4)
    bench.store.cancel(asked).result()
    bench.clock.advance(ms=LEASE_MS)
    assert bench.store.expired()
    assert bench.store.status().expired_leases == 3
    got = bench.store.recover(limit=10).result()
    assert (got.retried, got.failed, got.cancelled, got.released) == (1, 1, 1, 0)
    assert set(got.tokens) == {claim.token for claim in claims[:3]}
    assert not bench.store.expired()
    states = [bench.state(job) for job in (again, last, asked, fresh)]
    assert states == [State.SCHEDULED, State.FAILED, State.CANCELLED, State.RUNNING]
    assert bench.held() == 2
    assert "lease expired" in (bench.row(last).reason or "")


def test_recovery_says_that_more_is_left(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(25))
    claims = keeper.claim(25)
    bench.clock.advance(ms=LEASE_MS)
    taken, rounds, more = [], 0, True
    while more:
        got = bench.store.recover(limit=10).result()
        taken += got.tokens
        more, rounds = got.more, rounds + 1
        assert len(got.tokens) <= 10
    assert taken == [claim.token for claim in claims], "oldest claims first"
    assert rounds <= 4


def test_recovering_nothing_changes_nothing(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2))
    keeper.claim(1)
    got = bench.store.recover(limit=10).result()
    assert (got.total, got.tokens, got.more) == (0, (), False)


def test_hundreds_of_short_jobs_beside_an_eager_recovery_end_once_each(bench: Bench):
    """B09: leases of 300 ms, recovery at every step, nothing is lost or ended twice."""
    keeper = bench.keeper()
    jobs = bench.put(*specs(200, lease_ms=300))
    while claims := keeper.claim(10):
        bench.clock.advance(ms=50)
        assert bench.store.recover(limit=100).result().total == 0
        assert all(keeper.complete(claim).held for claim in claims)
    assert all(bench.outcomes(job) == [("completed", 1)] for job in jobs)


def test_a_recovery_that_comes_late_finds_only_what_is_still_expired(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2))
    one, two = keeper.claim(2)
    bench.clock.advance(ms=LEASE_MS)
    assert bench.store.recover(limit=1).result().tokens == (one.token,)
    bench.clock.advance(ms=20_000)
    again = keeper.one()
    assert keeper.complete(again).held
    got = bench.store.recover(limit=10).result()
    assert got.tokens == (two.token,)
    assert bench.state(again.token.job_id) is State.COMPLETED


def test_expired_jobs_that_never_started_are_released_uncharged(bench: Bench):
    keeper = bench.keeper()
    first, second = bench.put(*specs(2, max_attempts=1))
    one, _ = keeper.claim(2)
    bench.clock.advance(ms=LEASE_MS)
    got = bench.store.recover(limit=10, unstarted=[one.token, Token(first, 999)]).result()
    assert (got.released, got.failed) == (1, 1)
    assert (bench.state(first), bench.outcomes(first)) == (State.READY, [])
    assert (bench.state(second), bench.outcomes(second)) == (State.FAILED, [("lease_lost", 1)])


def test_naming_a_job_unstarted_does_not_end_its_lease(bench: Bench):
    keeper = bench.keeper()
    bench.job()
    claim = keeper.one()
    assert bench.store.recover(limit=10, unstarted=[claim.token]).result().total == 0
    assert keeper.complete(claim).held


# Other clock domains


def beat_of(bench: Bench, worker: int) -> Observation:
    seen = bench.store.beats()[worker]  # type: ignore[index]
    return Observation(worker, seen.beat, seen.claim, 0)  # type: ignore[arg-type]


def watched(bench: Bench, worker: int, ms: int) -> Observation:
    seen = beat_of(bench, worker)
    return Observation(seen.worker, seen.beat, seen.claim, ms)


def test_leases_of_another_clock_domain_wait_for_a_watcher(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.clock.reboot(mono=999_999_999)
    assert not bench.store.expired()
    assert bench.store.recover(limit=10).result().total == 0
    short = watched(bench, keeper.id, LEASE_MS - 1)
    assert bench.store.recover(limit=10, observed=[short]).result().total == 0
    enough = watched(bench, keeper.id, LEASE_MS)
    assert bench.store.recover(limit=10, observed=[enough]).result().tokens == (claim.token,)
    assert bench.outcomes(job) == [("lease_lost", 1)]


def test_claiming_never_waits_for_another_domain(bench: Bench):
    keeper = bench.keeper()
    first, second = bench.put(*specs(2))
    keeper.one()
    bench.clock.reboot()
    assert ids(bench.keeper().claim(5)) == [second]
    assert bench.state(first) is State.RUNNING


@pytest.mark.parametrize("moved", ["beat", "claim"])
def test_an_observation_that_is_out_of_date_takes_nothing(bench: Bench, moved: str):
    keeper = bench.keeper()
    bench.put(*specs(2))
    claim = keeper.one()
    seen = watched(bench, keeper.id, 10 * LEASE_MS)
    bench.clock.advance(ms=5)
    if moved == "beat":
        keeper.beat(claim.token)
    else:
        keeper.one()
    bench.clock.reboot()
    assert bench.store.recover(limit=10, observed=[seen]).result().total == 0


def test_observations_of_the_own_domain_do_not_count(bench: Bench):
    keeper = bench.keeper()
    bench.job()
    keeper.one()
    seen = watched(bench, keeper.id, 10 * LEASE_MS)
    assert bench.store.recover(limit=10, observed=[seen]).result().total == 0


def test_a_worker_observed_twice_is_recovered_once(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    keeper.one()
    bench.clock.reboot()
    seen = watched(bench, keeper.id, LEASE_MS)
    got = bench.store.recover(limit=10, observed=[seen, seen]).result()
    assert got.total == 1
    assert bench.outcomes(job) == [("lease_lost", 1)]


def test_recovery_of_other_domains_is_bounded_too(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(20))
    keeper.claim(20)
    bench.clock.reboot()
    seen = watched(bench, keeper.id, LEASE_MS)
    first = bench.store.recover(limit=8, observed=[seen]).result()
    assert (len(first.tokens), first.more) == (8, True)
    assert bench.state(first.tokens[0].job_id) is State.SCHEDULED
    seen = watched(bench, keeper.id, LEASE_MS)
    assert len(bench.store.recover(limit=50, observed=[seen]).result().tokens) == 12


def test_the_expiry_of_another_domain_is_not_guessed(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    keeper.one()
    bench.clock.reboot()
    lease = bench.row(job).lease
    assert lease is not None
    assert lease.expires_at is None


# The beat


def test_rows_the_keeper_does_not_hold_are_released_uncharged(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3))
    a, b, c = keeper.claim(3)
    answer = keeper.beat(a.token)
    assert set(answer.released) == {b.token, c.token}
    assert answer.lost == ()
    for claim in (b, c):
        job = claim.token.job_id
        assert (bench.state(job), bench.outcomes(job)) == (State.READY, [])
        assert not keeper.complete(claim).held
    assert keeper.complete(a).held


def test_rows_of_claims_still_on_their_way_are_not_released(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3))
    a = keeper.one()
    b = keeper.one()
    assert keeper.beat(a.token, known=a.token.claim).released == ()
    assert bench.state(b.token.job_id) is State.RUNNING
    assert keeper.beat(a.token, known=b.token.claim).released == (b.token,)


def test_what_the_keeper_holds_without_a_row_is_lost(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(2))
    a, b = keeper.claim(2)
    keeper.complete(b)
    strange = Token(a.token.job_id, a.token.claim + 50)
    answer = keeper.beat(a.token, b.token, strange)
    assert set(answer.lost) == {b.token, strange}


def test_the_beat_hands_on_the_wish_to_cancel(bench: Bench):
    keeper = bench.keeper()
    first, _ = bench.put(*specs(2))
    a, b = keeper.claim(2)
    bench.store.cancel(first).result()
    assert keeper.beat(a.token, b.token).cancel == (a.token,)


def test_a_beat_touches_no_other_worker(bench: Bench):
    one, two = bench.keeper(), bench.keeper()
    bench.put(*specs(2))
    a, b = one.one(), two.one()
    bench.clock.advance(ms=LEASE_MS // 2)
    one.beat(a.token)
    bench.clock.advance(ms=LEASE_MS // 2)
    assert one.complete(a).held
    assert not two.complete(b).held


def test_a_forgotten_worker_is_told_to_register_anew(bench: Bench):
    keeper = bench.keeper()
    bench.store.unregister(keeper.id).result()
    lost = Token(1, 1)  # type: ignore[arg-type]
    answer = keeper.beat(lost)
    assert (answer.registered, answer.lost) == (False, (lost,))


def test_the_beat_sets_the_interval_workers_are_judged_by(bench: Bench):
    keeper = bench.keeper()
    keeper.beat(interval_ms=100)
    bench.clock.advance(ms=400)
    assert bench.store.workers()[0].live
    bench.clock.advance(ms=1)
    assert not bench.store.workers()[0].live
    keeper.beat(interval_ms=15_000)
    bench.clock.advance(ms=401)
    assert bench.store.workers()[0].live
