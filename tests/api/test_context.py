from __future__ import annotations

import asyncio
import logging

import pytest
from tests.api.hand import Hand

from millpond import (
    AttemptOutcome,
    BadPayload,
    Context,
    JobCancelled,
    LeaseLost,
    ManualClock,
    Millpond,
)
from millpond.context import Control

Held = tuple[Context, Control, Hand]


@pytest.fixture
def held(pond: Millpond) -> Held:
    @pond.task(queue="reports", workload="user", max_attempts=3)
    def report() -> None: ...

    report.using(operation_id="op-1", meta={"by": "ann"}).enqueue()
    hand = Hand(pond)
    context, control = hand.context(hand.claim())
    return context, control, hand


def test_a_context_names_the_attempt(held: Held) -> None:
    context, _, _ = held
    assert (context.job_id, context.attempt, context.max_attempts) == (1, 1, 3)
    assert (context.task, context.queue, context.workload) == ("report", "reports", "user")
    assert (context.operation_id, context.worker) == ("op-1", "hand")
    assert dict(context.meta) == {"by": "ann"}
    assert repr(context) == "<Context job=1 task='report' attempt=1>"


def test_a_handler_left_alone_goes_on(held: Held) -> None:
    context, _, _ = held
    assert not context.cancelled
    context.check_cancelled()


@pytest.mark.parametrize(
    ("why", "raised", "text"),
    [
        ("cancelled", JobCancelled, "was cancelled"),
        ("shutdown", JobCancelled, "no attempt is used"),
        ("lease_lost", LeaseLost, "no longer owned by attempt 1"),
        ("timeout", TimeoutError, "ran longer"),
    ],
)
def test_a_handler_is_told_to_stop_and_why(
    held: Held, why: str, raised: type[Exception], text: str
) -> None:
    context, control, _ = held
    control.why = why  # type: ignore[assignment]

    assert context.cancelled
    with pytest.raises(raised, match=text):
        context.check_cancelled()


def test_a_lease_that_has_run_out_is_lost_though_nobody_said_so(
    held: Held, clock: ManualClock
) -> None:
    context, control, _ = held

    assert context.lease_remaining == 60
    clock.advance(59.999)
    context.check_cancelled()
    clock.advance(ms=1)
    assert (context.lease_remaining, context.cancelled) == (0, True)
    with pytest.raises(LeaseLost):
        context.check_cancelled()
    control.lease_until += 10_000
    assert context.lease_remaining == 10
    context.check_cancelled()


@pytest.mark.parametrize("value", [{"a": [1, "x", None]}, 5, "text", [], False])
def test_what_is_remembered_is_there_for_this_and_later_attempts(held: Held, value: object) -> None:
    context, _, hand = held
    assert context.remembered is None

    context.remember(value)

    assert context.remembered == value
    hand.settle(hand_claim(context), AttemptOutcome.RETRIED)
    later, _ = hand.context(hand.claim())
    assert later.attempt == 2
    assert later.remembered == value


def hand_claim(context: Context):
    return context._claim


def test_remembering_can_be_awaited(held: Held) -> None:
    context, _, _ = held
    asyncio.run(context.aremember({"x": 1}))
    assert context.remembered == {"x": 1}


def test_a_lost_lease_bars_what_would_be_remembered(held: Held, clock: ManualClock) -> None:
    context, _, _ = held
    clock.advance(60)

    with pytest.raises(LeaseLost, match="nothing was remembered"):
        context.remember(5)
    assert context.remembered is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1: "a"}, "remembered"),
        (float("nan"), "remembered"),
        ((1, 2), "remembered"),
        ("x" * 65_535, "65,536"),
    ],
    ids=["key", "nan", "tuple", "large"],
)
def test_what_cannot_be_remembered_is_refused(held: Held, value: object, text: str) -> None:
    context, _, _ = held
    with pytest.raises(BadPayload, match=text):
        context.remember(value)
    assert context.remembered is None


@pytest.mark.parametrize(
    "told", [(float("nan"),), (1, float("inf")), ("5",), (1, 2, "\ud800"), (1, "2")], ids=repr
)
def test_progress_that_is_no_number_is_refused(held: Held, told: tuple[object, ...]) -> None:
    context, _, _ = held
    with pytest.raises(BadPayload, match="progress"):
        context.progress(*told)  # type: ignore[arg-type]


def test_a_long_progress_text_is_shortened(held: Held, pond: Millpond) -> None:
    context, _, _ = held
    context.progress(1, text="x" * 5_000)
    progress = pond.get(context.job_id).progress
    assert progress is not None
    assert progress.text == "x" * 1_000


def test_the_log_names_job_and_attempt(held: Held, caplog: pytest.LogCaptureFixture) -> None:
    context, _, _ = held
    with caplog.at_level(logging.INFO, logger="millpond.job"):
        context.log.info("half of it", extra={"pages": 3})

    record = caplog.records[-1]
    assert (record.message, record.name) == ("half of it", "millpond.job")
    fields = vars(record)
    assert [fields[name] for name in ("job", "attempt", "task", "operation_id", "pages")] == [
        1, 1, "report", "op-1", 3,
    ]  # fmt: skip


def test_a_local_context_never_runs_out() -> None:
    context = Context.local("report")
    context.check_cancelled()
    assert context.lease_remaining > 10**9
    assert context.task == "report"
    assert Context.local().operation_id != context.operation_id
