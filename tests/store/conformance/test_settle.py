"""Settling: only under the token and the unexpired lease, once, and to where the outcome leads."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, TASK, Bench, specs

from millpond.config import TaskSettings
from millpond.model import AttemptOutcome, Settled, Settlement, State, Token
from millpond.policy.backoff import Backoff

OUT = AttemptOutcome
REFUSED = Settled(held=False, state=None)


@pytest.mark.parametrize("outcome", OUT)
@pytest.mark.parametrize("recovered", [False, True])
def test_a_stale_lease_can_neither_settle_nor_renew_nor_free_capacity(
    bench: Bench, outcome: AttemptOutcome, recovered: bool
):
    job = bench.job(limit_key="shop", limit=1)
    waiting = bench.job(limit_key="shop", limit=1)
    old, new = bench.keeper(), bench.keeper()
    stale = old.one()
    bench.clock.advance(ms=LEASE_MS)
    if recovered:
        assert bench.store.recover(limit=10).result().tokens == (stale.token,)
    assert old.end(stale, outcome, delay_ms=0) == REFUSED
    assert stale.token in old.beat(stale.token).lost
    assert bench.held() == 2
    assert bench.outcomes(job) == [("lease_lost", 1)]
    assert not bench.store.remember(old.id, stale.token, b"1").result()
    bench.clock.advance(ms=10_000)
    taken = {claim.token.job_id for claim in new.claim(5)} | {
        claim.token.job_id for claim in new.claim(5)
    }
    assert len(taken) == 1, "one place of the limit, one job"
    assert taken <= {job, waiting}
    assert old.end(stale, outcome) == REFUSED
    assert bench.held() == 2


def test_a_lease_ends_at_its_very_millisecond(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.clock.advance(ms=LEASE_MS - 1)
    assert keeper.complete(claim).held
    assert bench.state(job) is State.COMPLETED


def test_a_late_worker_finds_its_report_marked_and_nothing_else_changed(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.clock.advance(ms=LEASE_MS + 7)
    keeper.complete(claim, result=b"1")
    (row,) = bench.store.attempts(job)
    assert (row.outcome, row.late_at) == (OUT.LEASE_LOST, bench.clock.now())
    first = row.late_at
    bench.clock.advance(ms=5)
    keeper.complete(claim)
    (row,) = bench.store.attempts(job)
    assert row.late_at == first, "the first late report is the one kept"
    assert bench.row(job).result is None


def test_settling_twice_changes_nothing_the_second_time(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    assert keeper.complete(claim, result=b"1") == Settled(True, State.COMPLETED)
    before = bench.store.attempts(job), bench.row(job)
    bench.clock.advance(ms=5)
    for outcome in OUT:
        assert keeper.end(claim, outcome, result=b"2", reason="again") == REFUSED
    assert (bench.store.attempts(job), bench.row(job)) == before


def test_the_same_token_twice_in_one_settle_counts_once(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    done = Settlement(claim.token, OUT.COMPLETED, started_at=1)
    failed = Settlement(claim.token, OUT.FAILED, started_at=1)
    assert keeper.settle(done, failed, done) == [
        Settled(True, State.COMPLETED), REFUSED, REFUSED,
    ]  # fmt: skip
    assert bench.outcomes(job) == [("completed", 1)]
    assert bench.store.attempts(job)[0].late_at is None


def test_another_worker_cannot_settle_with_a_borrowed_token(bench: Bench):
    owner, thief = bench.keeper(), bench.keeper()
    job = bench.job()
    claim = owner.one()
    assert thief.complete(claim) == REFUSED
    assert bench.state(job) is State.RUNNING
    assert owner.complete(claim).held


@pytest.mark.parametrize("shift", [(0, 1), (0, -1), (1, 0)])
def test_a_token_that_was_never_given_is_refused(bench: Bench, shift: tuple[int, int]):
    keeper = bench.keeper()
    bench.job()
    job, claim = keeper.one().token
    assert keeper.complete(Token(job + shift[0], claim + shift[1])) == REFUSED


def test_answers_come_in_the_order_of_the_settlements(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(20))
    claims = keeper.claim(20)
    ends = [Settlement(c.token, OUT.COMPLETED, started_at=1) for c in reversed(claims)]
    ends.insert(7, Settlement(Token(999, 999), OUT.COMPLETED))
    answers = keeper.settle(*ends)
    assert [a.held for a in answers] == [at != 7 for at in range(21)]


WHERE = {
    OUT.COMPLETED: (State.COMPLETED, "completed", 1),
    OUT.FAILED: (State.FAILED, "failed", 1),
    OUT.CANCELLED: (State.CANCELLED, "cancelled", 1),
    OUT.RETRIED: (State.SCHEDULED, "retried", 1),
    OUT.TIMED_OUT: (State.SCHEDULED, "timed_out", 1),
    OUT.CRASHED: (State.SCHEDULED, "crashed", 1),
    OUT.LEASE_LOST: (State.SCHEDULED, "lease_lost", 1),
    OUT.SNOOZED: (State.SCHEDULED, "snoozed", None),
    OUT.RELEASED: (State.READY, "released", None),
}


@pytest.mark.parametrize("outcome", OUT)
@pytest.mark.parametrize("many", [1, 20])
def test_every_outcome_leads_where_the_life_cycle_says(
    bench: Bench, outcome: AttemptOutcome, many: int
):
    keeper = bench.keeper()
    jobs = bench.put(*specs(many, max_attempts=3))
    claims = keeper.claim(many)
    ends = [Settlement(c.token, outcome, started_at=5, delay_ms=700) for c in claims]
    state, written, number = WHERE[outcome]
    answers = keeper.settle(*ends)
    assert {(a.held, a.state) for a in answers} == {(True, state)}
    for job in jobs:
        assert bench.state(job) is state
        assert bench.outcomes(job) == [(written, number)]
        assert bench.row(job).attempts == (number or 0)
    final = state in {State.COMPLETED, State.FAILED, State.CANCELLED}
    assert bench.held() == (0 if final else many)


@pytest.mark.parametrize("outcome", [OUT.RETRIED, OUT.TIMED_OUT, OUT.CRASHED, OUT.LEASE_LOST])
def test_the_last_attempt_fails_the_job_for_good(bench: Bench, outcome: AttemptOutcome):
    keeper, job = bench.keeper(), bench.job(max_attempts=2)
    keeper.end(keeper.one(), outcome)
    answer = keeper.end(keeper.one(), outcome)
    assert answer.state is State.FAILED
    row = bench.row(job)
    assert (row.attempts, row.state) == (2, State.FAILED)
    assert "attempts used up (2 of 2)" in (row.reason or "")
    assert bench.outcomes(job)[1][0] == ("failed" if outcome is OUT.RETRIED else outcome.value)


@pytest.mark.parametrize("outcome", [o for o in OUT if o not in {OUT.COMPLETED, OUT.RELEASED}])
def test_a_delay_counts_from_the_settle_to_the_millisecond(bench: Bench, outcome: AttemptOutcome):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.clock.advance(ms=123)
    answer = keeper.end(claim, outcome, delay_ms=5_000)
    if answer.state is not State.SCHEDULED:
        return
    assert answer.due_at == bench.row(job).due_at == bench.clock.now() + 5_000
    bench.clock.advance(ms=4_999)
    assert keeper.claim() == []
    bench.clock.advance(ms=1)
    assert keeper.one().token.job_id == job


@pytest.mark.parametrize("delay_ms", [0, -5])
def test_a_retry_without_delay_is_ready_at_once(bench: Bench, delay_ms: int):
    keeper, job = bench.keeper(), bench.job()
    answer = keeper.end(keeper.one(), OUT.RETRIED, delay_ms=delay_ms)
    assert answer == Settled(True, State.READY, bench.clock.now())
    assert keeper.one().attempts == 1
    assert bench.row(job).attempts == 2


def test_crashes_are_counted_apart(bench: Bench):
    keeper, job = bench.keeper(), bench.job(max_attempts=9)
    for outcome in (OUT.CRASHED, OUT.RETRIED, OUT.LEASE_LOST, OUT.CRASHED):
        keeper.end(keeper.one(), outcome)
    claim = keeper.one()
    assert (claim.attempts, claim.crashes, claim.attempt) == (4, 2, 5)
    row = bench.row(job)
    assert (row.attempts, row.crashes) == (5, 2)


def test_a_released_job_that_never_started_leaves_no_history(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    first = keeper.one()
    (answer,) = keeper.settle(Settlement(first.token, OUT.RELEASED))
    assert answer.state is State.READY
    assert bench.store.attempts(job) == []
    second = keeper.one()
    assert (second.attempts, second.attempt) == (0, 1)
    assert second.token.claim > first.token.claim


def test_a_released_job_keeps_its_place_in_the_line(bench: Bench):
    keeper = bench.keeper()
    first, second, third = bench.put(*specs(3))
    claim = keeper.one()
    keeper.end(claim, OUT.RELEASED)
    assert [c.token.job_id for c in keeper.claim(3)] == [first, second, third]


def test_a_job_released_after_the_clock_was_set_back_is_ready_none_the_less(bench: Bench):
    keeper, job = bench.keeper(), bench.job(delay_ms=1_000)
    bench.clock.advance(ms=1_000)
    claim = keeper.one()
    bench.clock.jump(-3_600)
    assert keeper.end(claim, OUT.RELEASED).state is State.READY
    assert keeper.one().token.job_id == job


def test_what_a_handler_says_is_kept_with_the_attempt(bench: Bench):
    keeper, job = bench.keeper(), bench.job(max_attempts=2)
    claim = keeper.one()
    said = Settlement(
        claim.token, OUT.RETRIED, started_at=11, ended_at=22, error_type="ValueError",
        message="no such shop", traceback="line 1\nline 2", fingerprint="f1", signal=9,
    )  # fmt: skip
    keeper.settle(said)
    (row,) = bench.store.attempts(job)
    kept = (row.started_at, row.ended_at, row.error_type, row.message, row.traceback)
    assert kept == (11, 22, "ValueError", "no such shop", "line 1\nline 2")
    assert (row.fingerprint, row.signal, row.worker, row.owner) == ("f1", 9, keeper.id, "host:1")
    assert bench.row(job).last_error == "ValueError: no such shop"
    keeper.complete(keeper.one())
    assert bench.row(job).last_error is None, "a completed job has no error"
    assert len(bench.store.attempts(job)) == 2


@pytest.mark.parametrize("many", [1, 20])
@pytest.mark.parametrize("text", ["a\0b", "\ud800", "naïve ☃ 𐍈", "'); DROP TABLE x; --", ""])
def test_any_text_of_an_error_can_be_kept(bench: Bench, text: str, many: int):
    keeper = bench.keeper()
    jobs = bench.put(*specs(many))
    ends = [
        Settlement(c.token, OUT.FAILED, started_at=1, error_type=text, message=text,
                   traceback=text, reason=text, fingerprint=text)
        for c in keeper.claim(many)
    ]  # fmt: skip
    assert all(answer.held for answer in keeper.settle(*ends))
    for job in jobs:
        (row,) = bench.store.attempts(job)
        (row.message or "").encode()
        if "\0" not in text and "\ud800" not in text:
            assert (row.message, row.error_type) == (text, text)


@pytest.mark.parametrize("many", [1, 20])
def test_the_default_backoff_spreads_what_lost_its_lease(bench: Bench, many: int):
    keeper = bench.keeper()
    bench.store.put_tasks([TaskSettings(TASK, retry=Backoff(base=10, jitter="full"))]).result()
    jobs = bench.put(*specs(many))
    keeper.claim(many)
    bench.clock.advance(ms=LEASE_MS)
    rolls = [at / many for at in range(many)]
    bench.dice.numbers = [*rolls]
    bench.store.recover(limit=100).result()
    waits = sorted(bench.row(job).due_at - bench.clock.now() for job in jobs)
    assert waits == sorted(int(roll * 10_001) for roll in rolls)


def test_settling_frees_capacity_once_in_jobs_and_bytes(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3, payload=b"x" * 10, meta=b"y" * 5))
    assert (bench.held(), bench.bytes()) == (3, 45)
    first, second, third = keeper.claim(3)
    keeper.complete(first)
    keeper.complete(first)
    assert (bench.held(), bench.bytes()) == (2, 30)
    keeper.end(second, OUT.RETRIED)
    keeper.end(third, OUT.SNOOZED)
    assert (bench.held(), bench.bytes()) == (2, 30)


def test_a_job_snoozed_past_its_greatest_age_fails_with_the_reason(bench: Bench):
    bench.store.put_tasks([TaskSettings(TASK, max_age_ms=10_000)]).result()
    keeper, job = bench.keeper(), bench.job(delay_ms=5_000)
    bench.clock.advance(ms=5_000)
    bench.clock.advance(ms=9_999)
    assert keeper.end(keeper.one(), OUT.SNOOZED, delay_ms=1).state is State.SCHEDULED
    bench.clock.advance(ms=1)
    assert keeper.end(keeper.one(), OUT.SNOOZED, delay_ms=1).state is State.FAILED
    assert bench.row(job).reason == "max_age"


def test_a_retry_is_not_ended_by_age(bench: Bench):
    bench.store.put_tasks([TaskSettings(TASK, max_age_ms=10)]).result()
    keeper = bench.keeper()
    bench.job()
    bench.clock.advance(ms=1_000)
    assert keeper.end(keeper.one(), OUT.RETRIED).state is State.READY


def test_the_outcome_of_a_task_nobody_declared_can_be_settled(bench: Bench):
    """Names come from producers of any age: what is odd about one must not block the others."""
    odd = ["a/b", "x" * 500, " blank ", "ctrl\x01"]
    keeper = bench.keeper(*odd)
    jobs = [bench.job(task=name) for name in odd]
    for outcome in (OUT.SNOOZED, OUT.RETRIED, OUT.LEASE_LOST):
        for claim in keeper.claim(10):
            assert keeper.end(claim, outcome).held
        bench.clock.advance(ms=1)
    keeper.claim(10)
    bench.clock.advance(ms=LEASE_MS)
    assert bench.store.recover(limit=10).result().total == len(jobs)


def test_clocks_of_history_are_walls_and_leases_are_not(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.clock.jump(86_400)
    assert keeper.complete(claim).held, "a step of the wall clock ends no lease"
    assert bench.row(job).finished_at == bench.clock.now()
