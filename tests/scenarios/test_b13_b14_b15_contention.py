"""B13: many writers wait their turn. B14: a lock held by others. B15: errors after the commit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.scenarios.mill import Mill, soak, until

from millpond import JobRef, Millpond, StoreBusy, fault

APP = """
@pond.task(**FAST)
def noop(n: int = 0) -> None: ...

@pond.task(**FAST)
def gated(*, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    gate("end")
    return ctx.attempt
"""

PRODUCER = """
import sys, time
import app

app.pond.open()
app.note("ready")
app.gate("go")
with open(f"accepted-{sys.argv[1]}", "w") as out:
    while not (app.yard.folder / "stop.open").exists():
        began = time.perf_counter()
        try:
            ref = app.noop.enqueue(1)
        except Exception as error:
            app.note("error", repr(error))
        else:
            out.write(f"{ref.id} {time.perf_counter() - began}\\n")
"""


def contend(mill: Mill, seconds: float) -> list[list[float]]:
    """Run 8 producers and 4 workers at once; return how long each producer's calls took."""
    mill.write(APP, lease="10s")
    (mill.folder / "producer.py").write_text(PRODUCER)
    workers = [mill.worker().ready() for _ in range(4)]
    producers = [mill.start([sys.executable, "producer.py", str(n)]) for n in range(8)]
    mill.noted("ready", 8)
    mill.open("go")
    assert not threading.Event().wait(seconds)
    mill.open("stop")
    assert [producer.ended() for producer in producers] == [0] * 8

    assert mill.notes("error") == []
    times = []
    for number in range(8):
        lines = (mill.folder / f"accepted-{number}").read_text().splitlines()
        mill.accepted += [int(line.split()[0]) for line in lines]
        times.append([float(line.split()[1]) for line in lines])
    assert len(set(mill.accepted)) == len(mill.accepted)
    assert mill.all_final(60) == {"completed": len(mill.accepted)}
    assert [worker.stop() for worker in workers] == [0] * 4
    for worker in workers:
        assert [line for line in worker.lines if line["level"] == "error"] == []
        assert "lost" not in {line.get("event") for line in worker.lines}
        assert ", 0 lost" in worker.said.splitlines()[-1]
    return times


def test_b13_no_busy_error_reaches_a_caller_or_the_log(mill: Mill) -> None:
    times = contend(mill, 2)
    assert all(len(each) > 10 for each in times)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_b13_for_thirty_seconds(mill: Mill) -> None:
    times = contend(mill, 30)
    calls = sorted(time for each in times for time in each)
    mean = len(calls) / 8
    assert min(map(len, times)) >= 0.5 * mean
    sys.stdout.write(
        f"\n{len(calls)} enqueued in 30 s, p50 {calls[len(calls) // 2] * 1e3:.1f} ms, "
        f"p99 {calls[len(calls) * 99 // 100] * 1e3:.1f} ms, longest {calls[-1] * 1e3:.0f} ms, "
        f"slowest producer {min(map(len, times)) / mean:.2f} of the mean\n"
    )


HOLDER = """
import sqlite3, sys, threading
conn = sqlite3.connect("jobs.db", isolation_level=None, timeout=10)
conn.execute("PRAGMA journal_mode").fetchone()
conn.execute("BEGIN " + sys.argv[1])
print("held", flush=True)
sys.stdin.read(1)
threading.Event().wait(float(sys.argv[2]))
conn.execute("ROLLBACK")
"""


@contextmanager
def held(mill: Mill, how: str, seconds: float) -> Iterator[None]:
    """Have another process hold the lock for so long, counted from here."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, how, str(seconds)], cwd=mill.folder,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        process.stdin.write(b"!")
        process.stdin.flush()
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(20)


def in_a_batch(pond: Millpond) -> Any:
    with pond.batch() as batch:
        batch.add_by_name("noop", {"n": 1})
        batch.add_by_name("noop", {"n": 2})
    return batch.refs


CALLS: dict[str, Callable[[Millpond], Any]] = {
    "enqueue": lambda pond: pond.enqueue("noop", {"n": 1}),
    "awaited": lambda pond: asyncio.run(pond.aenqueue("noop", {"n": 1})),
    "batch": in_a_batch,
    "cancel": lambda pond: pond.cancel(1),
    "pause": lambda pond: pond.pause("default"),
}


@contextmanager
def running_job(mill: Mill, busy: str) -> Iterator[JobRef[Any]]:
    """Have a worker in the middle of a job, and see that it completes at its first attempt."""
    ref = mill.one("gated")
    worker = mill.worker(busy=busy).ready()
    mill.noted("start")
    yield ref
    mill.open("end")
    mill.becomes(ref, "completed")
    assert mill.outcomes(ref) == [("completed", 1)]
    assert worker.process.poll() is None


@pytest.mark.parametrize(
    ("call", "how"),
    [("enqueue", "IMMEDIATE"), soak("awaited", "EXCLUSIVE"), soak("batch", "IMMEDIATE")],
)
def test_b14_a_write_waits_for_a_lock_within_its_budget(mill: Mill, call: str, how: str) -> None:
    mill.write(APP, lease="10s")
    with running_job(mill, "5s"), Millpond(str(mill.path), busy="5s") as pond:
        pond.status()
        with held(mill, how, 1.2):
            began = time.monotonic()
            CALLS[call](pond)
            assert 1.0 < time.monotonic() - began < 3
    assert mill.all_final()["completed"] >= 2


@pytest.mark.parametrize(
    ("call", "how"),
    [
        ("enqueue", "IMMEDIATE"),
        ("awaited", "IMMEDIATE"),
        ("cancel", "EXCLUSIVE"),
        soak("batch", "IMMEDIATE"),
        soak("pause", "IMMEDIATE"),
        soak("enqueue", "EXCLUSIVE"),
    ],
)
def test_b14_after_the_budget_the_error_is_typed_and_nothing_is_written(
    mill: Mill, call: str, how: str
) -> None:
    mill.write(APP, lease="10s")
    with running_job(mill, "700ms"), Millpond(str(mill.path), busy="700ms") as pond:
        pond.status()
        with held(mill, how, 2.5):
            began = time.monotonic()
            with pytest.raises(StoreBusy, match=r"0\.[67]|0\.8|700|locked") as caught:
                CALLS[call](pond)
            assert 0.6 < time.monotonic() - began < 1.2
        assert "database is locked" not in str(caught.value).split(":", maxsplit=1)[0]
        assert mill.pond.status().outstanding == 1
        assert mill.pond.jobs(limit=10)[0].cancel_requested is False


def test_b14_a_budget_of_nothing_answers_at_once(mill: Mill) -> None:
    mill.write(APP)
    mill.pond.open()
    with Millpond(str(mill.path), busy=0) as pond:
        pond.status()
        with held(mill, "IMMEDIATE", 0.5):
            began = time.monotonic()
            with pytest.raises(StoreBusy):
                pond.enqueue("noop", {"n": 1})
            assert time.monotonic() - began < 0.4
        mill.accepted.append(pond.enqueue("noop", {"n": 1}).id)


def test_b14_a_job_that_ends_while_the_file_is_locked_is_settled_afterwards(mill: Mill) -> None:
    mill.write(APP, lease="4s")
    ref = mill.one("gated")
    worker = mill.worker(busy="300ms").ready()
    mill.noted("start")
    with held(mill, "IMMEDIATE", 1.5):
        mill.open("end")
    mill.becomes(ref, "completed")
    assert mill.outcomes(ref) == [("completed", 1)]
    assert len(mill.notes("start")) == 1
    assert worker.process.poll() is None


@pytest.fixture
def faults() -> Iterator[Callable[[str], None]]:
    yield fault.arm
    fault.arm("")


def batch_of_one(app: Any, key: str) -> JobRef[Any]:
    with app.pond.batch() as batch:
        batch.add(app.noop.using(key=key), 1)
    (ref,) = batch.refs
    found: JobRef[Any] = ref
    return found


WAYS: dict[str, Callable[[Any, str], JobRef[Any]]] = {
    "enqueue": lambda app, key: app.noop.using(key=key).enqueue(1),
    "awaited": lambda app, key: asyncio.run(app.noop.using(key=key).aenqueue(1)),
    "by name": lambda app, key: app.pond.enqueue("noop", {"n": 1}, key=key),
    "batch": batch_of_one,
}


@pytest.mark.parametrize("way", WAYS)
def test_b15_after_an_error_behind_the_commit_the_same_key_is_the_same_job(
    mill: Mill, way: str, faults: Callable[[str], None]
) -> None:
    app = mill.write(APP)
    mill.pond.open()
    faults("after-commit:raise")
    with pytest.raises(fault.FaultInjected):
        WAYS[way](app, "inv-77")
    faults("")
    again = WAYS[way](app, "inv-77")
    assert again.answer == "duplicate"
    answers: list[JobRef[Any]] = []
    start = threading.Barrier(10)

    def once_more() -> None:
        start.wait()
        answers.append(WAYS[way](app, "inv-77"))

    threads = [threading.Thread(target=once_more) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {(ref.id, ref.answer, ref.operation_id) for ref in answers} == {
        (again.id, "duplicate", again.operation_id)
    }
    mill.accepted.append(again.id)
    assert len(mill.pond.jobs(limit=10)) == 1


@pytest.mark.parametrize(
    "death", ["after-commit:kill", soak("after-commit:exit"), "before-commit:kill"]
)
def test_b15_a_producer_that_dies_around_its_commit_may_simply_try_again(
    mill: Mill, death: str
) -> None:
    mill.write(APP)
    mill.pond.open()
    ask = ["enqueue", "noop", "n=1", "--key", "inv-77", "--print", "json", "--url", "jobs.db"]
    died = mill.run(*ask, env={"MILLPOND_FAULT": death})
    assert died.returncode != 0
    assert died.stdout == ""
    first = mill.run(*ask)
    assert first.returncode == 0, first.stderr
    expected = "admitted" if death.startswith("before") else "duplicate"
    assert f'"{expected}"' in first.stdout
    assert '"duplicate"' in mill.run(*ask).stdout
    (job,) = mill.pond.jobs(limit=10)
    mill.accepted.append(job.id)


RACER = """
import sys
import app
app.pond.open()
app.note("ready")
app.gate("go")
for n in range(20):
    ref = app.noop.using(key=f"inv-{n}").enqueue(n)
    app.note("got", n, ref.id, ref.answer)
"""


def test_b15_processes_that_race_with_one_key_get_one_job(mill: Mill) -> None:
    mill.write(APP)
    (mill.folder / "racer.py").write_text(RACER)
    racers = [mill.start([sys.executable, "racer.py"]) for _ in range(4)]
    mill.worker()
    mill.noted("ready", 4)
    mill.open("go")
    assert [racer.ended() for racer in racers] == [0] * 4
    got = [note.words[1:] for note in mill.notes("got")]
    assert len(got) == 80
    for n in range(20):
        mine = [words for words in got if words[0] == str(n)]
        assert len({ident for _, ident, _ in mine}) == 1
        assert sorted(answer for _, _, answer in mine) == ["admitted", *["duplicate"] * 3]
        mill.accepted.append(int(mine[0][1]))
    assert mill.all_final() == {"completed": 20}
    # Completed, the key still holds.
    assert mill.app.noop.using(key="inv-3").enqueue(3).answer == "duplicate"
    until(lambda: mill.pond.status().outstanding == 0)
