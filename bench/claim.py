"""What a claim costs when the store is large, against the same claim in a small one.

Measured are the statements and the picking of one claim, inside its transaction and without
its COMMIT, whose sync costs the same everywhere and would hide the difference. Medians are of
processor time, which other programs do not lengthen; the rare ones are of the time that passed,
so that a wait for the disk would show. After each
claim the jobs are completed and as many are enqueued, so both stores keep their sizes and the
large one moves on over pages that were not read before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.big import Shape, built
from bench.figures import Figure, at_most, percentile
from bench.sizes import Sizes
from bench.stores import opened, remove, spec_for
from millpond.model import AttemptOutcome, Claim, JobSpec, Settlement, Want, WorkerId
from millpond.store.sqlite import admit, claims, endings
from millpond.store.sqlite.engine import SqliteStore

T = TypeVar("T")
LANES = 64
HUNDRED = 100
TURN = 20
SMALL, BIG = "small", "big"
PROCESSOR, WALL = 0, 1


@dataclass(slots=True)
class Subject:
    """One store under measurement, driven in this thread, and the times of its claims."""

    store: SqliteStore
    shape: Shape
    turn: int = 0
    taken: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def cycle(self, count: int) -> None:
        """Claim `count` jobs, complete them, enqueue as many to the same lanes."""
        wants, tasks = [Want(count)], self.shape.tasks
        took, batch = self._transact(lambda tx: claims.claim(tx, WorkerId(1), wants, tasks, count))
        if len(batch.claims) != count:
            msg = f"a claim of {count} jobs took {len(batch.claims)}"
            raise RuntimeError(msg)
        self.taken.setdefault(count, []).append(took)
        self._transact(lambda tx: endings.settle(tx, WorkerId(1), _ends(batch.claims)))
        self._transact(lambda tx: admit.enqueue(tx, self._specs(batch.claims)))

    def _specs(self, claimed: list[Claim]) -> list[JobSpec]:
        return [spec_for(claim.task) for claim in claimed]

    def times(self, count: int, share: float) -> list[float]:
        """Return microseconds of the claims of this size, by the clock for that percentile."""
        clock = WALL if share > 0.9 else PROCESSOR
        return [took[clock] * 1e6 for took in self.taken[count]]

    def _transact(self, run: Callable[[Any], T]) -> tuple[tuple[float, float], T]:
        """Run one operation as the storage thread would; return both its times and its answer."""
        store = self.store
        conn = store.open()
        conn.execute("BEGIN IMMEDIATE")
        context = store.start(conn)
        busy, started = time.thread_time(), time.perf_counter()
        value = run(context)
        took = time.thread_time() - busy, time.perf_counter() - started
        conn.execute("COMMIT")
        store.committed(context)
        store.gap(conn, 1, idle=False)
        return took, value


def _ends(claimed: list[Claim]) -> list[Settlement]:
    return [
        Settlement(claim.token, AttemptOutcome.COMPLETED, claim.claimed_at, claim.claimed_at)
        for claim in claimed
    ]


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield the ratios of large to small, for one lane and for 64, then of 64 lanes to one."""
    paths: list[Path] = []
    try:
        with ExitStack() as stack:
            found = {}
            for lanes in (1, LANES):
                for size, shape in _shapes(lanes, sizes).items():
                    path = folder / f"claim-{size}-{lanes}.db"
                    paths.append(path)
                    built(path, shape)
                    found[size, lanes] = Subject(stack.enter_context(opened(path)), shape)
            _measure(list(found.values()), sizes.claims)
            yield from _figures(found)
    finally:
        for path in paths:
            remove(path)


def _shapes(lanes: int, sizes: Sizes) -> dict[str, Shape]:
    rows = sizes.claim_rows
    return {
        SMALL: Shape(lanes, sizes.claim_small),
        BIG: Shape(lanes, rows, rows, rows, sizes.claim_foreign),
    }


def _measure(subjects: list[Subject], times: int) -> None:
    """Claim from all stores in turns of a few claims each; the first of a turn is not counted.

    It finds the processor's caches full of another store, as no process with one store would.
    """
    for count, wanted in ((1, times), (HUNDRED, max(times // 4, 1))):
        for start in range(0, wanted, TURN):
            for subject in subjects:
                subject.cycle(count)
                subject.taken[count].pop()
                for _ in range(min(TURN, wanted - start)):
                    subject.cycle(count)


def _figures(found: dict[tuple[str, int], Subject]) -> Iterator[Figure]:
    for lanes in (1, LANES):
        for count, most in ((1, 1.5), (HUNDRED, 2.5)):
            for name, share, limit in (("p50", 0.5, most), ("p99", 0.99, 4.0)):
                big, small = (found[size, lanes].times(count, share) for size in (BIG, SMALL))
                yield _ratio(f"claim.{count}_of_big_{lanes}_lanes_{name}", big, small, share, limit)
    for size in (SMALL, BIG):
        value = percentile(found[size, LANES].times(1, 0.5), 0.5)
        yield Figure(f"claim.1_{LANES}_lanes_{size}", (value,), at_most(250), unit="us")
        many, one = (found[size, lanes].times(HUNDRED, 0.5) for lanes in (LANES, 1))
        yield _ratio(f"claim.{HUNDRED}_{LANES}_lanes_to_one_{size}", many, one, 0.5, 2.0)


def _ratio(name: str, left: list[float], right: list[float], share: float, most: float) -> Figure:
    """Compare the same percentile of both: of each fifth of the time, a rare one of all times."""
    parts = 1 if share > 0.9 else min(5, len(left))
    part = len(left) // parts
    spans = [slice(at, at + part) for at in range(0, part * parts, part)]
    ratios = [percentile(left[span], share) / percentile(right[span], share) for span in spans]
    whole = (percentile(left, share), percentile(right, share))
    note = f"{whole[0]:.0f} us against {whole[1]:.0f}, {len(left)} claims"
    return Figure(name, tuple(ratios), at_most(most), note=note)
