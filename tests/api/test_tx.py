"""Enqueueing inside the application's own transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.hand import steady
from tests.libraries import need_pysqlite3

from millpond import BadConfig, Millpond, StoreBusy, Task


@pytest.fixture
def report(file_pond: Millpond) -> Task[[int], None, None]:
    @file_pond.task
    def report(number: int) -> None: ...

    file_pond.open()
    return report


@pytest.fixture
def conn(file_pond: Millpond) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(file_pond.url, isolation_level=None, timeout=0)
    conn.execute("CREATE TABLE orders (id INTEGER)")
    yield conn
    conn.close()


def test_row_and_job_commit_together(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO orders VALUES (812)")
    ref = report.using(tx=conn).enqueue(812)
    assert file_pond.jobs() == []
    conn.execute("COMMIT")

    assert ref.job().payload == {"number": 812}


def test_row_and_job_vanish_together(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO orders VALUES (812)")
    report.using(tx=conn, key="k").enqueue(812)
    conn.execute("ROLLBACK")

    assert file_pond.jobs() == []
    assert conn.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    assert report.using(key="k").enqueue(1).answer == "admitted"
    assert file_pond.verify() == []


def test_without_a_transaction_one_is_begun_and_left_to_the_caller(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    report.using(tx=conn).enqueue(1)

    assert conn.in_transaction
    assert file_pond.jobs() == []
    conn.execute("COMMIT")
    assert len(file_pond.jobs()) == 1


def test_a_refused_payload_leaves_the_transaction_as_it_was(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("INSERT INTO orders VALUES (812)")
    with pytest.raises(ValueError, match="number"):
        report.using(tx=conn).enqueue("812")  # type: ignore[arg-type]
    conn.execute("COMMIT")

    assert conn.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    assert file_pond.jobs() == []


def test_enqueueing_by_name_takes_a_transaction_too(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    file_pond.enqueue("report", {"number": 1}, tx=conn)
    conn.execute("ROLLBACK")
    assert file_pond.jobs() == []


def test_the_awaited_twin_stays_in_the_connections_thread(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    ref = asyncio.run(report.using(tx=conn).aenqueue(1))
    conn.execute("COMMIT")
    assert ref.job().task == "report"


def test_a_plain_enqueue_beside_ones_own_open_transaction_is_named(tmp_path: Path) -> None:
    pond = Millpond(tmp_path / "jobs.db", busy="50ms")

    @pond.task
    def report(number: int) -> None: ...

    pond.open()
    conn = sqlite3.connect(pond.url, isolation_level=None, timeout=0)
    report.using(tx=conn).enqueue(1)
    with pytest.raises(StoreBusy, match="pass tx= with that connection"):
        report.enqueue(2)
    conn.execute("ROLLBACK")
    conn.close()
    assert report.enqueue(3).answer == "admitted"
    pond.close()


def test_a_task_declared_during_the_transaction_does_not_wait_for_it(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    conn.execute("BEGIN IMMEDIATE")

    @file_pond.task
    def late() -> None: ...

    late.using(tx=conn).enqueue()
    conn.execute("COMMIT")

    assert [job.task for job in file_pond.jobs()] == ["late"]
    assert "late" in file_pond.store.tasks()


@pytest.mark.parametrize("wrong", [object(), "app.db", 5], ids=steady)
def test_what_is_no_connection_is_refused(report: Task[[int], None, None], wrong: object) -> None:
    with pytest.raises(BadConfig, match=r"give the open sqlite3\.Connection"):
        report.using(tx=wrong).enqueue(1)


def test_a_cursor_is_told_where_its_connection_is(
    report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    with pytest.raises(BadConfig, match=r"cursor\.connection"):
        report.using(tx=conn.cursor()).enqueue(1)


def test_a_connection_that_cannot_be_used_is_refused(
    report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    refused: list[BaseException] = []

    def elsewhere() -> None:
        with pytest.raises(BadConfig, match="in the thread that it belongs to") as raised:
            report.using(tx=conn).enqueue(1)
        refused.append(raised.value)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(timeout=30)
    conn.close()
    with pytest.raises(BadConfig, match="closed"):
        report.using(tx=conn).enqueue(1)
    assert len(refused) == 1


def test_an_unknown_task_can_be_enqueued_by_name_during_the_transaction(
    file_pond: Millpond, report: Task[[int], None, None], conn: sqlite3.Connection
) -> None:
    conn.execute("BEGIN IMMEDIATE")
    file_pond.task(name="late")(lambda: None)
    ref = file_pond.enqueue("elsewhere", {}, tx=conn, queue="other")
    conn.execute("COMMIT")
    assert ref.job().queue == "other"


def test_a_connection_to_another_file_is_refused_with_both_files(
    report: Task[[int], None, None], tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    with pytest.raises(BadConfig, match=r"other\.db.*jobs\.db"):
        report.using(tx=other).enqueue(1)
    other.close()


def test_a_store_in_memory_has_no_transactions_to_share() -> None:
    with Millpond(":memory:") as pond:

        @pond.task
        def report() -> None: ...

        conn = sqlite3.connect(":memory:")
        with pytest.raises(BadConfig, match="store in a file"):
            report.using(tx=conn).enqueue()
        conn.close()


def test_a_connection_of_the_other_library_is_refused(tmp_path: Path) -> None:
    need_pysqlite3()
    program = """
import sys, pysqlite3
from millpond import BadConfig, Millpond
pond = Millpond(sys.argv[1])
@pond.task
def report() -> None: ...
try:
    report.using(tx=pysqlite3.connect(":memory:")).enqueue()
except BadConfig as error:
    print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path / "jobs.db")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    assert "sqlite3.Connection" in done.stdout


def test_the_first_use_of_a_pond_may_be_inside_an_open_transaction(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    Millpond(path).open().close()
    with Millpond(path, busy="200ms") as pond:
        pond.close()
    pond = Millpond(path, busy="200ms")

    @pond.task
    def report(n: int) -> None: ...

    conn = sqlite3.connect(path)
    conn.execute("CREATE TABLE orders (id INTEGER)")
    conn.execute("INSERT INTO orders VALUES (1)")
    ref = report.using(tx=conn).enqueue(1)
    conn.commit()
    assert ref.job().state == "ready"
    conn.close()
    pond.close()


def test_a_store_that_is_not_there_cannot_be_made_inside_a_transaction(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    pond = Millpond(path, busy="200ms")

    @pond.task
    def report(n: int) -> None: ...

    conn = sqlite3.connect(path)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("CREATE TABLE orders (id INTEGER)")
    conn.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(StoreBusy, match=r"Call pond\.open\(\) before you begin"):
        report.using(tx=conn).enqueue(1)
    conn.rollback()
    conn.close()
    pond.close()
