"""`pond.testing()`: the application's pond and tasks on another store, and back again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from millpond import BadConfig, Context, JobNotFound, ManualClock, Millpond, StoreClosed, Task

Add = Task[..., Any, Any]


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return tmp_path / "real.db"


@pytest.fixture
def shop(real: Path) -> Millpond:
    return Millpond(real)


@pytest.fixture
def add(shop: Millpond) -> Add:
    @shop.task
    def add(a: int, b: int) -> int:
        return a + b

    return add


def test_tasks_of_an_application_never_touch_its_store(
    shop: Millpond, add: Add, real: Path
) -> None:
    with shop.testing() as pond:
        assert pond is shop
        ref = add.enqueue(1, 2)
        assert pond.drain().finished == 1
        assert ref.wait(timeout=10) == 3
        assert shop.url == ":memory:"

    assert not real.exists()
    assert shop.url == str(real)


def test_each_block_begins_with_an_empty_store(shop: Millpond, add: Add) -> None:
    for _ in range(2):
        with shop.testing():
            assert add.using(key="once").enqueue(1, 2).answer == "admitted"
            assert len(shop.jobs()) == 1


def test_an_open_store_is_left_as_it_was_and_used_again(shop: Millpond, add: Add) -> None:
    with shop:
        before = add.enqueue(1, 2)
        with shop.testing(), pytest.raises(JobNotFound):
            before.job()
        assert before.job().state == "ready"
        assert [job.id for job in shop.jobs()] == [before.id]


def test_a_closed_pond_is_closed_again_afterwards(shop: Millpond, add: Add) -> None:
    shop.close()
    with shop.testing():
        assert add.enqueue(1, 2).answer == "admitted"
    with pytest.raises(StoreClosed):
        add.enqueue(1, 2)


def test_what_is_declared_inside_is_known_to_both_stores(shop: Millpond) -> None:
    with shop.testing():

        @shop.task(queue="mail")
        def send() -> None: ...

        send.enqueue()
        assert "send" in shop.store.tasks()
    assert "send" in shop.store.tasks()
    shop.close()


def test_a_clock_and_eager_hold_for_the_block_only(shop: Millpond, add: Add) -> None:
    own, clock = shop.clock, ManualClock()
    with shop.testing(clock=clock, eager=True):
        assert add.enqueue(1, 2).job().state == "completed"
        late = add.using(delay=60).enqueue(1, 2)
        clock.advance(60)
        shop.drain()
        assert late.job().state == "completed"
    assert (shop.clock is own, shop.eager) == (True, False)


def test_blocks_stand_inside_one_another(shop: Millpond, add: Add, tmp_path: Path) -> None:
    with shop.testing():
        add.enqueue(1, 2)
        with shop.testing(tmp_path / "inner.db"):
            assert shop.jobs() == []
        assert len(shop.jobs()) == 1


def test_an_outer_block_that_ends_first_never_brings_the_real_store_back_too_soon(
    shop: Millpond, real: Path
) -> None:
    outer, inner = shop.testing(), shop.testing()
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    assert shop.url == ":memory:"
    inner.__exit__(None, None, None)
    assert shop.url == str(real)


def test_the_store_comes_back_when_a_test_fails(shop: Millpond, real: Path) -> None:
    with pytest.raises(ZeroDivisionError), shop.testing():
        raise ZeroDivisionError
    assert shop.url == str(real)


def test_the_applications_own_file_is_refused(shop: Millpond, real: Path, add: Add) -> None:
    with pytest.raises(BadConfig, match="one of its own"), shop.testing(real):
        pass
    with (
        shop.testing() as pond,
        pytest.raises(BadConfig, match="one of its own"),
        pond.testing(real.parent / "." / real.name),
    ):
        pass
    assert shop.url == str(real)
    assert add.enqueue(1, 2).answer == "admitted"
    shop.close()


def test_a_block_that_has_begun_does_not_begin_again(shop: Millpond, real: Path) -> None:
    block = shop.testing()
    with block, pytest.raises(BadConfig, match="begun already"), block:
        pass
    assert shop.url == str(real)


def test_a_pond_does_not_move_under_a_started_worker(shop: Millpond, real: Path) -> None:
    with shop, shop.worker(), pytest.raises(BadConfig, match="worker of this process"):
        shop.testing().__enter__()
    assert shop.url == str(real)


def test_a_pond_does_not_move_under_a_drain_or_inside_a_handler(shop: Millpond) -> None:
    told: list[str] = []

    @shop.task
    def handler(*, ctx: Context = Context.injected) -> None:
        try:
            shop.testing().__enter__()
        except BadConfig as error:
            told.append(str(error))

    with shop.testing():
        handler.enqueue()
        assert shop.drain().finished == 1
    assert len(told) == 1


def test_a_handler_without_a_worker_of_this_pond_cannot_move_it_either(shop: Millpond) -> None:
    other = Millpond(":memory:")
    told: list[str] = []

    @other.task
    def handler() -> None:
        try:
            shop.testing().__enter__()
        except BadConfig as error:
            told.append(str(error))

    with other:
        handler.enqueue()
        assert other.drain().finished == 1
    assert "while a handler runs" in told[0]


def test_a_worker_that_was_started_inside_is_stopped_before_the_store_goes(
    shop: Millpond, real: Path
) -> None:
    ran = threading.Event()

    @shop.task
    def note() -> None:
        ran.set()

    with shop.testing():
        worker = shop.worker(poll="20ms")
        worker.start()
        note.enqueue()
        assert ran.wait(30)
    assert (worker.alive, real.exists()) == (False, False)


def test_the_awaited_block_does_the_same(shop: Millpond, add: Add, real: Path) -> None:
    async def check() -> None:
        async with shop.testing():
            ref = await add.aenqueue(1, 2)
            await asyncio.to_thread(shop.drain)
            assert await ref.await_(timeout=10) == 3

    asyncio.run(check())
    assert (shop.url, real.exists()) == (str(real), False)


def test_a_file_serves_transactions_of_the_callers_own(
    shop: Millpond, add: Add, tmp_path: Path
) -> None:
    import sqlite3

    file = tmp_path / "test.db"
    with shop.testing(file) as pond:
        pond.open()
        with sqlite3.connect(file) as connection:
            connection.execute("CREATE TABLE t (x)")
            connection.execute("INSERT INTO t VALUES (1)")
            add.using(tx=connection).enqueue(1, 2)
            connection.rollback()
        connection.close()
        assert shop.jobs() == []
