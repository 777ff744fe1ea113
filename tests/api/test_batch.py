from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import pytest
from tests.api.hand import Hand

from millpond import BadConfig, BadPayload, Millpond, MillpondError, Task


@pytest.fixture
def report(pond: Millpond) -> Task[[int], int, int]:
    @pond.task(queue="reports")
    def report(number: int) -> int:
        return number

    return report


def test_a_batch_is_stored_when_its_block_ends(
    pond: Millpond, report: Task[[int], int, int]
) -> None:
    with pond.batch() as batch:
        for number in range(100):
            batch.add(report, number)
        assert pond.jobs() == []

    assert len(batch) == 100
    assert batch.answers == ["admitted"] * 100
    assert [ref.job().payload for ref in batch.refs] == [{"number": n} for n in range(100)]
    assert batch.refs[0] is batch.refs[0]


def test_nothing_is_written_when_the_block_raises(
    pond: Millpond, report: Task[[int], int, int]
) -> None:
    def collect(second: Any) -> None:
        with pond.batch() as batch:
            batch.add(report, 1)
            batch.add(report, second())

    with pytest.raises(ZeroDivisionError):
        collect(lambda: 1 / 0)
    with pytest.raises(BadPayload):
        collect(lambda: "2")
    assert pond.jobs() == []


def test_a_batch_may_carry_options_and_names(pond: Millpond, report: Task[[int], int, int]) -> None:
    with pond.batch() as batch:
        batch.add(report.using(priority=10, key="k"), 1)
        batch.add(report.using(key="k"), 2)
        batch.add_by_name("report", {"number": 3}, workload="user")
        batch.add_by_name("elsewhere", {"x": 1}, queue="other")

    assert batch.answers == ["admitted", "duplicate", "admitted", "admitted"]
    assert batch.refs[0] == batch.refs[1]
    assert batch.refs[0].job().priority == 10
    assert [ref.job().workload for ref in batch.refs[2:]] == ["user", "default"]
    Hand(pond).complete(b"1")
    assert batch.refs[0].wait(timeout=0) == 1


def test_an_empty_batch_writes_nothing(pond: Millpond) -> None:
    with pond.batch() as batch:
        pass
    assert (batch.refs, batch.answers, len(batch)) == ([], [], 0)


def test_a_batch_can_be_awaited(pond: Millpond, report: Task[[int], int, int]) -> None:
    async def produce() -> list[int]:
        async with pond.batch() as batch:
            batch.add(report, 1)
            batch.add(report, 2)
        return [ref.id for ref in batch.refs]

    async def fail() -> None:
        async with pond.batch() as batch:
            batch.add(report, 3)
            raise KeyError

    assert len(asyncio.run(produce())) == 2
    with pytest.raises(KeyError):
        asyncio.run(fail())
    assert len(pond.jobs()) == 2


def test_a_batch_is_used_once(pond: Millpond, report: Task[[int], int, int]) -> None:
    with pond.batch() as batch:
        with pytest.raises(MillpondError, match="after its `with` block"):
            _ = batch.refs
        batch.add(report, 1)
    with pytest.raises(MillpondError, match="stored already"):
        batch.add(report, 2)
    with pytest.raises(MillpondError, match="stored already"), batch:
        pass
    assert len(pond.jobs()) == 1


def test_a_batch_can_belong_to_the_callers_transaction(file_pond: Millpond) -> None:
    @file_pond.task
    def report(number: int) -> None: ...

    file_pond.open()
    conn = sqlite3.connect(file_pond.url, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    with file_pond.batch(tx=conn) as batch:
        batch.add(report, 1)
        batch.add(report.using(tx=conn), 2)
    assert file_pond.jobs() == []
    conn.execute("COMMIT")
    conn.close()

    assert {job.id for job in file_pond.jobs()} == {ref.id for ref in batch.refs}


def test_a_batch_is_one_transaction(file_pond: Millpond) -> None:
    @file_pond.task
    def report(number: int) -> None: ...

    conn = sqlite3.connect(file_pond.url)
    with pytest.raises(BadConfig, match=r"give tx= to pond\.batch"), file_pond.batch() as batch:
        batch.add(report.using(tx=conn), 1)
    conn.close()


def test_the_part_that_fits_is_not_available_yet(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="not available yet"):
        pond.batch(partial=True)
