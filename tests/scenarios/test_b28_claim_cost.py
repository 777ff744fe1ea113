"""B28: what a claim costs does not grow with what waits for later, is done, or is not ours."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.scenarios.standing import complaints

from millpond.model import AttemptOutcome, JobSpec, Settlement, Want, WorkerId, WorkerInfo
from millpond.store import open_store
from millpond.store.protocol import Store

TOMORROW = 86_400_000
BATCH = 2_000


def put(store: Store, count: int, **more: object) -> None:
    for start in range(0, count, BATCH):
        many = min(BATCH, count - start)
        spec = JobSpec(**{"task": "mine", "queue": "q", "workload": "default", **more})  # type: ignore[arg-type]
        store.enqueue([spec] * many).result()


def finish(store: Store, worker: WorkerId, outcome: AttemptOutcome) -> None:
    """Claim and end all that is ready."""
    while claims := store.claim(worker, [Want(BATCH)], ["mine"], BATCH).result().claims:
        ends = [Settlement(c.token, outcome, c.claimed_at, c.claimed_at) for c in claims]
        store.settle(worker, ends).result()


def median_ms(store: Store, worker: WorkerId) -> float:
    """Claim the one ready job twenty times, giving it back in between."""
    times = []
    for _ in range(20):
        began = time.perf_counter()
        (claim,) = store.claim(worker, [Want(1)], ["mine"], 1).result().claims
        times.append((time.perf_counter() - began) * 1e3)
        store.settle(worker, [Settlement(claim.token, AttemptOutcome.RELEASED)]).result()
    return statistics.median(times)


def opened(path: Path) -> tuple[Store, WorkerId]:
    store = open_store(str(path))
    info = WorkerInfo("host", 1, None, "0", 600_000, ("mine",))
    return store, store.register(info).result()


def measure(folder: Path, fill: Callable[[Store, WorkerId], None]) -> tuple[float, float]:
    """Return the best median of a claim on an empty and on a full table, taken in turns.

    Other work on the machine slows both, so only what is measured side by side compares.
    """
    empty, full = opened(folder / "empty.db"), opened(folder / "full.db")
    fill(*full)
    for store, _ in (empty, full):
        put(store, 1)
    pairs = [(median_ms(*empty), median_ms(*full)) for _ in range(5)]
    plans = [finding for finding in full[0].doctor() if finding.code == "plan"]
    assert plans
    assert all(finding.severity == "ok" for finding in plans), plans
    for store, _ in (empty, full):
        store.close()
    assert complaints(folder / "full.db") == []
    return min(one for one, _ in pairs), min(other for _, other in pairs)


def filler(thousands: int) -> Callable[[Store, WorkerId], None]:
    def fill(store: Store, worker: WorkerId) -> None:
        many = thousands * 1_000
        put(store, many)
        finish(store, worker, AttemptOutcome.COMPLETED)
        put(store, many // 10)
        finish(store, worker, AttemptOutcome.FAILED)
        put(store, many, delay_ms=TOMORROW)
        put(store, many // 10, task="not served here")
        status = store.status()
        lanes = {lane.task: lane for lane in status.lanes if lane.scheduled or lane.ready}
        assert lanes["mine"].scheduled == many
        assert lanes["not served here"].ready == many // 10
        assert sum(lane.failed for lane in status.lanes) == many // 10
        assert store.status().unserved_tasks == [("not served here", many // 10)]

    return fill


def test_b28_twenty_thousand_of_each_kind(tmp_path: Path) -> None:
    empty, full = measure(tmp_path, filler(20))
    assert full < 20
    assert full < 2 * empty


@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_b28_a_million_of_each_kind(tmp_path: Path) -> None:
    empty, full = measure(tmp_path, filler(1_000))
    sys.stdout.write(f"\nclaim of one: {empty:.2f} ms on an empty table, {full:.2f} ms on 2.2M\n")
    assert full < 20
    assert full < 2 * empty
