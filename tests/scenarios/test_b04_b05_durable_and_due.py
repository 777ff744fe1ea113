"""B04: an accepted job is synced to disk. B05: what waits for its time holds no lease."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from tests.scenarios.mill import Mill, now_ms, soak, until

APP = """
@pond.task(**FAST)
def send(n: int = 0, *, ctx: Context = Context.injected) -> None:
    note("ran", ctx.job_id, ctx.attempt)

@pond.task(**FAST)
def again(*, ctx: Context = Context.injected) -> None:
    note("ran", ctx.job_id, ctx.attempt)
    if len((yard.folder / "notes").read_text().splitlines()) == 1:
        raise WAYS[ctx.meta["way"]]

WAYS = {"snooze": Snooze(2.5), "retry": Retry("later", after=2.5)}
"""

MARKED = """
import asyncio, os, sqlite3, sys
from millpond import Millpond

way, options = sys.argv[1], dict(pair.split("=") for pair in sys.argv[2:])
pond = Millpond("jobs.db", **options)

@pond.task
def send(n: int) -> None: ...

def mark(name):
    os.access("/marked-" + name, os.R_OK)

def batch():
    with pond.batch() as many:
        for n in range(100):
            many.add(send, n)

ways = {
    "enqueue": lambda: send.enqueue(1),
    "awaited": lambda: asyncio.run(send.aenqueue(1)),
    "by name": lambda: pond.enqueue("send", {"n": 1}),
    "batch": batch,
    "duplicate": lambda: send.using(key="k").enqueue(1),
    "cancel": lambda: pond.cancel(1),
}
ways[way]()
mark("begin")
ways[way]()
mark("end")
pond.close()
"""


def syncs(mill: Mill, way: str, **options: str) -> int:
    """Count fsync and fdatasync between the marks around one call, in all threads."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    (mill.folder / "marked.py").write_text(MARKED)
    trace = mill.folder / "trace"
    calls = "trace=fsync,fdatasync,sync_file_range,access,faccessat,faccessat2"
    command = ["strace", "-f", "-o", str(trace), "-e", calls, sys.executable, "marked.py", way]
    done = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in options.items())],
        cwd=mill.folder, env=mill.environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        pytest.skip("this user may not trace")
    assert done.returncode == 0, done.stderr
    between = trace.read_text().split("/marked-begin")[1].split("/marked-end")[0]
    # An interrupted call shows twice, unfinished and resumed.
    return len(re.findall(r"\b(?:fsync|fdatasync)\(", between))


@pytest.mark.parametrize("way", ["enqueue", "awaited", soak("by name"), soak("batch")])
def test_b04_nothing_is_accepted_before_it_is_synced(mill: Mill, way: str) -> None:
    assert syncs(mill, way) >= 1


def test_b04_a_hundred_jobs_at_once_need_few_syncs(mill: Mill) -> None:
    assert syncs(mill, "batch") <= 3


def test_b04_the_relaxed_mode_is_asked_for_and_shown(mill: Mill) -> None:
    assert syncs(mill, "enqueue", synchronous="normal") == 0
    shown = mill.run("doctor", "--url", "jobs.db", env={"MILLPOND_SYNCHRONOUS": "normal"})
    assert "synchronous" in shown.stdout
    assert "normal" in shown.stdout
    assert "power" in shown.stdout
    plain = mill.run("doctor", "--url", "jobs.db")
    assert "may take" not in plain.stdout


@pytest.mark.parametrize(("asked", "level"), [(None, 2), ("full", 2), ("normal", 1)])
def test_b04_the_librarys_own_connection_is_set_so(
    mill: Mill, asked: str | None, level: int
) -> None:
    mill.write(APP)
    options = {} if asked is None else {"synchronous": asked}
    pond = type(mill.pond)(str(mill.path), **options)
    with pond:
        ticket = pond.store._write(lambda tx: tx.execute("PRAGMA synchronous").fetchone()[0])
        assert ticket.result() == level


@pytest.mark.parametrize("way", ["delay", soak("at")])
def test_b05_a_job_that_waits_for_its_time_has_no_lease_and_runs_once(mill: Mill, way: str) -> None:
    mill.write(APP, lease="500ms")
    for _ in range(4):
        mill.worker(concurrency=1).ready()
    due = now_ms() + 2_500
    moment = datetime.fromtimestamp(due / 1000, UTC)
    if way == "at":
        ref = mill.one("send", 1, at=moment)
    else:
        ref = mill.one("send", 1, delay=timedelta(milliseconds=2_500))
        due = round(mill.job(ref).due_at.timestamp() * 1000)
    seen = set()

    def waiting() -> bool:
        job = mill.job(ref)
        if job.state == "scheduled":
            seen.add((job.lease, job.attempts, job.started_at))
            with closing(sqlite3.connect(mill.path)) as conn:
                assert conn.execute("SELECT * FROM millpond_running").fetchall() == []
        return job.state == "scheduled"

    until(lambda: not waiting())
    assert seen == {(None, 0, None)}
    mill.becomes(ref, "completed")
    (ran,) = mill.notes("ran")
    assert due <= ran.at <= due + 1_000
    assert mill.outcomes(ref) == [("completed", 1)]


@pytest.mark.parametrize(
    ("way", "history"),
    [
        ("snooze", [("snoozed", None), ("completed", 1)]),
        ("retry", [("retried", 1), ("completed", 2)]),
    ],
)
def test_b05_between_two_attempts_there_is_no_lease_either(
    mill: Mill, way: str, history: list[tuple[str, int | None]]
) -> None:
    mill.write(APP, lease="500ms")
    ref = mill.one("again", meta={"way": way})
    for _ in range(3):
        mill.worker(concurrency=1)
    mill.noted("ran")
    job = mill.becomes(ref, "scheduled")
    assert job.lease is None
    assert job.attempts == (way == "retry")
    mill.becomes(ref, "completed")

    first, second = mill.notes("ran")
    assert 2_500 <= second.at - first.at <= 2_500 + 1_500
    assert mill.outcomes(ref) == history
