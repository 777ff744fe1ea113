from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.clock import Clock, ManualClock, SystemClock, host_domain
from millpond.errors import BadConfig


def test_the_system_clock_gives_milliseconds_of_utc_and_a_monotonic_reading() -> None:
    clock: Clock = SystemClock(0)
    before = (time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
    now, mono = clock.now(), clock.mono()
    after = (time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)
    assert before[0] <= now <= after[0]
    assert before[1] <= mono <= after[1]


def test_an_offset_moves_the_wall_clock_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_CLOCK_OFFSET", "-86400.5")
    shifted, plain = SystemClock(), SystemClock(0)
    assert abs(plain.now() - shifted.now() - 86_400_500) < 5_000
    assert abs(plain.mono() - shifted.mono()) < 5_000


@pytest.mark.parametrize("text", ["", "0"])
def test_an_empty_offset_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MILLPOND_CLOCK_OFFSET", text)
    assert abs(SystemClock().now() - SystemClock(0).now()) < 5_000


@pytest.mark.parametrize("offset", ["soon", "nan", "inf", "1e30", "-1e30", 10**400])
def test_an_offset_that_is_no_sane_number_is_refused_by_name(offset: Any) -> None:
    with pytest.raises(BadConfig, match=r"^MILLPOND_CLOCK_OFFSET is .* number of seconds"):
        SystemClock(offset)


def test_processes_of_one_host_and_time_namespace_share_a_domain() -> None:
    assert SystemClock(0).domain == host_domain() == SystemClock(60).domain
    assert "/" in host_domain()


@given(st.lists(st.integers(0, 10**9)))
def test_a_manual_clock_moves_both_readings_together(steps: list[int]) -> None:
    clock = ManualClock(now=5_000, mono=70)
    for step in steps:
        clock.advance(ms=step)
    assert (clock.now(), clock.mono()) == (5_000 + sum(steps), 70 + sum(steps))


def test_a_manual_clock_stands_still_by_itself() -> None:
    clock: Clock = ManualClock()
    assert (clock.now(), clock.mono()) == (clock.now(), clock.mono())


@given(st.floats(-1e6, 1e6))
def test_a_jump_moves_the_wall_clock_only(seconds: float) -> None:
    clock = ManualClock(now=10**12, mono=7)
    clock.jump(seconds)
    assert (clock.now(), clock.mono()) == (10**12 + round(seconds * 1000), 7)


def test_time_does_not_pass_backwards() -> None:
    clock = ManualClock()
    with pytest.raises(ValueError, match="use jump"):
        clock.advance(-1)


def test_a_reboot_starts_another_domain_whose_readings_do_not_compare() -> None:
    clock = ManualClock(mono=9_000)
    before, wall = clock.domain, clock.now()
    clock.reboot(mono=10)
    assert clock.domain != before
    assert (clock.now(), clock.mono()) == (wall, 10)


def test_threads_that_advance_a_manual_clock_lose_no_step() -> None:
    clock = ManualClock(now=0, mono=0)

    def advance_often() -> None:
        for _ in range(2_000):
            clock.advance(ms=1)

    threads = [threading.Thread(target=advance_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert (clock.now(), clock.mono()) == (8_000, 8_000)
