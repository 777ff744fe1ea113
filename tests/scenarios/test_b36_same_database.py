"""B36: jobs in the application's own transaction; queues that nobody serves are told about."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.scenarios.mill import Mill, now_ms, soak, until

from millpond import BadConfig, Millpond, StoreBusy

APP = """
import sqlite3
pond.queue("emails")

@pond.task(queue="emails", **FAST)
def send(order: int, *, ctx: Context = Context.injected) -> str:
    with sqlite3.connect(yard.folder / "jobs.db") as conn:
        found = conn.execute("SELECT item FROM orders WHERE id = ?", (order,)).fetchone()
    conn.close()
    note("sent", order, found is not None)
    return found[0] if found else "no such order"
"""


@pytest.fixture
def conn(mill: Mill) -> Iterator[sqlite3.Connection]:
    mill.write(APP)
    mill.pond.status()
    with closing(sqlite3.connect(mill.path, timeout=5)) as conn:
        conn.execute("PRAGMA synchronous=FULL")
        conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        conn.commit()
        yield conn


def order(conn: sqlite3.Connection, item: str = "tea") -> int:
    return conn.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid or 0


def in_batch(mill: Mill, conn: sqlite3.Connection, number: int) -> Any:
    with mill.pond.batch(tx=conn) as batch:
        batch.add(mill.app.send, number)
    return batch.refs[0]


WAYS = {
    "task": lambda mill, conn, number: mill.app.send.using(tx=conn).enqueue(number),
    "by name": lambda mill, conn, number: mill.pond.enqueue("send", {"order": number}, tx=conn),
    "batch": in_batch,
}


@pytest.mark.parametrize("way", ["task", soak("by name"), soak("batch")])
def test_b36_a_job_is_invisible_until_its_transaction_commits_and_then_runs_at_once(
    mill: Mill, conn: sqlite3.Connection, way: str
) -> None:
    mill.worker("-q", "emails", poll="2s").ready()
    # The first time at all it is the poll that finds out that others commit jobs here.
    conn.execute("BEGIN")
    mill.accepted.append(WAYS[way](mill, conn, order(conn)).id)
    conn.commit()
    mill.noted("sent", within=5)
    conn.execute("BEGIN")
    number = order(conn)
    ref = WAYS[way](mill, conn, number)
    assert conn.in_transaction
    assert not threading.Event().wait(1)
    with Millpond(str(mill.path)) as other:
        assert len(other.jobs()) == 1
    assert len(mill.notes("sent")) == 1
    conn.commit()
    committed = now_ms()
    mill.accepted.append(ref.id)

    sent = mill.noted("sent", 2, within=5)[1]
    assert sent.at - committed < 1_000
    assert sent.words[2] == "True"
    assert mill.becomes(ref, "completed").result == "tea"


@pytest.mark.parametrize("how", ["rollback", "rollback to a savepoint", "the connection ends"])
def test_b36_what_is_rolled_back_never_runs(mill: Mill, conn: sqlite3.Connection, how: str) -> None:
    mill.worker("-q", "emails").ready()
    if how == "the connection ends":
        with closing(sqlite3.connect(mill.path)) as gone:
            gone.execute("BEGIN IMMEDIATE")
            mill.app.send.using(tx=gone).enqueue(order(gone))
    else:
        conn.execute("BEGIN IMMEDIATE")
        if "savepoint" in how:
            conn.execute("SAVEPOINT here")
        mill.app.send.using(tx=conn).enqueue(order(conn, "lost"))
        conn.execute("ROLLBACK TO here" if "savepoint" in how else "ROLLBACK")
        conn.commit()
    conn.execute("BEGIN IMMEDIATE")
    kept = mill.app.send.using(tx=conn).enqueue(order(conn, "kept"))
    conn.commit()
    mill.accepted.append(kept.id)
    assert mill.becomes(kept, "completed").result == "kept"
    assert len(mill.notes("sent")) == 1
    assert [job.id for job in mill.pond.jobs()] == [kept.id]


def test_b36_a_plain_enqueue_meanwhile_names_the_open_transaction(
    mill: Mill, conn: sqlite3.Connection
) -> None:
    conn.execute("BEGIN IMMEDIATE")
    ref = mill.app.send.using(tx=conn).enqueue(order(conn))
    with Millpond(str(mill.path), busy="300ms") as other, pytest.raises(StoreBusy):
        other.enqueue("send", {"order": 1})
    conn.commit()
    mill.accepted.append(ref.id)
    mill.worker()
    assert mill.all_final() == {"completed": 1}


def test_b36_a_queue_that_nobody_serves_is_told_about_everywhere(
    mill: Mill, conn: sqlite3.Connection
) -> None:
    mill.worker("-q", "emails").ready()
    ref = mill.one("send", 1, queue="emials")
    until(lambda: mill.pond.status().unserved_queues == (("emials", 1),))
    for command in (["status"], ["doctor"]):
        done = mill.run(*command, "--url", "jobs.db")
        assert "emials: 1 ready, 0 workers" in done.stdout, done.stdout
        assert "did you mean emails" in done.stdout
    reason = mill.run("explain", str(ref.id), "--url", "jobs.db")
    assert "emials" in reason.stdout
    assert mill.state(ref) == "ready"
    mill.worker("-q", "emials").ready()
    mill.becomes(ref, "completed")
    assert mill.pond.status().unserved_queues == ()


def test_b36_a_worker_for_all_queues_serves_the_misspelt_one_too(
    mill: Mill, conn: sqlite3.Connection
) -> None:
    mill.worker().ready()
    ref = mill.one("send", 1, queue="emials")
    mill.becomes(ref, "completed")


@pytest.mark.parametrize("tx", [True, False])
def test_b36_strict_queues_refuse_what_was_not_declared(
    mill: Mill, conn: sqlite3.Connection, tx: bool
) -> None:
    strict = Millpond(str(mill.path), strict_queues=True)
    strict.queue("emails")
    more = {"tx": conn} if tx else {}
    with strict, pytest.raises(BadConfig, match=r"(?s)emials.*emails"):
        strict.enqueue("send", {"order": 1}, queue="emials", **more)
    conn.rollback()
    assert mill.pond.jobs() == []
