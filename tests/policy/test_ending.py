"""What becomes of a job when its attempt ends: against the state machine, for every case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.model import UNCHARGED, AttemptOutcome, State
from millpond.policy import lifecycle
from millpond.policy.ending import Held, ending, failure_reason

OUT = AttemptOutcome
LOSSES = {OUT.LEASE_LOST, OUT.CRASHED}
AGAIN = {OUT.RETRIED, OUT.TIMED_OUT, *LOSSES}

outcomes = st.sampled_from(OUT)


@st.composite
def helds(draw: st.DrawFn) -> Held:
    most = draw(st.integers(1, 6))
    attempts = draw(st.integers(0, most - 1))
    return Held(attempts, draw(st.integers(0, attempts)), most, draw(st.booleans()))


GOES_ON = {
    OUT.SNOOZED: lifecycle.Event.SNOOZE,
    OUT.RELEASED: lifecycle.Event.RELEASE,
    OUT.RETRIED: lifecycle.Event.RETRY,
    OUT.TIMED_OUT: lifecycle.Event.RETRY,
    OUT.LEASE_LOST: lifecycle.Event.RECOVER,
    OUT.CRASHED: lifecycle.Event.RECOVER,
}
ENDS = {
    State.COMPLETED: lifecycle.Event.COMPLETE,
    State.FAILED: lifecycle.Event.FAIL,
    State.CANCELLED: lifecycle.Event.CANCEL,
}


@given(outcomes, helds())
def test_the_job_goes_where_the_state_machine_lets_it(outcome: AttemptOutcome, held: Held):
    fate = ending(outcome, held)
    event = ENDS.get(fate.state) or GOES_ON[outcome]
    # A released job is ready at once; the others when they are due.
    target = State.READY if event is lifecycle.Event.RELEASE else fate.state
    assert lifecycle.allows(State.RUNNING, event, target)


@given(outcomes, helds())
def test_an_attempt_is_charged_once_and_the_crashes_are_among_them(
    outcome: AttemptOutcome, held: Held
):
    fate = ending(outcome, held)
    if outcome in UNCHARGED:
        assert fate.number is None
    else:
        assert fate.number == held.attempts + 1 <= held.max_attempts
    assert fate.crashes == held.crashes + (outcome is OUT.CRASHED)
    assert fate.crashes <= held.attempts + (fate.number is not None)


@given(outcomes, helds())
def test_no_job_goes_on_without_an_attempt_left(outcome: AttemptOutcome, held: Held):
    fate = ending(outcome, held)
    if fate.state is State.SCHEDULED and fate.number is not None:
        assert fate.number < held.max_attempts
    assert fate.exhausted is (
        outcome in AGAIN and not held.cancel_requested and fate.state is State.FAILED
    )


@given(outcomes, helds())
def test_the_history_says_what_happened(outcome: AttemptOutcome, held: Held):
    written = ending(outcome, held).outcome
    if outcome is OUT.COMPLETED or outcome in LOSSES:
        assert written is outcome
    elif held.cancel_requested:
        assert written is OUT.CANCELLED
    elif outcome is OUT.RETRIED:
        last = held.attempts + 1 == held.max_attempts
        assert written is (OUT.FAILED if last else OUT.RETRIED)
    else:
        assert written is outcome


@given(outcomes, helds())
def test_a_wish_to_cancel_ends_everything_but_a_completed_job(outcome: AttemptOutcome, held: Held):
    asked = Held(held.attempts, held.crashes, held.max_attempts, True)
    wanted = State.COMPLETED if outcome is OUT.COMPLETED else State.CANCELLED
    assert ending(outcome, asked).state is wanted


@pytest.mark.parametrize(
    ("outcome", "said", "reason"),
    [
        (OUT.FAILED, "no such shop", "no such shop"),
        (OUT.FAILED, None, "failed"),
        (OUT.RETRIED, "ignored", "attempts used up (3 of 3)"),
        (OUT.TIMED_OUT, None, "timed out; attempts used up (3 of 3)"),
        (OUT.LEASE_LOST, None, "lease lost; attempts used up (3 of 3)"),
        (OUT.LEASE_LOST, "worker lost", "worker lost; attempts used up (3 of 3)"),
        (OUT.CRASHED, "killed by signal 9", "killed by signal 9; attempts used up (3 of 3)"),
        (OUT.CRASHED, None, "worker died; attempts used up (3 of 3)"),
    ],
)
def test_the_reason_of_a_failed_job_names_cause_and_attempts(
    outcome: AttemptOutcome, said: str | None, reason: str
):
    assert failure_reason(outcome, Held(2, 0, 3), said) == reason
