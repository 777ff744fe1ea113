from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import BadConfig, BadPayload, Fail, Retry, Snooze
from millpond.policy.backoff import LONGEST_MS
from millpond.policy.retry import (
    BAD_PAYLOAD,
    PERMANENT_ERROR,
    Complete,
    FailNow,
    RetryLater,
    RetryRules,
    SnoozeUntil,
    Verdict,
    verdict,
)

NOW = 1_700_000_000_000
FAILED = FailNow(PERMANENT_ERROR)
RETRIED = RetryLater()

BUILT_IN = [Exception, ValueError, OSError, ConnectionError, KeyError, TimeoutError, BadPayload]


def judge(error: BaseException, **rules: Any) -> Verdict:
    return verdict(error, RetryRules(**rules), now=NOW)


@st.composite
def rule_sets(draw: st.DrawFn) -> RetryRules:
    kinds = draw(st.lists(st.sampled_from(BUILT_IN), unique=True))
    places = [draw(st.sampled_from(["retry_on", "fail_on", "on"])) for _ in kinds]
    placed = {
        place: [kind for kind, where in zip(kinds, places, strict=True) if where == place]
        for place in ("retry_on", "fail_on", "on")
    }
    actions: st.SearchStrategy[Any] = st.sampled_from(
        ["retry", "fail", "complete", Snooze(3), Fail("no"), lambda _: None, lambda _: 1 / 0]
    )
    return RetryRules(
        tuple(placed["retry_on"]),
        tuple(placed["fail_on"]),
        {kind: draw(actions) for kind in placed["on"]},
    )


@given(rule_sets(), st.sampled_from(BUILT_IN))
def test_every_exception_has_a_verdict_under_any_rules(
    rules: RetryRules, kind: type[Exception]
) -> None:
    found = verdict(kind("x"), rules, now=NOW)
    assert isinstance(found, (Complete, RetryLater, SnoozeUntil, FailNow))


@given(rule_sets())
def test_what_the_handler_raises_to_steer_comes_before_any_rule(rules: RetryRules) -> None:
    assert verdict(Retry("later", after=1.5), rules, now=NOW) == RetryLater(1_500, "later")
    assert verdict(Snooze(60), rules, now=NOW) == SnoozeUntil(60_000)
    assert verdict(Fail("card declined"), rules, now=NOW) == FailNow("card declined")


def test_by_default_any_exception_is_retried() -> None:
    assert judge(RuntimeError("x")) == RETRIED


def test_fail_on_makes_an_exception_permanent_and_leaves_the_others_temporary() -> None:
    assert judge(ValueError("x"), fail_on=(ValueError,)) == FAILED
    assert judge(UnicodeError("x"), fail_on=(ValueError,)) == FAILED
    assert judge(KeyError("x"), fail_on=(ValueError,)) == RETRIED


def test_with_retry_on_given_everything_else_is_permanent() -> None:
    assert judge(ConnectionResetError(), retry_on=(ConnectionError,)) == RETRIED
    assert judge(ValueError("x"), retry_on=(ConnectionError,)) == FAILED


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"retry_on": (OSError,), "fail_on": (ConnectionError,)}, FAILED),
        ({"retry_on": (ConnectionError,), "fail_on": (OSError,)}, RETRIED),
        ({"on": {OSError: "complete"}, "fail_on": (ConnectionError,)}, FAILED),
        ({"on": {ConnectionError: "complete"}, "fail_on": (OSError,)}, Complete()),
        ({"on": {Exception: "fail", OSError: "retry"}}, RETRIED),
    ],
)
def test_the_most_specific_class_decides(rules: dict[str, Any], expected: Verdict) -> None:
    assert judge(ConnectionResetError(), **rules) == expected


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("retry", RETRIED),
        ("fail", FAILED),
        ("complete", Complete()),
        (Snooze(30, "not yet"), SnoozeUntil(30_000, "not yet")),
        (Retry(after=2), RetryLater(2_000)),
        (Fail("gone"), FailNow("gone")),
        (lambda _: "fail", FAILED),
        (lambda error: Fail(f"no {error.args[0]}"), FailNow("no book")),
    ],
)
def test_on_maps_an_exception_to_how_the_attempt_ends(action: Any, expected: Verdict) -> None:
    assert judge(LookupError("book"), on={LookupError: action}) == expected


def test_an_on_callable_may_raise_what_a_handler_may_raise() -> None:
    def decide(_: BaseException) -> None:
        raise Snooze(5)

    assert judge(OSError(), on={OSError: decide}) == SnoozeUntil(5_000)


def test_an_on_callable_without_an_opinion_leaves_it_to_the_less_specific_rules() -> None:
    rules = {"on": {ConnectionError: lambda _: None}, "fail_on": (OSError,)}
    assert judge(ConnectionResetError(), **rules) == FAILED


def test_an_on_callable_that_breaks_costs_no_job_and_is_noted() -> None:
    broken = judge(OSError(), on={OSError: lambda _: 1 / 0})
    assert broken == RetryLater(note="the task's on= callable raised ZeroDivisionError")


@pytest.mark.parametrize("returned", [3, "later", [], object()])
def test_an_on_callable_that_answers_nonsense_is_a_noted_retry(returned: object) -> None:
    found = judge(OSError(), on={OSError: lambda _: returned})
    assert isinstance(found, RetryLater)
    assert type(returned).__name__ in str(found.note)


def test_arguments_that_cannot_be_decoded_fail_at_once_whatever_value_errors_do() -> None:
    assert judge(BadPayload("x")) == FailNow(BAD_PAYLOAD)
    assert judge(BadPayload("x"), retry_on=(ValueError,)) == FailNow(BAD_PAYLOAD)
    assert judge(BadPayload("x"), retry_on=(BadPayload,)) == RETRIED


def test_a_group_of_one_exception_counts_as_that_exception() -> None:
    nested = ExceptionGroup("tasks", [ExceptionGroup("inner", [Fail("no")])])
    assert judge(nested, on={Exception: "complete"}) == FailNow("no")
    assert judge(ExceptionGroup("tasks", [ValueError()]), fail_on=(ValueError,)) == FAILED


def test_a_group_of_several_or_one_that_the_rules_name_is_judged_as_a_group() -> None:
    several = ExceptionGroup("tasks", [ValueError(), KeyError()])
    assert judge(several, fail_on=(ValueError,)) == RETRIED
    named = ExceptionGroup("tasks", [Fail("no")])
    assert judge(named, on={ExceptionGroup: "complete"}) == Complete()


@pytest.mark.parametrize("zone", [UTC, timezone(timedelta(hours=5, minutes=30))])
def test_a_snooze_until_a_moment_counts_from_now_to_the_millisecond(zone: timezone) -> None:
    moment = datetime.fromtimestamp(NOW / 1000, zone) + timedelta(seconds=90, milliseconds=7)
    assert judge(Snooze(moment)) == SnoozeUntil(90_007)


def test_a_snooze_until_a_moment_that_has_passed_runs_again_now() -> None:
    assert judge(Snooze(datetime(1970, 1, 1, tzinfo=UTC))) == SnoozeUntil(0)


def test_a_snooze_until_a_far_moment_is_bounded() -> None:
    assert judge(Snooze(datetime(9999, 1, 1, tzinfo=UTC))) == SnoozeUntil(LONGEST_MS)


@pytest.mark.parametrize("place", ["retry_on", "fail_on"])
@pytest.mark.parametrize("given_class", [("ValueError",), (int,), (None,), 3, (ValueError("x"),)])
def test_what_is_no_exception_class_is_refused_by_name(place: str, given_class: Any) -> None:
    with pytest.raises(BadConfig, match=f"^{place} is "):
        RetryRules(**{place: given_class})


def test_one_class_needs_no_tuple() -> None:
    rules = RetryRules(fail_on=ValueError)  # type: ignore[arg-type]
    assert rules.fail_on == (ValueError,)


@pytest.mark.parametrize("action", ["skip", None, 3, Snooze, Fail])
def test_an_unknown_action_is_refused_with_those_there_are(action: Any) -> None:
    with pytest.raises(BadConfig, match=r"^on\[OSError\] is .*'retry', 'fail', 'complete'"):
        RetryRules(on={OSError: action})


def test_a_class_named_in_two_places_is_refused() -> None:
    with pytest.raises(BadConfig, match="OSError is named more than once"):
        RetryRules(retry_on=(OSError,), on={OSError: "fail"})


def test_rules_do_not_change_with_the_mapping_they_were_made_from() -> None:
    actions: dict[type[BaseException], Any] = {OSError: "fail"}
    rules = RetryRules(on=actions)
    actions[OSError] = "complete"
    assert verdict(OSError(), rules, now=NOW) == FAILED
