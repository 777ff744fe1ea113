from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.control import Line, factor, rate

LINE = Line()
shares = st.floats(0, 1.2)
rates = st.floats(0, 100_000)


@given(shares, shares)
def test_the_fuller_the_slower(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert factor(low, LINE) >= factor(high, LINE)
    assert 0 <= factor(high, LINE) <= 2


def test_twice_the_balance_where_the_free_run_ends_once_at_the_goal_nothing_at_the_end() -> None:
    assert factor(0.5, LINE) == pytest.approx(2)
    assert factor(0.7, LINE) == 1
    assert factor(0.9, LINE) == pytest.approx(0)
    assert factor(0.6, LINE) == pytest.approx(1.125)


@given(rates, rates, shares)
def test_what_more_important_work_brings_in_is_not_given_away(
    drain: float, higher: float, utilisation: float
) -> None:
    allowed = rate(drain, higher, utilisation, LINE)
    if utilisation < LINE.free:
        assert allowed is None
    else:
        assert allowed is not None
        assert 0 <= allowed <= 2 * max(drain - higher, 0)


@given(st.floats(1, 1_000), st.floats(0, 0.9), st.floats(1_000, 100_000))
def test_under_the_line_the_level_comes_to_rest_below_the_goal(
    drain: float, higher_share: float, cap: float
) -> None:
    higher, held = drain * higher_share, 0.5 * cap
    for _ in range(5_000):
        allowed = rate(drain, higher, held / cap, LINE)
        step = min(0.005 * cap, abs((allowed if allowed is not None else drain) + higher - drain))
        held += step if (allowed or 0) + higher > drain else -step
    assert held / cap <= 0.7051


def test_a_line_of_ones_own_has_its_own_ends() -> None:
    line = Line(0.2, 0.4, 0.8)
    assert factor(0.2, line) == pytest.approx(2)
    assert factor(0.4, line) == 1
    assert factor(0.8, line) == pytest.approx(0)
