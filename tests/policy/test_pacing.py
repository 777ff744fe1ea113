from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.pacing import TARGET_US, Pace, pause_s, spread_ms

helds = st.integers(0, 10_000_000)


@given(st.integers(1, 500), helds)
def test_a_pace_stays_within_its_bounds(jobs: int, held_us: int) -> None:
    pace = Pace()
    for _ in range(20):
        pace = pace.after(min(jobs, pace.size), held_us)
        assert pace.least <= pace.size <= pace.most


@given(st.floats(0.5, 5_000))
def test_batches_come_to_hold_the_lock_for_the_target(us_per_job: float) -> None:
    pace = Pace()
    for _ in range(20):
        pace = pace.after(pace.size, int(pace.size * us_per_job))
    held = pace.size * us_per_job
    assert held <= max(TARGET_US * 1.1, pace.least * us_per_job)
    assert held >= TARGET_US * 0.8 or pace.size in {pace.most, pace.least}


@given(st.integers(10, 500), helds)
def test_the_size_at_most_doubles_or_halves(size: int, held_us: int) -> None:
    after = Pace(size).after(size, held_us).size
    assert size // 2 <= after <= size * 2 or after == Pace().least


def test_a_batch_that_was_not_full_shows_nothing_about_a_larger_one() -> None:
    assert Pace(100).after(3, 1).size == 100
    assert Pace(100).after(0, 0) == Pace(100)


def test_after_a_batch_the_lock_is_left_to_others_for_longer_than_it_was_held() -> None:
    assert pause_s(5_000) == 0.01
    assert pause_s(0) == 0.005
    assert pause_s(10_000_000) == 0.1


@given(st.integers(1, 400), st.integers(0, 86_400_000), st.floats(0, 1, exclude_max=True))
def test_a_spread_gives_every_job_a_part_of_the_length(
    count: int, length_ms: int, roll: float
) -> None:
    dues = [spread_ms(at, count, length_ms, roll) for at in range(count)]
    assert dues == sorted(dues)
    for at, due in enumerate(dues):
        assert at * length_ms // count <= due <= (at + 1) * length_ms // count + 1
    assert dues[0] >= 0
    assert dues[-1] <= length_ms


@pytest.mark.parametrize(("at", "count"), [(0, 0), (-1, 3), (3, 3)])
def test_a_place_that_there_is_not_is_refused(at: int, count: int) -> None:
    with pytest.raises(ValueError, match="no place"):
        spread_ms(at, count, 10, 0.5)
