from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import fault
from millpond.errors import BadConfig
from millpond.fault import POINTS, FaultInjected, arm, point

SOURCE = Path(fault.__file__).parent


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    arm("")
    yield
    arm("")


def run_armed(armed: str, name: str) -> subprocess.Popen[bytes]:
    code = f"from millpond.fault import point; point({name!r}); print('passed')"
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "MILLPOND_FAULT": armed},
        stdout=subprocess.PIPE,
    )


def test_points_do_nothing_unless_armed() -> None:
    for name in POINTS:
        point(name)


def test_an_armed_point_raises_and_the_others_do_nothing() -> None:
    arm("after-commit:raise")
    with pytest.raises(FaultInjected, match="after-commit"):
        point("after-commit")
    point("before-commit")


@given(st.integers(0, 20))
def test_a_point_lets_as_many_passes_through_as_it_is_told(skip: int) -> None:
    arm(f"fed:raise@{skip}")
    for _ in range(skip):
        point("fed")
    for _ in range(2):
        with pytest.raises(FaultInjected):
            point("fed")


def test_arming_again_replaces_what_was_armed() -> None:
    arm("fed:raise, beat:raise")
    arm("beat:raise")
    point("fed")
    with pytest.raises(FaultInjected):
        point("beat")


def test_a_sleep_delays_the_pass_by_its_seconds() -> None:
    arm("beat:sleep=0.02")
    start = time.monotonic()
    point("beat")
    assert time.monotonic() - start >= 0.02


def test_exit_ends_the_process_at_once_with_its_own_code() -> None:
    with run_armed("beat:exit", "beat") as child:
        out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (86, b"")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this platform has no such signals")
def test_kill_ends_the_process_by_signal() -> None:
    with run_armed("beat:kill", "beat") as child:
        out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (-signal.SIGKILL, b"")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this platform has no such signals")
def test_stop_holds_the_process_until_it_is_continued() -> None:
    with run_armed("beat:stop", "beat") as child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        child.send_signal(signal.SIGCONT)
        out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, b"passed\n")


@pytest.mark.parametrize(
    "text",
    [
        "nowhere:raise",
        "beat:explode",
        "beat",
        "beat:",
        ":raise",
        "beat:sleep",
        "beat:sleep=",
        "beat:sleep=soon",
        "beat:sleep=-1",
        "beat:sleep=nan",
        "beat:sleep=1e300",
        "beat:raise=3",
        "beat:raise@",
        "beat:raise@-1",
        "beat:raise@x",
    ],
)
def test_what_cannot_be_understood_is_refused_and_arms_nothing(text: str) -> None:
    arm("fed:raise")
    with pytest.raises(BadConfig, match=r"^MILLPOND_FAULT is "):
        arm(f"settled:raise,{text}")
    point("settled")
    with pytest.raises(FaultInjected):
        point("fed")


def test_the_list_names_exactly_the_points_that_the_code_passes() -> None:
    passed = {
        name
        for file in SOURCE.rglob("*.py")
        for name in re.findall(r"\bpoint\(\s*\"([^\"]+)\"", file.read_text(encoding="utf-8"))
    }
    assert passed == set(POINTS)
