from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import date

import pytest
from tests.api.hand import Hand

from millpond import (
    AttemptOutcome,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobRef,
    ManualClock,
    Millpond,
    Task,
)


@dataclass
class Report:
    day: date
    pages: int


@pytest.fixture
def report(pond: Millpond) -> Task[[int], Report, Report]:
    @pond.task
    def report(pages: int) -> Report:
        return Report(date(2024, 5, 1), pages)

    return report


def test_wait_returns_the_result_as_the_function_declares_it(
    pond: Millpond, report: Task[[int], Report, Report]
) -> None:
    ref = report.enqueue(3)
    made = Report(date(2024, 5, 1), 3)
    Hand(pond).complete(report.encode_result(made))

    assert ref.wait(timeout=0) == made
    assert asyncio.run(ref.await_(timeout=0)) == made
    assert ref.job().result == {"day": "2024-05-01", "pages": 3}


def test_wait_returns_none_where_nothing_was_returned(pond: Millpond) -> None:
    @pond.task
    def touch() -> None: ...

    ref = touch.enqueue()
    Hand(pond).complete()

    assert ref.wait(timeout=0) is None


def test_wait_ends_when_the_job_does(pond: Millpond, report: Task[[int], Report, Report]) -> None:
    ref = report.enqueue(3)
    results: list[Report] = []
    waiter = threading.Thread(target=lambda: results.append(ref.wait(timeout=30)), daemon=True)
    waiter.start()

    Hand(pond).complete(b'{"day":"2024-05-01","pages":3}')

    waiter.join(timeout=30)
    assert results == [Report(date(2024, 5, 1), 3)]


def test_wait_raises_what_became_of_the_job(
    pond: Millpond, report: Task[[int], Report, Report]
) -> None:
    hand = Hand(pond)
    failed = report.enqueue(1)
    hand.fail("no paper")
    cancelled = report.enqueue(2)
    cancelled_by = pond.cancel(cancelled.id)

    with pytest.raises(JobFailed, match="no paper") as raised:
        failed.wait(timeout=0)
    assert raised.value.job == failed.job()
    assert cancelled_by == "ready"
    with pytest.raises(JobCancelled, match=str(cancelled.id)) as stopped:
        cancelled.wait(timeout=0)
    assert stopped.value.job == cancelled.job()
    with pytest.raises(JobFailed):
        asyncio.run(failed.await_(timeout=0))


def test_wait_ends_with_its_timeout_and_says_where_the_job_stands(
    report: Task[[int], Report, Report],
) -> None:
    ref = report.enqueue(1)
    with pytest.raises(TimeoutError, match=r"still ready after 0\.01 s.*queue 'default'"):
        ref.wait(timeout=0.01)
    with pytest.raises(TimeoutError, match="still ready"):
        asyncio.run(ref.await_(timeout=0.01))


def test_wait_inside_a_handler_warns(pond: Millpond, report: Task[[int], Report, Report]) -> None:
    other = report.enqueue(2)
    hand = Hand(pond)

    @pond.task
    def outer() -> None:
        other.wait(timeout=0)

    context, _ = hand.context(hand.claim())
    with pytest.warns(RuntimeWarning, match="keeps its worker's slot"), pytest.raises(TimeoutError):
        outer.call((), {}, context)


def test_an_id_from_a_transaction_that_rolled_back_is_not_taken_for_another_job(
    file_pond: Millpond,
) -> None:
    import sqlite3

    @file_pond.task
    def report(number: int) -> None: ...

    file_pond.open()
    conn = sqlite3.connect(file_pond.url, isolation_level=None)
    lost = report.using(tx=conn).enqueue(1)
    conn.execute("ROLLBACK")
    conn.close()
    kept = report.enqueue(2)

    assert lost.id == kept.id
    assert lost != kept
    for look in (lost.job, lambda: lost.wait(timeout=0), lambda: asyncio.run(lost.ajob())):
        with pytest.raises(JobNotFound, match="rolled back"):
            look()
    assert kept.job().payload == {"number": 2}


def test_refs_of_one_job_are_equal(report: Task[[int], Report, Report]) -> None:
    first = report.using(key="k").enqueue(1)
    second = report.using(key="k").enqueue(1)
    assert {first, second} == {first}
    assert first != object()
    assert repr(second) == f"<JobRef {first.id} duplicate operation={first.operation_id}>"
    assert isinstance(first, JobRef)


def test_the_awaited_twins_answer_the_same(
    pond: Millpond, clock: ManualClock, report: Task[[int], Report, Report]
) -> None:
    async def both() -> None:
        ref = await report.aenqueue(1)
        assert await ref.ajob() == ref.job() == await pond.aget(ref.id)
        again = await report.using(key="k").aenqueue(1)
        assert (await report.using(key="k").aenqueue(2)) == again
        assert await pond.ajobs(state="ready") == pond.jobs(state="ready")
        assert await pond.aattempts(ref.id) == []
        assert await pond.acancel(ref.id, by="ann") == "ready"
        assert await pond.acancel(ref.id) == "cancelled"
        await pond.apause("default")
        assert (await pond.astatus()).lanes[0].paused
        await pond.aresume("default")
        assert await pond.aresult(ref.operation_id) is None
        assert await pond.areconcile() == []
        assert await pond.averify() == []

    asyncio.run(both())


def test_results_can_be_found_by_operation(
    pond: Millpond, report: Task[[int], Report, Report]
) -> None:
    report.using(operation_id="op-1").enqueue(1)
    hand = Hand(pond)
    claim = hand.claim()
    hand.settle(claim, AttemptOutcome.COMPLETED, result=b'{"day":"2024-05-01","pages":1}')

    assert pond.result("op-1") == {"day": "2024-05-01", "pages": 1}
    assert pond.result("op-1", "report") == pond.result("op-1")
    assert pond.result("op-1", "other") is None
    assert pond.result("op-2", default="nothing") == "nothing"
