"""Enqueueing in a transaction of SQLAlchemy, on connections and sessions that are awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.pool import NullPool
from tests.integrations.shop import (
    CONTROLS,
    INSERT,
    LEVEL,
    AsyncTx,
    Report,
    Tx,
    aoverfill,
    arguments,
    awaited,
    connecting,
    opaque_row,
    seen,
)

from millpond import BadConfig, Millpond, StoreBusy

Play = Callable[[Callable[[Any], Coroutine[Any, Any, None]]], None]


@pytest.fixture(params=CONTROLS)
def control(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[AsyncSession, connecting], ids=["session", "connection"])
def play(request: pytest.FixtureRequest, pond: Millpond, report: Report, control: str) -> Play:
    def play(story: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with asyncio.timeout(30), awaited(pond, request.param, control) as tx:
                await story(tx)

        asyncio.run(main())

    return play


def test_awaited_row_and_job_are_seen_after_the_commit_and_not_before(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        await tx.execute(INSERT)
        ref = await report.using(tx=tx).aenqueue(1)
        assert seen(pond) == (0, 0)
        await tx.commit()
        assert seen(pond) == (1, 1)
        assert (await ref.ajob()).payload == {"number": 1}

    play(story)


def test_awaited_row_and_job_vanish_with_a_rollback(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        await tx.execute(INSERT)
        await report.using(tx=tx).aenqueue(1)
        await tx.rollback()
        await report.using(tx=tx).aenqueue(2)  # and without anything else

    play(story)
    assert seen(pond) == (0, 0)
    assert pond.verify() == []


def test_awaited_savepoints_and_refusals_undo_only_the_job(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        await tx.execute(INSERT)
        nested = await tx.begin_nested()
        await report.using(tx=tx).aenqueue(1)
        await nested.rollback()
        await aoverfill(pond, report, tx)
        await report.using(tx=tx, key="one").aenqueue(3)
        await tx.commit()

    play(story)
    assert seen(pond) == (1, 1)
    assert pond.verify() == []


def test_awaited_a_refusal_where_nothing_was_open_leaves_nothing_open(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        await aoverfill(pond, report, tx)
        assert not tx.in_transaction()
        assert (await report.aenqueue(1)).answer == "admitted"

    play(story)


def test_awaited_a_batch_of_many_and_jobs_by_name_are_stored_in_the_transaction(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        async with pond.batch(tx=tx) as batch:
            for number in range(40):
                batch.add(report, number)
        await pond.aenqueue("report", {"number": 1}, tx=tx)
        await pond.aenqueue("unheard of", {}, tx=tx, queue="other")
        assert seen(pond) == (0, 0)
        await tx.commit()

    play(story)
    assert seen(pond) == (0, 42)


def test_what_the_awaited_connection_makes_of_rows_and_texts_is_left_to_its_owner(
    pond: Millpond, report: Report
) -> None:
    async def story() -> None:
        async with awaited(pond, AsyncSession) as tx:
            assert isinstance(tx, AsyncSession)
            await report.using(tx=tx, key="k").aenqueue(1)
            raw = (await (await tx.connection()).get_raw_connection()).driver_connection
            assert raw is not None
            raw.row_factory, raw.text_factory = opaque_row, bytes
            assert (await report.using(tx=tx, key="k").aenqueue(1)).answer == "duplicate"
            assert (raw.row_factory, raw.text_factory) == (opaque_row, bytes)
            raw.row_factory, raw.text_factory = None, str
            await tx.commit()

    asyncio.run(story())
    assert seen(pond) == (0, 1)


def test_awaited_statements_run_in_the_drivers_thread_and_the_loop_goes_on(
    pond: Millpond, report: Report
) -> None:
    threads: set[int] = set()

    async def story() -> None:
        async with awaited(pond, AsyncSession) as tx:
            raw = (await (await tx.connection()).get_raw_connection()).driver_connection
            assert raw is not None
            await raw.set_trace_callback(lambda _: threads.add(threading.get_ident()))
            turns = 0
            enqueued = asyncio.ensure_future(report.using(tx=tx).aenqueue(1))
            while not enqueued.done():
                turns += 1
                await asyncio.sleep(0)
            await raw.set_trace_callback(None)
            assert (await enqueued).answer == "admitted"
            assert turns > 1
            await tx.commit()

    asyncio.run(story())
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_awaited_a_cancelled_enqueue_leaves_no_job_behind(pond: Millpond, report: Report) -> None:
    async def story(after: int) -> bool:
        async with awaited(pond, AsyncSession) as tx:
            await tx.execute(INSERT)
            enqueued = asyncio.ensure_future(report.using(tx=tx).aenqueue(1))
            for _ in range(after):
                await asyncio.sleep(0)
            enqueued.cancel()
            (answer,) = await asyncio.gather(enqueued, return_exceptions=True)
            await tx.commit()
            return isinstance(answer, asyncio.CancelledError)

    cancelled = [asyncio.run(story(after)) for after in (1, 2, 3, 5, 8, 13, 21, 34)]
    assert any(cancelled)
    assert seen(pond) == (8, cancelled.count(False))
    assert pond.verify() == []


def test_inside_run_sync_the_session_it_hands_over_carries_the_job(
    pond: Millpond, report: Report, play: Play
) -> None:
    def work(tx: Tx) -> None:
        tx.execute(INSERT)
        report.using(tx=tx).enqueue(1)

    async def story(tx: AsyncTx) -> None:
        await tx.run_sync(work)
        assert seen(pond) == (0, 0)
        await tx.commit()

    play(story)
    assert seen(pond) == (1, 1)


def test_an_async_scoped_session_stands_for_the_one_of_its_task(
    pond: Millpond, report: Report
) -> None:
    async def story() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{pond.url}", **arguments("legacy"))
        session = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
        await session.execute(INSERT)
        await report.using(tx=session).aenqueue(1)
        assert seen(pond) == (0, 0)
        await session.commit()
        await session.remove()
        await engine.dispose()

    asyncio.run(story())
    assert seen(pond) == (1, 1)


def test_an_awaited_session_is_refused_by_the_call_that_cannot_wait(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        with pytest.raises(BadConfig, match=r"use await ….aenqueue\(\)"):
            report.using(tx=tx).enqueue(1)

    play(story)


def test_the_twin_of_an_awaited_session_is_refused_outside_of_run_sync(
    pond: Millpond, report: Report
) -> None:
    async def story() -> None:
        async with awaited(pond, AsyncSession) as tx:
            assert isinstance(tx, AsyncSession)
            with pytest.raises(BadConfig, match="Session that cannot be used here"):
                await report.using(tx=tx.sync_session).aenqueue(1)

    asyncio.run(story())


def test_an_awaited_connection_that_was_not_opened_is_refused(
    pond: Millpond, report: Report
) -> None:
    async def story() -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{pond.url}")
        with pytest.raises(BadConfig, match="AsyncConnection that cannot be used here"):
            await report.using(tx=engine.connect()).aenqueue(1)
        await engine.dispose()

    asyncio.run(story())


def test_awaited_autocommit_is_refused(pond: Millpond, report: Report) -> None:
    async def story() -> None:
        url = f"sqlite+aiosqlite:///{pond.url}"
        engine = create_async_engine(url, poolclass=NullPool, **LEVEL)
        async with AsyncSession(engine) as session:
            with pytest.raises(BadConfig, match="in AUTOCOMMIT"):
                await report.using(tx=session).aenqueue(1)
            assert not session.in_transaction()
        await engine.dispose()

    asyncio.run(story())


def test_a_plain_enqueue_beside_the_open_awaited_transaction_is_named(
    pond: Millpond, report: Report, play: Play
) -> None:
    async def story(tx: AsyncTx) -> None:
        await report.using(tx=tx).aenqueue(1)
        with pytest.raises(StoreBusy, match=r"pass tx= with that connection.*an awaited call"):
            await report.aenqueue(2)

    play(story)
