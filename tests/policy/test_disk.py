from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy import disk
from millpond.policy.disk import MIB, Fullness, Level, Limits, Sample, Space, limits
from millpond.policy.effects import Effect

sizes = st.integers(0, 1 << 44)
owed = st.integers(0, 1 << 30)
levels = st.sampled_from(Level)
rates = st.floats(0, 1e10)


@pytest.mark.parametrize(
    ("total", "low"),
    [
        (1 << 40, 4096 * MIB),
        (40 * 1024 * MIB, 2048 * MIB),
        (4 * 1024 * MIB, 256 * MIB),
        (1024 * MIB, 256 * MIB),
        (64 * MIB, 16 * MIB),
        (0, 0),
    ],
)
def test_the_first_limit_is_five_percent_within_bounds_and_a_quarter_of_what_is_tiny(
    total: int, low: int
) -> None:
    assert limits(total) == (low, low // 4)


@given(sizes)
def test_limits_leave_room_to_use(total: int) -> None:
    found = limits(total)
    assert 0 <= found.short <= found.low <= total // 4 + 1


@given(sizes, sizes)
def test_a_limit_that_was_set_is_taken_as_it_is(total: int, told: int) -> None:
    assert limits(total, told) == (told, told // 4)


def test_the_ballast_takes_at_most_an_eighth() -> None:
    assert disk.ballast_for(1 << 40, 64 * MIB) == 64 * MIB
    assert disk.ballast_for(64 * MIB, 64 * MIB) == 8 * MIB
    assert disk.ballast_for(0, 64 * MIB) == 0


@given(sizes, owed, owed, owed, owed)
def test_all_that_is_owed_is_subtracted_and_a_ballast_that_stands_is_not(
    free: int, log: int, wanted: int, there: int, promised: int
) -> None:
    space = Space(1 << 50, free, log, there, wanted, promised)
    debt = wanted - there if wanted > there else 0
    assert space.usable == free - log - promised - debt


@given(sizes, sizes, sizes, levels)
def test_less_room_is_never_a_lower_level(one: int, other: int, total: int, before: Level) -> None:
    less, more = sorted((one, other))
    limit = limits(total)
    assert disk.level(less, limit, before) >= disk.level(more, limit, before)


@given(sizes, sizes, levels)
def test_where_one_came_from_only_ever_keeps_one_there(
    usable: int, total: int, before: Level
) -> None:
    limit = limits(total)
    plain = disk.level(usable, limit)
    found = disk.level(usable, limit, before)
    assert plain <= found <= max(plain, min(before, Level.SHORT))


def test_a_level_is_entered_at_its_limit_and_left_a_tenth_above() -> None:
    limit = Limits(1_000, 250)
    assert disk.level(1_000, limit) is Level.AMPLE
    assert disk.level(999, limit) is Level.LOW
    assert disk.level(1_099, limit, Level.LOW) is Level.LOW
    assert disk.level(1_100, limit, Level.LOW) is Level.AMPLE
    assert disk.level(249, limit, Level.LOW) is Level.SHORT
    assert disk.level(274, limit, Level.SHORT) is Level.SHORT
    assert disk.level(275, limit, Level.SHORT) is Level.LOW
    assert disk.level(5_000, limit, Level.SHORT) is Level.AMPLE


def test_who_has_to_wait_at_which_level() -> None:
    told = {
        at: [
            [disk.turns_away(at, effect, bound=bound) for effect in Effect]
            for bound in (True, False)
        ]
        for at in Level
    }
    assert told == {
        Level.AMPLE: [[False] * 4, [False] * 4],
        Level.LOW: [[False, False, True, True], [False] * 4],
        Level.SHORT: [[False, True, True, True]] * 2,
        Level.FULL: [[True] * 4] * 2,
    }


@given(st.sampled_from(Effect), st.booleans(), levels, levels)
def test_a_worse_level_lets_nobody_in_whom_a_better_one_kept_out(
    effect: Effect, bound: bool, one: Level, other: Level
) -> None:
    low, high = sorted((one, other))
    assert disk.turns_away(high, effect, bound=bound) >= disk.turns_away(low, effect, bound=bound)


@given(sizes, sizes, rates, rates)
def test_the_faster_it_grows_the_sooner_is_the_next_look(
    usable: int, total: int, one: float, other: float
) -> None:
    slow, fast = sorted((one, other))
    limit = limits(total)
    sooner, later = disk.interval_s(usable, limit, fast), disk.interval_s(usable, limit, slow)
    assert 0.1 <= sooner <= later <= 10


@given(st.integers(1, 1 << 40), st.floats(1, 1e9))
def test_ten_looks_fit_before_the_next_limit_or_the_looks_are_as_fast_as_they_get(
    above: int, grows: float
) -> None:
    limit = limits(1 << 40)
    pause = disk.interval_s(limit.low + above, limit, grows)
    assert pause in {0.1, 10.0} or pause * 10 * grows == pytest.approx(above)
    assert pause == 0.1 or pause * grows <= above


def test_looks_are_ten_seconds_apart_in_peace_and_one_under_a_restriction() -> None:
    limit = Limits(1_000, 250)
    assert disk.interval_s(1 << 30, limit, 0) == 10
    assert disk.interval_s(999, limit, 0) == 1
    assert disk.interval_s(-5, limit, 0) == disk.interval_s(-5, limit, 1e9) == 1
    assert disk.interval_s(1_500, limit, 100) == 0.5
    assert disk.interval_s(1_001, limit, 1_000) == 0.1


def test_growth_is_believed_at_once_and_forgotten_slowly() -> None:
    grows = disk.growth(0, 1_000, 1)
    assert grows == 1_000
    assert disk.growth(grows, -50_000, 30) == pytest.approx(1_000 / 2.718, rel=1e-3)
    assert disk.growth(grows, 5, 0) == grows
    assert disk.growth(0, -5, 1) == 0


def test_a_failed_write_is_believed_for_a_second_and_until_there_is_room() -> None:
    limit = Limits(1_000, 250)
    full = Fullness().failed(100)
    assert full.full
    assert not full.recovers(100.9, 10_000, limit)
    assert not full.recovers(200, 124, limit)
    assert full.recovers(101, 125, limit)
    assert not full.over(101).full
    assert not Fullness().recovers(5, 10_000, limit)


def test_failures_soon_after_a_recovery_make_the_next_one_wait_twice_as_long() -> None:
    state, now, holds = Fullness(), 0.0, []
    for _ in range(8):
        state = state.failed(now).failed(now + 0.1)
        holds.append(state.hold_s)
        now += state.hold_s
        state = state.over(now)
    assert holds == [1, 2, 4, 8, 16, 32, 60, 60]
    assert state.failed(now + 61).hold_s == 1


def test_the_trend_is_that_of_the_last_hour() -> None:
    minute = 60_000
    past = [Sample(-60 * minute, 5, 10**9), Sample(30 * minute, 100, 2_000), Sample(0, 50, 3_000)]
    now = Sample(60 * minute, 650, 1_000)
    assert disk.trend(past, now, 500) == (600, 15 * minute)
    assert disk.trend([Sample(60 * minute - 1, 0, 0)], now, 500) is None


def test_nothing_runs_full_while_room_grows_or_when_it_is_gone_already() -> None:
    past = [Sample(0, 50, 3_000)]
    assert disk.trend(past, Sample(3_600_000, 20, 3_000), 500) == (-30, None)
    assert disk.trend(past, Sample(3_600_000, 20, 2_000), 0) == (-30, None)
