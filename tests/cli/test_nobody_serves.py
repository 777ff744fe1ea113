"""A worker says itself what waits for ever: a task it does not have, a queue that nobody serves."""

from __future__ import annotations

import signal

import pytest

TASKS = 'nobody_serves tasks={"forgotten":2} note="no live worker has these tasks'
QUEUES = 'nobody_serves queues={"mail":1} note="no live worker serves these queues'


@pytest.fixture
def waiting(pond) -> None:
    for _ in range(2):
        pond.enqueue("forgotten", {}, queue="default")


@pytest.mark.parametrize("processes", ["1", "0"])
def test_a_drain_names_the_tasks_that_remain_for_nobody(waiting, process, processes) -> None:
    ended = process("worker", "app:pond", "--drain", "--processes", processes)
    assert ended.returncode == 0
    assert ended.stderr.count("nobody_serves") == 1
    assert TASKS in ended.stderr


def test_a_drain_names_the_queues_that_remain_for_nobody(run, process) -> None:
    assert run("enqueue", "send", "to=ann", "--app", "app:pond").exit_code == 0
    ended = process("worker", "app:pond", "--drain", "-q", "mial")
    assert QUEUES in ended.stderr


def test_a_drain_that_leaves_nothing_behind_says_nothing_of_it(run, process) -> None:
    assert run("enqueue", "send", "to=ann", "--app", "app:pond").exit_code == 0
    ended = process("worker", "app:pond", "--drain")
    assert "1 finished" in ended.stderr
    assert "nobody_serves" not in ended.stderr


def test_a_worker_says_so_at_its_start(waiting, start) -> None:
    worker = start("worker", "app:pond")
    for line in worker.stderr:
        if "nobody_serves" in line:
            break
    worker.send_signal(signal.SIGTERM)
    worker.wait(30)
    assert TASKS in line
