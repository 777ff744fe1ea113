"""Eight producing processes and four workers on one file, all at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

from bench import workers
from bench.children import answer, heard, start
from bench.figures import Figure, at_least, at_most, number, percentile
from bench.sizes import Sizes
from bench.stores import opened, remove
from millpond.errors import StoreBusy

PRODUCERS, WORKERS = 8, 4
READY_S = 5.0
"""How long the processes get to import and open, before all begin at one moment."""


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield busy errors, fairness and latencies; the store must be sound afterwards."""
    path = folder / "crowd.db"
    with opened(path):
        pass
    started = [workers.start(path) for _ in range(WORKERS)]
    try:
        begins = time.monotonic() + READY_S
        producers = [
            start("bench.crowd", begins, sizes.crowd_s, env={"MILLPOND_URL": str(path)})
            for _ in range(PRODUCERS)
        ]
        told = [heard(producer) for producer in producers]
    finally:
        for worker in started:
            workers.stop(worker)
    try:
        yield from _figures(told, _sound(path, sum(each["accepted"] for each in told)), sizes)
    finally:
        remove(path)


def _sound(path: Path, accepted: int) -> int:
    """Return how many jobs were completed; raises RuntimeError when anything is wrong."""
    with opened(path) as store:
        wrong = store.verify()
        lanes = store.status().lanes
    there = sum(lane.ready + lane.running + lane.completed for lane in lanes)
    if wrong or there != accepted:
        msg = f"{accepted} jobs were accepted, {there} are there; verify says {wrong[:3]}"
        raise RuntimeError(msg)
    return sum(lane.completed for lane in lanes)


def _figures(told: list[dict[str, Any]], completed: int, sizes: Sizes) -> Iterator[Figure]:
    counts = [each["accepted"] for each in told]
    waits = [wait for each in told for wait in each["waits_ms"]]
    rate = sum(counts) / sizes.crowd_s
    done = completed / sizes.crowd_s
    busy = sum(each["busy"] for each in told)
    yield Figure("crowd.busy_errors", (float(busy),), at_most(0), unit="",
                 note=f"{number(rate)} jobs/s accepted, {number(done)} completed")  # fmt: skip
    slowest = min(counts) / mean(counts)
    note = f"jobs of each producer: {', '.join(map(str, sorted(counts)))}"
    yield Figure("crowd.slowest_producer", (slowest,), at_least(0.5), note=note)
    for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
        yield Figure(f"crowd.enqueue_{name}", (percentile(waits, share),), unit="ms")


def _produce(begins: float, seconds: float) -> dict[str, Any]:
    from bench.app import noop, pond

    busy, waits = 0, []
    with pond:
        time.sleep(max(begins - time.monotonic(), 0))
        ends = time.monotonic() + seconds
        while (now := time.monotonic()) < ends:
            try:
                noop.enqueue(812)
            except StoreBusy:
                busy += 1
            else:
                waits.append((time.monotonic() - now) * 1e3)
    return {"accepted": len(waits), "busy": busy, "waits_ms": [round(wait, 3) for wait in waits]}


if __name__ == "__main__":
    answer(_produce(float(sys.argv[1]), float(sys.argv[2])))
