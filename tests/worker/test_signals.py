"""Signals are counted while they are listened to, and put back afterwards."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from millpond.worker.bell import Bell
from millpond.worker.signals import Signals, reap_orphans


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    made.close()


def heard(bell: Bell) -> bool:
    readable, _, _ = select.select([bell], [], [], 10)
    return bool(readable)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_request_to_stop_is_counted_and_rings(bell: Bell, number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Signals(bell) as signals:
        os.kill(os.getpid(), number)
        assert heard(bell)
        assert (signals.stops, signals.last) == (1, number.name)
    assert signal.getsignal(number) is before


def test_what_was_ignored_at_the_start_stays_ignored(bell: Bell) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals(bell) as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
            assert heard(bell)
            assert (signals.stops, signals.last) == (1, "SIGTERM")
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_end_of_a_child_rings(bell: Bell) -> None:
    with Signals(bell, children=True):
        child = subprocess.Popen([sys.executable, "-c", ""])
        assert heard(bell)
        assert child.wait(20) == 0


def test_reaping_leaves_the_end_of_our_own_children_to_whoever_started_them() -> None:
    ours = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    theirs = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], dict(os.environ))
    os.waitid(os.P_PID, ours.pid, os.WEXITED | os.WNOWAIT)
    os.waitid(os.P_PID, theirs, os.WEXITED | os.WNOWAIT)
    assert reap_orphans([ours]) == 1
    assert ours.returncode == 7
    with pytest.raises(ChildProcessError):
        os.waitpid(theirs, os.WNOHANG)
    assert reap_orphans([ours]) == 0


def test_a_bell_is_heard_once_however_often_it_was_rung(bell: Bell) -> None:
    for _ in range(3):
        bell.ring()
    assert heard(bell)
    bell.hear()
    assert select.select([bell], [], [], 0)[0] == []
    bell.ring()
    assert heard(bell)


def test_ringing_a_closed_bell_does_nothing() -> None:
    bell = Bell()
    bell.close()
    bell.ring()
    bell.close()
