"""B09: recovery takes back what has expired at the moment of its change, and nothing else."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.mill import Mill, soak, until
from tests.scenarios.standing import complaints

from millpond import ManualClock
from millpond.model import AttemptOutcome, Claim, JobSpec, Settlement, Token, Want, WorkerInfo
from millpond.store import open_store
from millpond.store.protocol import Store

APP = """
@pond.task(**FAST)
def work(*, ctx: Context = Context.injected) -> int:
    note("start", ctx.job_id, ctx.attempt)
    if ctx.attempt == 1:
        pause(60)
    return ctx.attempt

@pond.task(**{**FAST, "max_attempts": 3})
def tiny(n: int) -> None:
    pause(0.01 + 0.04 * (n % 5) / 4)
    note("ran", n)
"""


@pytest.mark.parametrize("how", ["sleep=1", "stop", "kill", soak("exit"), soak("raise")])
def test_b09_a_a_recovery_that_is_interrupted_harms_nobody(mill: Mill, how: str) -> None:
    mill.write(APP)
    refs = mill.put("work", count=3)
    lost = mill.worker().ready()
    mill.noted("start", 3)
    lost.kill_all()
    # The first one that recovers is held up between its look and its change.
    slow = mill.worker(fault=f"recover-read:{how}", recover="100ms", queues="nothing")
    until(lambda: slow.events("worker_started") or slow.process.poll() is not None)
    until(lambda: mill.pond.status().expired_leases == 3 or len(mill.notes("start")) > 3)
    other = mill.worker(recover="100ms")
    if how == "stop":
        until(lambda: stands(slow.pid), what="it stands still, with the write lock in its hand")
        os.kill(slow.pid, signal.SIGCONT)

    assert mill.all_final() == {"completed": 3}
    for ref in refs:
        assert mill.outcomes(ref) == [("lease_lost", 1), ("completed", 2)]
        assert mill.job(ref).result == 2
    assert len(mill.notes("start")) == 6
    assert other.process.poll() is None
    if how in {"kill", "exit", "raise"}:
        assert slow.ended() != 0
    else:
        assert slow.process.poll() is None


def stands(pid: int) -> bool:
    """Tell whether a process was stopped by a signal."""
    return " T " in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2][:4]


def test_b09_b_many_short_jobs_under_the_shortest_leases_all_end_once(mill: Mill) -> None:
    mill.write(APP, lease="300ms")
    for n in range(500):
        mill.accepted.append(mill.app.tiny.enqueue(n).id)
    for _ in range(3):
        mill.worker(recover="50ms", poll="50ms", concurrency=8)
    assert mill.all_final(60) == {"completed": 500}
    assert {int(note.words[1]) for note in mill.notes("ran")} == set(range(500))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    store = open_store(str(tmp_path / "jobs.db"), clock=clock)
    yield store
    store.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as conn:
        jobs = [job for (job,) in conn.execute("SELECT id FROM millpond_job")]
    assert jobs
    assert complaints(tmp_path / "jobs.db", jobs) == []


def rows(store: Store) -> dict[str, list[Any]]:
    """Return everything that tells about jobs, as it stands now."""
    tables = ("job", "ready", "scheduled", "running", "final", "attempt", "again", "workload")
    with closing(sqlite3.connect(store.path)) as conn:  # type: ignore[attr-defined]
        return {name: conn.execute(f"SELECT * FROM millpond_{name}").fetchall() for name in tables}


def registered(store: Store, pid: int) -> Any:
    info = WorkerInfo("host", pid, None, "0", 15_000, ("work",))
    return store.register(info).result()


def claim(store: Store, worker: Any) -> list[Claim]:
    return store.claim(worker, [Want(10)], ["work"], 10).result().claims


@pytest.mark.parametrize("end", ["completed", "running", "failed", "waits again"])
def test_b09_c_a_list_of_expired_jobs_from_earlier_changes_nothing(
    store: Store, clock: ManualClock, end: str
) -> None:
    specs = [JobSpec("work", "default", "default", lease_ms=1_000) for _ in range(5)]
    store.enqueue(specs).result()
    old, new = registered(store, 1), registered(store, 2)
    stale: list[Token] = [each.token for each in claim(store, old)]
    clock.advance(2)
    assert store.recover(limit=100, rolls=lambda: 0.0).result().retried == 5
    held = claim(store, new)
    assert len(held) == 5
    outcomes = {
        "completed": AttemptOutcome.COMPLETED,
        "failed": AttemptOutcome.FAILED,
        "waits again": AttemptOutcome.RELEASED,
    }
    if end in outcomes:
        ends = [Settlement(each.token, outcomes[end], started_at=clock.now()) for each in held]
        assert all(answer.held for answer in store.settle(new, ends).result())

    before = rows(store)
    assert store.recover(limit=100, unstarted=stale).result().total == 0
    late = [Settlement(token, AttemptOutcome.COMPLETED, result=b"1") for token in stale]
    assert not any(answer.held for answer in store.settle(old, late).result())
    assert store.beat(old, stale, None, 15_000, 1_000).result().lost == tuple(stale)
    assert not any(store.remember(old, token, b"1").result() for token in stale)
    store.progress(old, [(token, b"{}") for token in stale]).result()
    after = rows(store)
    late_at = [row[:-1] for row in after.pop("attempt")]
    assert late_at == [row[:-1] for row in before.pop("attempt")]
    assert after == before


@pytest.mark.parametrize("what", ["settle", "beat", "remember", "progress", "release"])
def test_b09_c_after_the_expiry_nothing_counts_even_before_recovery(
    store: Store, clock: ManualClock, what: str
) -> None:
    store.enqueue([JobSpec("work", "default", "default", lease_ms=1_000)]).result()
    worker = registered(store, 1)
    (held,) = claim(store, worker)
    clock.advance(1)  # to the millisecond
    job = held.token.job_id
    if what in {"settle", "release"}:
        outcome = AttemptOutcome.COMPLETED if what == "settle" else AttemptOutcome.RELEASED
        (answer,) = store.settle(worker, [Settlement(held.token, outcome, started_at=1)]).result()
        assert not answer.held
    elif what == "beat":
        assert store.beat(worker, [held.token], None, 15_000, 1_000).result().lost == (held.token,)
    elif what == "remember":
        assert store.remember(worker, held.token, b"1").result() is False
    else:
        store.progress(worker, [(held.token, b"{}")]).result()
        row = store.get(job)
        assert row is not None
        assert row.progress is None
    store.recover(limit=10, rolls=lambda: 0.0).result()
    assert [(each.outcome, each.number) for each in store.attempts(job)] == [("lease_lost", 1)]
    row = store.get(job)
    assert row is not None
    assert row.state == "scheduled" or row.state == "ready"  # noqa: PLR1714
