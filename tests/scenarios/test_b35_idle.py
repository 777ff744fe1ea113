"""B35: idle workers cost next to nothing and write nothing but their beats."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from tests.scenarios.mill import Mill, Worker, now_ms

APP = """
@pond.task(**FAST)
def work(*, ctx: Context = Context.injected) -> None:
    note("ran", ctx.job_id)

@pond.task(**FAST)
async def awork(*, ctx: Context = Context.injected) -> None:
    note("ran", ctx.job_id)
"""


def processor_seconds(workers: list[Worker]) -> float:
    """Return what keepers and runners have used so far."""
    total = 0.0
    for worker in workers:
        for pid in (worker.pid, *worker.runners()):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def contents(mill: Mill) -> list[tuple[str, str]]:
    """Return the database and its log as they are on the disk."""
    files = (mill.path, Path(f"{mill.path}-wal"))
    return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


def idle(mill: Mill, seconds: float) -> tuple[float, list[Worker]]:
    """Start four workers that have run something, let them idle; return their share of a core."""
    mill.write(APP)
    workers = [mill.worker(recover="1s").ready() for _ in range(4)]
    mill.put("work", count=20)
    mill.put("awork", count=20)
    assert mill.all_final() == {"completed": 40}
    # Beats that were promised while they held jobs come soon after, and then every 15 s.
    assert not threading.Event().wait(1.5)
    mill.pond.close()
    used, before = processor_seconds(workers), contents(mill)
    assert not threading.Event().wait(seconds)
    used = processor_seconds(workers) - used
    if seconds < 10:
        assert contents(mill) == before, "nothing is written"
    return used / seconds, workers


def no_wake_up(mill: Mill) -> None:
    """Take the sockets away by which a worker is told of new jobs."""
    with closing(sqlite3.connect(mill.path)) as conn:
        sockets = conn.execute("SELECT wake FROM millpond_worker WHERE wake IS NOT NULL").fetchall()
    assert len(sockets) == 4
    for (socket,) in sockets:
        Path(socket).unlink()


def test_b35_idle_workers_use_little_and_poll_in_time(mill: Mill) -> None:
    share, workers = idle(mill, 5)
    assert share < 0.04  # a loaded machine counts coarsely; the long run is exact
    mill.pond.open()
    no_wake_up(mill)
    for task in ("work", "awork"):
        enqueued = now_ms()
        ref = mill.one(task)
        mill.becomes(ref, "completed", within=5)
        ran = mill.notes("ran")[-1]
        # One poll, and what four workers that wake at once take on two cores.
        assert ran.at - enqueued < 200 + 300
    assert [worker.stop() for worker in workers] == [0] * 4


def test_b35_with_the_wake_up_a_job_does_not_wait_for_the_poll(mill: Mill) -> None:
    mill.write(APP)
    mill.worker(poll="30s").ready()
    for _ in range(5):
        enqueued = now_ms()
        ref = mill.one("work")
        mill.becomes(ref, "completed", within=5)
        assert mill.notes("ran")[-1].at - enqueued < 1_000


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_b35_a_minute_of_idling(mill: Mill) -> None:
    share, _ = idle(mill, 60)
    sys.stdout.write(f"\nfour idle workers use {share:.2%} of one core\n")
    assert share < 0.02
