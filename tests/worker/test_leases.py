"""When to beat and how long a lease is surely ours, by arithmetic alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.fakes import claim

from millpond.worker import leases
from millpond.worker.leases import BeatTimer

lengths = st.integers(100, 10_000_000)
moments = st.integers(0, 2**40)


@given(lengths, moments, moments)
def test_a_lease_runs_from_the_later_of_claim_and_beat(lease: int, claimed: int, beat: int) -> None:
    job = claim(1, lease_ms=lease, claimed_mono=claimed)
    assert leases.expires(job, beat) == max(claimed, beat) + lease


@given(lengths, moments)
def test_a_handler_is_told_to_stop_before_the_end_and_after_two_missed_beats(
    lease: int, beat: int
) -> None:
    job = claim(1, lease_ms=lease, claimed_mono=0)
    stop = leases.stop_at(job, beat)
    assert beat + lease * 3 // 4 < stop < leases.expires(job, beat)


@given(lengths, moments)
def test_nothing_need_be_watched_before_a_lease_can_be_near_its_end(lease: int, beat: int) -> None:
    longer = claim(1, lease_ms=lease + 50, claimed_mono=0)
    assert beat + leases.watch_ms(lease) <= leases.stop_at(longer, beat) + 1
    assert leases.watch_ms(None) > 365 * 86_400_000


@given(st.lists(lengths, min_size=1, max_size=5), st.integers(0, 2_000_000))
def test_the_margin_is_the_smallest_part_left(lengths: list[int], late: int) -> None:
    jobs = [claim(n, lease_ms=lease, claimed_mono=0) for n, lease in enumerate(lengths, 1)]
    margin = leases.margin(jobs, 1_000, 1_000 + late)
    assert margin == pytest.approx(max(0.0, 1 - late / min(lengths)))


def test_without_a_lease_there_is_no_margin() -> None:
    assert leases.margin([], 0, 10) is None


@pytest.mark.parametrize(
    ("configured", "shortest", "interval"),
    [(None, None, 15_000), (None, 60_000, 15_000), (None, 2_000, 500), (300, 2_000, 300),
     (15_000, 300, 75), (200, None, 200)],
)  # fmt: skip
def test_the_interval_is_the_configured_one_or_a_quarter_of_the_shortest_lease(
    configured: int | None, shortest: int | None, interval: int
) -> None:
    assert BeatTimer(configured, 0).interval(shortest) == interval


def test_a_claim_with_a_short_lease_brings_the_beat_forward() -> None:
    timer = BeatTimer(None, 1_000)
    timer.beaten(1_000, 15_000)
    assert timer.due(None) == 16_000
    assert timer.due(2_000) == 1_500


def test_a_longer_interval_is_kept_to_only_after_it_was_told() -> None:
    timer = BeatTimer(None, 0)
    timer.beaten(0, timer.interval(300))
    assert timer.due(None) == 75
    timer.beaten(75, timer.interval(None))
    assert timer.due(None) == 15_075


def test_a_beat_that_failed_is_tried_again_soon() -> None:
    timer = BeatTimer(None, 0)
    timer.again(20_000, 50)
    assert timer.due(60_000) == 20_050


@given(lengths)
def test_a_beat_waits_for_a_busy_database_a_third_of_the_shortest_lease(lease: int) -> None:
    assert leases.budget_ms(lease, 15_000) == lease // 3
    assert leases.budget_ms(None, 15_000) == 20_000
