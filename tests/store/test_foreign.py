"""`tx=`: jobs that commit or vanish with the caller's own rows, on the caller's own connection."""

from __future__ import annotations

import logging
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import Bench, Dice, ids, sound, spec, specs

from millpond.clock import ManualClock
from millpond.config import QueueSettings, StoreConfig
from millpond.errors import BadConfig, StoreBusy, StoreClosed, StoreError
from millpond.model import AttemptOutcome, State
from millpond.store import open_store

OUT = AttemptOutcome
PATIENCE_S = 20.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def make(path: str, clock: ManualClock, dice: Dice) -> Iterator[Callable[..., Bench]]:
    made: list[Any] = []

    def make(**more: Any) -> Bench:
        config = StoreConfig(path, **({"synchronous": "normal"} | more))
        made.append(open_store(path, clock=clock, config=config, roll=dice))
        return Bench(made[-1], clock, dice)

    yield make
    for store in made:
        store.close()


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Iterator[Bench]:
    bench = make()
    yield bench
    sound(bench.store)


@pytest.fixture
def connect(path: str, bench: Bench) -> Iterator[Callable[..., sqlite3.Connection]]:
    opened: list[sqlite3.Connection] = []

    def connect(**more: Any) -> sqlite3.Connection:
        conn = sqlite3.connect(path, **({"timeout": 0} | more))
        conn.execute("PRAGMA synchronous=FULL")
        opened.append(conn)
        return conn

    yield connect
    for conn in opened:
        conn.close()


@pytest.fixture
def own(connect: Callable[..., sqlite3.Connection]) -> sqlite3.Connection:
    conn = connect(isolation_level=None)
    conn.execute("CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT)")
    return conn


def shops(conn: sqlite3.Connection) -> list[Any]:
    cursor = conn.cursor()
    cursor.row_factory = None
    return cursor.execute("SELECT count(*) FROM shop").fetchone()[0]  # type: ignore[no-any-return]


LEVELS: list[dict[str, Any]] = [
    {"isolation_level": None},
    {"isolation_level": ""},
    {"isolation_level": "DEFERRED"},
    {"isolation_level": "IMMEDIATE"},
    {"isolation_level": "EXCLUSIVE"},
]
if sys.version_info >= (3, 12):
    LEVELS += [{"autocommit": True}, {"autocommit": False}]


@pytest.fixture(params=LEVELS, ids=lambda level: "-".join(map(str, level.values())))
def begin(
    request: pytest.FixtureRequest, connect: Callable[..., sqlite3.Connection]
) -> Callable[[], sqlite3.Connection]:
    """Give a connection as an application may have it, with a transaction begun its way."""
    level = request.param
    conn = connect(**level)

    def begin() -> sqlite3.Connection:
        if level.get("isolation_level", "") is None or level.get("autocommit") is True:
            conn.execute("BEGIN IMMEDIATE")
        return conn

    return begin


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("shape", [(1, True), (1, False), (40, True)])
def test_row_and_job_commit_or_vanish_together(bench, own, begin, commit, shape):
    """B36, with every manner in which Python's connections begin transactions."""
    many, row_first = shape
    keeper = bench.keeper()
    conn = begin()
    if row_first:
        conn.execute("INSERT INTO shop (name) VALUES ('one')")
    made = [answer.job_id for answer in bench.store.enqueue_in(conn, specs(many))]
    if not row_first:
        conn.execute("INSERT INTO shop (name) VALUES ('one')")
    assert conn.in_transaction
    assert bench.store.get(made[0]) is None, "invisible to others until the commit"
    assert not bench.store.claimable(["mail"])
    conn.execute("COMMIT" if commit else "ROLLBACK")
    assert shops(own) == commit
    assert ids(keeper.claim(50)) == (made if commit else [])


def test_without_a_transaction_an_immediate_one_is_begun_and_left_open(
    bench: Bench, own: sqlite3.Connection
):
    (answer,) = bench.store.enqueue_in(own, [spec()])
    assert own.in_transaction
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(bench.store.path, timeout=0).execute("BEGIN IMMEDIATE")
    own.execute("COMMIT")
    assert bench.state(answer.job_id) is State.READY


def test_what_it_does_is_undone_when_it_fails_and_the_callers_rows_stay(
    bench: Bench, own: sqlite3.Connection
):
    own.execute("BEGIN IMMEDIATE")
    own.execute("INSERT INTO shop (name) VALUES ('one')")
    kept = bench.store.enqueue_in(own, [spec(operation_id="kept")])
    for bad in (spec("new", queue="new", priority=40_000), spec(key="\ud800")):
        with pytest.raises((StoreError, ValueError)):
            bench.store.enqueue_in(own, [*specs(20, limit_key="k", limit=1), bad])
    assert own.in_transaction
    own.execute("INSERT INTO shop (name) VALUES ('two')")
    own.execute("COMMIT")
    assert shops(own) == 2
    assert bench.held() == 1
    assert bench.row(kept[0].job_id).operation_id == "kept"


def test_a_transaction_it_began_is_rolled_back_when_it_fails(bench: Bench, own: sqlite3.Connection):
    with pytest.raises(StoreError):
        bench.store.enqueue_in(own, [spec(), spec(priority=40_000)])
    assert not own.in_transaction
    assert bench.held() == 0
    assert bench.job()


def test_callers_savepoints_work_around_it(bench: Bench, own: sqlite3.Connection):
    own.execute("BEGIN IMMEDIATE")
    first = bench.store.enqueue_in(own, [spec("a")])
    own.execute("SAVEPOINT millpond_enqueue")  # even by the same name
    bench.store.enqueue_in(own, [spec("b", key="k")])
    own.execute("ROLLBACK TO millpond_enqueue")
    own.execute("RELEASE millpond_enqueue")
    second = bench.store.enqueue_in(own, [spec("b", key="k")])
    assert second[0].answer == "admitted"
    own.execute("COMMIT")
    assert [bench.row(a[0].job_id).task for a in (first, second)] == ["a", "b"]


def test_an_id_that_was_handed_out_and_rolled_back_goes_to_another_job(
    bench: Bench, own: sqlite3.Connection
):
    (lost,) = bench.store.enqueue_in(own, [spec()])
    own.execute("ROLLBACK")
    other = bench.answer()
    assert other.job_id == lost.job_id
    assert other.operation_id != lost.operation_id


class Word(str):
    """What a text factory may make of a text."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("rows", "texts"),
    [
        (sqlite3.Row, str),
        (lambda _, row: {"all": row}, str),
        (lambda *_: None, str),
        (None, bytes),
        (sqlite3.Row, bytes),
        (None, lambda raw: Word(raw.decode())),
        (None, lambda raw: raw.decode("latin-1")),
        (None, lambda _: "?"),
    ],
)
def test_factories_of_the_connection_change_nothing(
    bench: Bench, own: sqlite3.Connection, rows: Any, texts: Any
):
    bench.answer(
        task="sch\u00f6n", queue="k\u00f6ln", key="k", coalesce_key="c", operation_id="\u00f6p"
    )
    own.row_factory, own.text_factory = rows, texts
    for task, queue in (
        ("sch\u00f6n", "k\u00f6ln"),
        ("neu\u00df", "k\u00f6ln"),
        ("mail", "default"),
    ):
        given = spec(task, queue=queue, limit_key="l", limit=1, tenant="t\u00e4")
        answers = bench.store.enqueue_in(own, [given, *[given] * 20])
        own.execute("COMMIT")
        row = bench.row(answers[0].job_id)
        assert (row.task, row.queue, row.tenant) == (task, queue, "t\u00e4")
    for more in ({"key": "k"}, {"coalesce_key": "c"}):
        (answer,) = bench.store.enqueue_in(own, [spec("sch\u00f6n", queue="k\u00f6ln", **more)])
        own.execute("COMMIT")
        assert type(answer.operation_id) in {str, Word}
        assert (answer.answer, answer.operation_id) in {
            ("duplicate", "\u00f6p"), ("coalesced", "\u00f6p"),
        }  # fmt: skip
    assert own.row_factory is rows
    assert own.text_factory is texts


def test_a_read_that_is_under_way_goes_on(bench: Bench, own: sqlite3.Connection):
    own.executemany("INSERT INTO shop (name) VALUES (?)", [(str(at),) for at in range(20)])
    own.execute("BEGIN IMMEDIATE")
    made = [
        bench.store.enqueue_in(own, [spec(payload=name.encode())])[0].job_id
        for (name,) in own.execute("SELECT name FROM shop ORDER BY id")
    ]
    own.execute("COMMIT")
    assert [bench.row(job).payload for job in made] == [str(at).encode() for at in range(20)]


# Keys and limits, read on the caller's connection


def test_keys_of_the_transaction_itself_are_seen_in_it_and_gone_with_it(
    bench: Bench, own: sqlite3.Connection
):
    outside = bench.answer(key="old")
    own.execute("BEGIN IMMEDIATE")
    (first,) = bench.store.enqueue_in(own, [spec(key="new")])
    (again,) = bench.store.enqueue_in(own, [spec(key="new")])
    (old,) = bench.store.enqueue_in(own, [spec(key="old")])
    assert (again.answer, again.job_id) == ("duplicate", first.job_id)
    assert (old.answer, old.job_id) == ("duplicate", outside.job_id)
    own.execute("ROLLBACK")
    assert bench.answer(key="new").answer == "admitted"


@pytest.mark.parametrize("commit", [True, False])
def test_a_merge_commits_or_vanishes_with_the_transaction(
    bench: Bench, own: sqlite3.Connection, commit: bool
):
    keeper = bench.keeper()
    job = bench.answer(coalesce_key="c", payload=b"old", delay_ms=5_000, tenant="t").job_id
    (answer,) = bench.store.enqueue_in(own, [spec(coalesce_key="c", payload=b"newer")])
    assert (answer.answer, answer.job_id) == ("coalesced", job)
    own.execute("COMMIT" if commit else "ROLLBACK")
    assert bench.row(job).payload == (b"newer" if commit else b"old")
    assert len(keeper.claim()) == commit, "a request for now makes it due"


def test_limits_and_orders_set_meanwhile_are_those_of_the_moment(
    bench: Bench, make: Callable[..., Bench], own: sqlite3.Connection
):
    """Another process declares an order; the next job is ranked by it."""
    bench.store.enqueue_in(own, [spec(priority=101)])
    own.execute("COMMIT")
    make().store.put_queue(QueueSettings("default", order="ageing", ageing_ms=10)).result()
    bench.clock.advance(ms=11)
    bench.store.enqueue_in(own, [spec(priority=100)])
    own.execute("COMMIT")
    assert [claim.priority for claim in bench.keeper().claim(2)] == [101, 100]


# Locks


def test_a_stale_snapshot_says_to_begin_immediate(
    bench: Bench, connect: Callable[..., sqlite3.Connection]
):
    conn = connect(isolation_level=None)
    bench.job()
    conn.execute("BEGIN")
    assert conn.execute("SELECT count(*) FROM millpond_job").fetchone() == (1,)
    bench.job()
    with pytest.raises(StoreBusy, match="BEGIN IMMEDIATE"):
        bench.store.enqueue_in(conn, [spec()])
    assert conn.in_transaction, "the caller's own transaction is the caller's to end"
    conn.execute("ROLLBACK")
    assert bench.store.enqueue_in(conn, [spec()])
    conn.execute("COMMIT")
    assert bench.held() == 3


def test_a_deferred_transaction_that_has_not_read_is_as_good(
    bench: Bench, connect: Callable[..., sqlite3.Connection]
):
    conn = connect(isolation_level=None)
    conn.execute("BEGIN")
    bench.job()
    assert bench.store.enqueue_in(conn, [spec()])
    conn.execute("COMMIT")


@pytest.mark.parametrize("opened", [False, True])
def test_a_lock_held_by_others_is_told_and_leaves_the_transaction_as_it_was(
    bench: Bench, own: sqlite3.Connection, connect: Callable[..., sqlite3.Connection],
    opened: bool,
):  # fmt: skip
    other = connect(isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    if opened:
        own.execute("BEGIN")
    with pytest.raises(StoreBusy, match="locked by another connection; nothing was enqueued"):
        bench.store.enqueue_in(own, [spec()])
    assert own.in_transaction is opened
    other.execute("ROLLBACK")
    if opened:
        own.execute("ROLLBACK")


def test_a_thread_that_waits_for_its_own_transaction_is_told_so(
    make: Callable[..., Bench], path: str
):
    bench = make(busy_ms=200)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        bench.store.enqueue_in(conn, [spec()])
        with pytest.raises(StoreBusy, match=r"(?s)waited for itself: pass tx=.*test_foreign\.py"):
            bench.job()
        told: list[str] = []

        def elsewhere() -> None:
            try:
                bench.job()
            except StoreBusy as error:
                told.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(PATIENCE_S)
        assert "locked by another connection" in told[0]
        assert "itself" not in told[0], "another thread's transaction is not its own"
        conn.execute("COMMIT")
        assert bench.job()


def test_reading_in_a_later_transaction_is_no_deadlock(make: Callable[..., Bench], path: str):
    """A connection that is in some transaction does not hold the write lock for that."""
    bench = make(busy_ms=200)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        bench.store.enqueue_in(conn, [spec()])
        conn.execute("COMMIT")
        conn.execute("BEGIN")
        conn.execute("SELECT * FROM millpond_job").fetchall()
        assert bench.job()
        conn.execute("ROLLBACK")


def test_who_holds_the_lock_for_over_a_second_is_named_in_the_log(
    make: Callable[..., Bench], path: str, caplog: pytest.LogCaptureFixture
):
    bench = make(busy_ms=1_300)
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        bench.store.enqueue_in(conn, [spec()])
        with pytest.raises(StoreBusy):
            bench.job()
        conn.execute("COMMIT")
    lines = [line for line in caplog.messages if "holds the write lock" in line]
    assert len(lines) == 1
    assert "test_foreign.py" in lines[0]


# Connections that will not do


def test_a_connection_to_another_file_is_refused_with_both_names(
    bench: Bench, tmp_path: Path, path: str
):
    for name in (str(tmp_path / "other.db"), ":memory:", ""):
        with closing(sqlite3.connect(name, isolation_level=None)) as conn:
            with pytest.raises(BadConfig, match=re.escape(path)):
                bench.store.enqueue_in(conn, [spec()])
            assert not conn.in_transaction
            conn.execute("ATTACH ? AS jobs", (path,))
            with pytest.raises(BadConfig):
                bench.store.enqueue_in(conn, [spec()])


def test_another_name_of_the_same_file_will_do(bench: Bench, tmp_path: Path, path: str):
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(sqlite3.connect(f"file:{link}?cache=private", uri=True)) as conn:
        assert bench.store.enqueue_in(conn, [spec()])
        conn.commit()
    assert bench.held() == 1


def test_a_store_in_memory_has_no_file_to_share(clock: ManualClock):
    with (
        closing(open_store(":memory:", clock=clock)) as store,
        closing(sqlite3.connect(":memory:")) as conn,
        pytest.raises(BadConfig, match="same file"),
    ):
        store.enqueue_in(conn, [spec()])


def test_a_closed_connection_or_store_is_told(bench: Bench, path: str):
    conn = sqlite3.connect(path)
    conn.close()
    with pytest.raises((StoreError, sqlite3.ProgrammingError), match="closed"):
        bench.store.enqueue_in(conn, [spec()])
    store = open_store(path)
    store.close()
    with (
        closing(sqlite3.connect(path)) as conn,
        pytest.raises(StoreClosed, match="closed"),
    ):
        store.enqueue_in(conn, [spec()])


def test_a_connection_below_full_sync_is_warned_about_once(
    bench: Bench, path: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    for level, many in (("FULL", 0), ("OFF", 1), ("NORMAL", 1)):
        with closing(sqlite3.connect(path)) as conn:
            conn.execute(f"PRAGMA synchronous={level}")
            bench.store._foreign._warned &= level != "OFF"  # type: ignore[attr-defined]
            bench.store.enqueue_in(conn, [spec()])
            bench.store.enqueue_in(conn, [spec()])
            conn.commit()
        warned = [line for line in caplog.messages if "synchronous" in line]
        assert len(warned) == many


def test_nothing_is_done_to_the_connection_but_rows(bench: Bench, own: sqlite3.Connection):
    """No settings, no temporary tables; after the begin a write comes first."""
    bench.store.put_queue(QueueSettings("default", order="ageing")).result()
    seen: list[str] = []
    own.set_trace_callback(seen.append)
    bench.store.enqueue_in(own, [spec("new", queue="new"), *specs(30, key="k", tenant="t")])
    bench.store.enqueue_in(own, [spec(coalesce_key="c", limit_key="l", limit=2)])
    own.set_trace_callback(None)
    own.execute("COMMIT")
    words = [line.split()[0].upper() for line in seen if not line.startswith("--")]
    assert set(words) <= {
        "PRAGMA", "BEGIN", "SAVEPOINT", "RELEASE", "SELECT", "INSERT", "UPDATE", "DELETE",
    }  # fmt: skip
    pragmas = {line for line in seen if line.upper().startswith("PRAGMA")}
    assert pragmas <= {"PRAGMA database_list", "PRAGMA synchronous"}
    begun = words.index("BEGIN")
    assert words[begun + 1] == "UPDATE"
    saved = words.index("SAVEPOINT")
    assert words[saved + 1] == "UPDATE"
    assert not any(re.search(r"\btemp", line, re.IGNORECASE) for line in seen)


# What workers notice


def test_others_notice_the_commit_and_that_the_file_is_shared(
    bench: Bench, make: Callable[..., Bench], own: sqlite3.Connection
):
    worker = make()
    keeper = worker.keeper()
    assert not worker.store.shared()
    worker.store.changed()
    bench.store.enqueue_in(own, [spec()])
    assert not worker.store.changed()
    own.execute("COMMIT")
    assert worker.store.changed()
    assert not worker.store.changed()
    assert worker.store.shared()
    assert worker.store.claimable(["mail"])
    assert keeper.one()


def test_settings_of_the_file_itself_stay(bench: Bench, own: sqlite3.Connection):
    before = [
        own.execute(f"PRAGMA {name}").fetchone()
        for name in ("journal_mode", "user_version", "application_id", "page_size", "auto_vacuum")
    ]
    bench.store.enqueue_in(own, [spec()])
    own.execute("COMMIT")
    after = [
        own.execute(f"PRAGMA {name}").fetchone()
        for name in ("journal_mode", "user_version", "application_id", "page_size", "auto_vacuum")
    ]
    assert before == after


def test_many_callers_and_the_store_itself_lose_nothing(
    bench: Bench, path: str, own: sqlite3.Connection
):
    """Threads with connections of their own beside plain writes."""
    kept: list[Any] = []

    def caller(at: int) -> None:
        with closing(sqlite3.connect(path, timeout=PATIENCE_S, isolation_level=None)) as conn:
            for turn in range(25):
                conn.execute("BEGIN IMMEDIATE")
                conn.execute("INSERT INTO shop (name) VALUES (?)", (str(at),))
                answers = bench.store.enqueue_in(conn, [spec(f"t{at}", queue=f"q{turn % 3}")])
                if turn % 4 == 3:
                    conn.execute("ROLLBACK")
                else:
                    conn.execute("COMMIT")
                    kept.extend((answer.job_id, f"t{at}") for answer in answers)

    def plain() -> None:
        kept.extend((bench.job(task="plain"), "plain") for _ in range(50))

    threads = [threading.Thread(target=caller, args=(at,)) for at in range(4)]
    threads += [threading.Thread(target=plain) for _ in range(2)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - started < 60
    assert len(kept) == len(dict(kept)) == 4 * 19 + 100
    assert shops(own) == 4 * 19
    assert all(bench.row(job).task == task for job, task in kept[::7])
