"""B10: a job that kills its worker ends after its attempts, and takes nobody else along."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.scenarios.mill import Mill, Worker, soak, until

APP = """
import resource

def bomb():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    hoard = []
    while True:
        hoard.append(bytearray(1 << 24))

def kill_the_keeper():
    os.kill(os.getppid(), signal.SIGKILL)
    pause(30)

def leave():
    sys.exit(3)

WAYS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "exit": lambda: os._exit(3),
    "keeper": kill_the_keeper,
    "memory": bomb,
    "sys.exit": leave,
}

@pytest_free_task
def poison(way: str, *, ctx: Context = Context.injected) -> None:
    note("poison", ctx.job_id, ctx.attempt)
    if (yard.folder / "wait-second").exists() and ctx.attempt == 2:
        gate("second")
    WAYS[way]()

@pytest_free_task
async def apoison(way: str, *, ctx: Context = Context.injected) -> None:
    note("poison", ctx.job_id, ctx.attempt)
    if (yard.folder / "wait-second").exists() and ctx.attempt == 2:
        await asyncio.to_thread(gate, "second")
    WAYS[way]()

@pond.task(**FAST)
def healthy(n: int, *, ctx: Context = Context.injected) -> None:
    note("healthy", n, ctx.attempt)
    pause(0.02)
""".replace("@pytest_free_task", "@pond.task(**FAST)")


@contextmanager
def supervised(mill: Mill, count: int, **settings: object) -> Iterator[list[Worker]]:
    """Keep so many workers running, as a supervisor does that starts again whoever ends."""
    workers = [mill.worker(**settings).ready() for _ in range(count)]  # type: ignore[arg-type]
    end = threading.Event()

    def watch() -> None:
        while not end.wait(0.05):
            for at, worker in enumerate(workers):
                if worker.process.poll() is not None:
                    workers[at] = mill.worker(**settings)  # type: ignore[arg-type]

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield workers
    finally:
        end.set()
        thread.join()


CRASHES = {"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6, "exit": None}


@pytest.mark.parametrize(
    ("task", "way"),
    [
        ("poison", "SIGKILL"),
        ("apoison", "SIGSEGV"),
        ("poison", "exit"),
        *(soak(task, way) for task in ("poison", "apoison") for way in CRASHES),
    ],
)
def test_b10_a_poison_job_is_dead_after_its_attempts_with_the_signal_in_its_reason(
    mill: Mill, task: str, way: str
) -> None:
    mill.write(APP)
    poison = mill.one(task, way)
    with supervised(mill, 3 if way == "SIGKILL" else 1) as workers:
        pids = [worker.pid for worker in workers]
        mill.noted("poison")
        healthy = [mill.one("healthy", n) for n in range(20)]
        dead = mill.becomes(poison, "failed")
        assert mill.all_final() == {"failed": 1, "completed": 20}
        assert [worker.pid for worker in workers] == pids, "no keeper has died"

    assert [note.words[2] for note in mill.notes("poison")] == ["1", "2", "3"]
    assert mill.outcomes(poison) == [("crashed", n) for n in (1, 2, 3)]
    assert {each.signal for each in mill.history(poison)} == {CRASHES[way]}
    expected = f"signal {CRASHES[way]} ({way})" if CRASHES[way] else "exited with code 3"
    assert expected in str(dead.reason)
    assert "3 of 3" in str(dead.reason)
    assert (dead.attempts, dead.crashes) == (3, 3)
    assert str(dead.last_error).startswith("runner ")
    # Once it was known to be dangerous it ran alone.
    charged = [each.number for ref in healthy for each in mill.history(ref)]
    assert sum(number == 1 for number in charged) == 20
    assert all(number is not None and number <= 2 for number in charged)


def test_b10_a_job_that_kills_the_whole_worker_is_dead_after_its_attempts(mill: Mill) -> None:
    mill.write(APP, lease="500ms")
    poison = mill.one("poison", "keeper")
    with supervised(mill, 2, recover="200ms"):
        mill.noted("poison")
        for n in range(20):
            mill.one("healthy", n)
        dead = mill.becomes(poison, "failed")
        assert mill.all_final() == {"failed": 1, "completed": 20}

    assert mill.outcomes(poison) == [("lease_lost", n) for n in (1, 2, 3)]
    assert "worker lost" in str(dead.reason)
    assert "3 of 3" in str(dead.reason)
    assert len(mill.notes("poison")) == 3


@pytest.mark.parametrize(("way", "kind"), [("memory", "MemoryError"), ("sys.exit", "SystemExit")])
def test_b10_what_python_can_catch_costs_an_attempt_and_no_runner(
    mill: Mill, way: str, kind: str
) -> None:
    mill.write(APP)
    poison = mill.one("poison", way)
    worker = mill.worker().ready()
    assert mill.becomes(poison, "failed").crashes == 0
    for n in range(20):
        mill.one("healthy", n)
    assert mill.all_final() == {"failed": 1, "completed": 20}
    assert [each.error_type for each in mill.history(poison)] == [kind] * 3
    if way == "sys.exit":
        assert len(mill.pids("poison") | mill.pids("healthy")) == 1
    assert worker.process.poll() is None


@pytest.mark.parametrize("way", ["SIGKILL", soak("exit")])
def test_b10_each_delivery_counts_before_user_code_runs(mill: Mill, way: str) -> None:
    mill.write(APP)
    (mill.folder / "wait-second").touch()
    poison = mill.one("poison", way)
    mill.worker()
    mill.noted("poison", 2)
    running = mill.job(poison)
    assert (running.state, running.attempts, running.crashes) == ("running", 2, 1)
    mill.open("second")
    mill.becomes(poison, "failed")


@pytest.mark.parametrize(
    ("way", "by"),
    [
        ("SIGKILL", "the pond"),
        ("exit", "the command line"),
        soak("SIGSEGV", "the pond"),
        soak("SIGKILL", "the command line"),
        soak("exit", "the pond"),
    ],
)
def test_b10_a_cancel_during_a_delivery_is_honoured_by_the_crash(
    mill: Mill, way: str, by: str
) -> None:
    mill.write(APP)
    (mill.folder / "wait-second").touch()
    poison = mill.one("poison", way)
    with supervised(mill, 2):
        mill.noted("poison", 2)
        if by == "the pond":
            assert mill.pond.cancel(poison.id, by="ops") == "running"
        else:
            done = mill.run("cancel", str(poison.id), "--by", "ops", "--app", "app:pond")
            assert done.returncode == 0, done.stderr
        mill.open("second")
        mill.becomes(poison, "cancelled")
        healthy = [mill.one("healthy", n) for n in range(5)]
        assert mill.all_final() == {"cancelled": 1, "completed": 5}

    assert len(mill.notes("poison")) == 2
    assert mill.outcomes(poison) == [("crashed", 1), ("crashed", 2)]
    assert [mill.outcomes(ref) for ref in healthy] == [[("completed", 1)]] * 5


def test_b10_a_job_with_one_attempt_is_never_tried_again(mill: Mill) -> None:
    mill.write(APP)
    poison = mill.one("poison", "SIGKILL", max_attempts=1)
    others = [mill.one("healthy", n) for n in range(5)]
    mill.worker()
    until(lambda: mill.job(poison).final)
    assert mill.all_final() == {"failed": 1, "completed": 5}
    assert mill.outcomes(poison) == [("crashed", 1)]
    assert len(mill.notes("poison")) == 1
    assert all(mill.state(ref) == "completed" for ref in others)


CHILD = """
import subprocess

@pond.task(**{**FAST, "max_attempts": 1})
def leaves_a_child() -> None:
    # Its child inherits everything, the link to the keeper included, and outlives it.
    fds = [int(fd) for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    for fd in fds:
        try:
            os.set_inheritable(fd, True)
        except OSError:
            pass
    subprocess.Popen(["sleep", "30"], close_fds=False)
    note("poison", 0, 0)
    os.kill(os.getpid(), signal.SIGKILL)

@pond.task(**FAST)
def healthy(n: int) -> None:
    note("healthy", n)
    pause(0.005)
"""


def test_b10_runners_that_die_together_or_leave_a_child_behind_are_replaced(mill: Mill) -> None:
    mill.write(CHILD)
    worker = mill.worker(processes=3).ready()
    for volley in (1, 2, 3):
        # They have worked, so that they are replaced at once.
        mill.put("healthy", volley, count=30)
        until(lambda: len(mill.notes("healthy")) >= 30 * volley)  # noqa: B023
        until(lambda: len(worker.runners()) == 3)
        if volley == 1:
            mill.put("leaves_a_child", count=3)
            mill.noted("poison", 1)
            continue
        for runner in worker.runners():
            with contextlib.suppress(ProcessLookupError):
                os.kill(runner, signal.SIGKILL)
    assert mill.all_final() == {"failed": 3, "completed": 90}
    assert worker.process.poll() is None, worker.said[-2000:]
    assert len(mill.notes("poison")) == 3
