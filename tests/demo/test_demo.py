"""The demo as a process: what it shows, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from millpond.demo.crash import Crash, Outcome
from millpond.demo.story import Summary

TOLD = [
    r"a store in (?P<folder>\S+), 2 workers on three queues",
    r"somebody wants a report on a year, made month by month: job \d+",
    (
        r"kill -9 \d+: the worker of report \d+ dies; \d+ months are finished, "
        r"\w+ is half written; it held [1-9]\d* of the running jobs"
    ),
    r"worker \d+ is gone; worker \d+ takes its place",
    (
        r"report \d+ is back after [\d.]+ s as attempt 2( on \S+)?; attempt 1 is in its history as "
        r"lease_lost"
    ),
    (
        r"report \d+ is ready: \d+ months were taken over from attempt 1, \d+ were made since; "
        r"every row is there once"
    ),
    r"(?P=folder) is gone, with the store, the reports and all logs",
    r"",
    r"queue +completed +retried +failed",
    r"alerts( +\d+){3}",
    r"reports( +\d+){3}",
    r"thumbnails( +\d+){3}",
    r"",
    (
        r"summary: [\d,]+ completed, [\d,]+ retried, [1-9]\d* recovered from the killed worker, "
        r"0 unfinished, in \d+ s"
    ),
    r"verify: clean",
    r"",
    r"Next: `millpond init` in a folder of your own\.",
]


@pytest.fixture
def start(tmp_path):
    """Start a demo whose temporary folder lies where the test can look for it."""
    started = []

    def call(*arguments):
        kept = {name: at for name, at in os.environ.items() if not name.startswith("MILLPOND_")}
        child = subprocess.Popen(
            [sys.executable, "-m", "millpond", "demo", *arguments],
            cwd=tmp_path, env={**kept, "TMPDIR": str(tmp_path)}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        return child

    yield call
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()
    for process in workers_in(tmp_path):
        process.kill()


def workers_in(folder: Path):
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if str(folder) in process.environ().get("MILLPOND_URL", ""):
                found.append(process)
    return found


def nothing_is_left(folder):
    psutil.wait_procs(workers_in(folder), timeout=5)
    return not list(folder.glob("millpond-demo-*")) and not workers_in(folder)


@pytest.mark.slow
def test_the_demo_kills_a_worker_and_its_job_comes_back_as_attempt_2(start, tmp_path):
    demo = start("--headless", "--seconds", "8", "--json")
    out, story = demo.communicate(timeout=60)
    assert demo.returncode == 0, story
    told = json.loads(out)
    assert told["ok"] is True
    assert told["crash"]["attempts"] == 2
    assert told["crash"]["first_attempt"] == "lease_lost"
    report = told["crash"]["report"]
    assert report["right"] is True
    assert report["reused"] >= 3
    assert report["reused"] + report["made_again"] == 12
    assert told["recovered"] >= 1
    assert told["unfinished"] == 0
    assert told["problems"] == []
    assert set(told["queues"]) == {"alerts", "reports", "thumbnails"}
    assert all(queue["completed"] > 0 for queue in told["queues"].values())
    assert told["queues"]["thumbnails"]["retried"] > 0
    assert f"kill -9 {told['crash']['worker_pid']}" in story
    assert "as attempt 2" in story
    assert nothing_is_left(tmp_path)


@pytest.mark.slow
def test_the_killed_report_goes_on_with_its_finished_months_and_the_story_has_one_form(
    start, tmp_path
):
    demo = start("--headless", "--seconds", "6")
    out, error = demo.communicate(timeout=60)
    assert (demo.returncode, error) == (0, "")
    assert re.fullmatch("\n".join(TOLD), out.rstrip("\n")), out
    assert nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_stopped_finishes_its_jobs_and_leaves_nothing(start, tmp_path, number):
    demo = start("--seconds", "15")
    while "kill -9" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(number)
    out, error = demo.communicate(timeout=60)
    assert demo.returncode == 0, out + error
    assert error == ""
    assert "no more jobs are made" in out
    assert "verify: clean" in out
    assert nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_demo_that_is_stopped_twice_ends_at_once_and_leaves_nothing(start, tmp_path):
    demo = start("--seconds", "15")
    while not workers_in(tmp_path):
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    while "no more jobs are made" not in demo.stdout.readline():
        assert demo.poll() is None
    demo.send_signal(signal.SIGINT)
    _, error = demo.communicate(timeout=60)
    assert demo.returncode in {0, 130}, error
    assert "Traceback" not in error
    assert nothing_is_left(tmp_path)


@pytest.mark.slow
def test_a_worker_that_somebody_kills_is_replaced(start, tmp_path):
    demo = start("--seconds", "6")
    seen = demo.stdout.readline()
    keepers = []
    while len(keepers) < 2:
        found = workers_in(tmp_path)
        keepers = [each for each in found if is_keeper(each)]
    while "kill -9" not in seen:
        assert demo.poll() is None
        seen = demo.stdout.readline()
    victim = next(each for each in keepers if str(each.pid) not in seen)
    victim.kill()
    out, error = demo.communicate(timeout=60)
    assert demo.returncode == 0, error
    assert re.search(rf"worker {victim.pid} is gone; worker \d+ takes its place", out)
    assert "verify: clean" in out


def is_keeper(process):
    with contextlib.suppress(psutil.Error):
        return "millpond.worker.child" not in process.cmdline()
    return False


def test_a_demo_is_good_only_when_nothing_was_lost():
    right = Outcome(reused=4, made_again=8, right=True)
    good = Summary(queues={}, crash=Crash(1, 2, (2,), 0.0, back_s=2.0, report=right))
    assert good.good
    assert not Summary(problems=["a counter"]).good
    assert not Summary(unfinished=1).good
    assert not Summary(crash=Crash(1, 2, (2,), 0.0, report=right)).good
    assert not Summary(crash=Crash(1, 2, (2,), 0.0, back_s=2.0)).good
    wrong = Outcome(reused=4, made_again=8, right=False)
    assert not Summary(crash=Crash(1, 2, (2,), 0.0, back_s=2.0, report=wrong)).good
