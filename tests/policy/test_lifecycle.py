from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import InvariantBroken
from millpond.model import AttemptOutcome, State
from millpond.policy.lifecycle import (
    TRANSITIONS,
    Event,
    allows,
    check,
    event_for,
    is_charged,
    is_final,
    recorded,
    state_after,
)

EDGES = {
    (source, event, target)
    for (source, event), targets in TRANSITIONS.items()
    for target in targets
}
outcomes = st.sampled_from(AttemptOutcome)
sources = [None, *State]
counts = st.integers(1, 1_000)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(sources, State)))
def test_a_transition_outside_the_machine_is_a_bug_that_names_both_states(
    source: State | None, target: State
) -> None:
    if any((source, event, target) in EDGES for event in Event):
        check(source, target)
        return
    with pytest.raises(InvariantBroken, match=f"from {source or 'nothing'} to {target}:"):
        check(source, target)


@given(st.sampled_from(sources), st.sampled_from(Event), st.sampled_from(State))
def test_an_event_takes_a_job_only_along_its_own_edges(
    source: State | None, event: Event, target: State
) -> None:
    assert allows(source, event, target) == ((source, event, target) in EDGES)
    if not allows(source, event, target):
        with pytest.raises(InvariantBroken, match=f"by {event}"):
            check(source, target, event)


def test_only_an_operator_takes_a_job_out_of_a_final_state() -> None:
    leaving = {event for source, event, _ in EDGES if source is not None and is_final(source)}
    assert leaving == {Event.REQUEUE}


def test_only_a_claim_makes_a_job_running_and_only_from_ready() -> None:
    assert {edge for edge in EDGES if edge[2] is State.RUNNING} == {
        (State.READY, Event.CLAIM, State.RUNNING)
    }


def test_only_a_running_job_completes() -> None:
    assert {source for source, _, target in EDGES if target is State.COMPLETED} == {State.RUNNING}


def test_a_waiting_job_can_always_reach_every_final_state() -> None:
    reached = {State.SCHEDULED}
    for _ in State:
        reached |= {target for source, _, target in EDGES if source in reached}
    assert reached == set(State)


def test_the_final_states_are_completed_failed_and_cancelled() -> None:
    final = {state for state in State if is_final(state)}
    assert final == {State.COMPLETED, State.FAILED, State.CANCELLED}


def test_every_outcome_but_snoozed_and_released_is_charged() -> None:
    uncharged = {outcome for outcome in AttemptOutcome if not is_charged(outcome)}
    assert uncharged == {AttemptOutcome.SNOOZED, AttemptOutcome.RELEASED}


@given(outcomes, st.integers(0, 1_000), counts, st.integers(-5, 10_000), st.booleans())
def test_every_end_of_an_attempt_follows_an_edge_of_the_machine(
    outcome: AttemptOutcome, used: int, most: int, delay: int, cancel: bool
) -> None:
    target = state_after(
        outcome, attempts_used=used, max_attempts=most, delay_ms=delay, cancel_asked=cancel
    )
    event = event_for(outcome, exhausted=used >= most, cancel_asked=cancel)
    assert allows(State.RUNNING, event, target)


@given(outcomes, counts, st.integers(0, 10_000))
def test_after_a_cancel_only_a_completed_job_is_not_cancelled(
    outcome: AttemptOutcome, most: int, delay: int
) -> None:
    target = state_after(
        outcome, attempts_used=1, max_attempts=most, delay_ms=delay, cancel_asked=True
    )
    completed = outcome is AttemptOutcome.COMPLETED
    assert target is (State.COMPLETED if completed else State.CANCELLED)


@given(outcomes, counts, st.integers(0, 10_000))
def test_a_charged_attempt_that_was_the_last_ends_the_job(
    outcome: AttemptOutcome, most: int, delay: int
) -> None:
    target = state_after(outcome, attempts_used=most, max_attempts=most, delay_ms=delay)
    assert is_final(target) == is_charged(outcome)


@given(st.sampled_from(["retried", "snoozed", "timed_out", "lease_lost", "crashed"]), counts)
def test_a_job_that_goes_on_is_scheduled_when_its_due_time_lies_ahead(
    outcome: str, delay: int
) -> None:
    end = AttemptOutcome(outcome)
    later = state_after(end, attempts_used=1, max_attempts=2, delay_ms=delay)
    assert later is State.SCHEDULED
    now = state_after(end, attempts_used=1, max_attempts=2, delay_ms=0)
    assert now is State.READY


@given(outcomes, counts, counts)
def test_the_history_calls_a_retry_failed_exactly_when_no_attempt_is_left(
    outcome: AttemptOutcome, used: int, most: int
) -> None:
    written = recorded(outcome, attempts_used=used, max_attempts=most)
    exhausted = outcome is AttemptOutcome.RETRIED and used >= most
    assert written is (AttemptOutcome.FAILED if exhausted else outcome)


def test_a_released_job_is_ready_at_once() -> None:
    released = AttemptOutcome.RELEASED
    assert state_after(released, attempts_used=9, max_attempts=5, delay_ms=0) is State.READY
