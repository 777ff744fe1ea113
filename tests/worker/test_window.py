"""The window: half a second of measured work, grown by evidence only, closed at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.worker.window import CEILING, Window

HALF_SECOND = 500_000

slots = st.integers(1, 64)
looks = st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(1, 500)), max_size=60)


def seen(window: Window, mean_us: int, times: int = 40, count: int = 10) -> Window:
    for _ in range(times):
        window.observe(mean_us * count, count)
    return window


@given(slots, looks)
def test_at_least_the_slots_and_at_most_the_ceiling_beyond_them(
    slots: int, looks: list[tuple[int, int]]
) -> None:
    window = Window(slots, HALF_SECOND)
    for total, count in looks:
        window.observe(total, count)
        assert slots <= window.target <= slots + CEILING
        assert window.ahead * slots == pytest.approx(window.target - slots)


@given(slots, looks)
def test_what_waits_is_never_more_than_the_window_of_measured_work(
    slots: int, looks: list[tuple[int, int]]
) -> None:
    window = Window(slots, HALF_SECOND)
    for total, count in looks:
        window.observe(total, count)
        assert window.mean_us is not None
        assert (window.target - slots) * max(window.mean_us, 1) / slots <= HALF_SECOND


@given(slots, looks, st.integers(0, 10_000))
def test_room_is_what_is_missing_to_the_target(
    slots: int, looks: list[tuple[int, int]], held: int
) -> None:
    window = Window(slots, HALF_SECOND)
    for total, count in looks:
        window.observe(total, count)
    assert window.room(held) == max(window.target - held, 0)


def test_nothing_is_taken_ahead_before_anything_was_measured() -> None:
    assert Window(4, HALF_SECOND).target == 4


def test_one_lucky_run_does_not_fill_the_house() -> None:
    window = Window(4, HALF_SECOND)
    window.observe(10, 1)
    assert window.target == 8


def test_fast_handlers_open_it_to_thousands() -> None:
    assert seen(Window(4, HALF_SECOND), 10).target == 4 + CEILING


def test_tenths_of_a_second_leave_five_waiting_for_one_slot() -> None:
    assert seen(Window(1, HALF_SECOND), 100_000).target == 6


def test_slow_handlers_keep_it_closed() -> None:
    assert seen(Window(4, HALF_SECOND), 10_000_000).target == 4


def test_one_slow_run_closes_most_of_it() -> None:
    window = seen(Window(2, HALF_SECOND), 10)
    window.observe(2_000_000, 1)
    assert window.target <= 12


def test_a_stall_closes_it_without_any_run_having_ended() -> None:
    window = seen(Window(4, HALF_SECOND), 10)
    window.stall(1_000_000)
    assert window.target <= 6


def test_a_stall_never_opens_it() -> None:
    window = Window(4, HALF_SECOND)
    window.stall(1)
    assert window.target == 4


def test_a_window_of_nothing_takes_only_what_can_run() -> None:
    assert seen(Window(4, 0), 10).target == 4
