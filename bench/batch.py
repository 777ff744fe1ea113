"""A batch of typed calls through the public API, against executemany of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.figures import Figure, at_least, compared
from bench.raw import Enqueuer
from bench.rounds import pairs, seconds
from bench.sizes import Sizes
from bench.stores import QUEUE, SPEC, bare, opened, remove
from millpond import Millpond


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield jobs a second of `pond.batch()` to those of two bare executemany calls."""
    path, beside = folder / "batch.db", folder / "batch-bare.db"
    jobs = sizes.batch_jobs
    pond = Millpond(str(path))

    @pond.task(queue=QUEUE)
    def noop(report_id: int, fmt: str = "pdf") -> None:
        """Do nothing."""

    def typed() -> None:
        with pond.batch() as batch:
            for _ in range(jobs):
                batch.add(noop, 812, fmt="pdf")

    try:
        with opened(beside) as store:
            store.enqueue([SPEC]).result()
        with pond, bare(beside) as conn:
            noop.enqueue(812)
            raw = Enqueuer(conn)
            found = pairs(
                sizes.rounds,
                lambda: jobs / seconds(typed),
                lambda: _bare(raw, raw.rows(jobs)),
            )
    finally:
        remove(path)
        remove(beside)
    yield compared(f"batch.{jobs}_typed_calls", found, at_least(0.4), "executemany")


def _bare(raw: Enqueuer, rows: list[tuple[Any, ...]]) -> float:
    return len(rows) / seconds(lambda: raw.many(rows))
