"""The scenarios on the real store, with a clock moved by hand.

What is accepted, refused, waited for and ended is what the same queue does on paper, to the job
and the millisecond; `verify` finds no counter that is wrong afterwards. The short forms run a
few minutes of each scenario, the long ones the hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.pressure.loop import Load, Span
from tests.pressure.mill import Mill

from millpond.config import PressureSettings
from millpond.policy.causes import Cause
from millpond.policy.effects import Effect
from millpond.policy.modes import Mode

SLOW, SLOWER = 600_000, 1_200_000
"""Microseconds a job takes; twenty workers end 2,000 or 1,000 a minute."""

DRY = PressureSettings(dry_run=True)
RESERVED = {"critical": 5_000, "user": 15_000}
SHARES = {"user": 3, "routine": 1}

Make = Callable[..., Mill]


@pytest.fixture
def mill() -> Iterator[Make]:
    made: list[Mill] = []

    def make(loads: dict[str, Any], service: int, cap: int, **more: Any) -> Mill:
        kinds = {each.value: each for each in Effect}
        found = Mill(
            {
                name: Load(kinds.get(name, Effect.ROUTINE), spans)
                for name, spans in loads.items()
            },
            20, service, cap, **more,
        )  # fmt: skip
        made.append(found)
        return found

    yield make
    for each in made:
        assert each.store.verify() == []
        each.close()


def rate(per_minute: int, minutes: float = 60) -> list[Span]:
    return [Span(per_minute, 0, minutes)]


def second(at: int | None) -> float | None:
    return None if at is None else at / 1_000_000


def held(mill: Mill) -> int:
    ((jobs,),) = mill.rows("SELECT sum(n_jobs) FROM millpond_workload")
    return int(jobs)


def long(minutes: int) -> Any:
    return pytest.param(minutes, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("minutes", "outstanding"),
    [
        (10, 80_019),
        pytest.param(30, 240_019, marks=pytest.mark.slow),
        pytest.param(60, 480_019, marks=pytest.mark.slow),
    ],
)
def test_s0_without_a_limit_what_waits_grows_for_ever(
    mill: Make, minutes: int, outstanding: int
) -> None:
    run = mill({"default": rate(10_000, minutes)}, SLOW, 0).run(minutes)
    load = run.loads["default"]
    assert (load.offered, load.accepted) == (10_000 * minutes, 10_000 * minutes)
    assert held(run) == outstanding
    assert load.finished == load.offered - outstanding


@pytest.mark.parametrize("minutes", [7, long(60)])
def test_s1_with_a_limit_the_wait_is_bounded(mill: Make, minutes: int) -> None:
    run = mill({"default": rate(10_000, minutes)}, SLOW, 50_000).run(minutes)
    load = run.loads["default"]
    assert second(load.first_refusal) == 374.88
    assert held(run) == 49_999
    assert load.accepted + load.refused == load.offered
    assert load.accepted == load.finished + 49_999
    if minutes == 60:
        assert (load.accepted, load.refused, load.finished) == (169_980, 430_020, 119_981)
        assert second(load.max_wait) == 1_499.4
    # Modes are told, and nobody is bound by them: there is no work that matters more.
    assert [(at, mode) for at, mode, _ in run.modes] == [
        (263, Mode.ELEVATED), (338, Mode.CRITICAL),
    ]  # fmt: skip
    assert [(at, cause) for at, cause, _ in run.causes] == [
        (2, Cause.SPIKE), (132, Cause.SUSTAINED),
    ]  # fmt: skip


@pytest.mark.parametrize("minutes", [5, long(60)])
def test_s1a_reserves_alone_keep_routine_work_out_of_the_room_of_others(
    mill: Make, minutes: int
) -> None:
    loads = {"critical": rate(200), "user": rate(800), "routine": rate(9_000)}
    run = mill(loads, SLOW, 50_000, reserved=RESERVED, shares=SHARES, settings=DRY).run(minutes)
    critical, user, routine = run.loads.values()
    assert (critical.refused, user.refused) == (0, 0)
    assert (second(critical.max_wait), second(user.max_wait)) == (0.3, 0.45)
    assert second(routine.first_refusal) == 224.98
    assert routine.held in range(29_999, 30_001)
    if minutes == 60:
        assert routine.refused == 450_003


@pytest.mark.slow
def test_s1a_with_modes_in_force_routine_work_is_slowed_sooner_and_loses_nothing(
    mill: Make,
) -> None:
    """Overload that lasts is known after 132 s, so the line begins where the queue is half full.

    From there on more than what drains may still come in, so the same number is let in within
    the hour; the first refusal is at 188 s instead of 225 s.
    """
    loads = {"critical": rate(200), "user": rate(800), "routine": rate(9_000)}
    run = mill(loads, SLOW, 50_000, reserved=RESERVED, shares=SHARES).run(60)
    critical, user, routine = run.loads.values()
    assert (critical.refused, user.refused, routine.refused) == (0, 0, 450_003)
    assert second(routine.first_refusal) == 188.28
    assert run.modes == []


@pytest.mark.slow
def test_s1b_user_work_beyond_its_share_fills_its_reserve_and_no_more(mill: Make) -> None:
    """On paper 12,013 of user's are refused from 1,998.53 s on, 423,004 of routine's from 238.4.

    Here it is nine jobs and a second more and less: turns of 3 to 1 are given in strides, and
    a tie goes to user first.
    """
    loads = {"critical": rate(200), "user": rate(1_800), "routine": rate(8_000)}
    run = mill(loads, SLOW, 50_000, reserved=RESERVED, shares=SHARES, settings=DRY).run(60)
    critical, user, routine = run.loads.values()
    assert (critical.refused, second(critical.max_wait)) == (0, 0.3)
    assert user.refused == pytest.approx(12_013, abs=10)
    assert second(user.first_refusal) == pytest.approx(1_998.53, abs=1.5)
    assert routine.refused == pytest.approx(423_004, abs=10)
    assert second(routine.first_refusal) == pytest.approx(238.40, abs=0.1)
    assert [load.held for load in run.loads.values()] == [2, 14_999, 29_999]


@pytest.mark.slow
def test_s1b_with_modes_in_force_routine_work_makes_way_for_user_work(mill: Make) -> None:
    """User work is late after 15 minutes, at a queue half full: routine work is refused then.

    So the room and the workers it had go to user work, of which not one job is refused; the
    reserve alone let 12,000 of them be refused while 27,000 of routine's were done.
    """
    loads = {"critical": rate(200), "user": rate(1_800), "routine": rate(8_000)}
    run = mill(loads, SLOW, 50_000, reserved=RESERVED, shares=SHARES).run(60)
    critical, user, _ = run.loads.values()
    assert (critical.refused, user.refused) == (0, 0)
    assert second(critical.max_wait) == 0.3
    assert [mode for _, mode, _ in run.modes] == [Mode.ELEVATED, Mode.CRITICAL]


@pytest.mark.parametrize("minutes", [6, long(60)])
def test_s1c_the_control_line_holds_the_level_below_elevated(mill: Make, minutes: int) -> None:
    run = mill({"critical": rate(200), "routine": rate(9_800)}, SLOW, 50_000).run(minutes)
    critical = run.loads["critical"]
    assert (critical.refused, second(critical.max_wait)) == (0, 0.3)
    assert run.modes == []
    assert run.highest < 0.70
    assert [(at, cause) for at, cause, _ in run.causes] == [
        (2, Cause.SPIKE), (132, Cause.SUSTAINED),
    ]  # fmt: skip
    if minutes == 60:
        assert held(run) / 50_000 == pytest.approx(0.657, abs=0.001)


def test_s2_a_spike_is_absorbed_and_named_as_such(mill: Make) -> None:
    """The causes turn some seconds after the load: rates are means of five seconds.

    From a spike to recovering the turn must have been seen for five seconds more, so that one
    quiet second is no recovery. What waits is called gone when a second would do for it.
    """
    spans = [Span(500, 0, 5), Span(3_000, 5, 10), Span(500, 10, 31)]
    run = mill({"default": spans}, SLOWER, 50_000).run(31)
    load = run.loads["default"]
    assert (load.refused, run.peak, second(load.max_wait)) == (0, 10_020, 600.0)
    assert round((run.empty_at or 0) / 60e6, 2) == 29.98
    assert run.modes == []
    assert [(at, cause) for at, cause, _ in run.causes] == [
        (302, Cause.SPIKE), (613, Cause.RECOVERING), (1_798, Cause.STEADY),
    ]  # fmt: skip


@pytest.mark.parametrize("minutes", [13, long(60)])
def test_s2b_overload_that_lasts_is_named_long_before_the_first_refusal(
    mill: Make, minutes: int
) -> None:
    """On paper it is named at 262 s, here at 264: the rates must have been seen to be named."""
    run = mill({"default": rate(5_000, minutes)}, SLOWER, 50_000).run(minutes)
    load = run.loads["default"]
    assert [(at, cause) for at, cause, _ in run.causes] == [
        (2, Cause.SPIKE), (264, Cause.SUSTAINED),
    ]  # fmt: skip
    assert second(load.first_refusal) == 749.76
    if minutes == 60:
        assert (load.accepted, load.refused) == (109_980, 190_020)


def test_workers_that_are_gone_are_a_failure_and_never_overload_that_lasts(mill: Make) -> None:
    """A worker is taken for dead a minute after its last beat; until then it looks like a spike."""
    run = mill({"default": rate(500, 80)}, SLOWER, 50_000, down=(10, 30)).run(80)
    load = run.loads["default"]
    assert load.refused == 0
    assert [(cause, detail) for _, cause, detail in run.causes] == [
        (Cause.SPIKE, ""), (Cause.FAILURE, "no_workers"), (Cause.RECOVERING, ""),
        (Cause.STEADY, ""),
    ]  # fmt: skip
    at = [moment for moment, _, _ in run.causes]
    assert at[1] < 11 * 60 + 10
    assert 30 * 60 < at[2] < 30 * 60 + 15


@pytest.mark.parametrize("times", [2, 5, 10])
def test_the_workers_stay_busy_whatever_is_refused(mill: Make, times: int) -> None:
    minutes = 8
    loads = {"critical": rate(200, minutes), "routine": rate(2_000 * times - 200, minutes)}
    run = mill(loads, SLOW, 10_000).run(minutes)
    done = sum(load.finished for load in run.loads.values())
    assert done >= 0.95 * 2_000 * minutes
    assert run.loads["critical"].refused == 0
    assert run.loads["routine"].refused > 0
    assert second(run.loads["critical"].max_wait) <= 0.6


def test_every_change_is_among_the_events_with_its_figures(mill: Make) -> None:
    run = mill({"default": rate(10_000, 3)}, SLOW, 20_000).run(3)
    events = [event for event in run.store.events("default") if event.who == "millpond"]
    assert len(events) == len(run.modes) + len(run.causes)
    assert all('"utilisation":' in (event.after or "") for event in events)
