"""B18: pruning is small steps that nobody waits for, can be killed, and takes only what is due."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest
from tests.scenarios.mill import ROOT, soak, until
from tests.scenarios.standing import complaints

from millpond.clock import SystemClock
from millpond.model import (
    AttemptOutcome,
    JobId,
    JobSpec,
    Settlement,
    State,
    Want,
    WorkerId,
    WorkerInfo,
)
from millpond.store import open_store
from millpond.store.protocol import Store

log = logging.getLogger(__name__)

OUT = AttemptOutcome
HOUR_MS = 3_600_000
WINDOWS = {State.COMPLETED: 60_000, State.FAILED: HOUR_MS, State.CANCELLED: 60_000}
PRUNE = ("prune", "--completed", "1m", "--failed", "1h", "--cancelled", "1m")
BATCH = 2_000
EVERY_S = 0.02
"""Fifty jobs a second."""


def put(store: Store, count: int, payload: bytes, task: str = "work") -> None:
    for start in range(0, count, BATCH):
        spec = JobSpec(task=task, queue="q", workload="default", payload=payload)
        store.enqueue([spec] * min(BATCH, count - start)).result()


def finish(store: Store, worker: WorkerId, outcome: AttemptOutcome) -> None:
    """Claim and end all that is ready."""
    while claims := store.claim(worker, [Want(BATCH)], ["work"], BATCH).result().claims:
        ends = [Settlement(c.token, outcome, c.claimed_at, c.claimed_at) for c in claims]
        store.settle(worker, ends).result()


def info() -> WorkerInfo:
    return WorkerInfo("host", 1, None, "0", 600_000, ("work",))


def long_ago(path: Path, count: int, payload: bytes) -> None:
    """Fill a store with jobs that ended two hours ago: completed, some failed or cancelled."""
    store = open_store(str(path), clock=SystemClock(offset=-2 * HOUR_MS / 1_000))
    worker = store.register(info()).result()
    put(store, count * 8 // 10, payload)
    finish(store, worker, OUT.COMPLETED)
    put(store, count // 10, payload)
    finish(store, worker, OUT.FAILED)
    put(store, count // 10, payload)
    finish(store, worker, OUT.CANCELLED)
    store.close()


def still_wanted(store: Store, worker: WorkerId) -> dict[JobId, State]:
    """Return jobs that must survive: running, scheduled, retrying, dead inside its window."""
    spec = JobSpec(task="work", queue="q", workload="default", lease_ms=HOUR_MS)
    ids = [a.job_id for a in store.enqueue([spec] * 3).result()]
    running, retrying, dead = store.claim(worker, [Want(3)], ["work"], 3).result().claims
    ends = [
        Settlement(retrying.token, OUT.RETRIED, retrying.claimed_at, delay_ms=HOUR_MS),
        Settlement(dead.token, OUT.FAILED, dead.claimed_at),
    ]
    store.settle(worker, ends).result()
    later = JobSpec(task="work", queue="q", workload="default", delay_ms=HOUR_MS)
    (scheduled,) = store.enqueue([later]).result()
    assert running.token.job_id in ids
    return {
        running.token.job_id: State.RUNNING,
        retrying.token.job_id: State.SCHEDULED,
        dead.token.job_id: State.FAILED,
        scheduled.job_id: State.SCHEDULED,
    }


@dataclass
class Traffic:
    """Fifty enqueues and fifty claims a second, each measured, until it is stopped."""

    store: Store
    worker: WorkerId
    accepted: list[JobId] = field(default_factory=list)
    enqueues_ms: list[float] = field(default_factory=list)
    claims_ms: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def enqueue(self) -> None:
        spec = JobSpec(task="work", queue="q", workload="default")
        began = time.perf_counter()
        (answer,) = self.store.enqueue([spec]).result()
        self.enqueues_ms.append((time.perf_counter() - began) * 1e3)
        self.accepted.append(answer.job_id)

    def claim(self) -> None:
        began = time.perf_counter()
        claims = self.store.claim(self.worker, [Want(1)], ["work"], 1).result().claims
        self.claims_ms.append((time.perf_counter() - began) * 1e3)
        ends = [Settlement(c.token, OUT.COMPLETED, c.claimed_at, c.claimed_at) for c in claims]
        self.store.settle(self.worker, ends).result()

    def _go_on(self, step: Callable[[], None]) -> None:
        while not self.stop.wait(EVERY_S):
            step()

    def __enter__(self) -> Self:
        steps = (self.enqueue, self.claim)
        self.threads = [threading.Thread(target=self._go_on, args=(step,)) for step in steps]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(timeout=60)


def pruner(path: Path) -> subprocess.Popen[bytes]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
    return subprocess.Popen(
        [sys.executable, "-m", "millpond", *PRUNE, "--url", str(path)],
        cwd=path.parent, env={**own, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def left(store: Store) -> int:
    return sum(store.past(WINDOWS).values())


@pytest.mark.parametrize(
    ("count", "most_ms"),
    # The long run is alone on its machine; what is always run shares it with the other tests.
    [(20_000, 5_000), soak(500_000, 500)],
)
def test_b18_nobody_waits_for_a_prune_and_only_what_is_due_goes(
    tmp_path: Path, count: int, most_ms: int
) -> None:
    path = tmp_path / "jobs.db"
    long_ago(path, count, b'"' + b"x" * 250 + b'"')
    size = path.stat().st_size
    store = open_store(str(path))
    try:
        worker = store.register(info()).result()
        wanted = still_wanted(store, worker)
        assert left(store) == count
        with Traffic(store, worker) as traffic:
            first = pruner(path)
            until(lambda: left(store) < count // 2, 600, what="half of it is pruned")
            first.send_signal(signal.SIGKILL)
            first.communicate(timeout=60)
            assert 0 < left(store) < count // 2
            second = pruner(path)
            _, said = second.communicate(timeout=900)
            assert second.returncode == 0, said
        assert left(store) == 0
        for job, state in wanted.items():
            row = store.get(job)
            assert row is not None
            assert row.state is state
        assert all(store.get(job) is not None for job in traffic.accepted)
    finally:
        store.close()
    assert complaints(path, [*wanted, *traffic.accepted]) == []
    worst = {"enqueue": max(traffic.enqueues_ms), "claim": max(traffic.claims_ms)}
    log.info("%d jobs beside it, the longest waits in ms: %s", len(traffic.accepted), worst)
    assert max(worst.values()) < most_ms, worst
    assert_not_compacted(path, size)


def assert_not_compacted(path: Path, size: int) -> None:
    """Pruned rows leave pages for later jobs; the file is never rewritten, so it cannot fail to."""
    with closing(sqlite3.connect(path)) as conn:
        (free,) = conn.execute("PRAGMA freelist_count").fetchone()
    assert free > size // 4096 // 2
    assert path.stat().st_size >= size


def test_b18_a_worker_prunes_by_itself_without_a_command(tmp_path: Path) -> None:
    """Many steps of a keeper: none holds the lock for long, all of it goes in the end."""
    path = tmp_path / "jobs.db"
    long_ago(path, 3_000, b"{}")
    store = open_store(str(path))
    try:
        held = []
        lengths = {f"{state.value}_ms": length for state, length in WINDOWS.items()}
        while (step := store.purge(**lengths, limit=100).result()).more:
            held.append(step.held_us)
        assert len(held) == 30
        assert sorted(held)[len(held) // 2] < 20_000
        assert left(store) == 0
    finally:
        store.close()
    assert complaints(path) == []
