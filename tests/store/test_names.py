"""Caches: what is known of names, settings and limits is never from another time or transaction.

Two stores on one file stand for two processes; `tx=` is a third connection.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import LEASE_MS, Bench, Dice, ids, sound, spec, specs

from millpond.clock import ManualClock
from millpond.config import QueueSettings, StoreConfig, TaskSettings, WorkloadSettings
from millpond.errors import StoreError
from millpond.model import AttemptOutcome, State
from millpond.policy.backoff import Backoff
from millpond.store import open_store

OUT = AttemptOutcome


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def make(path: str, clock: ManualClock, dice: Dice) -> Iterator[Callable[[], Bench]]:
    made: list[Any] = []

    def make() -> Bench:
        config = StoreConfig(path, synchronous="normal")
        made.append(open_store(path, clock=clock, config=config, roll=dice))
        return Bench(made[-1], clock, dice)

    yield make
    try:
        sound(made[0])
    finally:
        for store in made:
            store.close()


@pytest.fixture
def a(make: Callable[[], Bench]) -> Bench:
    return make()


@pytest.fixture
def b(make: Callable[[], Bench], a: Bench) -> Bench:
    return make()


@pytest.fixture
def own(path: str, a: Bench) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous=FULL")
        yield conn


def place(bench: Bench, ident: Any) -> tuple[str, str, str]:
    row = bench.row(ident)
    return row.task, row.queue, row.workload


def test_names_of_a_rolled_back_transaction_are_not_kept(
    a: Bench, b: Bench, own: sqlite3.Connection
):
    """A makes a task in a caller's transaction that rolls back; B makes another; A goes on."""
    own.execute("BEGIN IMMEDIATE")
    a.store.enqueue_in(own, [spec("ghost", queue="ghosts", workload="w")])
    own.execute("ROLLBACK")
    real = b.job(task="real", queue="reals", workload="v")
    again = a.job(task="ghost", queue="ghosts", workload="w")
    other = a.job(task="real", queue="reals", workload="v")
    assert place(a, again) == place(b, again) == ("ghost", "ghosts", "w")
    assert place(a, real) == place(b, other) == ("real", "reals", "v")


@pytest.mark.parametrize("many", [1, 3])
def test_names_of_a_failed_write_are_not_kept(a: Bench, b: Bench, many: int):
    broken = [spec("ghost", queue=f"g{at}") for at in range(many)] + [spec(priority=40_000)]
    with pytest.raises(StoreError):
        a.put(*broken)
    real = b.job(task="real", queue="reals")
    again = a.job(task="ghost", queue="g0")
    assert place(b, again) == ("ghost", "g0", "default")
    assert place(a, real) == ("real", "reals", "default")


def test_names_made_beside_a_failed_write_are_right(a: Bench, b: Bench):
    """One group commit: a good write, a failing one with new names, a good one."""
    hold = sqlite3.connect(a.store.path, isolation_level=None)  # type: ignore[attr-defined]
    hold.execute("BEGIN IMMEDIATE")
    tickets = [
        a.store.enqueue([spec("one")]),
        a.store.enqueue([spec("ghost"), spec(priority=40_000)]),
        a.store.enqueue([spec("two"), spec("one")]),
        a.store.pause("nowhere", True),
        a.store.enqueue([spec("three", queue="q3")]),
    ]
    hold.execute("ROLLBACK")
    hold.close()
    with pytest.raises(StoreError):
        tickets[1].result()
    made = [t.result() for at, t in enumerate(tickets) if at not in {1, 3}]
    names = [place(b, answer.job_id)[0] for answers in made for answer in answers]
    assert names == ["one", "two", "one", "three"]
    b.job(task="four")
    assert place(a, a.job(task="five", queue="q5")) == ("five", "q5", "default")


class Lying:
    """A connection whose next COMMIT fails, before or after it has really been done."""

    def __init__(self, conn: Any, *, really: bool, code: int) -> None:
        self._conn = conn
        self.armed = True
        self._really = really
        self._code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if sql == "COMMIT" and self.armed:
            self.armed = False
            if self._really:
                self._conn.execute(sql)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = self._code
            raise error
        return self._conn.execute(sql, *args)


@pytest.mark.parametrize("really", [False, True])
def test_names_of_a_commit_that_failed_are_not_kept(a: Bench, b: Bench, really: bool):
    store: Any = a.store
    store._first = Lying(store._first, really=really, code=10)
    try:
        a.put(spec("ghost", queue="ghosts"))
        assert really
    except StoreError:
        assert not really
    real = b.job(task="real", queue="reals")
    again = a.job(task="ghost", queue="ghosts")
    assert place(b, again) == ("ghost", "ghosts", "default")
    assert place(b, a.job(task="real", queue="reals")) == place(b, real)


def test_a_pause_by_another_process_holds_at_once(a: Bench, b: Bench):
    keeper = a.keeper()
    a.put(*specs(3))
    assert len(keeper.claim(1)) == 1
    b.store.pause("default", True).result()
    assert keeper.claim(1) == []
    b.store.pause("default", False).result()
    assert len(keeper.claim(5)) == 2


def test_settings_of_another_process_hold_at_once(a: Bench, b: Bench):
    keeper = a.keeper()
    a.put(*specs(6))
    assert len(keeper.claim(1)) == 1
    b.store.put_queue(QueueSettings("default", running=2)).result()
    assert len(keeper.claim(9)) == 1
    workloads = (WorkloadSettings("default", running=3),)
    b.store.put_queue(QueueSettings("default", workloads=workloads)).result()
    assert len(keeper.claim(9)) == 1
    b.store.put_queue(QueueSettings("default", workloads=(WorkloadSettings("default"),))).result()
    assert len(keeper.claim(9)) == 3


def test_the_order_set_by_another_process_ranks_what_comes(a: Bench, b: Bench):
    keeper = a.keeper()
    low = a.job(priority=101)
    b.store.put_queue(QueueSettings("default", order="ageing", ageing_ms=10)).result()
    a.clock.advance(ms=11)
    high = a.job(priority=100)
    assert ids(keeper.claim(2)) == [low, high]


def test_the_first_limit_of_another_process_holds_at_once(a: Bench, b: Bench):
    keeper = a.keeper()
    a.put(*specs(3, limit_key="k"))
    assert len(keeper.claim(1)) == 1
    b.store.set_gate("limit", "k", 2).result()
    assert len(keeper.claim(9)) == 1
    b.store.set_gate("limit", "k", 3).result()
    assert len(keeper.claim(9)) == 1


def test_a_limit_declared_in_a_transaction_that_rolls_back_is_none(
    a: Bench, own: sqlite3.Connection
):
    keeper = a.keeper()
    a.put(*specs(3, limit_key="k"))
    own.execute("BEGIN IMMEDIATE")
    a.store.enqueue_in(own, [spec(limit_key="k", limit=1)])
    own.execute("ROLLBACK")
    assert len(keeper.claim(9)) == 3


def test_retries_follow_the_settings_of_the_moment(a: Bench, b: Bench):
    keeper, job = a.keeper(), a.job()
    for wait in (7, 70):
        retry = Backoff(base=wait, factor=1, jitter="none")
        b.store.put_tasks([TaskSettings("mail", retry=retry)]).result()
        keeper.one()
        a.clock.advance(ms=LEASE_MS)
        a.store.recover(limit=5).result()
        assert a.row(job).due_at - a.clock.now() == wait * 1_000
        a.clock.advance(wait)


def test_a_task_declared_by_another_process_is_known(a: Bench, b: Bench):
    a.job(task="new")
    b.store.put_tasks([TaskSettings("new", max_age_ms=10)]).result()
    keeper = a.keeper("new")
    a.clock.advance(ms=10)
    assert keeper.end(keeper.one(), OUT.SNOOZED).state is State.FAILED


def test_a_lane_made_by_another_process_is_served(a: Bench, b: Bench):
    keeper = a.keeper("mail", "new")
    assert keeper.claim(5) == []
    job = b.job(task="new", queue="new", workload="new")
    assert ids(keeper.claim(5)) == [job]


def test_names_survive_being_closed_and_opened(a: Bench, make: Callable[[], Bench]):
    job = a.job(task="t", queue="q", workload="w")
    c = make()
    assert place(c, c.job(task="t", queue="q", workload="w")) == place(a, job)


@pytest.mark.parametrize("seed", range(12))
def test_whoever_makes_whatever_every_job_stands_where_it_was_asked_for(
    a: Bench, b: Bench, own: sqlite3.Connection, seed: int
):
    """Random names by two processes and a caller, a good part of it failed or rolled back."""
    roll = random.Random(seed)
    asked = {}
    for _ in range(60):
        bench = roll.choice((a, b))
        given = [
            spec(f"t{roll.randrange(9)}", queue=f"q{roll.randrange(4)}",
                 workload=f"w{roll.randrange(3)}")
            for _ in range(roll.randint(1, 3))
        ]  # fmt: skip
        how = roll.choice(("write", "write", "fail", "commit", "roll back", "save", "release"))
        if how == "write":
            answers = bench.store.enqueue(given).result()
        elif how == "fail":
            with pytest.raises(StoreError):
                bench.store.enqueue([*given, spec(f"x{roll.random()}", priority=40_000)]).result()
            continue
        else:
            own.execute("BEGIN IMMEDIATE")
            if how in {"save", "release"}:
                own.execute("SAVEPOINT mine")
            answers = bench.store.enqueue_in(own, given)
            if how == "save":
                own.execute("ROLLBACK TO mine")
                own.execute("RELEASE mine")
            kept = how in {"commit", "release"}
            own.execute("COMMIT" if how != "roll back" else "ROLLBACK")
            if not kept:
                continue
        for one, answer in zip(given, answers, strict=True):
            asked[answer.job_id] = (one.task, one.queue, one.workload)
    assert {ident: place(roll.choice((a, b)), ident) for ident in asked} == asked
