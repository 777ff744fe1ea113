from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.causes import Cause
from millpond.policy.effects import Effect, deadline_ms
from millpond.policy.modes import Mode
from millpond.policy.pressure import PressureSettings
from millpond.policy.steering import Memory, Reading, Steered, WorkloadReading, quiet, steer

S = PressureSettings()


def workload(effect: Effect = Effect.ROUTINE, **more: int) -> WorkloadReading:
    given = {"jobs": more.get("eligible", 0), **more}
    return WorkloadReading(effect.value, effect, deadline_ms(effect), **given)


steps = st.lists(
    st.tuples(
        st.integers(-5, 90),
        st.sampled_from(list(Effect)),
        st.integers(0, 300),
        st.integers(0, 300),
        st.integers(0, 300),
        st.integers(0, 3),
    ),
    max_size=25,
)


def course(moves: list[tuple[int, Effect, int, int, int, int]]) -> list[tuple[Steered, Reading]]:
    """Offer and end so many jobs of one class after the other, and look after each."""
    memory, now, found = Memory(), 0, []
    loads = {number: workload(effect) for number, effect in enumerate(Effect)}
    for seconds, effect, offered, refused, ended, disk in moves:
        number = list(Effect).index(effect)
        now += seconds * 1_000
        load = loads[number]
        done = min(ended, load.jobs + offered)
        jobs = load.jobs + offered - done
        loads[number] = replace(
            load, jobs=jobs, eligible=jobs, age_ms=1_000 * jobs,
            accepted=load.accepted + offered, refused=load.refused + refused,
            finished=load.finished + done, good=load.good + done,
        )  # fmt: skip
        reading = Reading(500, 10**9, dict(loads), slots=4, disk=disk)
        steered = steer(memory, reading, now, S)
        memory = steered.memory
        found.append((steered, reading))
    return found


@given(steps)
def test_rates_are_never_negative_and_nobody_gets_more_room_than_a_class_above(
    moves: list[tuple[int, Effect, int, int, int, int]],
) -> None:
    for steered, _ in course(moves):
        before: float | None = None
        for lines in steered.lines.values():
            assert lines.line is None or lines.line >= 0
            assert lines.room is None or lines.room >= 0
            if lines.line is not None and lines.room is not None:
                assert lines.line <= 2 * lines.room
            if before is not None and lines.room is not None:
                assert lines.room <= before
            before = lines.room


@given(steps)
def test_what_is_remembered_comes_back_from_its_text_as_it_was(
    moves: list[tuple[int, Effect, int, int, int, int]],
) -> None:
    for steered, _ in course(moves):
        text = msgspec.json.encode(steered.memory)
        assert msgspec.json.decode(text, type=Memory) == steered.memory


@given(steps, st.integers(0, 600))
def test_a_look_that_is_left_out_would_have_changed_nothing(
    moves: list[tuple[int, Effect, int, int, int, int]], later: int
) -> None:
    for steered, reading in course(moves):
        if not quiet(steered.memory, reading, S):
            continue
        again = steer(steered.memory, reading, (steered.memory.at or 0) + later * 1_000, S)
        assert (again.mode, again.cause) == (None, None)


@given(steps)
def test_counters_that_were_mended_downwards_break_nothing(
    moves: list[tuple[int, Effect, int, int, int, int]],
) -> None:
    for steered, reading in course(moves):
        mended = replace(
            reading, workloads={1: workload(Effect.ROUTINE, accepted=0, finished=0, eligible=1)}
        )
        after = steer(steered.memory, mended, (steered.memory.at or 0) + 1_000, S)
        assert all(mean >= 0 for mean in after.memory.whole.offered.means)


def run(
    seconds: int, offered: int, ended: int, memory: Memory | None = None, **more: int
) -> Memory:
    """Offer and end so many a second, with work that waits all the time."""
    memory = memory or Memory()
    start = (memory.at or 0) // 1_000
    seen = memory.whole
    for second in range(1, seconds + 1):
        reading = Reading(
            100_000, 10**9,
            {1: workload(accepted=seen.accepted + second * offered, good=seen.good + second * ended,
                         finished=seen.finished + second * ended, eligible=1_000)},
            slots=4, running=4,
        )  # fmt: skip
        memory = steer(memory, reading, (start + second) * 1_000, S).memory
    return memory


def test_what_workers_can_do_is_measured_only_while_work_waits() -> None:
    memory = run(60, 10, 10)
    assert memory.whole.busy.measured() == pytest.approx(10)
    idle = Reading(100_000, 10**9, {1: workload(accepted=600, finished=600)}, slots=4)
    for second in range(61, 3_600):
        memory = steer(memory, idle, second * 1_000, S).memory
    assert memory.whole.busy.measured() == pytest.approx(10)
    assert memory.whole.drained.over(30) < 0.01


def test_time_in_which_nobody_looked_does_not_make_workers_slow() -> None:
    memory = run(60, 10, 10)
    reading = Reading(
        100_000, 10**9, {1: workload(accepted=600, finished=600, eligible=1_000)}, slots=4
    )
    later = steer(memory, reading, 3_600_000, S).memory
    assert later.whole.busy.measured() == pytest.approx(10)


def test_workers_that_hang_are_a_failure_and_what_they_could_do_is_remembered() -> None:
    memory = run(300, 10, 10)
    memory = run(60, 10, 0, memory)
    assert (memory.cause.cause, memory.cause.detail) == (Cause.FAILURE, "hung")
    assert (memory.whole.busy.measured(300.0) or 0) > 8
    assert memory.mode.mode is Mode.NORMAL


def test_attempts_that_end_badly_are_a_failure() -> None:
    memory = run(60, 10, 10)
    seen = memory.whole
    for second in range(1, 60):
        reading = Reading(
            100_000, 10**9,
            {1: workload(accepted=seen.accepted, finished=seen.finished, good=seen.good,
                         bad=second * 10, eligible=1_000)},
            slots=4,
        )  # fmt: skip
        memory = steer(memory, reading, (60 + second) * 1_000, S).memory
    assert (memory.cause.cause, memory.cause.detail) == (Cause.FAILURE, "resource")


def test_a_limit_of_nothing_is_full() -> None:
    assert Reading(0, 1, {1: workload()}).utilisation == 1
    assert Reading(10, 0, {1: workload()}).utilisation == 1
    assert Reading(10, 100, {1: workload(jobs=5, bytes=80)}).utilisation == 0.8
