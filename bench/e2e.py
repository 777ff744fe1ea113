"""No-op jobs from ready to final, by the store alone and by a worker, against bare statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench import raw, workers
from bench.figures import Figure, at_least, compared
from bench.rounds import pairs, seconds
from bench.sizes import Sizes
from bench.stores import TASK, bare, copied, opened, preloaded, remove, worker_info
from millpond.model import AttemptOutcome, Settlement, Want

BATCH = workers.BATCH
LIMIT_S = 300.0

Loop = Callable[[Path, int], float]
"""Brings all jobs of a store to their end; returns the seconds it took."""


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield how the store, threads and the event loop compare with the raw loop."""
    for name, task, loop, need in (
        ("e2e.store", TASK, _store_loop, None),
        ("e2e.threads", TASK, _worker, at_least(0.5)),
        ("e2e.async", "anoop", _worker, at_least(0.4)),
    ):
        found = _rates(folder, sizes, task, loop, _raw_loop)
        yield compared(name, found, need, "the raw loop")
    found = _rates(folder, sizes, TASK, partial(_worker, processes=2), _worker)
    yield compared("e2e.two_processes", found, at_least(1.0), "one runner with as many slots each")
    found = _rates(folder, sizes, TASK, partial(_worker, app="solo"), _worker)
    yield compared("e2e.one_slot_runners", found, at_least(0.2), "threads")


def _rates(
    folder: Path, sizes: Sizes, task: str, loop: Loop, against: Loop
) -> list[tuple[float, float]]:
    """Return jobs a second, by the one loop and by the other, round by round."""
    jobs = sizes.e2e_jobs
    source, target = folder / "source.db", folder / "copy.db"
    try:
        preloaded(source, jobs, task)
        return pairs(
            sizes.rounds,
            lambda: jobs / loop(copied(source, target), jobs),
            lambda: jobs / against(copied(source, target), jobs),
        )
    finally:
        remove(source)
        remove(target)


def _raw_loop(path: Path, jobs: int) -> float:
    with bare(path) as conn:
        taken = seconds(lambda: raw.claim_and_settle(conn, BATCH))
        _check_final(conn, jobs)
    return taken


def _check_final(conn: object, jobs: int) -> None:
    (done,) = conn.execute("SELECT total_completed FROM millpond_lane").fetchone()  # type: ignore[attr-defined]
    if done != jobs:
        msg = f"{jobs} jobs were loaded and {done} were completed"
        raise RuntimeError(msg)


def _store_loop(path: Path, jobs: int) -> float:
    """Claim and settle through the store, both handed over in the same breath."""
    with opened(path) as store:
        worker = store.register(worker_info()).result()
        wants, tasks = [Want(BATCH)], (TASK,)

        def loop() -> None:
            claimed = store.claim(worker, wants, tasks, BATCH).result().claims
            while claimed:
                ends = [
                    Settlement(c.token, AttemptOutcome.COMPLETED, c.claimed_at, c.claimed_at)
                    for c in claimed
                ]
                settled = store.settle(worker, ends)
                following = store.claim(worker, wants, tasks, BATCH)
                settled.result()
                claimed = following.result().claims

        taken = seconds(loop)
    with bare(path) as conn:
        _check_final(conn, jobs)
    return taken


def _worker(path: Path, jobs: int, *, processes: int = 1, app: str = "app") -> float:
    """Let a worker process drain the store; the time from the first claim to the last end.

    Start and end of the processes are not work: the moments are those in the history.
    """
    workers.finish(workers.start(path, drain=True, processes=processes, app=app), LIMIT_S)
    with bare(path) as conn:
        _check_final(conn, jobs)
        (first,) = conn.execute("SELECT min(claimed_at) FROM millpond_attempt").fetchone()
        (last,) = conn.execute("SELECT max(finished_at) FROM millpond_final").fetchone()
    return max(last - first, 1) / 1000  # type: ignore[no-any-return]
