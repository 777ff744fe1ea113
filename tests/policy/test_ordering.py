from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import BadConfig
from millpond.policy import ordering
from millpond.policy.ordering import (
    LONGEST_AGEING_MS,
    Order,
    check_ageing,
    check_priority,
    overtaken_for_ms,
    rank,
)

priorities = st.integers(-32_768, 32_767)
dues = st.integers(0, (1 << 47) - 1)
ageings = st.integers(1, LONGEST_AGEING_MS)
# With the widest gap of priorities the bound still ends before the latest due time there is.
modest_ageings = st.integers(1, 3_600_000)
orders = st.sampled_from(["strict", "ageing"])
jobs = st.tuples(priorities, dues)

NOW = 1_700_000_000_000


def strict(job: tuple[int, int]) -> int:
    priority, due = job
    return rank(priority, due, "strict", 1)


@given(priorities, st.integers(-(1 << 70), 1 << 70), orders, ageings)
def test_a_rank_fits_a_signed_64_bit_column(
    priority: int, due: int, order: Order, ageing: int
) -> None:
    assert -(1 << 63) <= rank(priority, due, order, ageing) < 1 << 63


@given(st.lists(jobs))
def test_strict_order_is_the_order_by_priority_then_due_time(
    waiting: list[tuple[int, int]],
) -> None:
    assert sorted(waiting, key=strict) == sorted(waiting)


@given(jobs, jobs)
def test_strict_ranks_are_equal_only_for_equal_priority_and_due_time(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (strict(one) == strict(other)) == (one == other)


@given(priorities, dues, dues, ageings)
def test_ageing_orders_one_priority_by_due_time(
    priority: int, one: int, other: int, ageing: int
) -> None:
    ranked = rank(priority, one, "ageing", ageing) < rank(priority, other, "ageing", ageing)
    assert ranked == (one < other)


@given(priorities, priorities, st.integers(0, 1 << 46), modest_ageings, st.integers(0, 1 << 40))
def test_ageing_lets_nothing_pass_that_arrives_after_the_bound(
    waiting: int, arriving: int, due: int, ageing: int, later: int
) -> None:
    bound = overtaken_for_ms(waiting, arriving, ageing)
    mine = rank(waiting, due, "ageing", ageing)
    assert mine <= rank(arriving, due + bound + later, "ageing", ageing)


@given(priorities, priorities, st.integers(0, 1 << 46), modest_ageings)
def test_the_ageing_bound_is_the_tightest(
    waiting: int, arriving: int, due: int, ageing: int
) -> None:
    bound = overtaken_for_ms(waiting, arriving, ageing)
    if bound > 0:
        before = rank(arriving, due + bound - 1, "ageing", ageing)
        assert before < rank(waiting, due, "ageing", ageing)


def test_a_routine_job_is_passed_by_fresh_user_jobs_for_fifty_minutes_with_the_default() -> None:
    assert overtaken_for_ms(ordering.ROUTINE, ordering.USER, 60_000) == 50 * 60_000


def test_strict_order_never_lets_an_old_job_of_low_priority_pass_a_fresh_urgent_one() -> None:
    old = rank(ordering.MAINTENANCE, 0, "strict", 60_000)
    assert rank(ordering.USER, NOW, "strict", 60_000) < old


def test_the_named_bands_run_from_critical_to_maintenance() -> None:
    bands = [ordering.CRITICAL, ordering.SECURITY, ordering.USER, ordering.ROUTINE]
    assert [*bands, ordering.MAINTENANCE] == [10, 20, 50, 100, 200]


@pytest.mark.parametrize("priority", [-32_769, 32_768, 2**63, 1.5, "10", None, True])
def test_a_priority_outside_16_bits_is_refused_with_the_range(priority: Any) -> None:
    with pytest.raises(BadConfig, match=r"-32768 \(first\) to 32767 \(last\)"):
        check_priority(priority)
    with pytest.raises(BadConfig):
        rank(priority, NOW, "strict", 1)


def test_a_refused_priority_is_named_as_the_caller_names_it() -> None:
    with pytest.raises(BadConfig, match=r"^jobs\[3\]\.priority is 99999"):
        check_priority(99_999, "jobs[3].priority")


@pytest.mark.parametrize("ageing", [0, -1, LONGEST_AGEING_MS + 1, 0.5, False])
def test_an_ageing_whose_ranks_could_leave_64_bits_is_refused(ageing: Any) -> None:
    with pytest.raises(BadConfig, match="ageing_ms"):
        check_ageing(ageing)
