"""Enqueueing one job a call, from one thread and from many, against a bare loop."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench import slowsync
from bench.children import answer, ask
from bench.figures import Figure, at_least, compared, percentile
from bench.raw import Enqueuer
from bench.rounds import pairs, seconds
from bench.sizes import Sizes
from bench.stores import SPEC, bare, opened, remove
from millpond.store.sqlite.engine import SqliteStore

SLOW_MS = 2.0
MANY = 8
"""Many threads get this many times the jobs of one, so that both runs take about as long."""


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield the figures of full sync as the disk does it, then of a slow one."""
    yield from _compare(folder, sizes)
    library = slowsync.built(folder)
    env = slowsync.environment(library, SLOW_MS)
    slow = ask(
        "bench.enqueue", str(folder), sizes.rounds, sizes.slow_jobs, sizes.producers, env=env
    )
    against = f"the same statements, {SLOW_MS:g} ms added to every sync"
    yield compared(f"enqueue.{sizes.producers}_threads_slow_sync", slow, at_least(15), against)


def _compare(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    rounds, jobs, producers = sizes.rounds, sizes.enqueue_jobs, sizes.producers
    path, beside = _made(folder / "engine.db"), _made(folder / "bare.db")
    third = _made(folder / "rows.db")
    latencies: list[float] = []
    try:
        with opened(path) as store, bare(beside) as conn, bare(third) as other:
            raw, rows = Enqueuer(conn), Enqueuer(other)
            one = pairs(
                rounds, lambda: jobs / seconds(lambda: _loop(store, jobs, latencies)),
                lambda: jobs / seconds(lambda: _bare_loop(raw, jobs)),
            )  # fmt: skip
            row = pairs(
                rounds, lambda: jobs / seconds(lambda: _loop(store, jobs, latencies)),
                lambda: jobs / seconds(lambda: _row_loop(rows, jobs)),
            )  # fmt: skip
            many = pairs(
                rounds, lambda: _crowd(store, jobs * MANY, producers),
                lambda: jobs / seconds(lambda: _bare_loop(raw, jobs)),
            )  # fmt: skip
    finally:
        for each in (path, beside, third):
            remove(each)
    yield compared("enqueue.one_thread", one, at_least(0.7), "the same statements")
    yield compared("enqueue.one_thread_to_one_row", row, None, "the job's row alone")
    yield compared(f"enqueue.{producers}_threads", many, at_least(4), "the same statements")
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        value = percentile(latencies, share) * 1e6
        yield Figure(f"enqueue.one_thread_{name}", (value,), unit="us")


def _made(path: Path) -> Path:
    """Make a store that knows the names, so that none is made while the clock runs."""
    with opened(path) as store:
        store.enqueue([SPEC]).result()
    return path


def _loop(store: SqliteStore, jobs: int, latencies: list[float]) -> None:
    clock, specs = time.perf_counter, [SPEC]
    for _ in range(jobs):
        started = clock()
        store.enqueue(specs, waits=True).result()
        latencies.append(clock() - started)


def _bare_loop(raw: Enqueuer, jobs: int) -> None:
    for _ in range(jobs):
        raw.one()


def _row_loop(raw: Enqueuer, jobs: int) -> None:
    first = raw.rows(1)[0][0]
    for ident in range(first, first + jobs):
        raw.only_row(ident)


def _crowd(store: SqliteStore, jobs: int, producers: int) -> float:
    """Return the jobs a second that many threads store, each waiting for its own answer."""
    each = max(jobs // producers, 1)
    start = threading.Barrier(producers + 1)

    def produce() -> None:
        start.wait()
        for _ in range(each):
            store.enqueue([SPEC], waits=True).result()

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    return each * producers / (time.perf_counter() - began)


def _child(folder: str, rounds: int, jobs: int, producers: int) -> list[tuple[float, float]]:
    """Measure under the slow sync that this process was started with."""
    path, beside = _made(Path(folder) / "slow.db"), _made(Path(folder) / "slow-bare.db")
    try:
        with opened(path) as store, bare(beside) as conn:
            raw = Enqueuer(conn)
            return pairs(
                rounds, lambda: _crowd(store, jobs * MANY * 2, producers),
                lambda: jobs / seconds(lambda: _bare_loop(raw, jobs)),
            )  # fmt: skip
    finally:
        remove(path)
        remove(beside)


if __name__ == "__main__":
    answer(_child(sys.argv[1], *(int(text) for text in sys.argv[2:])))
