"""How soon an idle worker starts what another process enqueues, and what idling costs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

from bench import proc, workers
from bench.figures import Figure, at_most, number, percentile
from bench.sizes import Sizes
from bench.stores import QUEUE, SyncProbe, remove
from millpond import Millpond, Task

SETTLE_S = 0.05
"""How long the worker is left alone between two jobs, at most; it must be idle again."""

WARM = 2_000
"""Jobs before the first that counts: the write-ahead log is checkpointed and written over then."""

BEYOND_MS = 1.5
PAGES = 8
"""Pages that the commit of an enqueue writes, and about as many that of a claim."""
LIMIT_S = 30.0


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield latencies from just before the enqueue to the handler's first line, then idle cost."""
    path = folder / "pickup.db"
    pond = Millpond(str(path))

    @pond.task(queue=QUEUE)
    def stamp(sent: float) -> float:
        raise NotImplementedError  # it runs in the worker

    worker = workers.start(path)
    try:
        with pond:
            _warm(pond, stamp)
            yield from _latencies(stamp, folder, sizes)
            yield from _idle(workers.processes(worker), sizes.idle_s)
    finally:
        workers.stop(worker)
        remove(path)


def _warm(pond: Millpond, stamp: Task[..., float, float]) -> None:
    """Bring the store to where one that has worked for a while is.

    A log that still grows costs every commit a second write, of the file's new size.
    """
    for _ in range(10):
        with pond.batch() as batch:
            for _ in range(WARM // 10):
                batch.add(stamp, 0.0)
        batch.refs[-1].wait(LIMIT_S)
    for _ in range(3):
        _pick_up(stamp)


def _latencies(stamp: Task[..., float, float], folder: Path, sizes: Sizes) -> Iterator[Figure]:
    latencies, syncs, enqueues = [], [], []
    probe = SyncProbe(folder)
    for _ in range(sizes.pickups):
        time.sleep(random.uniform(SETTLE_S / 5, SETTLE_S))
        syncs.append(probe.seconds(PAGES))
        time.sleep(random.uniform(SETTLE_S / 5, SETTLE_S))
        latency, enqueue = _pick_up(stamp)
        latencies.append(latency * 1e3)
        enqueues.append(enqueue * 1e3)
    probe.close()
    sync_ms = percentile(syncs, 0.5) * 1e3
    most = 2 * sync_ms + BEYOND_MS
    note = f"two syncs of {sync_ms:.2f} ms + {BEYOND_MS} ms; {len(latencies)} jobs, the enqueue "
    note += f"itself {number(percentile(enqueues, 0.5))} ms"
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    yield Figure("pickup.p50", (p50,), at_most(most), unit="ms", note=note)
    yield Figure("pickup.p99", (p99,), at_most(10.0), unit="ms")


def _pick_up(stamp: Task[..., float, float]) -> tuple[float, float]:
    """Enqueue one job and return the seconds until it ran and until it was accepted."""
    sent = time.monotonic()
    ref = stamp.enqueue(sent)
    accepted = time.monotonic() - sent
    # A caller that waits looks again and again; on two cores that is in the worker's way.
    time.sleep(SETTLE_S)
    return ref.wait(LIMIT_S), accepted


def _idle(processes: dict[str, int], idle_s: float) -> Iterator[Figure]:
    time.sleep(min(idle_s, 1.0))
    before = {name: proc.cpu_seconds(pid) for name, pid in processes.items()}
    started = time.monotonic()
    time.sleep(idle_s)
    lasted = time.monotonic() - started
    used = {name: proc.cpu_seconds(pid) - before[name] for name, pid in processes.items()}
    shares = {name: seconds / lasted * 100 for name, seconds in used.items()}
    note = ", ".join(f"{name} {share:.3f} %" for name, share in shares.items())
    note = f"of one core: {note}; over {lasted:.0f} s"
    yield Figure("pickup.idle", (sum(shares.values()),), at_most(0.5), unit="%", note=note)
