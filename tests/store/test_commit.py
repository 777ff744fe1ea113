"""COMMIT and what comes of it: unclear ones are read back, faults around it lie to nobody."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.store.kit import Bench, ids, spec, specs
from tests.store.test_writer import bench, locked, make, path, writer_of

from millpond import fault
from millpond.errors import CommitUncertain, StoreError, StoreFull
from millpond.model import AttemptOutcome, JobFilter, Settlement, State, Want

OUT = AttemptOutcome
PATIENCE_S = 20.0


__all__ = ["bench", "make", "path"]
"""Fixtures shared with the tests of the storage thread."""


class Lying:
    """A connection whose COMMIT fails, before or after it has really been done."""

    def __init__(self, conn: Any, *, really: bool, code: int = 10, blind: bool = False) -> None:
        self._conn = conn
        self._really = really
        self._code = code
        self._blind = blind
        self.armed = True
        self.blinded = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, sql: str, *args: Any) -> Any:
        if sql == "COMMIT" and self.armed:
            self.armed = False
            self.blinded = self._blind
            if self._really:
                self._conn.execute(sql)
            raise self._error()
        if self.blinded and sql.startswith("SELECT"):
            raise self._error()
        return self._conn.execute(sql, *args)

    def _error(self) -> sqlite3.OperationalError:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = self._code
        return error


def lie(bench: Bench, **how: Any) -> Lying:
    """Give the storage thread a lying connection from its next transaction on."""
    writer, store = writer_of(bench), bench.store
    lying = Lying(store._first, **how)  # type: ignore[attr-defined]

    def swap(_: Any) -> None:
        lying.armed = False
        writer._conn = lying

    writer.submit(swap).result(PATIENCE_S)
    lying.armed = True
    return lying


@pytest.mark.parametrize("really", [False, True])
def test_after_an_unclear_commit_an_enqueue_is_answered_by_what_stands(bench: Bench, really: bool):
    bench.job()
    lie(bench, really=really)
    ticket = bench.store.enqueue(specs(3))
    if really:
        assert len(ticket.result(PATIENCE_S)) == 3
    else:
        with pytest.raises(StoreError, match="disk I/O"):
            ticket.result(PATIENCE_S)
    assert bench.held() == (4 if really else 1)


@pytest.mark.parametrize("really", [False, True])
def test_after_an_unclear_commit_a_claim_is_answered_by_what_stands(bench: Bench, really: bool):
    keeper = bench.keeper()
    jobs = bench.put(*specs(3))
    lie(bench, really=really)
    ticket = bench.store.claim(keeper.id, [Want(2)], ["mail"], 2)
    if really:
        assert ids(ticket.result(PATIENCE_S).claims) == jobs[:2]
        assert ids(keeper.claim(5)) == jobs[2:]
    else:
        with pytest.raises(StoreError):
            ticket.result(PATIENCE_S)
        assert ids(keeper.claim(5)) == jobs


@pytest.mark.parametrize("really", [False, True])
@pytest.mark.parametrize("outcome", OUT)
def test_after_an_unclear_commit_a_settle_is_answered_by_what_stands(
    bench: Bench, really: bool, outcome: AttemptOutcome
):
    keeper = bench.keeper()
    job = bench.job()
    claim = keeper.one()
    lie(bench, really=really)
    ticket = bench.store.settle(keeper.id, [Settlement(claim.token, outcome, started_at=1)])
    if really:
        assert ticket.result(PATIENCE_S)[0].held
        assert bench.state(job) is not State.RUNNING
    else:
        with pytest.raises(StoreError):
            ticket.result(PATIENCE_S)
        assert bench.state(job) is State.RUNNING
        assert keeper.end(claim, outcome).held


def answer_of(ticket: Any) -> Any:
    try:
        return ticket.result(PATIENCE_S)
    except StoreError as error:
        return error


@pytest.mark.parametrize("really", [False, True])
def test_what_one_write_can_tell_of_a_commit_holds_for_all_that_shared_it(
    bench: Bench, path: str, really: bool
):
    """A merge and a duplicate leave no trace of their own: an insert beside them does."""
    bench.answer(coalesce_key="c", payload=b"old")
    bench.answer(key="old")
    lie(bench, really=really)
    with locked(path):
        tickets = [
            bench.store.enqueue([spec(coalesce_key="c", payload=b"new")]),
            bench.store.enqueue([spec(key="new")]),
            bench.store.enqueue([spec(key="new")]),
            bench.store.enqueue([spec(key="old")]),
            bench.store.pause("default", True),
        ]
    told = [answer_of(ticket) for ticket in tickets]
    if really:
        kinds = [answers[0].answer for answers in told[:4]]
        assert kinds == ["coalesced", "admitted", "duplicate", "duplicate"]
        assert told[4] is True
    else:
        assert [type(one) for one in told] == [StoreError] * 5, (
            "not even a duplicate of what was never written is told"
        )
    payloads = {
        row.coalesce_key: bench.row(row.id).payload for row in bench.store.find(JobFilter())
    }
    assert payloads["c"] == (b"new" if really else b"old")


@pytest.mark.parametrize("really", [False, True])
@pytest.mark.parametrize("kind", ["merge", "duplicate", "empty claim", "pause"])
def test_what_leaves_no_trace_is_told_to_be_uncertain(bench: Bench, really: bool, kind: str):
    keeper = bench.keeper("nothing")
    bench.answer(coalesce_key="c", key="k")
    lie(bench, really=really)
    ticket: Any = {
        "merge": lambda: bench.store.enqueue([spec(coalesce_key="c", payload=b"new")]),
        "duplicate": lambda: bench.store.enqueue([spec(key="k")]),
        "empty claim": lambda: bench.store.claim(keeper.id, [Want(1)], ["nothing"], 1),
        "pause": lambda: bench.store.pause("default", True),
    }[kind]()
    with pytest.raises(CommitUncertain, match="Look whether it is there"):
        ticket.result(PATIENCE_S)


def test_a_commit_that_cannot_be_read_back_is_uncertain_and_the_thread_lives(bench: Bench):
    bench.job()
    lying = lie(bench, really=True, blind=True)
    with pytest.raises(CommitUncertain):
        bench.job()
    lying.blinded = False
    assert bench.job()
    assert bench.held() == 3


def test_a_commit_that_finds_the_disk_full_has_written_nothing(bench: Bench):
    bench.job()
    lie(bench, really=False, code=13)
    with pytest.raises(StoreFull):
        bench.store.pause("default", True).result(PATIENCE_S)
    assert not any(lane.paused for lane in bench.store.status().lanes)


@pytest.fixture
def armed() -> Iterator[Callable[[str], None]]:
    yield fault.arm
    fault.arm("")


def test_a_fault_after_the_commit_and_a_second_call_make_one_job(
    bench: Bench, armed: Callable[[str], None]
):
    """B15: the same key from ten threads; each is told of an error and calls again."""
    armed("after-commit:raise")

    def call() -> Any:
        try:
            return bench.store.enqueue([spec(key="inv-77")]).result(PATIENCE_S)[0]
        except fault.FaultInjected:
            return None

    with ThreadPoolExecutor(10) as pool:
        assert list(pool.map(lambda _: call(), range(10))) == [None] * 10
        armed("")
        answers = list(pool.map(lambda _: call(), range(10)))
    assert {answer.answer for answer in answers} == {"duplicate"}
    assert len({answer.job_id for answer in answers}) == 1
    assert bench.held() == 1


def test_a_fault_before_the_commit_writes_nothing(bench: Bench, armed: Callable[[str], None]):
    bench.job()
    armed("before-commit:raise")
    with pytest.raises(StoreError):
        bench.job()
    armed("")
    assert bench.held() == 1
    assert bench.job()


FAILING_DISK = """
import os, resource, sys
from millpond.config import StoreConfig
from millpond.errors import StoreError
from millpond.model import JobSpec
from millpond.store import open_store
path = sys.argv[1]
store = open_store(path, config=StoreConfig(path, synchronous="normal"))

def put(key):
    given = [JobSpec("mail", "default", "default", payload=b"x" * 3_000, key=key)]
    return store.enqueue(given).result(10)[0]

put("first")
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(path + "-wal").st_size + 100_000, most))
accepted, failed = {}, 0
for at in range(80):
    try:
        accepted[f"k{at}"] = put(f"k{at}").job_id
    except StoreError:
        failed += 1
assert accepted and failed, (len(accepted), failed)
assert store.status().workload_jobs["default", "default"][0] == 1 + len(accepted)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for at in range(80):
    answer = put(f"k{at}")
    known = accepted.get(f"k{at}")
    assert (answer.answer == "duplicate") is (known is not None)
    assert known in {None, answer.job_id}
assert store.verify() == []
store.close()
"""


def test_a_disk_that_takes_no_more_loses_nothing_and_the_thread_lives_on(path: str):
    """COMMIT itself fails: what was accepted stays, what was refused is not there."""
    done = subprocess.run(
        [sys.executable, "-c", FAILING_DISK, path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
