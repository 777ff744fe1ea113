"""Requeue: an operator puts a final job back, through admission, with its history (R20)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.kit import LEASE_MS, Bench, Dice, ids, sound, specs

from millpond.clock import ManualClock
from millpond.errors import StoreClosed
from millpond.model import FINAL_STATES, AttemptOutcome, JobId, Pin, Requeue, State
from millpond.store import open_store
from millpond.store.protocol import Store

OUT = AttemptOutcome
DAY_MS = 86_400_000


def dead(bench: Bench, attempts: int = 3, **more: Any) -> JobId:
    """Return a job that used up its attempts."""
    job = bench.job(**{"max_attempts": attempts} | more)
    keeper = bench.keeper()
    for number in range(attempts):
        bench.clock.advance(1)
        keeper.end(keeper.one(), OUT.RETRIED, error_type="E", message=f"no {number + 1}")
    assert bench.state(job) is State.FAILED
    return job


def requeue(bench: Bench, job: JobId, by: str | None = None, **more: Any) -> bool:
    (acted,) = bench.store.requeue([Requeue(job, **more)], by=by).result().jobs
    return acted.done


@pytest.mark.parametrize("end", [OUT.COMPLETED, OUT.FAILED, OUT.CANCELLED])
def test_every_final_job_is_ready_again_and_holds_capacity(bench: Bench, end: AttemptOutcome):
    job, keeper = bench.job(payload=b'{"a":1}', meta=b"{}"), bench.keeper()
    keeper.end(keeper.one(), end)
    assert (bench.held(), bench.bytes()) == (0, 0)
    assert requeue(bench, job)
    assert bench.state(job) is State.READY
    assert (bench.held(), bench.bytes()) == (1, 9)
    sound(bench.store)


@pytest.mark.parametrize("where", ["scheduled", "ready", "blocked", "running"])
def test_a_job_that_is_not_final_is_left_and_its_state_told(bench: Bench, where: str):
    keeper = bench.keeper()
    if where == "blocked":
        bench.job(limit_key="k", limit=1)
    job = bench.job(delay_ms=5 if where == "scheduled" else 0, limit_key="k", limit=1)
    if where in {"running", "blocked"}:
        keeper.claim(2)
    before = bench.row(job)
    (acted,) = bench.store.requeue([Requeue(job)]).result().jobs
    told = "ready" if where == "blocked" else where
    assert (acted.done, acted.found) == (False, State(told))
    assert bench.row(job) == before
    assert bench.store.events() == []


def test_a_job_that_is_not_there_is_told_so(bench: Bench):
    (acted,) = bench.store.requeue([Requeue(JobId(77))]).result().jobs
    assert (acted.done, acted.found) == (False, None)


def test_attempt_numbers_go_on_and_history_stays(bench: Bench):
    """B25: four attempts with their own times and errors, and no current error in the end."""
    job = dead(bench)
    bench.clock.advance(10)
    assert requeue(bench, job, by="ann")
    keeper = bench.keeper()
    claim = keeper.one()
    assert (claim.attempt, claim.max_attempts) == (4, 6)
    bench.clock.advance(1)
    keeper.complete(claim)
    assert bench.outcomes(job) == [
        ("retried", 1), ("retried", 2), ("failed", 3), ("completed", 4)
    ]  # fmt: skip
    history = bench.store.attempts(job)
    assert len({attempt.ended_at for attempt in history}) == 4
    assert [attempt.message for attempt in history] == ["no 1", "no 2", "no 3", None]
    row = bench.row(job)
    assert (row.state, row.last_error, row.attempts) == (State.COMPLETED, None, 4)


@pytest.mark.parametrize(("given", "granted"), [(None, 3), (1, 1), (7, 7)])
def test_it_grants_as_many_attempts_as_the_job_was_enqueued_with(
    bench: Bench, given: int | None, granted: int
):
    job = dead(bench)
    requeue(bench, job, attempts=given)
    assert bench.row(job).max_attempts == 3 + granted
    keeper = bench.keeper()
    for _ in range(granted):
        assert bench.state(job) is State.READY
        keeper.end(keeper.one(), OUT.RETRIED)
    assert bench.state(job) is State.FAILED


def test_a_second_requeue_grants_what_the_first_did(bench: Bench):
    job, keeper = dead(bench), bench.keeper()
    for expected in (6, 9, 12):
        requeue(bench, job)
        assert bench.row(job).max_attempts == expected
        for _ in range(3):
            keeper.end(keeper.one(), OUT.RETRIED)


def test_after_attempts_were_given_by_hand_the_next_grants_the_usual_number(bench: Bench):
    job, keeper = dead(bench), bench.keeper()
    requeue(bench, job, attempts=1)
    keeper.end(keeper.one(), OUT.RETRIED)
    requeue(bench, job)
    assert bench.row(job).max_attempts == 4 + 3


def test_a_job_that_was_never_tried_starts_with_its_first_attempt(bench: Bench):
    job = bench.job(max_attempts=2)
    bench.store.cancel(job).result()
    requeue(bench, job)
    claim = bench.keeper().one()
    assert (claim.attempt, claim.max_attempts) == (1, 2)


def test_a_job_that_only_snoozed_before_starts_with_its_first_attempt(bench: Bench):
    job, keeper = bench.job(max_attempts=2), bench.keeper()
    keeper.end(keeper.one(), OUT.SNOOZED, delay_ms=1_000)
    bench.store.cancel(job).result()
    requeue(bench, job)
    sound(bench.store)
    assert keeper.one().attempt == 1


def test_crashes_go_on_so_that_the_job_still_runs_alone(bench: Bench):
    job, keeper = bench.job(max_attempts=1), bench.keeper()
    keeper.end(keeper.one(), OUT.CRASHED, signal=9)
    requeue(bench, job)
    assert keeper.one().crashes == 1


def test_created_stays_while_due_and_rank_are_new(bench: Bench):
    old = dead(bench)
    created = bench.row(old).created_at
    other = bench.job()
    bench.clock.advance(60)
    requeue(bench, old)
    row = bench.row(old)
    assert (row.created_at, row.due_at) == (created, bench.clock.now())
    # What was due before the requeue goes first.
    assert ids(bench.keeper().claim(1)) == [other]


@pytest.mark.parametrize("by", ["delay", "at"])
def test_it_may_be_due_later(bench: Bench, by: str):
    job = dead(bench)
    due = bench.clock.now() + 5_000
    requeue(bench, job, **({"delay_ms": 5_000} if by == "delay" else {"due_at": due}))
    assert (bench.state(job), bench.row(job).due_at) == (State.SCHEDULED, due)
    keeper = bench.keeper()
    bench.clock.advance(ms=4_999)
    assert keeper.claim(1) == []
    bench.clock.advance(ms=1)
    assert ids(keeper.claim(1)) == [job]


def test_the_age_of_a_snoozing_job_counts_from_the_requeue(bench: Bench):
    job = dead(bench)
    bench.clock.advance(ms=8 * DAY_MS)
    requeue(bench, job)
    keeper = bench.keeper()
    keeper.end(keeper.one(), OUT.SNOOZED, delay_ms=1)
    assert bench.state(job) is State.SCHEDULED


# --- payload, operation -------------------------------------------------------------------------


def test_a_corrected_payload_is_what_the_next_attempt_gets(bench: Bench):
    job = dead(bench, payload=b'{"n":1}', meta=b'{"m":1}', tenant="t")
    requeue(bench, job, payload=b'{"n":12345}')
    assert bench.keeper().one().payload == b'{"n":12345}'
    assert bench.bytes() == len(b'{"n":12345}') + len(b'{"m":1}')
    assert bench.row(job).meta == b'{"m":1}'
    sound(bench.store)


def test_the_operation_stays_unless_a_new_one_is_given(bench: Bench):
    job = dead(bench, operation_id="op")
    requeue(bench, job)
    claim = bench.keeper().one()
    assert claim.operation_id == "op"
    bench.clock.advance(ms=LEASE_MS)
    bench.store.recover(limit=5).result()
    bench.store.cancel(job).result()
    (acted,) = bench.store.requeue([Requeue(job, operation_id="other")]).result().jobs
    assert (acted.operation_id, bench.row(job).operation_id) == ("other", "other")


def test_what_was_remembered_stays_with_its_operation(bench: Bench):
    job, keeper = bench.job(max_attempts=1), bench.keeper()
    claim = keeper.one()
    bench.store.remember(keeper.id, claim.token, b"7").result()
    keeper.end(claim, OUT.FAILED)
    requeue(bench, job)
    claim = keeper.one()
    assert claim.remembered == b"7"
    keeper.end(claim, OUT.FAILED)
    requeue(bench, job, operation_id="other")
    assert keeper.one().remembered is None


def test_a_result_stays_until_a_new_run_replaces_it(bench: Bench):
    job, keeper = bench.job(), bench.keeper()
    keeper.complete(keeper.one(), result=b"1")
    requeue(bench, job)
    assert bench.row(job).result == b"1"
    keeper.end(keeper.one(), OUT.FAILED)
    assert bench.row(job).result == b"1"
    requeue(bench, job)
    keeper.complete(keeper.one(), result=b"2")
    assert bench.row(job).result == b"2"
    requeue(bench, job)
    keeper.complete(keeper.one())
    assert bench.row(job).result is None


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [OUT.COMPLETED, OUT.FAILED, OUT.CANCELLED])
def test_it_takes_its_key_again_when_nobody_else_has_it(bench: Bench, end: AttemptOutcome):
    keeper = bench.keeper()
    job = bench.answer(key="k").job_id
    keeper.end(keeper.one(), end)
    requeue(bench, job)
    again = bench.answer(key="k")
    assert (again.answer, again.job_id) == ("duplicate", job)


def test_a_key_that_expired_is_taken_again(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k", key_ttl_ms=10).job_id
    keeper.complete(keeper.one())
    bench.clock.advance(ms=20)
    second = bench.answer(key="k", key_ttl_ms=10).job_id
    keeper.complete(keeper.one())
    bench.clock.advance(ms=20)
    requeue(bench, first)
    assert bench.answer(key="k").job_id == first
    assert second != first


def test_while_another_job_has_its_key_it_runs_beside(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k").job_id
    keeper.end(keeper.one(), OUT.FAILED)
    second = bench.answer(key="k").job_id
    requeue(bench, first)
    assert bench.answer(key="k").job_id == second
    for claim in keeper.claim(2):
        keeper.complete(claim)
    assert bench.answer(key="k").job_id == second
    sound(bench.store)


def test_the_window_of_a_taken_key_counts_from_its_new_completion(bench: Bench):
    keeper = bench.keeper()
    job = bench.answer(key="k", key_ttl_ms=1_000).job_id
    keeper.complete(keeper.one())
    requeue(bench, job)
    bench.clock.advance(ms=1_500)
    keeper.complete(keeper.one())
    bench.clock.advance(ms=999)
    assert bench.answer(key="k").answer == "duplicate"
    bench.clock.advance(ms=1)
    assert bench.answer(key="k").answer == "admitted"


def test_keys_of_requests_that_were_merged_into_it_hold_again_as_well(bench: Bench):
    keeper = bench.keeper()
    job = bench.answer(coalesce_key="c").job_id
    assert bench.answer(coalesce_key="c", key="r", key_ttl_ms=1_000).job_id == job
    keeper.complete(keeper.one())
    bench.clock.advance(ms=500)
    requeue(bench, job)
    bench.clock.advance(ms=5_000)
    assert bench.answer(key="r").job_id == job
    keeper.complete(keeper.one())
    bench.clock.advance(ms=1_000)
    assert bench.answer(key="r").answer == "admitted"


def test_a_duplicate_is_told_the_new_operation(bench: Bench):
    keeper = bench.keeper()
    job = bench.answer(key="k", operation_id="one").job_id
    keeper.complete(keeper.one())
    requeue(bench, job, operation_id="two")
    assert bench.answer(key="k").operation_id == "two"


def test_it_accepts_merges_again_when_its_coalesce_key_is_free(bench: Bench):
    keeper = bench.keeper()
    job = bench.answer(coalesce_key="c").job_id
    keeper.end(keeper.one(), OUT.FAILED)
    requeue(bench, job)
    assert bench.answer(coalesce_key="c", payload=b"2").job_id == job
    keeper.end(keeper.one(), OUT.FAILED)
    other = bench.answer(coalesce_key="c").job_id
    requeue(bench, job)
    assert bench.answer(coalesce_key="c").job_id == other


def test_the_limit_of_its_key_holds_for_it_as_well(bench: Bench):
    keeper = bench.keeper()
    first, second = bench.put(*specs(2, limit_key="k", limit=1))
    keeper.end(keeper.one(), OUT.FAILED)
    requeue(bench, first)
    (claim,) = keeper.claim(5)
    keeper.complete(claim)
    assert len(keeper.claim(5)) == 1
    assert {bench.state(first), bench.state(second)} == {State.RUNNING, State.COMPLETED}


def test_a_tenant_has_what_was_put_back_on_its_account(bench: Bench):
    job = dead(bench, tenant="t")
    requeue(bench, job)
    sound(bench.store)
    keeper = bench.keeper()
    keeper.complete(keeper.one())
    sound(bench.store)


# --- batches and pins ---------------------------------------------------------------------------


@pytest.mark.parametrize("many", [3, 500])
def test_a_batch_puts_back_what_is_final_and_tells_of_the_rest(bench: Bench, many: int):
    keeper = bench.keeper()
    jobs = bench.put(*specs(many))
    for claim in keeper.claim(many - 1):
        keeper.end(claim, OUT.FAILED)
    acted = bench.store.requeue([Requeue(job) for job in jobs], by="ann").result().jobs
    assert [a.job_id for a in acted] == jobs
    assert [a.done for a in acted] == [True] * (many - 1) + [False]
    assert bench.held() == many
    assert len(bench.store.events(what="requeue", limit=1_000)) == many - 1


def test_a_job_named_twice_is_put_back_once(bench: Bench):
    job = dead(bench)
    acted = bench.store.requeue([Requeue(job), Requeue(job)]).result().jobs
    assert [(a.done, a.found) for a in acted] == [(True, State.FAILED), (False, State.READY)]
    assert bench.held() == 1


def test_a_batch_has_a_size(bench: Bench):
    with pytest.raises(ValueError, match="at most 500"):
        bench.store.requeue([Requeue(JobId(at)) for at in range(501)])


def test_a_pinned_batch_leaves_what_became_final_later(bench: Bench):
    old = dead(bench)
    pin = bench.store.pin()
    assert pin.ended_by == bench.clock.now()
    bench.clock.advance(ms=1)
    new = dead(bench)
    requeue(bench, old)
    keeper = bench.keeper()
    for _ in range(3):
        keeper.end(keeper.one(), OUT.RETRIED)
    acted = bench.store.requeue([Requeue(old), Requeue(new)], pin=pin).result().jobs
    assert [(a.done, a.found) for a in acted] == [(False, State.FAILED)] * 2


def test_a_pin_keeps_later_ids_out_even_if_the_clock_was_set_back(bench: Bench):
    old = dead(bench)
    pin = bench.store.pin()
    bench.clock.jump(-3_600)
    new = dead(bench)
    acted = bench.store.requeue([Requeue(old), Requeue(new)], pin=pin).result().jobs
    assert [a.done for a in acted] == [True, False]


def test_a_pin_holds_every_job_that_was_accepted_before_it(bench: Bench):
    last = bench.put(*specs(7))[-1]
    assert bench.store.pin() == Pin(last, bench.clock.now())


# --- what is written down -----------------------------------------------------------------------


def test_the_event_tells_who_why_and_what_it_was_before(bench: Bench):
    job = dead(bench, payload=b'{"n":1}', operation_id="op")
    ended = bench.clock.now()
    bench.clock.advance(5)
    wish = Requeue(job, payload=b'{"n":2}', operation_id="two", delay_ms=10)
    bench.store.requeue([wish], by="ann", note="fixed the number").result()
    (event,) = bench.store.events(str(job))
    assert (event.who, event.what, event.which) == ("ann", "requeue", str(job))
    assert (event.note, event.at) == ("fixed the number", bench.clock.now())
    assert json.loads(event.before or "") == {
        "state": "failed", "finished_at": ended, "reason": "attempts used up (3 of 3)",
        "attempts": 3, "max_attempts": 3, "payload": {"n": 1}, "operation_id": "op",
    }  # fmt: skip
    assert json.loads(event.after or "") == {
        "state": "scheduled", "due_at": bench.clock.now() + 10, "max_attempts": 6,
        "payload": {"n": 2}, "operation_id": "two",
    }  # fmt: skip


def test_events_are_newest_first_and_paged(bench: Bench):
    jobs = bench.put(*specs(3))
    for job in jobs:
        bench.store.cancel(job, by="ann").result()
    bench.store.requeue([Requeue(job) for job in jobs], by="bob").result()
    found = bench.store.events(limit=4)
    assert [(e.what, e.which) for e in found] == [
        ("requeue", str(jobs[2])), ("requeue", str(jobs[1])), ("requeue", str(jobs[0])),
        ("cancel", str(jobs[2])),
    ]  # fmt: skip
    rest = bench.store.events(before=found[-1].id)
    assert [e.which for e in rest] == [str(jobs[1]), str(jobs[0])]
    assert [e.what for e in bench.store.events(str(jobs[0]))] == ["requeue", "cancel"]
    assert [e.what for e in bench.store.events(str(jobs[0]), what="cancel")] == ["cancel"]


def test_a_store_whose_jobs_were_moved_puts_nothing_back(store: Store, bench: Bench):
    job = dead(bench)
    moved = "UPDATE millpond_meta SET state = 'closed', closed_to = 'elsewhere'"
    bench.store._write(lambda tx: tx.execute(moved).rowcount).result()  # type: ignore[attr-defined]
    with pytest.raises(StoreClosed, match="elsewhere"):
        bench.store.requeue([Requeue(job)]).result()
    assert bench.state(job) is State.FAILED


def test_a_requeue_wakes_the_keepers_of_its_task(bench: Bench):
    heard: list[int] = []
    job = dead(bench)
    listen = getattr(bench.store, "listen", None)
    if listen is None:
        pytest.skip("this engine has no listeners")
    listen(lambda: heard.append(1))
    requeue(bench, job, delay_ms=60_000)
    assert heard == []
    bench.store.cancel(job).result()
    requeue(bench, job)
    assert heard


# --- all of it together -------------------------------------------------------------------------

_ACTS = st.lists(
    st.tuples(
        st.sampled_from(["enqueue", "end", "requeue", "later", "discard", "cancel", "purge"]),
        st.integers(0, 6),
    ),
    max_size=40,
)
_ENDS = [OUT.COMPLETED, OUT.FAILED, OUT.RETRIED, OUT.CRASHED, OUT.SNOOZED, OUT.CANCELLED]


@given(_ACTS)
def test_whatever_is_done_to_jobs_counters_history_and_places_agree(acts: list[tuple[str, int]]):
    clock, dice = ManualClock(), Dice()
    store = open_store(":memory:", clock=clock, roll=dice)
    try:
        game = Game(Bench(store, clock, dice))
        for act, pick in acts:
            clock.advance(ms=pick)
            game.play(act, pick)
            sound(store)
            game.attempts_never_shrink()
    finally:
        store.close()


class Game:
    """A store, the jobs it accepted, and the attempts that each was seen to have used."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.store, self.keeper = bench, bench.store, bench.keeper()
        self.used: dict[JobId, int] = {}

    def play(self, act: str, pick: int) -> None:
        if act == "enqueue":
            self.enqueue(pick)
        elif act == "end":
            for claim in self.keeper.claim(1):
                self.keeper.end(claim, _ENDS[pick % len(_ENDS)], delay_ms=pick, error_type="E")
        elif act == "purge":
            windows = {"completed_ms": pick, "failed_ms": pick, "cancelled_ms": pick}
            self.store.purge(**windows, limit=2).result()
        elif self.used:
            self.review(act, pick, list(self.used)[pick % len(self.used)])

    def enqueue(self, pick: int) -> None:
        more = {"key": "k"} if pick == 1 else {"coalesce_key": "c"} if pick == 2 else {}
        if pick > 3:
            more = {"limit_key": "l", "limit": 1}
        tenant = "t" if pick % 2 else None
        answer = self.bench.answer(max_attempts=1 + pick % 3, tenant=tenant, **more)
        if answer.answer == "admitted":
            self.used[answer.job_id] = 0

    def review(self, act: str, pick: int, job: JobId) -> None:
        """Act on one job; what is done, and what is told, follow from the state it was in."""
        state = None if self.store.get(job) is None else self.bench.state(job)
        final = state in FINAL_STATES
        if act in {"requeue", "later"}:
            delay_ms = pick if act == "later" else 0
            wish = Requeue(job, delay_ms=delay_ms, payload=b"[1]" * pick or None)
            (acted,) = self.store.requeue([wish], by="ann").result().jobs
        elif act == "discard":
            (acted,) = self.store.discard([job], by="ann").result().jobs
            assert (self.store.get(job) is None) == (final or state is None)
        else:
            (acted,) = self.store.cancel_many([job], by="ann").result().jobs
            final = state is not None and not final
        assert (acted.found, acted.done) == (state, final)

    def attempts_never_shrink(self) -> None:
        for job, attempts in self.used.items():
            row = self.store.get(job)
            if row is not None:
                assert row.attempts >= attempts
                self.used[job] = row.attempts
