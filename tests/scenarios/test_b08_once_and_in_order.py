"""B08: many workers that start at one instant run each job once; equal jobs keep their order."""

from __future__ import annotations

import threading

import pytest
from tests.scenarios.mill import Mill, soak

from millpond import ManualClock, Millpond

APP = """
@pond.task(**FAST)
def write(n: int) -> None:
    note("ran", n)

@pond.task(**FAST)
async def awrite(n: int) -> None:
    note("ran", n)
"""


@pytest.mark.parametrize(
    ("task", "first"),
    [
        ("write", "jobs"),
        ("awrite", "workers"),
        soak("write", "workers"),
        soak("awrite", "jobs"),
    ],
)
def test_b08_two_hundred_jobs_of_four_workers_run_once_each(
    mill: Mill, task: str, first: str
) -> None:
    mill.write(APP)
    workers = []
    if first == "workers":
        workers = [mill.worker() for _ in range(4)]
        for worker in workers:
            worker.ready()
    with mill.pond.batch() as batch:
        for n in range(200):
            batch.add(getattr(mill.app, task), n)
    mill.accepted += [ref.id for ref in batch.refs]
    if first == "jobs":
        workers = [mill.worker() for _ in range(4)]

    assert mill.all_final() == {"completed": 200}
    assert sorted(int(note.words[1]) for note in mill.notes("ran")) == list(range(200))
    for worker in workers:
        assert worker.stop() == 0


def test_b08_jobs_for_single_takers_go_to_one_each(mill: Mill) -> None:
    """Many workers, few jobs: most claims find nothing, and nobody finds the same."""
    mill.write(APP)
    workers = [mill.worker(concurrency=1, poll="50ms").ready() for _ in range(4)]
    for n in range(40):
        mill.one("write", n)
    assert mill.all_final() == {"completed": 40}
    assert sorted(int(note.words[1]) for note in mill.notes("ran")) == list(range(40))
    assert all(worker.process.poll() is None for worker in workers)


@pytest.mark.parametrize("how", ["one by one", "a batch", "threads taking turns"])
@pytest.mark.parametrize("url", ["memory", "file"])
def test_b08_equal_jobs_run_in_the_order_they_were_enqueued(mill: Mill, how: str, url: str) -> None:
    address = ":memory:" if url == "memory" else str(mill.path)
    pond, ran = Millpond(address, clock=ManualClock()), []

    @pond.task
    def write(n: int) -> None:
        ran.append(n)

    if how == "a batch":
        with pond.batch() as batch:
            for n in range(100):
                batch.add(write, n)
    elif how == "one by one":
        for n in range(100):
            write.enqueue(n)
    else:
        for n in range(100):
            thread = threading.Thread(target=write.enqueue, args=(n,))
            thread.start()
            thread.join()
    pond.drain(concurrency=1, batch=7)
    pond.close()
    assert ran == list(range(100))


def test_b08_a_real_worker_with_one_slot_keeps_the_order(mill: Mill) -> None:
    mill.write(APP)
    for n in range(100):
        mill.one("write", n)
    assert mill.worker("--drain", concurrency=1, batch=9).ended() == 0
    assert [int(note.words[1]) for note in mill.notes("ran")] == list(range(100))
