"""From outcomes to settlements, and what a death costs; no clock is read, no dice are rolled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.fakes import claim

from millpond.model import AttemptOutcome
from millpond.policy.backoff import Backoff, after_ms, delay_ms
from millpond.worker.frames import End, Outcome, Trouble
from millpond.worker.marks import Mark, Stage
from millpond.worker.settling import (
    how_it_ended,
    settlement_after_death,
    settlement_after_kill,
    settlement_of,
)

RULE = Backoff(base=10, jitter="full")
TROUBLE = Trouble("builtins.ValueError", "no", "Traceback ...", "00ff")
A = AttemptOutcome

rolls = st.floats(0, 1, exclude_max=True)


def outcome(end: End, **fields: object) -> Outcome:
    return Outcome(claim=7, end=end, started_at=100, ended_at=200, ran_us=5, **fields)  # type: ignore[arg-type]


def test_every_end_has_its_outcome() -> None:
    said = {end: settlement_of(outcome(end), claim(7), RULE, 9, 0.5).outcome for end in End}
    assert said == {
        End.COMPLETED: A.COMPLETED,
        End.RETRY: A.RETRIED,
        End.SNOOZE: A.SNOOZED,
        End.FAIL: A.FAILED,
        End.CANCELLED: A.CANCELLED,
        End.TIMED_OUT: A.TIMED_OUT,
        End.LEASE_LOST: A.LEASE_LOST,
        End.RELEASED: A.RELEASED,
    }


def test_a_completed_attempt_carries_its_result_and_times() -> None:
    said = settlement_of(outcome(End.COMPLETED, result=b"42"), claim(7), RULE, 9, 0.5)
    assert (said.result, said.result_ttl_ms) == (b"42", 9)
    assert (said.started_at, said.ended_at, said.delay_ms) == (100, 200, 0)


def test_a_failed_attempt_carries_its_error() -> None:
    said = settlement_of(outcome(End.FAIL, reason="why", trouble=TROUBLE), claim(7), RULE, 9, 0.5)
    assert (said.reason, said.error_type, said.message) == ("why", TROUBLE.type, "no")
    assert (said.traceback, said.fingerprint) == (TROUBLE.traceback, "00ff")


@given(st.integers(0, 30), rolls, st.sampled_from([End.RETRY, End.TIMED_OUT, End.LEASE_LOST]))
def test_another_try_waits_as_the_task_says(attempts: int, roll: float, end: End) -> None:
    job = claim(7, attempts=attempts)
    said = settlement_of(outcome(end), job, RULE, 9, roll)
    assert said.delay_ms == delay_ms(attempts + 1, RULE, roll)


@given(st.integers(0, 10**9), rolls)
def test_what_a_handler_asks_for_is_never_shortened(asked: int, roll: float) -> None:
    said = settlement_of(outcome(End.RETRY, delay_ms=asked), claim(7), RULE, 9, roll)
    assert said.delay_ms == after_ms(asked, 1, RULE, roll) >= asked


@given(st.integers(0, 10**9), rolls)
def test_a_snooze_is_as_long_as_it_was_said(asked: int, roll: float) -> None:
    said = settlement_of(outcome(End.SNOOZE, delay_ms=asked), claim(7), RULE, 9, roll)
    assert said.delay_ms == asked


FED = Mark(Stage.FED, None)
STARTED = Mark(Stage.STARTED, 100)
RETURNED = Mark(Stage.RETURNED, 100)


@pytest.mark.parametrize(
    ("mark", "after_death", "after_kill"),
    [
        (FED, A.RELEASED, A.RELEASED),
        (STARTED, A.CRASHED, A.RELEASED),
        (RETURNED, A.LEASE_LOST, A.LEASE_LOST),
    ],
)
def test_a_death_is_charged_by_how_far_the_job_came(
    mark: Mark, after_death: AttemptOutcome, after_kill: AttemptOutcome
) -> None:
    died = settlement_after_death(
        mark, claim(7), RULE, 0.5, how="runner killed by signal 9 (SIGKILL)", number=9, now=300
    )
    assert died.outcome is after_death
    assert settlement_after_kill(mark, claim(7), RULE, 0.5, 300).outcome is after_kill


def test_a_crash_names_its_signal_and_keeps_its_start() -> None:
    how, number = how_it_ended(-9)
    said = settlement_after_death(STARTED, claim(7), RULE, 0.5, how=how, number=number, now=300)
    assert said.reason == "runner killed by signal 9 (SIGKILL)"
    assert (said.signal, said.started_at, said.ended_at) == (9, 100, 300)
    assert said.delay_ms == delay_ms(1, RULE, 0.5)


def test_what_never_started_leaves_no_trace_in_its_history() -> None:
    died = settlement_after_death(FED, claim(7), RULE, 0.5, how="", number=None, now=300)
    assert died.started_at is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, ("runner exited with code 0", None)),
        (86, ("runner exited with code 86", None)),
        (-11, ("runner killed by signal 11 (SIGSEGV)", 11)),
        (-200, ("runner killed by signal 200 (unknown)", 200)),
    ],
)
def test_an_end_is_told_in_words(code: int, said: tuple[str, int | None]) -> None:
    assert how_it_ended(code) == said
