"""Enqueueing in a transaction of SQLAlchemy, on connections and sessions that are called."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    Session,
    scoped_session,
    sessionmaker,
)
from tests.integrations.shop import (
    EVENTS,
    INSERT,
    Order,
    Report,
    Tx,
    arguments,
    controlled,
    driver_of,
    opaque_row,
    overfill,
    seen,
)

from millpond import Millpond, StoreBusy

# --- Connection and Session ---------------------------------------------------------------------


def test_row_and_job_are_seen_after_the_commit_and_not_before(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    tx.execute(INSERT)
    ref = report.using(tx=tx).enqueue(1)
    assert seen(pond) == (0, 0)
    tx.commit()
    assert seen(pond) == (1, 1)
    assert ref.job().payload == {"number": 1}


def test_row_and_job_vanish_with_a_rollback(pond: Millpond, report: Report, tx: Tx) -> None:
    tx.execute(INSERT)
    report.using(tx=tx, key="k").enqueue(1)
    tx.rollback()
    assert seen(pond) == (0, 0)
    assert report.using(key="k").enqueue(1).answer == "admitted"
    assert pond.verify() == []


def test_a_job_alone_is_committed_by_sqlalchemys_commit(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    report.using(tx=tx).enqueue(1)
    assert driver_of(tx).in_transaction
    assert seen(pond) == (0, 0)
    tx.commit()
    assert seen(pond) == (0, 1)


def test_a_job_alone_goes_when_the_block_ends_without_a_commit(
    pond: Millpond, report: Report, engine: sa.Engine
) -> None:
    with Session(engine) as session:
        report.using(tx=session).enqueue(1)
    with engine.connect() as connection:
        report.using(tx=connection).enqueue(1)
    assert seen(pond) == (0, 0)


def test_rows_written_after_the_job_commit_with_it(pond: Millpond, report: Report, tx: Tx) -> None:
    report.using(tx=tx).enqueue(1)
    tx.execute(INSERT)
    assert seen(pond) == (0, 0)
    tx.commit()
    assert seen(pond) == (1, 1)


def test_where_nothing_is_open_the_write_lock_is_taken_at_once(
    report: Report, plain_engine: sa.Engine
) -> None:
    statements: list[str] = []
    with Session(plain_engine) as session:
        driver_of(session).set_trace_callback(statements.append)
        report.using(tx=session).enqueue(1)
        driver_of(session).set_trace_callback(None)
    written = [text for text in statements if not text.startswith("PRAGMA")]
    assert written[0] == "BEGIN IMMEDIATE"
    assert "COMMIT" not in statements


def test_objects_that_are_not_flushed_yet_commit_with_the_job(
    pond: Millpond, report: Report, engine: sa.Engine
) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(item="tea"))
        report.using(tx=session).enqueue(1)
    assert seen(pond) == (1, 1)


def test_the_id_that_a_flush_gave_can_be_the_payload(
    pond: Millpond, report: Report, engine: sa.Engine
) -> None:
    with Session(engine) as session, session.begin():
        order = Order(item="tea")
        session.add(order)
        session.flush()
        ref = report.using(tx=session).enqueue(order.id)
    assert ref.job().payload == {"number": 1}


def test_a_batch_is_stored_in_the_transaction(pond: Millpond, report: Report, tx: Tx) -> None:
    with pond.batch(tx=tx) as batch:
        for number in range(40):
            batch.add(report, number)
    assert seen(pond) == (0, 0)
    tx.commit()
    assert seen(pond) == (0, 40)


def test_a_job_by_name_is_stored_in_the_transaction(pond: Millpond, report: Report, tx: Tx) -> None:
    tx.execute(INSERT)
    pond.enqueue("report", {"number": 1}, tx=tx)
    pond.enqueue("unheard of", {}, tx=tx, queue="other")
    tx.rollback()
    assert seen(pond) == (0, 0)


def test_a_task_declared_during_the_transaction_does_not_wait_for_it(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    tx.execute(INSERT)
    late = pond.task(name="late")(lambda: None)
    late.using(tx=tx).enqueue()
    tx.commit()
    assert seen(pond) == (1, 1)


def test_what_the_connection_makes_of_rows_and_texts_is_left_to_its_owner(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    report.using(tx=tx, key="k").enqueue(1)
    driver = driver_of(tx)
    driver.row_factory, driver.text_factory = opaque_row, bytes
    assert report.using(tx=tx, key="k").enqueue(1).answer == "duplicate"
    assert (driver.row_factory, driver.text_factory) == (opaque_row, bytes)
    driver.row_factory, driver.text_factory = None, str
    tx.commit()
    assert seen(pond) == (0, 1)


def test_a_scoped_session_stands_for_the_one_of_its_thread(
    pond: Millpond, report: Report, engine: sa.Engine
) -> None:
    session = scoped_session(sessionmaker(engine))
    session.execute(INSERT)
    report.using(tx=session).enqueue(1)
    assert seen(pond) == (0, 0)
    session.commit()
    session.remove()
    assert seen(pond) == (1, 1)


# --- what fails ---------------------------------------------------------------------------------


def test_a_refusal_undoes_the_job_and_leaves_the_rows(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    tx.execute(INSERT)
    overfill(pond, report, tx)
    report.using(tx=tx, key="one").enqueue(3)
    tx.commit()
    assert seen(pond) == (1, 1)
    assert pond.verify() == []


def test_a_refusal_where_nothing_was_open_leaves_nothing_open(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    overfill(pond, report, tx)
    assert not tx.in_transaction()
    assert report.enqueue(1).answer == "admitted"  # the lock is free
    tx.execute(INSERT)
    tx.commit()
    assert seen(pond) == (1, 1)


def test_a_refusal_in_a_transaction_that_only_sqlalchemy_has_begun_leaves_it_usable(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    with tx.begin():
        overfill(pond, report, tx)
        tx.execute(INSERT)
        report.using(tx=tx).enqueue(1)
    assert seen(pond) == (1, 1)


def test_a_locked_file_is_a_busy_store_and_the_session_can_go_on(
    pond: Millpond, report: Report, plain_engine: sa.Engine
) -> None:
    other = sqlite3.connect(pond.url, isolation_level=None)
    with Session(plain_engine) as session:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="nothing was enqueued"):
            report.using(tx=session).enqueue(1)
        other.execute("ROLLBACK")
        report.using(tx=session).enqueue(1)
        session.commit()
    other.close()
    assert seen(pond) == (0, 1)


def test_a_plain_enqueue_beside_the_open_transaction_is_named(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    report.using(tx=tx).enqueue(1)
    with pytest.raises(StoreBusy, match=r"pass tx= with that connection.*test_sqlalchemy\.py"):
        report.enqueue(2)


# --- savepoints ---------------------------------------------------------------------------------


def test_a_job_goes_with_the_savepoint_that_it_was_enqueued_in(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    tx.execute(INSERT)
    kept = report.using(tx=tx).enqueue(1)
    nested = tx.begin_nested()
    tx.execute(INSERT)
    report.using(tx=tx, key="k").enqueue(2)
    nested.rollback()
    tx.commit()
    assert seen(pond) == (1, 1)
    assert [job.id for job in pond.jobs()] == [kept.id]
    assert pond.verify() == []


def test_a_job_of_a_released_savepoint_stands_and_falls_with_the_transaction(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    for end in (tx.rollback, tx.commit):
        tx.execute(INSERT)
        with tx.begin_nested():
            report.using(tx=tx).enqueue(2)
        assert seen(pond) == (0, 0)
        end()
    assert seen(pond) == (1, 1)


def test_a_refusal_inside_a_savepoint_undoes_only_the_job(
    pond: Millpond, report: Report, tx: Tx
) -> None:
    tx.execute(INSERT)
    with tx.begin_nested():
        tx.execute(INSERT)
        overfill(pond, report, tx)
        tx.execute(INSERT)
    tx.commit()
    assert seen(pond) == (3, 0)


def test_a_savepoint_may_come_first_where_sqlalchemy_begins(
    pond: Millpond, report: Report, tmp_path: Path
) -> None:
    engine = sa.create_engine(f"sqlite:///{pond.url}", **arguments(EVENTS))
    controlled(engine, EVENTS)
    with Session(engine) as session:
        with session.begin_nested():
            report.using(tx=session).enqueue(1)
        assert seen(pond) == (0, 0)
        session.rollback()
    assert seen(pond) == (0, 0)
