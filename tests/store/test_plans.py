"""Plans and cost: hot statements search by key, and a claim costs the same whatever else is there.

Cost is counted in steps of SQLite's virtual machine, which no clock and no neighbour can move.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import Bench, Dice, Keeper, ids, spec, specs

from millpond.clock import ManualClock
from millpond.config import StoreConfig
from millpond.model import AttemptOutcome, Settlement, State, Want
from millpond.store import open_store
from millpond.store.sqlite.gate import Severity
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.plans import HOT, explain

OUT = AttemptOutcome
DAY_MS = 86_400_000

BIG = {
    "job", "again", "scheduled", "ready", "blocked", "final", "attempt", "traceback", "dedup",
    "coalesce", "result", "memo", "event", "tenant", "tenant_use", "gate",
}  # fmt: skip
"""Tables that grow with the number of jobs, keys or tenants."""

BOUNDED = {
    "first_due": "scheduled", "any_gate": "gate", "any_memo": "memo", "any_event": "event",
    "failure_groups": "final", "more_failures": "final", "scan_jobs": "job",
    "newest_final": "final", "find_failed": "final",
}  # fmt: skip
"""They look at a first row, or at so many in the order of a key."""

CARE = {
    "blocked_in_lane", "charged_attempts", "completed_twice", "everywhere", "find_placed",
    "homeless", "nowhere", "purge_events", "recount_gates", "recount_lanes", "recount_tenants",
    "recount_workloads", "rerank_again", "rerank_blocked", "rerank_jobs", "stray_coalesce",
    "stray_key", "stuck", "wrong_place", "shelf_owner",
}  # fmt: skip
"""Checks, recounts, a change of order, and lists over one state: they may read all of it."""

ROW = "USING INTEGER PRIMARY KEY (rowid=?)"
BY_STATE = "USING COVERING INDEX millpond_final_state"
PINNED = {
    "newest_jobs": [f"SEARCH millpond_job {ROW.replace('=', '<')}"],
    "newest_final": [f"SEARCH millpond_final {BY_STATE} (state=?)", "SCAN (subquery-1)"],
    "first_due": ["SCAN millpond_scheduled"],
    "due_jobs": ["SEARCH s USING PRIMARY KEY (due<?)", f"SEARCH j {ROW}", f"SEARCH a {ROW}"],
    "heads": ["SCAN l USING INDEX millpond_lane_ready", "SEARCH r USING PRIMARY KEY (lane=?)"],
    "chunk": ["SEARCH millpond_ready USING PRIMARY KEY (lane=? AND (rank,id)>(?,?))"],
    "chunk_first": ["SEARCH millpond_ready USING PRIMARY KEY (lane=?)"],
    "claim_ready": ["SEARCH millpond_ready USING PRIMARY KEY (lane=? AND rank=? AND id=?)"],
    "held_jobs": ["SCAN e", *(f"SEARCH {table} {ROW}" for table in "rwja")],
    "claimed": ["SCAN e", f"SEARCH j {ROW}", f"SEARCH a {ROW}"],
    "find_dedup": ["SEARCH millpond_dedup USING PRIMARY KEY (queue=? AND task=? AND key=?)"],
    "find_coalesce": [
        "SEARCH c USING PRIMARY KEY (queue=? AND task=? AND key=?)",
        f"SEARCH j {ROW}",
        f"SEARCH a {ROW}",
    ],
    "keep_dedup": ["SEARCH millpond_dedup USING COVERING INDEX millpond_dedup_job (job=?)"],
    "find_gate": ["SEARCH millpond_gate USING PRIMARY KEY (kind=? AND ref=?)"],
    "purgeable": [
        f"SEARCH millpond_final {BY_STATE} (state=? AND finished_at<?)",
    ],
    "running_counts": ["SCAN millpond_lane USING INDEX millpond_lane_running"],
    "result_of": [
        "SEARCH r USING INDEX millpond_result_operation (operation_id=?)",
        f"SEARCH t {ROW}",
    ],
}
"""The steps of the statements on which the cost of a claim and of an enqueue rests."""


def steps(conn: Any, name: str) -> list[str]:
    """Return the searches and scans of a plan, without what differs between versions."""
    found = [step for step in explain(conn.execute, name) if re.match(r"SCAN|SEARCH", step)]
    return [
        re.sub(r" (VIRTUAL TABLE INDEX.*|LEFT-JOIN)$", "", step).replace("SCAN TABLE", "SCAN")
        for step in found
    ]


ALIAS = re.compile(r"millpond_(\w+)(?:\s+INDEXED BY \w+)?\s+(?:AS\s+)?([a-z])\b")


def scanned(name: str, plan: list[str]) -> set[str]:
    """Return the big tables that a plan reads from end to end."""
    tables = {short: table for table, short in ALIAS.findall(SQL[name])}
    words = [
        match[1] for step in plan if (match := re.match(r"SCAN (?:main\.millpond_)?(\w+)", step))
    ]
    return {tables.get(word, word.removeprefix("millpond_")) for word in words} & BIG


@dataclass
class Built:
    """A store in a file, and a connection of one's own to it."""

    bench: Bench
    keeper: Keeper
    conn: sqlite3.Connection
    writer: Any

    def cost(self, act: Callable[[], Any]) -> int:
        """Return the virtual machine's steps, in tens, that the store's connections took."""
        count = 0

        def step() -> int:
            nonlocal count
            count += 1
            return 0

        store: Any = self.bench.store
        for conn in (self.writer, store._reader):
            if conn is not None:
                conn.set_progress_handler(step, 10)
        try:
            act()
        finally:
            for conn in (self.writer, store._reader):
                if conn is not None:
                    conn.set_progress_handler(None, 0)
        return count


FILL = """
WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :many)
INSERT INTO millpond_job (id, lane, rank, priority, created_at, first_due, max_attempts, lease_ms,
  charged_bytes, operation_id, limit_key, codec, payload)
SELECT :first + i, :lane, (100 << 47) + :due, 100, :due, :due, 5, 60000, 2, 'op-' || (:first + i),
  :limit_key, 'json', CAST('{}' AS BLOB) FROM n
"""
PUT = {
    "ready": "INSERT INTO millpond_ready (lane, rank, id, due) SELECT lane, rank, id, first_due",
    "blocked": "INSERT INTO millpond_blocked (kind, ref, lane, rank, id, due)"
    " SELECT 'limit', 'full', lane, rank, id, first_due",
    "scheduled": "INSERT INTO millpond_scheduled (due, id) SELECT first_due, id",
    "final": "INSERT INTO millpond_final (id, state, finished_at, queue, task)"
    " SELECT id, CASE WHEN id % 10 = 0 THEN 'failed' ELSE 'completed' END, first_due, 1, 1",
}

ATTEMPTS = """
INSERT INTO millpond_attempt (job, claim, number, worker, claimed_at, ended_at, outcome)
SELECT id, 1, 1, 1, 1, 1, state FROM millpond_final WHERE id BETWEEN ? AND ?
"""


def fill(conn: sqlite3.Connection, where: str, many: int, lane: int, due: int) -> None:
    """Put many jobs to one place at once, with their counters."""
    first = conn.execute("SELECT value + 1 FROM millpond_seq WHERE name = 'job'").fetchone()[0]
    last = first + many - 1
    key = "full" if where == "blocked" else None
    row = {"many": many, "first": first, "lane": lane, "due": due, "limit_key": key}
    conn.execute(FILL, row)
    conn.execute(f"{PUT[where]} FROM millpond_job WHERE id BETWEEN ? AND ?", (first, last))
    conn.execute("UPDATE millpond_seq SET value = ? WHERE name = 'job'", (last,))
    if where == "final":
        conn.execute(ATTEMPTS, (first, last))
        return
    conn.execute(f"UPDATE millpond_lane SET n_{where} = n_{where} + ? WHERE id = ?", (many, lane))
    conn.execute(
        "UPDATE millpond_workload SET n_jobs = n_jobs + ?, n_bytes = n_bytes + 2 * ?"
        " WHERE id = (SELECT workload FROM millpond_lane WHERE id = ?)",
        (many, many, lane),
    )


def build(folder: Path, *, big: bool, ready: int = 0) -> Iterator[Built]:
    clock = ManualClock()
    path = str(folder / "jobs.db")
    config = StoreConfig(path, synchronous="normal")
    store: Any = open_store(path, clock=clock, config=config, roll=Dice())
    bench = Bench(store, clock, Dice())
    keeper = bench.keeper()
    warm_up(bench, keeper)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.execute("PRAGMA synchronous=OFF")
        if big or ready:
            lanes = dict(
                conn.execute(
                    "SELECT t.name, l.id FROM millpond_lane l JOIN millpond_task t ON t.id = l.task"
                    " WHERE l.again = 0"
                ).fetchall()
            )
            conn.execute("BEGIN IMMEDIATE")
            fill(conn, "ready", ready, lanes["mail"], clock.now())
            if big:
                fill(conn, "final", 200_000, lanes["mail"], clock.now() - 60_000)
                fill(conn, "scheduled", 200_000, lanes["mail"], clock.now() + DAY_MS)
                fill(conn, "ready", 50_000, lanes["other"], clock.now())
                fill(conn, "blocked", 50_000, lanes["mail"], clock.now())
            conn.execute("COMMIT")
        try:
            yield Built(bench, keeper, conn, store._first)
        finally:
            store.close()


def warm_up(bench: Bench, keeper: Keeper) -> None:
    """Make all lanes and limits there will be, so that no measured write makes any."""
    plain, other, holder = bench.put(
        spec(), spec("other"), spec(limit_key="full", limit=1, lease_ms=9 * DAY_MS)
    )
    first, second = keeper.claim(2)
    assert (first.token.job_id, second.token.job_id) == (plain, holder)
    keeper.end(first, OUT.RETRIED)
    keeper.complete(keeper.one())
    bench.store.cancel(other).result()
    bench.store.recover(limit=1).result()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    yield from build(tmp_path_factory.mktemp("small"), big=False, ready=1_000)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    yield from build(tmp_path_factory.mktemp("large"), big=True, ready=200_000)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    yield from build(tmp_path_factory.mktemp("empty"), big=False)


@pytest.fixture(scope="module", params=["empty", "small", "large"])
def any_store(request: pytest.FixtureRequest) -> Built:
    """A fresh schema, a little, and lopsided much."""
    built: Built = request.getfixturevalue(request.param)
    return built


def test_the_steps_of_hot_statements_are_pinned(any_store: Built):
    found = {name: steps(any_store.conn, name) for name in PINNED}
    assert found == PINNED


def test_no_statement_reads_a_growing_table_from_end_to_end(any_store: Built):
    guilty = {}
    for name in SQL:
        if name.startswith("shelf_") or name in CARE:
            continue
        tables = scanned(name, steps(any_store.conn, name)) - {BOUNDED.get(name)}
        if tables:
            guilty[name] = tables
    assert guilty == {}


def test_a_list_ends_with_the_last_row_wanted_and_sorts_nothing(any_store: Built):
    plan = explain(any_store.conn.execute, "scan_jobs")
    assert [step for step in plan if step.startswith("CO-ROUTINE")], plan
    assert not [step for step in plan if re.search("MATERIALIZE|TEMP B-TREE", step)], plan


def test_hot_statements_sort_nothing(any_store: Built):
    sorting = [
        name
        for name in HOT
        if any("TEMP B-TREE" in step for step in explain(any_store.conn.execute, name))
    ]
    assert sorting == []


def test_the_doctor_finds_the_plans_sound(any_store: Built):
    findings = [one for one in any_store.bench.store.doctor() if one.code == "plan"]
    assert [one.severity for one in findings] == [Severity.OK]


def claims_of(built: Built, size: int) -> int:
    taken: list[Any] = []
    cost = built.cost(lambda: taken.extend(built.keeper.claim(size)))
    assert len(taken) == size
    built.keeper.settle(*[Settlement(claim.token, OUT.RELEASED) for claim in taken])
    return cost


@pytest.mark.parametrize("size", [1, 100])
def test_a_claim_costs_the_same_whatever_else_is_there(small: Built, large: Built, size: int):
    """B28: 200k ready, final and scheduled jobs, 50k of a task nobody serves, 50k set aside."""
    for built in (small, large):
        claims_of(built, size)
    assert claims_of(large, size) <= 1.1 * claims_of(small, size) + 5


def enqueue(built: Built, many: int) -> int:
    made: list[Any] = []
    cost = built.cost(lambda: made.extend(built.bench.put(*specs(many, priority=200))))
    for ident in made:
        built.bench.store.cancel(ident).result()
    return cost


def settle(built: Built, many: int, outcome: AttemptOutcome, delay: int = 0) -> int:
    claims = built.keeper.claim(many)
    ends = [
        Settlement(claim.token, outcome, started_at=1, ended_at=1, delay_ms=delay)
        for claim in claims
    ]
    return built.cost(lambda: built.keeper.settle(*ends))


def promote(built: Built) -> int:
    job = built.bench.job(delay_ms=1, priority=300)
    built.bench.clock.advance(ms=1)
    cost = built.cost(lambda: built.keeper.claim(0))
    assert built.bench.state(job) is State.READY
    built.bench.store.cancel(job).result()
    return cost


def keyed(built: Built) -> int:
    bench = built.bench
    bench.answer(key="k", coalesce_key="c", delay_ms=DAY_MS)
    return built.cost(lambda: [bench.answer(key="k"), bench.answer(coalesce_key="c", priority=9)])


def cancel(built: Built) -> int:
    bench = built.bench
    job = bench.job(priority=200)
    return built.cost(lambda: bench.store.cancel(job).result())


ACTS: dict[str, Callable[[Built], int]] = {
    "enqueue 1": lambda built: enqueue(built, 1),
    "enqueue 100": lambda built: enqueue(built, 100),
    "settle 1": lambda built: settle(built, 1, OUT.COMPLETED),
    "settle 50": lambda built: settle(built, 50, OUT.COMPLETED),
    "retry 50": lambda built: settle(built, 50, OUT.RETRIED, DAY_MS),
    "fail 50": lambda built: settle(built, 50, OUT.FAILED),
    "promote": promote,
    "keys": keyed,
    "cancel": cancel,
    "beat": lambda built: built.cost(built.keeper.beat),
    "recover": lambda built: built.cost(lambda: built.bench.store.recover(limit=9).result()),
    "nothing": lambda built: built.cost(lambda: built.keeper.claim(9, Want(9, "nowhere"))),
    "purge nothing": lambda built: built.cost(
        lambda: built.bench.store.purge(
            completed_ms=DAY_MS, failed_ms=DAY_MS, cancelled_ms=DAY_MS, limit=500
        ).result()
    ),
    "claimable": lambda built: built.cost(lambda: built.bench.store.claimable(["mail"])),
    "expired": lambda built: built.cost(built.bench.store.expired),
    "next due": lambda built: built.cost(built.bench.store.next_due),
    "status": lambda built: built.cost(built.bench.store.status),
    "get": lambda built: built.cost(lambda: built.bench.store.get(5)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("act", ACTS)
def test_every_other_step_of_a_job_costs_the_same_too(small: Built, large: Built, act: str):
    for built in (small, large):
        ACTS[act](built)
    assert ACTS[act](large) <= 1.15 * ACTS[act](small) + 8


def test_a_purge_reads_what_it_deletes(large: Built):
    """Half of 200k final jobs are due for purge: a batch of 100 costs as one of any hundred."""
    purge = large.bench.store.purge

    def batch(limit: int) -> int:
        purged: list[int] = []
        cost = large.cost(
            lambda: purged.append(
                purge(completed_ms=30_000, failed_ms=30_000, cancelled_ms=0, limit=limit)
                .result()
                .jobs
            )
        )
        assert purged == [limit]
        return cost

    batch(100)
    assert batch(200) <= 2.2 * batch(100) + 8


def test_the_large_store_is_a_sound_one(large: Built):
    """What was measured is a store as it may be, and stays one."""
    assert large.bench.store.drift() == []
    assert len(ids(large.keeper.claim(10))) == 10


def test_the_doctor_names_an_index_that_is_missing(tmp_path: Path):
    for built in build(tmp_path, big=False):
        built.conn.execute("DROP INDEX millpond_lane_ready")
        told = [one for one in built.bench.store.doctor() if one.code == "plan"]
        assert {one.severity for one in told} == {Severity.WARNING}
        assert any("millpond_lane_ready" in str(one) for one in told)


def scans(conn: Any) -> list[str]:
    return [name for name in PINNED if steps(conn, name) != PINNED[name]]


def test_figures_of_a_nearly_empty_file_mislead_no_store_that_is_opened_later(tmp_path: Path):
    """ANALYZE at a moment of one row each makes SQLite read a table that has grown since."""
    for built in build(tmp_path, big=False):
        built.bench.job()
        built.conn.execute("CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
        built.conn.execute("INSERT INTO shop VALUES (1, 'one')")
        built.conn.execute("ANALYZE")
        path = built.bench.store.path
        with closing(sqlite3.connect(path)) as misled:
            assert scans(misled) != []
        again: Any = open_store(path)
        try:
            assert scans(again._first) == []
            assert {one.code for one in again.doctor() if one.severity != Severity.OK} <= {
                "wal-reset"
            }
        finally:
            again.close()
        left = built.conn.execute("SELECT DISTINCT tbl FROM sqlite_stat1").fetchall()
        assert left == [("shop",)], "the application's own figures stay"


def test_a_locked_file_with_figures_is_opened_all_the_same(tmp_path: Path):
    for built in build(tmp_path, big=False):
        built.bench.job()
        built.conn.execute("ANALYZE")
        built.conn.execute("BEGIN IMMEDIATE")
        open_store(built.bench.store.path).close()
        built.conn.execute("ROLLBACK")
