from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.api.hand import Hand, steady

from millpond import BadPayload, Millpond, UnknownTask


def test_a_registered_task_is_enqueued_by_name_with_its_settings(pond: Millpond) -> None:
    @pond.task(queue="reports", priority=50)
    def report(number: int, when: datetime) -> int: ...

    ref = pond.enqueue("report", {"number": 1, "when": "2024-05-01T00:00:00Z"}, workload="user")

    job = ref.job()
    assert (job.queue, job.priority, job.workload) == ("reports", 50, "user")
    claim = Hand(pond).claim()
    assert report.decode(claim.payload) == ((1, datetime(2024, 5, 1, tzinfo=UTC)), {})


@pytest.mark.parametrize(
    "payload", [{"number": "1"}, {}, {"number": 1, "extra": 2}, {"number": object()}], ids=steady
)
def test_a_registered_task_checks_the_payload_before_it_is_stored(
    pond: Millpond, payload: dict[str, object]
) -> None:
    @pond.task
    def report(number: int) -> None: ...

    with pytest.raises(BadPayload, match="report"):
        pond.enqueue("report", payload)
    assert pond.jobs() == []


def test_a_producer_without_the_code_uses_what_the_store_knows(tmp_path: Path) -> None:
    with Millpond(tmp_path / "jobs.db") as app:

        @app.task(queue="reports", priority=20, max_attempts=2)
        def report(number: int) -> int: ...

        app.ready()
        with Millpond(tmp_path / "jobs.db") as producer:
            ref = producer.enqueue("report", {"number": 1})
            job = ref.job()
            assert (job.queue, job.priority, job.max_attempts) == ("reports", 20, 2)
            Hand(app).complete(b"5")
            assert ref.wait(timeout=0) == 5


def test_an_unknown_task_is_refused_with_the_closest_names(pond: Millpond) -> None:
    @pond.task
    def generate_report() -> None: ...

    with pytest.raises(UnknownTask, match=r"did you mean 'generate_report'\?.*queue="):
        pond.enqueue("generate_raport")
    with pytest.raises(UnknownTask, match="known are 'generate_report'"):
        pond.enqueue("x")
    with pytest.raises(UnknownTask):
        asyncio.run(pond.aenqueue("generate_raport", {}))
    assert pond.jobs() == []


def test_an_unknown_task_is_accepted_where_a_queue_is_named(pond: Millpond) -> None:
    ref = pond.enqueue("elsewhere", {"x": [1, None]}, queue="other")

    job = ref.job()
    assert (job.task, job.queue, job.payload) == ("elsewhere", "other", {"x": [1, None]})


@pytest.mark.parametrize(
    "payload", [{1: "a"}, {"a": float("nan")}, {"a": b"x"}, {"a": (1,)}, "text"], ids=str
)
def test_what_is_no_json_is_refused_without_the_code_too(pond: Millpond, payload: object) -> None:
    with pytest.raises(BadPayload):
        pond.enqueue("elsewhere", payload, queue="other")  # type: ignore[arg-type]
    assert pond.jobs() == []


def test_a_name_that_cannot_be_is_refused(pond: Millpond) -> None:
    with pytest.raises(ValueError, match="name of a task"):
        pond.enqueue("a/b", {}, queue="other")


def test_the_awaited_twin_answers_the_same(pond: Millpond) -> None:
    @pond.task
    def report(number: int) -> int: ...

    async def produce() -> None:
        known = await pond.aenqueue("report", {"number": 1})
        unknown = await pond.aenqueue("elsewhere", {"x": 1}, queue="other")
        assert [(await ref.ajob()).task for ref in (known, unknown)] == ["report", "elsewhere"]

    asyncio.run(produce())
