"""How long an enqueue and a claim wait while old jobs are pruned, at fifty jobs a second."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bench.big import Shape, built
from bench.children import ROOT
from bench.figures import Figure, at_most, number, percentile
from bench.sizes import Sizes
from bench.stores import opened, remove, spec_for, worker_info
from millpond.model import AttemptOutcome, Settlement, Want, WorkerId
from millpond.store.sqlite.engine import SqliteStore

LIMIT_MS = 100
EVERY_S = 0.02
"""Fifty jobs a second."""

TASK = "task0"
PRUNE_S = 3_600.0


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield the longest waits beside a prune, and without one; all that was due must be gone."""
    path = built(folder / "purge.db", Shape(lanes=2, ready=100, final=sizes.purge_rows))
    try:
        with opened(path) as theirs, opened(path) as ours:
            with _Traffic(theirs, ours) as alone:
                time.sleep(sizes.purge_alone_s)
            began = time.perf_counter()
            with _Traffic(theirs, ours) as beside:
                _prune(path)
            took = time.perf_counter() - began
            left = theirs.past({})
        if sum(left.values()):
            msg = f"the prune left {left}"
            raise RuntimeError(msg)
        yield from _figures(alone, beside)
        rate = (sizes.purge_rows / took,)
        yield Figure("purge.jobs_per_second", rate, unit="/s", note=f"in {number(took)} s")
    finally:
        remove(path)


def _figures(alone: _Traffic, beside: _Traffic) -> Iterator[Figure]:
    for what in ("enqueue", "claim"):
        waits, calm = beside.waits_ms[what], alone.waits_ms[what]
        note = (
            f"p99 {number(percentile(waits, 0.99))} of {len(waits)}; without a prune "
            f"max {number(max(calm))}, p99 {number(percentile(calm, 0.99))}"
        )
        longest = (max(waits),)
        yield Figure(f"purge.{what}_max", longest, at_most(LIMIT_MS), unit="ms", note=note)


def _prune(path: Path) -> None:
    """Run the command in a process of its own, as a person or cron does."""
    command = [sys.executable, "-m", "millpond", "prune", "--completed", "1h", "--url", str(path)]
    env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run(
        command, check=True, timeout=PRUNE_S, env=env, cwd=path.parent, capture_output=True
    )


@dataclass
class _Traffic:
    """A producer and a worker, each fifty times a second, who write down how long they wait."""

    theirs: SqliteStore
    ours: SqliteStore
    waits_ms: dict[str, list[float]] = field(default_factory=lambda: {"enqueue": [], "claim": []})
    stop: threading.Event = field(default_factory=threading.Event)
    failed: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> Self:
        worker = self.ours.register(worker_info(TASK)).result()
        steps = (self._enqueue, lambda: self._claim(worker))
        self._threads = [threading.Thread(target=self._go_on, args=(step,)) for step in steps]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(timeout=60)
        if self.failed:
            raise self.failed[0]

    def _go_on(self, step: Callable[[], None]) -> None:
        due = time.monotonic()
        try:
            while not self.stop.wait(max(due - time.monotonic(), 0)):
                step()
                due += EVERY_S
        except BaseException as error:  # noqa: BLE001  raised where the figures are made
            self.failed.append(error)

    def _timed(self, what: str, began: float) -> None:
        self.waits_ms[what].append((time.perf_counter() - began) * 1e3)

    def _enqueue(self) -> None:
        began = time.perf_counter()
        self.theirs.enqueue([spec_for(TASK)]).result()
        self._timed("enqueue", began)

    def _claim(self, worker: WorkerId) -> None:
        began = time.perf_counter()
        claims = self.ours.claim(worker, [Want(1)], [TASK], 1).result().claims
        self._timed("claim", began)
        done = AttemptOutcome.COMPLETED
        ends = [Settlement(one.token, done, one.claimed_at, one.claimed_at) for one in claims]
        self.ours.settle(worker, ends).result()
