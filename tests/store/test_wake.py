"""Nudges: after a commit that makes a job ready, the keepers that serve its task hear of it."""

from __future__ import annotations

import socket
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import LEASE_MS, Bench, Dice, sound, spec, specs

from millpond.clock import ManualClock
from millpond.config import StoreConfig
from millpond.errors import StoreError
from millpond.model import AttemptOutcome, State
from millpond.store import open_store
from millpond.store.sqlite.wake import AT_MOST, BEAT

OUT = AttemptOutcome

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no local sockets here")


class Ear:
    """A keeper's socket."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = str(folder / name)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(10)

    def heard(self) -> bool:
        """Wait for a nudge, then take all there are."""
        self.socket.recv(16)
        self.quiet()
        return True

    def quiet(self) -> bool:
        """Take what is there; tell whether nothing was."""
        return not self.told()

    def told(self) -> set[bytes]:
        """Take what is there and return the words."""
        self.socket.setblocking(False)
        words = set()
        try:
            while True:
                words.add(self.socket.recv(16))
        except BlockingIOError:
            return words
        finally:
            self.socket.settimeout(10)


@pytest.fixture
def ears() -> Iterator[Callable[[str], Ear]]:
    made: list[Ear] = []
    # The path of a local socket may have a hundred characters; a test's own folder has more.
    with tempfile.TemporaryDirectory(prefix="ears-") as folder:

        def make(name: str) -> Ear:
            made.append(Ear(Path(folder), name))
            return made[-1]

        yield make
        for ear in made:
            ear.socket.close()


@pytest.fixture
def make(tmp_path: Path, clock: ManualClock, dice: Dice) -> Iterator[Callable[[], Bench]]:
    made: list[Any] = []
    path = str(tmp_path / "jobs.db")

    def make() -> Bench:
        made.append(open_store(path, clock=clock, config=StoreConfig(path, synchronous="normal")))
        made[-1].roll = dice
        return Bench(made[-1], clock, dice)

    yield make
    sound(made[0])
    for store in made:
        store.close()


@pytest.fixture
def bench(make: Callable[[], Bench]) -> Bench:
    return make()


def test_a_keeper_hears_of_jobs_of_its_tasks_and_of_no_others(bench, make, ears):
    mine, yours = ears("mine"), ears("yours")
    bench.keeper("a", wake=mine.path)
    make().keeper("b", wake=yours.path)
    other = make()
    for producer in (bench, other):
        producer.job(task="a")
        assert mine.heard()
        assert yours.quiet()
        producer.put(*specs(20, task="b"))
        assert yours.heard()
        assert mine.quiet()
    bench.job(task="a", delay_ms=60_000)
    assert mine.heard(), "a keeper that sleeps must learn when to wake up"


@pytest.mark.parametrize("how", ["retry", "release", "lost", "resume", "limit", "freed", "merge"])
def test_whatever_makes_a_job_ready_is_heard(bench, ears, how):
    ear = ears("ear")
    keeper = bench.keeper(wake=ear.path)
    limit = {"limit_key": "k", "limit": 1} if how in {"limit", "freed"} else {}
    bench.put(*specs(2, **limit))
    first = keeper.one()
    if limit:
        keeper.batch(5)
    assert ear.heard()
    if how == "retry":
        keeper.end(first, OUT.RETRIED)
    elif how == "release":
        keeper.end(first, OUT.RELEASED)
    elif how == "lost":
        bench.dice.numbers = [0.0]
        bench.clock.advance(ms=LEASE_MS)
        bench.store.recover(limit=5).result()
    elif how == "resume":
        bench.store.pause("default", True).result()
        assert ear.told() == {BEAT}
        bench.store.pause("default", False).result()
    elif how == "limit":
        bench.store.set_gate("limit", "k", 2).result()
    elif how == "freed":
        keeper.complete(first)
    else:
        bench.job(coalesce_key="c", delay_ms=9_000)
        assert ear.heard()
        bench.job(coalesce_key="c", delay_ms=8_000)
        assert ear.heard(), "it is due earlier now"
        bench.job(coalesce_key="c")
    assert ear.heard()


@pytest.mark.parametrize("how", ["retry", "snooze", "lost"])
def test_a_job_that_will_be_due_before_all_others_is_heard_of_by_keepers_that_sleep(
    bench, make, ears, how
):
    ear = ears("ear")
    keeper = bench.keeper()
    make().keeper(wake=ear.path)
    bench.put(*specs(2))
    first, second = keeper.claim(2)
    later = bench.job(delay_ms=LEASE_MS + 90_000)
    assert ear.heard()

    def back(claim, delay_ms: int) -> None:
        if how == "lost":
            bench.dice.numbers = [1.0]
            bench.clock.advance(ms=LEASE_MS)
            assert bench.store.recover(limit=1).result().retried == 1
        else:
            outcome = OUT.RETRIED if how == "retry" else OUT.SNOOZED
            keeper.end(claim, outcome, delay_ms=delay_ms)

    back(first, 50_000)
    assert bench.state(first.token.job_id) is State.SCHEDULED
    assert ear.heard()
    if how != "lost":
        back(second, 80_000)
        assert ear.quiet(), "they wake up before it is due, and learn of it then"
    assert bench.state(later) is State.SCHEDULED


def test_a_write_that_fails_beside_it_does_not_silence_a_nudge(bench, ears):
    ear = ears("ear")
    bench.keeper(wake=ear.path)
    with closing(sqlite3.connect(bench.store.path, isolation_level=None)) as hold:
        hold.execute("BEGIN IMMEDIATE")
        good = bench.store.enqueue([spec()])
        bad = bench.store.enqueue([spec(priority=40_000)])
        hold.execute("ROLLBACK")
    assert good.result()
    with pytest.raises(StoreError):
        bad.result()
    assert ear.heard()


def test_nobody_is_nudged_for_what_was_not_committed(bench, ears):
    ear = ears("ear")
    bench.keeper(wake=ear.path)
    with pytest.raises(StoreError):
        bench.put(spec(), spec(priority=40_000))
    bench.store.pause("nowhere", False).result()
    assert ear.quiet()


def test_ears_that_are_gone_or_full_harm_nobody(bench, ears):
    gone, full, well = ears("gone"), ears("full"), ears("well")
    for ear in (gone, full, well):
        bench.keeper(wake=ear.path)
    bench.keeper(wake="/nowhere/" + "x" * 300)
    gone.socket.close()
    for _ in range(400):
        bench.job()
        well.quiet()
    bench.job()
    assert well.heard()
    assert full.heard()


def test_no_more_than_a_few_are_nudged_at_once(bench, ears):
    many = [ears(f"ear{at}") for at in range(AT_MOST + 4)]
    for ear in many:
        bench.keeper(wake=ear.path)
    bench.job()
    assert sum(not ear.quiet() for ear in many) == AT_MOST


def test_a_keeper_that_has_left_is_not_nudged(bench, make, ears):
    ear = ears("ear")
    keeper = bench.keeper(wake=ear.path)
    bench.job()
    assert ear.heard()
    make().store.unregister(keeper.id).result()
    bench.job()
    assert ear.quiet()


def test_it_can_be_nudged_by_hand_for_jobs_of_a_callers_transaction(bench, ears):
    ear = ears("ear")
    bench.keeper(wake=ear.path)
    with closing(sqlite3.connect(bench.store.path, isolation_level=None)) as own:
        bench.store.enqueue_in(own, [spec()])
        own.execute("COMMIT")
    assert ear.quiet()
    bench.store.wake(["mail", "unheard of"])
    assert ear.heard()


def test_who_holds_a_job_is_told_of_its_cancel_and_nobody_else(bench, make, ears):
    mine, yours = ears("mine"), ears("yours")
    keeper = bench.keeper(wake=mine.path)
    make().keeper(wake=yours.path)
    bench.job()
    first = keeper.one()
    waiting = bench.job()
    mine.told()
    yours.told()
    bench.store.cancel(waiting).result()
    assert mine.quiet()
    bench.store.cancel(first.token.job_id).result()
    assert mine.told() == {BEAT}
    assert yours.quiet()
