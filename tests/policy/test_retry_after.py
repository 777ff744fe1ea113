from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.retry_after import LONGEST_S, SHORTEST_S, SPREAD, Ghost, answer

rolls = st.floats(0, 0.999)


moments = st.integers(0, 10**12)


@given(
    st.tuples(moments, moments, st.none() | moments),
    st.none() | st.floats(0, 10_000),
    rolls,
    st.integers(1, 5_000),
)
def test_an_answer_lies_between_one_second_and_five_minutes_and_a_fifth(
    at: tuple[int, int, int | None], rate: float | None, roll: float, jobs: int
) -> None:
    end, now, probe = at
    found = answer(Ghost(end), rate, now, roll, jobs=jobs, probe_us=probe)
    if found.after_s is None:
        assert rate is None
        assert probe is None
    else:
        assert SHORTEST_S <= found.after_s <= LONGEST_S * (1 + SPREAD)


@given(st.floats(0.1, 1_000), st.integers(2, 200))
def test_refused_callers_are_called_back_at_the_rate(rate: float, many: int) -> None:
    ghost, at = Ghost(), []
    for _ in range(many):
        found = answer(ghost, rate, 0, 0.0)
        ghost = found.ghost
        assert found.after_s is not None
        at.append(found.after_s)
    for number, after in enumerate(at, 1):
        assert after == pytest.approx(min(max(number / rate, 1), LONGEST_S), abs=number * 1e-6)


def test_nothing_is_said_when_nothing_was_measured() -> None:
    assert answer(Ghost(), None, 0, 0.5).after_s is None


def test_when_nothing_ends_the_next_probe_says_when_or_else_five_minutes() -> None:
    assert answer(Ghost(), 0.0, 0, 0.0).after_s == LONGEST_S
    assert answer(Ghost(), 0.0, 0, 0.0, probe_us=42_000_000).after_s == 42
    assert answer(Ghost(), None, 0, 0.0, probe_us=42_000_000).after_s == 42


def test_the_dice_spread_an_answer_by_a_fifth() -> None:
    assert answer(Ghost(), 0.1, 0, 0.0).after_s == 10
    assert answer(Ghost(), 0.1, 0, 0.5).after_s == 11


def test_a_line_that_nobody_joined_for_a_while_is_empty_again() -> None:
    ghost = answer(Ghost(), 1.0, 0, 0.0, jobs=100).ghost
    assert answer(ghost, 1.0, 0, 0.0).after_s == 101
    assert answer(ghost, 1.0, 60_000_000, 0.0).after_s == 41
    assert answer(ghost, 1.0, 500_000_000, 0.0).after_s == 1
