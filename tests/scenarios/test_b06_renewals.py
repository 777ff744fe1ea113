"""B06: renewals keep a job for as long as it runs; settings that cannot work are refused."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from contextlib import closing
from typing import Any, Self

import pytest
from tests.scenarios.mill import Mill, soak, until

from millpond import BadConfig

APP = """
@pond.task(**FAST)
def long(seconds: float, *, ctx: Context = Context.injected) -> float:
    note("start", ctx.job_id, ctx.attempt)
    pause(seconds)
    return ctx.lease_remaining

@pond.task(**FAST)
async def along(seconds: float, *, ctx: Context = Context.injected) -> float:
    note("start", ctx.job_id, ctx.attempt)
    await asyncio.sleep(seconds)
    return ctx.lease_remaining
"""

LEASE_MS = 1_200


class Renewals:
    """Writes down every beat of the workers that hold jobs, by looking often at the file."""

    def __init__(self, mill: Mill) -> None:
        self._path = mill.path
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.beats: dict[int, list[int]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        with closing(sqlite3.connect(self._path)) as conn:
            while not self._end.wait(0.005):
                for worker, beat in conn.execute(
                    "SELECT id, beat_mono FROM millpond_worker"
                    " WHERE id IN (SELECT worker FROM millpond_running)"
                ):
                    seen = self.beats.setdefault(worker, [])
                    if not seen or seen[-1] != beat:
                        seen.append(beat)

    def gaps(self) -> list[int]:
        """Return the times between beats of the only worker that held anything, in ms."""
        (beats,) = self.beats.values()
        return [after - before for before, after in itertools.pairwise(beats)]


@pytest.mark.parametrize("task", ["long", soak("along")])
def test_b06_renewals_keep_a_job_many_leases_long(mill: Mill, task: str) -> None:
    mill.write(APP, lease=f"{LEASE_MS}ms")
    for _ in range(3):
        mill.worker(concurrency=1, recover="200ms").ready()
    ref = mill.one(task, 4.0)
    with Renewals(mill) as renewals:
        mill.becomes(ref, "completed")

    assert mill.outcomes(ref) == [("completed", 1)]
    assert len(mill.notes("start")) == 1
    gaps = renewals.gaps()
    assert len(gaps) >= 10
    # The first gap reaches back to a beat from before the claim, which began the lease itself.
    assert sorted(gaps[1:])[len(gaps) // 2] <= LEASE_MS // 3
    assert max(gaps[1:]) <= LEASE_MS // 2
    assert mill.job(ref).result > LEASE_MS / 1000 / 3


@pytest.mark.parametrize("task", [soak("long"), "along"])
def test_b06_a_missed_renewal_does_not_lose_the_job(mill: Mill, task: str) -> None:
    mill.write(APP, lease=f"{LEASE_MS}ms")
    for _ in range(3):
        mill.worker(concurrency=1, recover="200ms").ready()
    ref = mill.one(task, 3.0)
    mill.noted("start")
    with Renewals(mill) as renewals:
        until(lambda: renewals.beats)
        before = sum(map(len, renewals.beats.values()))
        until(lambda: sum(map(len, renewals.beats.values())) > before + 1)
        # Longer than the pause between two renewals, so that one at least cannot be written.
        with closing(sqlite3.connect(mill.path, timeout=5)) as conn:
            conn.execute("BEGIN IMMEDIATE")
            assert not threading.Event().wait(LEASE_MS / 1000 / 2)
            conn.rollback()
        mill.becomes(ref, "completed")

    assert max(renewals.gaps()) > LEASE_MS // 3, "a renewal was missed"
    assert mill.outcomes(ref) == [("completed", 1)]
    assert len(mill.notes("start")) == 1


def test_b06_a_worker_that_cannot_renew_stops_its_handler_before_the_lease_ends(
    mill: Mill,
) -> None:
    mill.write(
        """
@pond.task(**FAST)
async def long(*, ctx: Context = Context.injected) -> str:
    note("start", ctx.job_id, ctx.attempt)
    if ctx.attempt > 1:
        return "second"
    try:
        await asyncio.sleep(30)
    finally:
        note("stopped", ctx.job_id)
""",
        lease="1s",
    )
    ref = mill.one("long")
    mill.worker().ready()
    (start,) = mill.noted("start")
    with closing(sqlite3.connect(mill.path, timeout=5)) as conn:
        conn.execute("BEGIN IMMEDIATE")
        (stopped,) = mill.noted("stopped", within=3)
        conn.rollback()
    assert stopped.at - start.at < 1_500
    assert mill.becomes(ref, "completed").result == "second"
    assert mill.outcomes(ref) == [("lease_lost", 1), ("completed", 2)]


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"beat": "1s"}, ("1000", "2000")),
        ({"beat": "5s"}, ("5000", "2000")),
        soak({"beat": "700ms"}, ("700", "2000")),
    ],
)
def test_b06_a_beat_too_slow_for_a_lease_is_refused_at_the_start_with_both_numbers(
    mill: Mill, settings: dict[str, str], numbers: tuple[str, str]
) -> None:
    mill.write(APP, lease="2s")
    worker = mill.worker(**settings)
    assert worker.ended(10) == 2
    assert "Traceback" not in worker.said
    last = worker.said.splitlines()[-1]
    assert all(number in last for number in numbers), worker.said


@pytest.mark.parametrize(
    ("settings", "fits"),
    [({"beat": "660ms"}, True), ({"beat": "1s"}, False), ({"beat": "10s"}, False), ({}, True)],
)
def test_b06_an_embedded_worker_is_held_to_the_same(
    mill: Mill, settings: dict[str, Any], fits: bool
) -> None:
    mill.write(APP, lease="2s")
    if fits:
        with mill.pond.worker(**settings) as worker:
            assert worker.alive
        return
    with pytest.raises(BadConfig, match=r"(?s)beat.*lease.*2000"), mill.pond.worker(**settings):
        pass
