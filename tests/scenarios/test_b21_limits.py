"""B21: one at a time stays one at a time, and whoever is next starts as soon as there is room."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from typing import Self

import pytest
from tests.scenarios.mill import Mill, soak, until

from millpond import JobRef

APP = """
OWN = {**FAST, "isolation": "process"}
pond.queue("narrow", running=1)
pond.queue("wide", workloads={"one": {"running": 1}})

def work(name: str, seconds: float) -> None:
    note("start", name)
    pause(seconds)
    note("end", name)

@pond.task(**FAST)
def plain(name: str, seconds: float) -> None:
    work(name, seconds)

@pond.task(**OWN)
def own(name: str, seconds: float) -> None:
    work(name, seconds)

@pond.task(running=1, **FAST)
def by_task(name: str, seconds: float) -> None:
    work(name, seconds)

@pond.task(queue="narrow", **FAST)
def by_queue(name: str, seconds: float) -> None:
    work(name, seconds)

@pond.task(queue="wide", workload="one", **FAST)
def by_workload(name: str, seconds: float) -> None:
    work(name, seconds)

@pond.task(**FAST)
def link(n: int) -> None:
    note("start", n)
    if n > 0 and n % 2:
        link.using(serial_key="chain").enqueue(n - 1)
    note("end", n)
"""

LIMITS = ["plain", "own", "by_task", "by_queue", "by_workload"]


def put(mill: Mill, task: str, seconds: float, count: int, key: str = "k") -> list[JobRef[None]]:
    """Enqueue jobs of which one may run at a time, by the key when the task has no limit."""
    serial = {"serial_key": key} if task in {"plain", "own"} else {}
    return [mill.one(task, f"{key}-{n}", seconds, **serial) for n in range(count)]


def spans(mill: Mill, key: str) -> list[tuple[int, int]]:
    """Return when handlers of this key began and ended, in order; each must have ended."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for note in mill.notes():
        if note.words[0] in {"start", "end"} and note.words[1].startswith(key):
            found[note.words[1]].append(note.at)
    return sorted((first, last) for first, last in found.values())


def apart(found: list[tuple[int, int]]) -> list[int]:
    """Return the milliseconds between one end and the next start; none may be negative."""
    gaps = [after[0] - before[1] for before, after in pairwise(found)]
    assert not gaps or min(gaps) >= 0, "two ran at once"
    return gaps


class Watch:
    """Looks into the store all the while, and keeps what must never be seen."""

    def __init__(self, mill: Mill) -> None:
        self._mill = mill
        self._ended = threading.Event()
        self.most = 0
        self.looks = 0
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10)

    def _look(self) -> None:
        with closing(sqlite3.connect(f"file:{self._mill.path}?mode=ro", uri=True)) as conn:
            while not self._ended.wait(0.005):
                (running,) = conn.execute(
                    "SELECT count(*) FROM millpond_running r JOIN millpond_job j ON j.id = r.id"
                    " WHERE j.limit_key = 'k'"
                ).fetchone()
                self.most = max(self.most, running)
                self.looks += 1


@pytest.mark.parametrize("task", LIMITS)
def test_b21_jobs_that_outlive_their_lease_keep_the_place(mill: Mill, task: str) -> None:
    mill.write(APP, lease="500ms")
    put(mill, task, 1.2, 3)
    for _ in range(2):
        mill.worker(concurrency=4, poll="5s").ready()
    assert mill.all_final() == {"completed": 3}
    assert max(apart(spans(mill, "k"))) < 1_000


@pytest.mark.parametrize("task", ["plain", "own"])
def test_b21_a_killed_holder_gives_its_place_up_with_its_lease(mill: Mill, task: str) -> None:
    mill.write(APP)
    refs = put(mill, task, 0.8, 5)
    workers = [mill.worker(concurrency=4).ready() for _ in range(2)]
    waits = []
    with Watch(mill) as watch:
        for kill in range(2):
            holder = mill.noted("start", 2 * kill + 1)[-1]
            (worker,) = (each for each in workers if holder.pid in each.runners())
            killed = time.time_ns() // 1_000_000
            worker.kill_all()
            workers = [each for each in workers if each is not worker]
            workers.append(mill.worker(concurrency=4).ready())
            waits.append(mill.noted("start", 2 * kill + 2)[2 * kill + 1].at - killed)
        assert mill.all_final() == {"completed": 5}
    assert watch.most == 1
    assert watch.looks > 20
    assert all(wait < 1_000 + 500 + 1_000 for wait in waits), "lease, recovery and a second"
    outcomes = [outcome for ref in refs for outcome, _ in mill.outcomes(ref)]
    assert set(outcomes) == {"completed", "lease_lost"}
    assert len(outcomes) <= 5 + 2, "only what ran was charged"
    ran = [note.words for note in mill.notes() if note.words[0] in {"start", "end"}]
    for before, after in pairwise(ran):
        assert after[0] == "start" or before == ("start", after[1]), "two ran at once"
    assert {name for word, name in ran if word == "end"} == {f"k-{n}" for n in range(5)}


@pytest.mark.parametrize("count", [400, soak(5_000)])
@pytest.mark.timeout(600)
def test_b21_very_many_jobs_on_one_key_run_one_by_one(mill: Mill, count: int) -> None:
    mill.write(APP, lease="5s")
    with mill.pond.batch() as batch:
        for n in range(count):
            batch.add(mill.app.plain.using(serial_key="k"), f"k-{n}", 0.0)
    mill.accepted += [ref.id for ref in batch.refs]
    with Watch(mill) as watch:
        for _ in range(2):
            mill.worker(concurrency=4, poll="5s").ready()
        assert mill.all_final(within=500) == {"completed": count}
    assert watch.most == 1
    gaps = apart(spans(mill, "k-"))
    assert len(gaps) == count - 1
    assert max(gaps) < 1_000


@pytest.mark.parametrize("count", [60, soak(1_000)])
@pytest.mark.timeout(600)
def test_b21_what_is_enqueued_just_when_the_holder_ends_is_not_forgotten(
    mill: Mill, count: int
) -> None:
    """Every other link is enqueued by the holder's last line, the others as it is settled."""
    mill.write(APP)
    roll = random.Random(21)
    for _ in range(2):
        mill.worker(concurrency=2, poll="5s").ready()
    enqueued = {count: time.time_ns() // 1_000_000}
    mill.one("link", count, serial_key="chain")
    for n in range(count, 0, -2):
        until(lambda n=n: any(x.words == ("end", str(n)) for x in mill.notes("end")[-2:]))  # type: ignore[misc]
        threading.Event().wait(roll.uniform(0, 0.004))
        enqueued[n - 1] = time.time_ns() // 1_000_000
        mill.one("link", n - 1, serial_key="chain")
        until(
            lambda n=n: any(x.words == ("end", str(max(n - 2, 0))) for x in mill.notes("end")[-2:])
        )  # type: ignore[misc]
    assert mill.all_final() == {"completed": count + 1}
    found = spans(mill, "")
    assert len(found) == count + 1
    gaps = apart(found)
    for (start, _), n in zip(found[1:], range(count - 1, -1, -1), strict=True):
        assert start - enqueued.get(n, start) < 1_000
    assert (
        max(gap for gap, n in zip(gaps, range(count - 1, -1, -1), strict=True) if n not in enqueued)
        < 1_000
    )


def test_b21_no_job_waits_beside_a_free_slot(mill: Mill) -> None:
    """Long lines on three keys leave the fourth slot to whoever has no key, at once."""
    mill.write(APP)
    for key in ("a", "b", "c"):
        put(mill, "plain", 0.4, 6, key)
    mill.worker(concurrency=4, poll="5s").ready()
    mill.noted("start", 3)
    waits = []
    for n in range(8):
        asked = time.time_ns() // 1_000_000
        mill.one("plain", f"free-{n}", 0.0)
        started = until(
            lambda n=n: next((x.at for x in mill.notes("start") if x.words[1] == f"free-{n}"), None)  # type: ignore[misc]
        )
        waits.append(started - asked)
    assert max(waits) < 400, waits
    assert mill.all_final() == {"completed": 26}
    for key in ("a", "b", "c"):
        assert max(apart(spans(mill, key))) < 1_000


@pytest.mark.parametrize("restarted", [False, True])
def test_b21_a_lifted_limit_lets_all_run_that_slots_allow(mill: Mill, restarted: bool) -> None:
    mill.write(APP)
    put(mill, "plain", 0.3, 9)
    worker = mill.worker(concurrency=3, poll="1s").ready()
    mill.noted("start", 2)
    if restarted:
        worker.stop()
    mill.one("plain", "k-last", 0.0, limit_key="k", limit=None)
    if restarted:
        mill.worker(concurrency=3).ready()
    assert mill.all_final() == {"completed": 10}
    found = spans(mill, "k")
    assert max(sum(a <= start < b for a, b in found) for start, _ in found) == 3
