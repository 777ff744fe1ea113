"""The scenarios on paper: the policies alone, against what queueing theory says must come out."""

from __future__ import annotations

import pytest
from tests.pressure.loop import Load, Paper, Span

from millpond.policy import retry_after
from millpond.policy.causes import Cause
from millpond.policy.effects import Effect

SLOW, SLOWER = 600_000, 1_200_000
"""Microseconds a job takes; twenty workers end 2,000 or 1,000 a minute."""


def one(rate_spans: list[Span], service: int, cap: int | None, **more: bool) -> Paper:
    return Paper({1: Load(Effect.ROUTINE, rate_spans, gated=False)}, 20, service, cap, **more)


def second(at: int | None) -> float | None:
    return None if at is None else at / 1_000_000


@pytest.mark.parametrize(("minutes", "outstanding"), [(10, 80_019), (30, 240_019), (60, 480_019)])
def test_s0_without_a_limit_what_waits_grows_for_ever(minutes: int, outstanding: int) -> None:
    paper = one([Span(10_000, 0, minutes)], SLOW, None).run(minutes)
    load = paper.loads[1]
    assert load.offered == 10_000 * minutes
    assert load.held == outstanding
    assert load.finished == load.offered - outstanding


def test_s1_with_a_limit_the_wait_is_bounded() -> None:
    load = one([Span(10_000, 0, 60)], SLOW, 50_000).run(60).loads[1]
    assert second(load.first_refusal) == 374.88
    assert (load.accepted, load.refused, load.finished) == (169_980, 430_020, 119_981)
    assert load.held == 49_999
    assert second(load.max_wait) == 1_499.4


def test_s1c_the_control_line_holds_the_level_below_elevated() -> None:
    critical = Load(Effect.CRITICAL, [Span(200, 0, 60)])
    routine = Load(Effect.ROUTINE, [Span(9_800, 0, 60)])
    paper = Paper({1: critical, 2: routine}, 20, SLOW, 50_000).run(60)
    assert paper.modes == []
    assert paper.highest < 0.70
    assert 0.655 <= (critical.held + routine.held) / 50_000 <= 0.660
    assert critical.refused == 0
    assert second(critical.max_wait) == 0.3
    assert [cause for _, cause in paper.causes] == [Cause.SPIKE, Cause.SUSTAINED]
    assert paper.causes[-1][0] < 600_000


def test_s2_a_spike_is_absorbed_and_named_as_such() -> None:
    spans = [Span(500, 0, 5), Span(3_000, 5, 10), Span(500, 10, 45)]
    load = Load(Effect.ROUTINE, spans)
    paper = Paper({1: load}, 20, SLOWER, 50_000).run(45)
    assert (load.refused, paper.peak, second(load.max_wait)) == (0, 10_020, 600.0)
    assert round((paper.empty_at or 0) / 60e6, 2) == 29.98
    assert paper.modes == []
    assert [cause for _, cause in paper.causes] == [Cause.SPIKE, Cause.RECOVERING, Cause.STEADY]
    at = [moment // 1_000 for moment, _ in paper.causes]
    # The rates are means of five seconds, and their turn must have been seen for five more.
    assert 300 <= at[0] <= 303
    assert 600 <= at[1] <= 615
    assert 1_796 <= at[2] <= 1_800


def test_s2b_overload_that_lasts_is_named_before_the_queue_is_half_full() -> None:
    paper = one([Span(5_000, 0, 60)], SLOWER, 50_000).run(60)
    load = paper.loads[1]
    assert second(load.first_refusal) == 749.76
    assert (load.accepted, load.refused) == (109_980, 190_020)
    assert [cause for _, cause in paper.causes] == [Cause.SPIKE, Cause.SUSTAINED]
    assert 260 <= paper.causes[-1][0] / 1_000 <= 265


def refused_and_worst(**more: object) -> tuple[int, int]:
    spans = [Span(10_000, 0, 5), Span(500, 5, 40)]
    paper = Paper(
        {1: Load(Effect.ROUTINE, spans, gated=False)}, 20, SLOW, 5_000, obey=True, **more
    ).run(60)  # type: ignore[arg-type]
    return paper.loads[1].refused, max(paper.returns.values())


def test_s5_callers_who_obey_come_back_one_after_the_other() -> None:
    """Of 52,500 offers 35,000 find no room at first; a fixed answer brings all back together.

    The longest answer is five minutes, and the line is longer than that for a while: some
    callers knock three times. Without that bound it would be 55,457 refusals, 104 a second.
    """
    refused, worst = refused_and_worst()
    assert refused < 110_000
    assert worst < 200
    refused, worst = refused_and_worst(fixed_s=30.0)
    assert refused > 900_000
    assert worst > 1_000


def test_s5_without_the_bound_on_answers_each_caller_is_refused_about_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_after, "LONGEST_S", 3_600.0)
    assert refused_and_worst() == (55_457, 104)
