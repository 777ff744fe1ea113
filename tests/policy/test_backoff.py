from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.errors import BadConfig
from millpond.policy.backoff import LONGEST_MS, Backoff, Jitter, after_ms, delay_ms

HIGHEST_ROLL = math.nextafter(1.0, 0.0)

rolls = st.floats(0, HIGHEST_ROLL)
attempts = st.one_of(st.integers(1, 50), st.integers(1, 10**30))
jitters: st.SearchStrategy[Jitter] = st.sampled_from(get_args(Jitter))


@st.composite
def rules(draw: st.DrawFn) -> Backoff:
    cap = draw(st.floats(0, LONGEST_MS / 1000))
    return Backoff(
        base=draw(st.floats(0, LONGEST_MS / 1000)),
        factor=draw(st.one_of(st.floats(1, 10), st.floats(1, 1.7e308))),
        cap=cap,
        jitter=draw(jitters),
        minimum=draw(st.floats(0, cap)),
    )


@given(attempts, rules(), rolls)
@example(10**300, Backoff(factor=1.7e308), HIGHEST_ROLL)
@example(10**30, Backoff(base=0), HIGHEST_ROLL)
@example(1, Backoff(cap=LONGEST_MS / 1000, base=LONGEST_MS / 1000), HIGHEST_ROLL)
def test_a_wait_is_never_above_the_cap_nor_below_the_minimum(
    attempt: int, rule: Backoff, roll: float
) -> None:
    wait = delay_ms(attempt, rule, roll)
    assert isinstance(wait, int)
    assert round(rule.minimum * 1000) <= wait <= round(rule.cap * 1000)


@given(st.integers(1, 10**6), rules(), rolls)
def test_a_later_attempt_never_waits_less_for_the_same_roll(
    attempt: int, rule: Backoff, roll: float
) -> None:
    assert delay_ms(attempt, rule, roll) <= delay_ms(attempt + 1, rule, roll)


@given(st.integers(1, 40), rules(), rolls, rolls)
def test_a_higher_roll_never_waits_less(
    attempt: int, rule: Backoff, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert delay_ms(attempt, rule, low) <= delay_ms(attempt, rule, high)


@pytest.mark.parametrize(("attempt", "window"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 80)])
def test_full_jitter_spreads_over_windows_that_double(attempt: int, window: int) -> None:
    rule = Backoff(base=5)
    assert delay_ms(attempt, rule, 0.0) == 0
    assert delay_ms(attempt, rule, 0.5) == window * 500
    assert delay_ms(attempt, rule, HIGHEST_ROLL) == window * 1000


def test_without_jitter_the_waits_are_the_ends_of_the_windows() -> None:
    rule = Backoff(base=5, jitter="none")
    waits = [delay_ms(attempt, rule, 0.3) for attempt in range(1, 5)]
    assert waits == [5_000, 10_000, 20_000, 40_000]


def test_equal_jitter_waits_in_the_upper_half_of_the_window() -> None:
    rule = Backoff(base=8, jitter="equal")
    assert delay_ms(1, rule, 0.0) == 4_000
    assert delay_ms(1, rule, HIGHEST_ROLL) == 8_000


def test_a_minimum_moves_the_lower_end_and_keeps_the_spread() -> None:
    # A floor under the roll would put a fifth of the jobs on one instant.
    rule = Backoff(base=10, minimum=2)
    waits = [delay_ms(1, rule, step / 500) for step in range(500)]
    assert min(waits) == 2_000
    assert waits.count(2_000) == 1


@pytest.mark.parametrize("attempt", [3, 2_000, 10**30])
def test_a_window_past_the_range_of_numbers_is_the_cap(attempt: int) -> None:
    assert delay_ms(attempt, Backoff(factor=1e300, cap=60, jitter="none"), 0) == 60_000


def test_a_factor_of_one_keeps_the_window_for_ever() -> None:
    assert delay_ms(10**400, Backoff(base=3, factor=1, jitter="none"), 0) == 3_000


def test_no_second_holds_more_than_its_share_of_500_jobs_that_failed_together() -> None:
    rule = Backoff(base=10)
    waits = [delay_ms(1, rule, (index * 0.618033988749895) % 1) for index in range(500)]
    buckets = [sum(1 for wait in waits if wait // 1000 == second) for second in range(11)]
    assert max(buckets) <= 500 * 0.15


@given(st.integers(0, LONGEST_MS), attempts, rules(), rolls)
def test_jitter_only_adds_to_what_the_handler_asked_for(
    requested: int, attempt: int, rule: Backoff, roll: float
) -> None:
    wait = after_ms(requested, attempt, rule, roll)
    least = max(requested, round(rule.minimum * 1000))
    assert least <= wait <= least + round(rule.cap * 1000)
    assert wait <= 2 * LONGEST_MS


def test_no_cap_shortens_what_the_handler_asked_for() -> None:
    assert after_ms(7_200_000, 1, Backoff(cap=60), 0.0) == 7_200_000


def test_jobs_told_the_same_moment_spread_over_the_backoff_window() -> None:
    assert after_ms(30_000, 2, Backoff(base=5), 0.5) == 35_000
    assert after_ms(30_000, 2, Backoff(base=5, jitter="none"), 0.5) == 30_000


@given(rules(), attempts, rolls)
def test_a_stored_rule_gives_the_same_waits(rule: Backoff, attempt: int, roll: float) -> None:
    restored = Backoff.from_json(json.loads(json.dumps(rule.to_json())))
    assert restored == rule
    assert delay_ms(attempt, restored, roll) == delay_ms(attempt, rule, roll)


def test_what_a_newer_version_added_to_a_stored_rule_is_left_out() -> None:
    assert Backoff.from_json({"base": 1.0, "shape": "wavy"}) == Backoff(base=1.0)


@pytest.mark.parametrize("name", ["base", "factor", "cap", "minimum"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001, "5", None, True, 10**400])
def test_what_is_no_finite_number_in_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadConfig, match=rf"Backoff\.{name} is "):
        Backoff(**{name: value})


def test_a_minimum_above_the_cap_is_refused_with_both_numbers() -> None:
    with pytest.raises(BadConfig, match=r"minimum is 20: it must be at most the cap, 10"):
        Backoff(minimum=20, cap=10)


def test_shrinking_waits_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"Backoff\.factor is 0\.5"):
        Backoff(factor=0.5)


def test_an_unknown_jitter_is_refused_with_those_there_are() -> None:
    with pytest.raises(BadConfig, match=r"'fuzzy'.*'full', 'equal' or 'none'"):
        Backoff(jitter="fuzzy")  # type: ignore[arg-type]
