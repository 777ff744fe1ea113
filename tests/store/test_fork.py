"""No connection crosses a fork: both sides go on, and nothing that was accepted is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

HEAD = """
import json, os, signal, sys, threading
from millpond import Millpond
pond = Millpond(sys.argv[1])
@pond.task
def note(n: int) -> None: ...
"""

PARENT_CLOSES = (
    HEAD
    + """
note.enqueue(0)
told, heard = os.pipe()
gone, closed = os.pipe()
if os.fork() == 0:
    note.enqueue(1)
    os.write(heard, b"x")
    os.read(gone, 1)
    for n in range(2, 7):
        note.enqueue(n)
    os.kill(os.getpid(), signal.SIGKILL)
os.read(told, 1)
pond.close()
os.write(closed, b"x")
os.wait()
with Millpond(sys.argv[1]) as after:
    print(json.dumps([len(after.jobs()), after.verify()]))
"""
)

DAEMON = (
    HEAD
    + """
note.enqueue(0)
if os.fork():
    os._exit(0)
for n in range(1, 6):
    note.enqueue(n)
with Millpond(sys.argv[1]) as other:
    other.status()
for n in range(6, 11):
    note.enqueue(n)
os.kill(os.getpid(), signal.SIGKILL)
"""
)

CROWD = (
    HEAD
    + """
accepted, stop = [0], threading.Event()
def produce():
    while not stop.is_set():
        note.enqueue(0)
        accepted[0] += 1
threads = [threading.Thread(target=produce) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(15):
    threading.Event().wait(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for n in range(3):
            note.enqueue(n)
        pond.status()
        os._exit(0)
    codes.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
missing = accepted[0] + 3 * 15 - sum(pond.status().counts.values())
print(json.dumps([sum(codes), missing, pond.verify()]))
"""
)

MEMORY = """
import os, sys
from millpond import Millpond
pond = Millpond(":memory:")
@pond.task
def note(n: int) -> None: ...
note.enqueue(1)
if os.fork() == 0:
    os._exit(0)
os.wait()
note.enqueue(2)
print(len(pond.jobs()))
"""


def run(program: str, path: Path) -> str:
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in {0, -9}, done.stderr
    return done.stdout


def test_a_child_goes_on_when_its_parent_closes(tmp_path: Path) -> None:
    assert json.loads(run(PARENT_CLOSES, tmp_path / "jobs.db")) == [7, []]


def test_a_daemon_loses_nothing_while_others_look_at_the_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    run(DAEMON, path)
    count = HEAD + "print(json.dumps([len(pond.jobs()), pond.verify()]))"
    within = 0
    while json.loads(run(count, path))[0] < 11 and within < 50:
        within += 1
    assert json.loads(run(count, path)) == [11, []]


def test_forks_beside_busy_threads_leave_both_sides_able_to_work(tmp_path: Path) -> None:
    assert json.loads(run(CROWD, tmp_path / "jobs.db")) == [0, 0, []]


def test_a_store_in_memory_stays_with_the_parent(tmp_path: Path) -> None:
    assert run(MEMORY, tmp_path).strip() == "2"
