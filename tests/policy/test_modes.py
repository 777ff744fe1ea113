from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.modes import (
    LONGEST_LOOK_MS,
    Mode,
    ModeChange,
    ModeState,
    Signals,
    Waiting,
    inline_mode,
    next_mode,
)
from millpond.policy.pressure import PressureSettings

S = PressureSettings()
HOUR = 3_600_000


def late(age: int, deadline: int = HOUR, eligible: int = 1, drain: int | None = None) -> Signals:
    return Signals(0.1, [Waiting("w", eligible, age, drain, deadline)])


class Watch:
    """Looks once a second, keeps the changes with their moments in seconds."""

    def __init__(self, settings: PressureSettings = S) -> None:
        self.settings = settings
        self.state = ModeState()
        self.now = 0
        self.changes: list[tuple[int, ModeChange]] = []

    def look(self, signals: Signals, seconds: int = 1, step: int = 1_000) -> Watch:
        for _ in range(seconds):
            self.state, change = next_mode(self.state, signals, self.now, self.settings)
            if change is not None:
                self.changes.append((self.now // 1_000, change))
            self.now += step
        return self

    @property
    def told(self) -> list[tuple[int, str, str]]:
        return [(at, change.after.value, change.signal) for at, change in self.changes]


signals = st.builds(
    Signals,
    st.floats(0, 1.1),
    st.lists(
        st.builds(
            Waiting,
            st.just("w"),
            st.integers(0, 5),
            st.integers(0, 2 * HOUR),
            st.none() | st.integers(0, 2 * HOUR),
            st.none() | st.just(HOUR),
        ),
        max_size=2,
    ),
    st.integers(0, 3),
    st.integers(0, 2),
)


@given(st.lists(st.tuples(signals, st.integers(1, 90)), max_size=30))
def test_a_mode_never_flaps(course: list[tuple[Signals, int]]) -> None:
    watch = Watch()
    for seen, seconds in course:
        watch.look(seen, seconds)
    before: tuple[int, ModeChange] | None = None
    for at, change in watch.changes:
        down = change.before.level - change.after.level
        assert down <= 1
        if before is not None:
            was_down = before[1].after.level < before[1].before.level
            # I9: nothing within ten seconds of a way down, no way down before the dwell.
            assert not was_down or at - before[0] >= 10
            dwell = 60 if change.before is Mode.CRITICAL else 30
            assert down <= 0 or at - before[0] >= dwell
            assert before[1].after is change.before
        assert change.signal
        assert "utilisation" in change.figures
        before = (at, change)


@given(signals, signals)
def test_the_same_signals_end_in_the_same_mode(first: Signals, then: Signals) -> None:
    watch = Watch().look(first, 100).look(then, 200)
    settled = len(watch.changes)
    watch.look(then, 300)
    assert len(watch.changes) == settled


@given(st.floats(0, 1.1), st.integers(0, 3))
def test_a_first_look_and_an_inline_look_agree(utilisation: float, disk: int) -> None:
    seen = Signals(utilisation, disk=disk)
    state, _ = next_mode(ModeState(), seen, 0, S)
    assert state.mode is inline_mode(utilisation, disk, S)


def test_room_and_disk_that_run_out_are_answered_at_once() -> None:
    assert Watch().look(Signals(0.70)).told == [(0, "elevated", "utilisation")]
    assert Watch().look(Signals(0.90)).told == [(0, "critical", "utilisation")]
    assert Watch().look(Signals(0.1, disk=1)).told == [(0, "elevated", "disk")]
    assert Watch().look(Signals(0.1, disk=2)).told == [(0, "critical", "disk")]
    assert Watch().look(Signals(0.1, health=1)).told == [(0, "elevated", "health")]
    assert Watch().look(Signals(0.6999), 60).told == []


def test_late_work_counts_after_five_seconds() -> None:
    assert Watch().look(late(HOUR // 2), 10).told == [(5, "elevated", "age")]
    assert Watch().look(late(HOUR), 10).told == [(5, "critical", "age")]
    watch = Watch().look(late(HOUR), 4).look(late(1_000), 1).look(late(HOUR), 5)
    assert watch.told == []


def test_eight_thousand_that_wait_two_seconds_are_normal_and_forty_five_minutes_are_not() -> None:
    """R36: the same number of jobs, told apart by their age."""
    fresh = Signals(0.08, [Waiting("routine", 8_000, 2_000, 60_000, HOUR)])
    old = Signals(0.08, [Waiting("routine", 8_000, 45 * 60_000, 60_000, HOUR)])
    assert Watch().look(fresh, 600).told == []
    assert Watch().look(old, 10).told == [(5, "elevated", "age")]


def test_ten_thousand_at_fifty_thousand_a_minute_are_normal_and_at_a_hundred_are_not() -> None:
    """R36: the same number of jobs, told apart by the time in which they drain."""
    fast = Signals(0.1, [Waiting("routine", 10_000, 2_000, 12_000, HOUR)])
    slow = Signals(0.1, [Waiting("routine", 10_000, 2_000, 100 * 60_000, HOUR)])
    assert Watch().look(fast, 600).told == []
    assert Watch().look(slow, 10).told == [(5, "critical", "drain")]


def test_down_by_one_level_after_the_dwell_of_each() -> None:
    watch = Watch().look(Signals(0.95), 3).look(Signals(0.1), 200)
    assert [(at - 3, mode) for at, mode, _ in watch.told[1:]] == [(60, "elevated"), (91, "normal")]


def test_between_entry_and_exit_nothing_changes() -> None:
    assert len(Watch().look(Signals(0.70), 1).look(Signals(0.60), 500).changes) == 1
    assert len(Watch().look(Signals(0.90), 1).look(Signals(0.75), 500).changes) == 1
    assert len(Watch().look(late(HOUR // 2), 10).look(late(HOUR * 2 // 5), 500).changes) == 1


def test_one_signal_that_stays_high_keeps_the_mode() -> None:
    watch = Watch().look(Signals(0.95, disk=2), 1).look(Signals(0.1, disk=2), 500)
    assert watch.state.mode is Mode.CRITICAL


def test_nothing_changes_for_ten_seconds_after_a_way_down() -> None:
    watch = Watch().look(Signals(0.95), 1).look(Signals(0.1), 61)
    assert watch.state.mode is Mode.ELEVATED
    watch.look(Signals(0.99), 9)
    assert watch.state.mode is Mode.ELEVATED
    assert watch.look(Signals(0.99), 1).state.mode is Mode.CRITICAL


def test_time_in_which_nobody_looked_is_no_calm() -> None:
    watch = Watch().look(Signals(0.80), 2).look(Signals(0.1), 1)
    watch.now += HOUR
    assert watch.look(Signals(0.1), 24).state.mode is Mode.ELEVATED
    assert watch.look(Signals(0.1), 10).state.mode is Mode.NORMAL
    assert S.elevated_dwell_ms > LONGEST_LOOK_MS


@given(st.integers(-10 * HOUR, 10 * HOUR))
def test_a_clock_that_jumps_changes_no_mode(jump: int) -> None:
    watch = Watch().look(Signals(0.80), 2).look(Signals(0.1), 10)
    watch.now += jump
    assert watch.look(Signals(0.1), 2).state.mode is Mode.ELEVATED


def test_a_change_carries_its_figures_and_raises_the_epoch() -> None:
    watch = Watch().look(late(HOUR, eligible=7, drain=90_000), 10)
    ((_, change),) = watch.changes
    assert change.figures == {
        "utilisation": 0.1, "disk": 0, "health": 0, "workload": "w", "eligible": 7,
        "age_ms": HOUR, "drain_ms": 90_000, "deadline_ms": HOUR,
    }  # fmt: skip
    assert watch.state.epoch == 1
    assert watch.state.since == 5_000


def test_work_without_a_deadline_or_that_cannot_run_is_never_late() -> None:
    waits = Waiting("sheddable", 5, 10 * HOUR, 10 * HOUR, None)
    paused = Waiting("routine", 0, 10 * HOUR, None, HOUR)
    assert Watch().look(Signals(0.1, [waits, paused]), 60).told == []


@pytest.mark.parametrize("settings", [replace(S, elevated=0.5, critical=0.6, elevated_exit=0.4,
                                              critical_exit=0.55)])  # fmt: skip
def test_thresholds_are_ones_own(settings: PressureSettings) -> None:
    assert Watch(settings).look(Signals(0.5)).told == [(0, "elevated", "utilisation")]
    assert Watch(settings).look(Signals(0.6)).told == [(0, "critical", "utilisation")]
