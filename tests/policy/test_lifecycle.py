from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import InvariantBroken
from millpond.model import AttemptOutcome, State
from millpond.policy.ending import Held, ending
from millpond.policy.lifecycle import (
    TRANSITIONS,
    Event,
    allows,
    check,
    is_charged,
    is_final,
)

EDGES = {
    (source, event, target)
    for (source, event), targets in TRANSITIONS.items()
    for target in targets
}
outcomes = st.sampled_from(AttemptOutcome)
sources = [None, *State]


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


def ends() -> st.SearchStrategy[Held]:
    return st.builds(
        Held,
        attempts=st.integers(0, 20),
        crashes=st.integers(0, 20),
        max_attempts=st.integers(1, 20),
        cancel_requested=st.booleans(),
    )


@given(outcomes, ends())
def test_every_end_of_an_attempt_follows_an_edge_from_running(
    outcome: AttemptOutcome, held: Held
) -> None:
    end = ending(outcome, held)
    # "Scheduled" stands there for both places to wait in.
    target = State.READY if end.state is State.SCHEDULED else end.state
    check(State.RUNNING, target)


@given(outcomes, ends())
def test_an_end_is_charged_exactly_when_the_machine_says_so(
    outcome: AttemptOutcome, held: Held
) -> None:
    end = ending(outcome, held)
    assert (end.number is not None) == is_charged(outcome)
