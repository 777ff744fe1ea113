"""B17: neither short-lived threads nor opening and closing leave descriptors behind."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.scenarios.mill import Mill

PROGRAM = """
import asyncio, gc, os, sys, threading
from millpond import Millpond

pond = Millpond("jobs.db")

@pond.task
def work(n: int) -> None: ...

def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

def threads(count):
    for n in range(count):
        thread = threading.Thread(target=work.enqueue, args=(n,))
        thread.start()
        thread.join()

def readers(count):
    for n in range(count):
        thread = threading.Thread(target=pond.status)
        thread.start()
        thread.join()

def loops(count):
    for n in range(count):
        asyncio.run(work.aenqueue(n))

def cycles(count):
    pond.close()
    for n in range(count):
        with pond:
            work.enqueue(n)
    pond.open()

def objects(count):
    for n in range(count):
        other = Millpond("jobs.db")
        other.enqueue("work", {"n": n})
        other.close()

def drains(count):
    for n in range(count):
        pond.drain(poll="20ms")

def refusals(count):
    for n in range(count):
        try:
            Millpond("no/such/folder/jobs.db").open()
        except Exception:
            pass

work.enqueue(0)
pond.status()
way, count = globals()[sys.argv[1]], int(sys.argv[2])
way(1)
before = descriptors()
way(count)
print(before, descriptors(), pond.status().outstanding)
pond.close()
"""

CI = {
    "threads": 1_000,
    "readers": 300,
    "loops": 200,
    "cycles": 60,
    "objects": 60,
    "drains": 20,
    "refusals": 200,
}


def left_over(mill: Mill, way: str, count: int) -> tuple[int, int]:
    """Return by how many descriptors the process grew, and how many jobs it made."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way, str(count)], cwd=mill.folder, env=mill.environment,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after, jobs = map(int, done.stdout.split())
    return after - before, jobs


@pytest.mark.parametrize("way", CI)
def test_b17_no_descriptor_is_left_behind(mill: Mill, way: str) -> None:
    grown, jobs = left_over(mill, way, CI[way])
    assert grown <= 5
    made = CI[way] + 2 if way in {"threads", "loops", "cycles", "objects"} else 1
    assert jobs == (0 if way == "drains" else made)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", ["cycles", "objects"])
def test_b17_after_a_thousand_cycles(mill: Mill, way: str) -> None:
    grown, _ = left_over(mill, way, 1_000)
    assert grown <= 5
