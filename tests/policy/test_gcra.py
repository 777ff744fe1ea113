from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.gcra import LONGEST_DEBT_US, Limit, available, take, wait_us

limits = st.builds(Limit, st.integers(1, 1_000_000), st.integers(1, 50))
steps = st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 80)), max_size=60)


@given(limits, steps, st.booleans())
def test_no_window_gets_more_than_the_burst_and_its_rate(
    limit: Limit, wishes: list[tuple[int, int]], whole: bool
) -> None:
    now, tat, given_at = 0, 0, []
    for step, wanted in wishes:
        now += step
        taken = take(limit, tat, now, wanted, whole=whole)
        tat = taken.tat_us
        assert 0 <= taken.granted <= wanted
        if taken.granted:
            given_at.append((now, taken.granted))
    most = max([limit.burst, *(many for _, many in given_at)]) if whole else limit.burst
    for at, (start, _) in enumerate(given_at):
        total = 0
        for end, many in given_at[at:]:
            total += many
            assert total <= most + (end - start) / limit.interval_us


@given(limits, st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 80))
def test_what_is_shown_as_available_is_granted(
    limit: Limit, tat: int, now: int, wanted: int
) -> None:
    assert take(limit, tat, now, wanted).granted == min(available(limit, tat, now), wanted)


@given(limits, st.integers(0, LONGEST_DEBT_US), st.integers(0, 10**9), st.integers(1, 80))
def test_after_the_wait_it_is_granted_and_not_before(
    limit: Limit, tat: int, now: int, wanted: int
) -> None:
    wait = wait_us(limit, tat, now, wanted)
    assert take(limit, tat, now + wait, wanted, whole=True).granted == wanted
    if wait:
        assert take(limit, tat, now + wait - 1, wanted, whole=True).granted == 0


@given(st.builds(Limit, st.integers(1, 1_000_000), st.integers(2, 50)))
def test_a_caller_in_a_loop_gets_the_whole_rate(limit: Limit) -> None:
    tat, total, step = 0, 0, max(limit.interval_us // 3, 1)
    for at in range(300):
        taken = take(limit, tat, at * step, 1)
        tat, total = taken.tat_us, total + taken.granted
    assert total >= min(300, 299 * step // limit.interval_us)


def test_a_batch_larger_than_the_burst_passes_a_full_bucket_and_is_paid_for_later() -> None:
    limit = Limit(10_000, 5)
    taken = take(limit, 0, 1_000_000, 50, whole=True)
    assert taken.granted == 50
    assert take(limit, taken.tat_us, 1_000_000, 1).granted == 0
    assert take(limit, taken.tat_us, 1_450_000, 1).granted == 0
    assert take(limit, taken.tat_us, 1_460_000, 1).granted == 1
    assert take(limit, 1_020_000, 1_000_000, 50, whole=True).granted == 0


def test_a_clock_set_back_does_not_shut_the_bucket_for_longer_than_five_minutes() -> None:
    limit = Limit(1_000, 1)
    ahead = 3_600_000_000 + LONGEST_DEBT_US
    assert wait_us(limit, ahead, 0) == LONGEST_DEBT_US
    assert take(limit, LONGEST_DEBT_US, LONGEST_DEBT_US, 1).granted == 1


def test_a_rate_too_small_to_tell_from_nothing_has_no_limit() -> None:
    assert Limit.per_second(0.0) is None
    assert Limit.per_second(1 / 301) is None
    assert Limit.per_second(1 / 299) == Limit(299_000_000, 1)
    assert Limit.per_second(100.0, burst_s=2) == Limit(10_000, 200)
