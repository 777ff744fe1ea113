from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.rates import FAST, HORIZONS_S, LONG, USUAL, Rate, horizon_for

looks = st.lists(st.tuples(st.integers(0, 1_000), st.floats(0.001, 60)), min_size=1, max_size=50)


def steady(per_second: float, seconds: int, rate: Rate | None = None) -> Rate:
    found = rate or Rate()
    for _ in range(seconds):
        found = found.after(round(per_second), 1)
    return found


@given(looks)
def test_a_rate_lies_between_the_slowest_and_the_fastest_look(
    given_looks: list[tuple[int, float]],
) -> None:
    rate = Rate()
    for events, seconds in given_looks:
        rate = rate.after(events, seconds)
    seen = [events / seconds for events, seconds in given_looks]
    for horizon in HORIZONS_S:
        assert min(seen) * 0.999 <= rate.over(horizon) + 1e-9
        assert rate.over(horizon) <= max(seen) * 1.001 + 1e-9


@pytest.mark.parametrize("horizon", HORIZONS_S)
def test_a_steady_rate_is_true_from_the_first_second(horizon: float) -> None:
    assert steady(40, 1).over(horizon) == pytest.approx(40)
    assert steady(40, 100).over(horizon) == pytest.approx(40)


def test_the_shorter_the_horizon_the_sooner_a_change_shows() -> None:
    rate = steady(100, 5, steady(10, 600))
    assert rate.over(FAST) > 60
    assert rate.over(USUAL) < 30
    assert rate.over(LONG) < 13


def test_few_events_are_measured_over_a_longer_time_and_too_few_not_at_all() -> None:
    rate = Rate()
    for at in range(3_000):
        rate = rate.after(1 if at % 150 == 0 else 0, 1)
    assert rate.measured() == pytest.approx(1 / 150, rel=0.3)
    assert steady(1, 5).measured() is None
    assert steady(1, 11).measured() == pytest.approx(1)
    assert Rate().measured() is None


def test_a_look_that_took_no_time_changes_nothing() -> None:
    rate = steady(10, 10)
    assert rate.after(1_000, 0) == rate
    assert rate.after(1_000, -5) == rate


def test_the_horizon_for_so_many_events_is_the_shortest_that_holds_them() -> None:
    assert horizon_for(10, 20) == FAST
    assert horizon_for(1, 20) == USUAL
    assert horizon_for(0.1, 20) == LONG
    assert horizon_for(0.001, 20) is None
