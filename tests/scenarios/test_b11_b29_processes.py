"""B11, B29: jobs in processes of their own: one death is one job's, and what hangs is ended."""

from __future__ import annotations

import os
import signal

import pytest
from tests.scenarios.mill import Mill, soak, until

APP = """
import socket
import subprocess

OWN = {**FAST, "isolation": "process"}

WAYS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
}

@pond.task(**{**OWN, "max_attempts": 2})
def one_of_many(n: int, way: str) -> None:
    note("ran", n)
    if n == 3:
        WAYS[way]()

def blocked() -> None:
    ours, theirs = socket.socketpair()
    ours.recv(1)

def busy() -> None:
    while True:
        pass

def deaf() -> None:
    while True:
        try:
            pause(30)
        except BaseException:
            pass

def parent() -> None:
    child = subprocess.Popen(["sleep", "60"])
    note("child", child.pid)
    child.wait()

HANGS = {"blocked": blocked, "busy": busy, "deaf": deaf, "parent": parent}

@pond.task(**{**OWN, "timeout": 1, "max_attempts": 2})
def hangs(how: str) -> None:
    note("hangs", how)
    HANGS[how]()

@pond.task(**{**OWN, "timeout": None})
def endless(how: str) -> None:
    note("hangs", how)
    HANGS[how]()

@pond.task(**OWN)
def good(n: int) -> int:
    note("good", n)
    return n

@pond.task(**{**OWN, "timeout": 1, "max_attempts": 2})
async def tidy(*, ctx: Context = Context.injected) -> None:
    note("tidy", ctx.attempt)
    try:
        await asyncio.sleep(60)
    finally:
        note("finally", ctx.attempt)

@pond.task(**FAST)
def beside(n: int) -> None:
    note("beside", n)

@pond.task(**{**OWN, "max_attempts": 1})
def greedy() -> None:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    bytearray(1 << 31)

@pond.task(**OWN)
def clean() -> dict:
    open_files = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            open_files.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return {
        "store": [name for name in open_files if "jobs.db" in name and "run" not in name],
        "stdin": sys.stdin.read(),
        "leads": os.getpgid(0) == os.getpid(),
    }
"""


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123  not a file
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("way", ["SIGKILL", "exit", soak("SIGSEGV")])
def test_b11_a_death_is_charged_to_one_job_and_costs_no_other_an_attempt(
    mill: Mill, way: str
) -> None:
    mill.write(APP)
    jobs = [mill.one("one_of_many", n, way) for n in range(50)]
    worker = mill.worker(concurrency=4).ready()
    assert mill.all_final() == {"completed": 49, "failed": 1}
    assert worker.process.poll() is None
    assert mill.outcomes(jobs[3]) == [("crashed", 1), ("crashed", 2)]
    others = [mill.outcomes(ref) for at, ref in enumerate(jobs) if at != 3]
    assert others == [[("completed", 1)]] * 49
    said = str(mill.job(jobs[3]).reason)
    assert ("code 3" if way == "exit" else way) in said
    if way == "SIGKILL":
        assert " MiB" in said
        assert "out of memory" in said


def test_b11_a_handler_that_runs_out_of_memory_says_how_much_it_had(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("greedy")
    mill.worker(concurrency=1).ready()
    mill.becomes(ref, "failed")
    (attempt,) = mill.history(ref)
    assert attempt.error_type == "MemoryError"
    assert "(the process had up to " in str(attempt.message)
    assert " MiB of 1,024 MiB)" in str(attempt.message)


def test_b11_a_runner_serves_many_jobs_one_after_another(mill: Mill) -> None:
    mill.write(APP)
    for n in range(20):
        mill.one("good", n)
    mill.worker(concurrency=2).ready()
    assert mill.all_final() == {"completed": 20}
    assert len(mill.pids("good")) <= 2


def test_b11_tasks_in_threads_and_in_processes_share_one_worker(mill: Mill) -> None:
    mill.write(APP)
    stuck = [mill.one("endless", "blocked") for _ in range(2)]
    worker = mill.worker(concurrency=2).ready()
    mill.noted("hangs", 2)
    for n in range(6):
        mill.one("beside", n)
    mill.noted("beside", 6)
    assert not mill.pids("beside") & mill.pids("hangs")
    for ref in stuck:
        mill.pond.cancel(ref.id)
    assert mill.all_final() == {"completed": 6, "cancelled": 2}
    assert worker.process.poll() is None


@pytest.mark.parametrize("how", ["blocked", "busy", soak("deaf")])
def test_b29_what_hangs_past_its_timeout_is_ended_and_tried_again(mill: Mill, how: str) -> None:
    mill.write(APP)
    stuck = [mill.one("hangs", how) for _ in range(4)]
    good = [mill.one("good", n) for n in range(5)]
    mill.worker(concurrency=2).ready()
    assert mill.all_final() == {"failed": 4, "completed": 5}
    for ref in stuck:
        assert mill.outcomes(ref) == [("timed_out", 1), ("timed_out", 2)]
        for each in mill.history(ref):
            assert each.started_at is not None
            lasted = (each.ended_at - each.started_at).total_seconds()
            assert 1 <= lasted < 10
            assert "process was killed" in str(each.message)
        assert "timed out after 1 s" in str(mill.job(ref).reason)
    assert [mill.outcomes(ref) for ref in good] == [[("completed", 1)]] * 5


def test_b29_what_a_killed_job_had_started_ends_with_it(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("hangs", "parent")
    mill.worker(concurrency=1).ready()
    mill.becomes(ref, "failed")
    children = [int(note.words[1]) for note in mill.notes("child")]
    assert len(children) == 2
    until(lambda: not any(alive(pid) for pid in children))


def test_b29_an_async_handler_cleans_up_once_for_each_attempt(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("tidy")
    mill.worker(concurrency=2).ready()
    mill.becomes(ref, "failed")
    assert mill.outcomes(ref) == [("timed_out", 1), ("timed_out", 2)]
    assert [note.words[1] for note in mill.notes("finally")] == ["1", "2"]
    assert len({note.pid for note in mill.notes("tidy")}) == 1, "nobody was killed for it"


@pytest.mark.parametrize("how", ["blocked", "deaf"])
def test_b29_a_cancel_ends_what_does_not_heed_it(mill: Mill, how: str) -> None:
    mill.write(APP)
    ref = mill.one("endless", how)
    worker = mill.worker(concurrency=1).ready()
    (note,) = mill.noted("hangs")
    assert mill.pond.cancel(ref.id) == "running"
    mill.becomes(ref, "cancelled")
    assert mill.outcomes(ref) == [("cancelled", 1)]
    until(lambda: not alive(note.pid))
    assert mill.one("good", 1).wait(30) == 1
    assert worker.process.poll() is None


def test_b29_the_ends_of_what_heeds_nothing_differ(mill: Mill) -> None:
    mill.write(APP)
    cancelled, released = mill.one("endless", "blocked"), mill.one("endless", "busy")
    timed_out = mill.one("hangs", "blocked", max_attempts=1)
    crashed = mill.one("one_of_many", 3, "exit", max_attempts=1)
    worker = mill.worker(concurrency=4, drain="100ms").ready()
    mill.noted("hangs", 3)
    mill.pond.cancel(cancelled.id, by="ops")
    for ref, state in ((cancelled, "cancelled"), (timed_out, "failed"), (crashed, "failed")):
        mill.becomes(ref, state)
    assert worker.stop() == 0
    refs = (cancelled, timed_out, released, crashed)
    assert [mill.outcomes(ref) for ref in refs] == [
        [("cancelled", 1)], [("timed_out", 1)], [("released", None)], [("crashed", 1)],
    ]  # fmt: skip
    assert mill.state(released) == "ready"


def test_b29_a_lost_lease_ends_the_process_at_once(mill: Mill) -> None:
    mill.write(APP)
    mill.one("endless", "blocked")
    first = mill.worker(concurrency=1).ready()
    (note,) = mill.noted("hangs")
    first.send(signal.SIGSTOP)
    mill.worker(concurrency=1).ready()
    mill.noted("hangs", 2)
    assert alive(note.pid), "nothing has told it while its keeper stood still"
    first.send(signal.SIGCONT)
    until(lambda: not alive(note.pid))
    assert first.process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_b29_no_process_outlives_its_worker(mill: Mill, number: int) -> None:
    mill.write(APP)
    mill.one("endless", "busy")
    worker = mill.worker(concurrency=1, drain="200ms").ready()
    (note,) = mill.noted("hangs")
    os.kill(worker.pid, number)
    worker.ended()
    until(lambda: not alive(note.pid))


def test_b29_a_process_of_its_own_has_no_store_no_input_and_leads_its_group(mill: Mill) -> None:
    mill.write(APP)
    mill.worker(concurrency=1).ready()
    assert mill.one("clean").wait(30) == {"store": [], "stdin": "", "leads": True}
