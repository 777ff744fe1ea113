"""Whether keeper and runner stay as small as they were, ten times the jobs later."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from bench import proc, workers
from bench.figures import Figure, at_most
from bench.sizes import Sizes
from bench.stores import SPEC, opened, remove
from millpond.store.sqlite.engine import SqliteStore

TIMES = 10
LIMIT_S = 300.0


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield the memory of both processes after ten times the jobs, to that after the first."""
    path = folder / "memory.db"
    jobs = sizes.memory_jobs
    with opened(path) as store:
        worker = workers.start(path)
        try:
            _work(store, jobs, jobs)
            processes = workers.processes(worker)
            before = {name: proc.private_bytes(pid) for name, pid in processes.items()}
            for more in range(2, TIMES + 1):
                _work(store, jobs, jobs * more)
            after = {name: proc.private_bytes(pid) for name, pid in processes.items()}
        finally:
            workers.stop(worker)
    remove(path)
    for name, size in before.items():
        note = (
            f"{after[name] / 1e6:.1f} MB after {jobs * TIMES} jobs, {size / 1e6:.1f} after {jobs}"
        )
        yield Figure(f"memory.{name}", (after[name] / size,), at_most(1.1), note=note)


def _work(store: SqliteStore, jobs: int, total: int) -> None:
    """Enqueue jobs and wait until that many are completed in all."""
    for first in range(0, jobs, 1000):
        store.enqueue([SPEC] * min(1000, jobs - first)).result()
    ends = time.monotonic() + LIMIT_S
    while sum(lane.completed for lane in store.status().lanes) < total:
        if time.monotonic() > ends:
            msg = f"{total} jobs were not done in {LIMIT_S:.0f} s"
            raise RuntimeError(msg)
        time.sleep(0.1)
