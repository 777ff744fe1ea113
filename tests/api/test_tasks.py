from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from tests.api.hand import Hand, steady

from millpond import Backoff, BadConfig, BadPayload, Context, Fail, Millpond, Snooze, Task
from millpond.model import Want
from millpond.policy.retry import FailNow, RetryLater, SnoozeUntil


def test_a_task_is_stored_under_the_name_of_its_function(pond: Millpond) -> None:
    @pond.task
    def generate_report(report_id: int, fmt: str = "pdf") -> None: ...

    ref = generate_report.enqueue(812, fmt="csv")

    job = ref.job()
    assert ref.answer == "admitted"
    assert job.task == "generate_report"
    assert job.payload == {"report_id": 812, "fmt": "csv"}
    assert (job.queue, job.workload, job.priority) == ("default", "default", 100)
    assert (job.state, job.attempts, job.max_attempts) == ("ready", 0, 5)
    assert job.lease is None


def test_the_decorators_options_are_the_jobs_settings(pond: Millpond) -> None:
    @pond.task(
        name="report",
        queue="reports",
        workload="user",
        priority=50,
        max_attempts=3,
        timeout="10m",
        lease=timedelta(seconds=90),
        retry=Backoff(base=1),
    )
    def generate_report() -> None: ...

    job = generate_report.enqueue().job()

    assert (job.task, job.queue, job.workload) == ("report", "reports", "user")
    assert (job.priority, job.max_attempts) == (50, 3)
    settings = generate_report.settings
    assert (settings.timeout_ms, settings.lease_ms) == (600_000, 90_000)
    assert settings.retry == Backoff(base=1)


def test_a_plain_call_runs_here_and_now_and_touches_no_store(pond: Millpond) -> None:
    @pond.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add(2) == 3
    assert add(2, b=5) == 7


def test_a_plain_call_of_an_async_task_returns_its_coroutine(pond: Millpond) -> None:
    @pond.task
    async def add(a: int) -> int:
        return a + 1

    assert add.is_async
    assert asyncio.run(add(1)) == 2


def test_a_plain_call_gets_a_context_that_works_without_a_store(pond: Millpond) -> None:
    @pond.task
    def slow(x: int, *, ctx: Context) -> list[object]:
        ctx.progress(1, 2, "half")
        ctx.check_cancelled()
        ctx.remember({"x": x})
        ctx.log.info("working")
        return [ctx.job_id, ctx.attempt, ctx.cancelled, ctx.remembered, ctx.worker, dict(ctx.meta)]

    assert slow.takes_context
    assert slow(3) == [0, 1, False, {"x": 3}, "local", {}]


def test_a_plain_call_may_bring_its_own_context(pond: Millpond) -> None:
    @pond.task
    def who(*, ctx: Context = Context.injected) -> Context:
        return ctx

    mine = Context.local()
    assert who(ctx=mine) is mine
    assert who() is not Context.injected


def test_the_context_is_no_argument_of_an_enqueue(pond: Millpond) -> None:
    @pond.task
    def slow(x: int, *, ctx: Context = Context.injected) -> None: ...

    with pytest.raises(BadPayload, match="ctx"):
        slow.enqueue(1, ctx=Context.local())


def test_two_tasks_of_one_name_are_refused_with_both_places(pond: Millpond) -> None:
    @pond.task
    def export() -> None: ...

    def other() -> None: ...

    with pytest.raises(BadConfig, match="two tasks are named 'export'") as refused:
        pond.task(name="export")(other)

    assert "export (" in str(refused.value)
    assert "other (" in str(refused.value)
    assert str(refused.value).count("test_tasks.py:") == 2


def test_two_ponds_may_use_one_name(pond: Millpond) -> None:
    other = Millpond(":memory:")

    @pond.task(name="export")
    def one() -> None: ...

    @other.task(name="export")
    def two() -> None: ...

    assert pond.registry["export"] is one
    assert other.registry["export"] is two


def test_the_registry_shows_the_tasks_and_cannot_be_changed(pond: Millpond) -> None:
    @pond.task
    def export() -> None: ...

    assert dict(pond.registry) == {"export": export}
    with pytest.raises(TypeError):
        pond.registry["x"] = export  # type: ignore[index]


@pytest.mark.parametrize("option", ["resource", "lossless"])
def test_what_later_versions_have_is_refused_and_not_ignored(pond: Millpond, option: str) -> None:
    with pytest.raises(BadConfig, match="not available yet"):
        pond.task(**{option: 1})  # type: ignore[call-overload]


def test_a_task_can_be_held_to_a_number_of_running_jobs(pond: Millpond) -> None:
    @pond.task(running=1)
    def export() -> None: ...

    first = export.enqueue()
    export.enqueue()
    assert Hand(pond).claim().token.job_id == first.id
    assert pond.store.claim(Hand(pond).number, [Want(5)], {"export"}, 5).result().claims == []
    with pytest.raises(BadConfig, match="running"):
        pond.task(running=0, name="other")(lambda: None)


def test_an_isolation_there_is_not_is_refused(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="'thread', 'process'"):

        @pond.task(isolation="fork")  # type: ignore[call-overload]
        def export() -> None: ...


def test_an_unknown_option_is_refused_with_the_closest(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="did you mean 'timeout'"):
        pond.task(timeuot=5)  # type: ignore[call-overload]


def test_a_name_in_the_place_of_the_function_is_explained(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match=r"@pond.task\(name="):
        pond.task("export")  # type: ignore[call-overload]


def test_what_has_no_name_needs_one(pond: Millpond) -> None:
    def export(fmt: str, report: int) -> None: ...

    with pytest.raises(BadConfig, match="name="):
        pond.task(functools.partial(export, "pdf"))
    with pytest.raises(BadConfig, match="name="):
        pond.task(lambda: None)

    task = pond.task(name="export")(functools.partial(export, "pdf"))
    assert task.enqueue(report=1).job().payload == {"report": 1}


def test_generators_and_classes_are_refused(pond: Millpond) -> None:
    def steps():
        yield 1

    class Export: ...

    with pytest.raises(BadConfig, match="generator"):
        pond.task(steps)
    with pytest.raises(BadConfig, match="class"):
        pond.task(Export)


def test_a_lease_that_cannot_work_is_refused_when_the_task_is_made(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="lease"):

        @pond.task(lease=0.001)
        def export() -> None: ...

    assert "export" not in pond.registry


@dataclass
class Line:
    amount: Decimal
    when: datetime


def test_typed_arguments_come_back_as_they_were(pond: Millpond) -> None:
    @pond.task
    def bill(line: Line, tags: set[str]) -> None: ...

    line = Line(Decimal("1.10"), datetime(2024, 5, 1, tzinfo=UTC))
    bill.enqueue(line, {"a", "b"})

    claim = Hand(pond).claim()
    assert bill.decode(claim.payload) == ((line, {"a", "b"}), {})


@pytest.mark.parametrize(
    "value",
    [{1: "a"}, (1, 2), float("nan"), float("inf"), Decimal(1), b"x", "\ud800", object()],
    ids=steady,
)
def test_what_cannot_come_back_is_refused_and_nothing_is_written(
    pond: Millpond, value: object
) -> None:
    @pond.task
    def keep(value) -> None: ...

    with pytest.raises(BadPayload, match=r"keep.*value"):
        keep.enqueue(value)
    assert pond.jobs() == []


@pytest.mark.parametrize("value", [-0.0, 2**63, 2**70, "é", None, True, [1, [2, {"a": []}]]])
def test_what_can_come_back_does_exactly(pond: Millpond, value: object) -> None:
    @pond.task
    def keep(value) -> None: ...

    ref = keep.enqueue(value)

    (back,) = keep.decode(Hand(pond).claim().payload)[0]
    assert repr(back) == repr(value)
    assert repr(ref.job().payload) == repr({"value": value})


def test_too_large_a_payload_is_refused_at_the_ponds_limit(url: str) -> None:
    with Millpond(url, max_payload=100) as pond:

        @pond.task
        def keep(text: str) -> None: ...

        at_limit = "x" * (100 - len('{"text":""}'))
        assert keep.enqueue(at_limit).job().payload_bytes == 100
        with pytest.raises(BadPayload, match="101"):
            keep.enqueue(at_limit + "x")
        with pytest.raises(BadPayload, match="101"):
            pond.enqueue("keep", {"text": at_limit + "x"})
        assert len(pond.jobs()) == 1


def test_a_wrong_call_is_refused_where_it_is_made(pond: Millpond) -> None:
    @pond.task
    def add(a: int, b: int) -> None: ...

    with pytest.raises(BadPayload, match="b"):
        add.enqueue(1)  # type: ignore[call-arg]
    with pytest.raises(BadPayload, match="c"):
        add.enqueue(1, 2, c=3)  # type: ignore[call-arg]
    with pytest.raises(BadPayload, match=r"add\(args\.a\)"):
        add.enqueue("1", 2)  # type: ignore[arg-type]
    assert pond.jobs() == []


def test_a_task_decides_what_an_exception_means(pond: Millpond) -> None:
    @pond.task(retry_on=ConnectionError, on={KeyError: Snooze(5)})
    def call() -> None: ...

    assert call.verdict(ConnectionError(), 0) == RetryLater()
    assert isinstance(call.verdict(ValueError(), 0), FailNow)
    assert call.verdict(Fail("no such account"), 0) == FailNow("no such account")
    assert isinstance(call.verdict(KeyError(), 0), SnoozeUntil)


def test_a_handler_finds_its_context_without_a_parameter(pond: Millpond) -> None:
    @pond.task
    def plain() -> object:
        return Context.current().job_id

    @pond.task
    async def awaited() -> object:
        await asyncio.sleep(0)
        return Context.current().job_id

    for task in (plain, awaited):
        ref = task.enqueue()
        hand = Hand(pond)
        context, _ = hand.context(hand.claim())
        found = task.call((), {}, context)
        assert (asyncio.run(found) if task.is_async else found) == ref.id
    with pytest.raises(LookupError, match="no job is running"):
        Context.current()


def test_a_result_is_stored_as_strictly_as_an_argument(url: str) -> None:
    pond = Millpond(url, max_result=50)

    @pond.task
    def make() -> dict[str, int]: ...

    assert make.encode_result({"a": 1}) == b'{"a":1}'
    assert make.encode_result(None) is None
    with pytest.raises(BadPayload, match="result"):
        make.encode_result({"a": object()})
    with pytest.raises(BadPayload, match="limit"):
        make.encode_result({"a" * 50: 1})


def test_a_task_keeps_what_its_function_says_of_itself(pond: Millpond) -> None:
    @pond.task
    def documented() -> None:
        """Say so."""

    assert isinstance(documented, Task)
    assert documented.__doc__ == "Say so."
    assert documented.__name__ == "documented"
    assert documented.__module__ == __name__
    assert repr(documented) == "<Task documented>"
