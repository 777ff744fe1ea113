"""A runner alone: every way a handler can end becomes one outcome, and the runner lives on."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.worker.fakes import WAIT_S, FakeTask, Rig, claim, nothing

from millpond.clock import ManualClock
from millpond.context import Context
from millpond.errors import Fail, JobCancelled, LeaseLost, Retry, Snooze
from millpond.model import Token
from millpond.worker.frames import (
    Broken,
    Drop,
    Dropped,
    End,
    Halt,
    Outcome,
    Progressed,
    Renewed,
)
from millpond.worker.marks import Marks, Stage

MakeRig = Callable[..., Rig]


@pytest.fixture
def rig() -> Iterator[MakeRig]:
    made: list[Rig] = []

    def make(*, slots: int = 2, clock: ManualClock | None = None, **tasks: FakeTask) -> Rig:
        made.append(Rig(tasks, slots=slots, clock=clock))
        return made[-1]

    yield make
    for each in made:
        each.close()


def raising(error: Callable[[], BaseException]) -> Callable[[Context], Any]:
    def handler(ctx: Context) -> None:
        raise error()

    return handler


def on_loop(function: Callable[[Context], Any]) -> FakeTask:
    return FakeTask(function, on_loop=True)


class Gate:
    """A handler that says it has begun and stays until it is opened."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, ctx: Context) -> str:
        self.begun.release()
        assert self.opened.wait(WAIT_S)
        ctx.check_cancelled()
        return "through"

    def wait_begun(self) -> None:
        assert self.begun.acquire(timeout=WAIT_S)


# --- ends of plain handlers ---------------------------------------------------------------------


def test_a_returned_value_is_the_result(rig: MakeRig) -> None:
    one = rig(task=FakeTask(lambda ctx: f"{ctx.operation_id} {ctx.attempt}"))
    one.feed(claim(7, attempts=2))
    outcome = one.outcome()
    assert (outcome.claim, outcome.end, outcome.result) == (7, End.COMPLETED, b"operation-7 3")
    assert outcome.started_at == one.clock.now()
    assert outcome.trouble is None


class TwoArguments(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.length = len(two)


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__(threading.Lock())


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def caused(cause: BaseException) -> BaseException:
    error = ValueError("outer")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: ValueError("bad \x00 \ud800"), "ValueError", "bad \ufffd \ufffd"),
        (lambda: TwoArguments("kept", "lost"), "TwoArguments", "kept"),
        (Locked, "Locked", "lock"),
        (Unprintable, "Unprintable", "cannot be printed"),
        (lambda: caused(TwoArguments("kept", "lost")), "ValueError", "outer"),
        (lambda: caused(Locked()), "ValueError", "outer"),
        (lambda: caused(Unprintable()), "ValueError", "outer"),
        (lambda: SystemExit(3), "SystemExit", "3"),
        (KeyboardInterrupt, "KeyboardInterrupt", ""),
        (lambda: GeneratorExit("odd"), "GeneratorExit", "odd"),
        (lambda: ExceptionGroup("many", [ValueError(1), KeyError(2)]), "ExceptionGroup", "many"),
        (lambda: ValueError("x" * 100_000), "ValueError", "characters left out"),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_is_raised_becomes_text_and_the_runner_lives_on(
    rig: MakeRig, make: Callable[[], BaseException], kind: str, words: str, asynchronous: bool
) -> None:
    async def bad(ctx: Context) -> None:
        raise make()

    one = rig(
        bad=on_loop(bad) if asynchronous else FakeTask(raising(make)),
        good=FakeTask(nothing),
    )
    one.feed(claim(1, "bad"), claim(2, "good"))
    ended = {outcome.claim: outcome for outcome in one.outcomes(2)}
    assert ended[1].end is End.RETRY
    trouble = ended[1].trouble
    assert trouble is not None
    assert trouble.type.endswith(kind)
    assert words in trouble.message
    assert len(trouble.message) <= 2_000
    assert "Traceback" in trouble.traceback
    assert len(trouble.traceback) <= 8_000
    assert len(trouble.fingerprint) == 16
    assert ended[2].end is End.COMPLETED


def test_the_traceback_shows_the_handler_and_not_the_worker(rig: MakeRig) -> None:
    one = rig(task=FakeTask(raising(lambda: ValueError("here"))))
    one.feed(claim(1))
    trouble = one.outcome().trouble
    assert trouble is not None
    assert "in handler" in trouble.traceback
    assert "attempt.py" not in trouble.traceback


@pytest.mark.parametrize(
    ("error", "end", "delay", "reason"),
    [
        (Retry("later"), End.RETRY, None, "later"),
        (Retry(after=2.5), End.RETRY, 2_500, None),
        (Snooze(60), End.SNOOZE, 60_000, None),
        (Fail("no such report"), End.FAIL, None, "no such report"),
    ],
)
def test_a_handler_says_how_its_attempt_ends(
    rig: MakeRig, error: Exception, end: End, delay: int | None, reason: str | None
) -> None:
    one = rig(task=FakeTask(raising(lambda: error)))
    one.feed(claim(1))
    outcome = one.outcome()
    assert (outcome.end, outcome.delay_ms) == (end, delay)
    if reason is not None:
        assert outcome.reason == reason


def test_arguments_that_cannot_be_decoded_fail_that_job_only(rig: MakeRig) -> None:
    one = rig(task=FakeTask(nothing))
    one.feed(*(claim(n, payload=b"broken" if n == 4 else b"{}") for n in range(1, 11)))
    ended = {outcome.claim: outcome for outcome in one.outcomes(10)}
    fourth = ended.pop(4)
    assert (fourth.end, fourth.reason) == (End.FAIL, "bad_payload")
    assert fourth.trouble is not None
    assert "expected int" in fourth.trouble.message
    assert {outcome.end for outcome in ended.values()} == {End.COMPLETED}


def test_a_result_that_cannot_be_stored_fails_for_good(rig: MakeRig) -> None:
    one = rig(task=FakeTask(lambda ctx: ctx))
    one.feed(claim(1))
    outcome = one.outcome()
    assert (outcome.end, outcome.reason) == (End.FAIL, "bad_result")


def test_a_task_that_is_not_known_here_goes_back(rig: MakeRig) -> None:
    one = rig(task=FakeTask(nothing))
    one.feed(claim(1, "other"), claim(2))
    ended = {outcome.claim: outcome for outcome in one.outcomes(2)}
    assert (ended[1].end, ended[1].started_at) == (End.RELEASED, None)
    assert ended[2].end is End.COMPLETED


# --- orders -------------------------------------------------------------------------------------

STOPS = [
    ("cancelled", End.CANCELLED),
    ("timeout", End.TIMED_OUT),
    ("lease_lost", End.LEASE_LOST),
    ("shutdown", End.RELEASED),
]


@pytest.mark.parametrize(("why", "end"), STOPS)
def test_a_thread_that_heeds_the_order_ends_by_it(rig: MakeRig, why: Any, end: End) -> None:
    gate = Gate()
    one = rig(task=FakeTask(gate))
    one.feed(claim(1))
    gate.wait_begun()
    one.runner.receive(Halt([1], why))
    gate.opened.set()
    assert one.outcome().end is end


@pytest.mark.parametrize("why", [why for why, _ in STOPS])
def test_a_thread_that_returns_all_the_same_is_completed(rig: MakeRig, why: Any) -> None:
    gate = Gate()

    def deaf(ctx: Context) -> str:
        gate.begun.release()
        assert gate.opened.wait(WAIT_S)
        return "done"

    one = rig(task=FakeTask(deaf))
    one.feed(claim(1))
    gate.wait_begun()
    one.runner.receive(Halt(None, why))
    gate.opened.set()
    outcome = one.outcome()
    assert (outcome.end, outcome.result) == (End.COMPLETED, b"done")


def test_an_error_of_its_own_stays_an_error_after_an_order(rig: MakeRig) -> None:
    gate = Gate()

    def fails(ctx: Context) -> None:
        gate.begun.release()
        assert gate.opened.wait(WAIT_S)
        raise KeyError("mine")

    one = rig(task=FakeTask(fails))
    one.feed(claim(1))
    gate.wait_begun()
    one.runner.receive(Halt(None, "cancelled"))
    gate.opened.set()
    assert one.outcome().end is End.RETRY


@pytest.mark.parametrize(("why", "end"), STOPS)
@pytest.mark.parametrize("wraps", [False, True])
def test_an_async_handler_is_cancelled_and_its_finally_runs_once(
    rig: MakeRig, why: Any, end: End, wraps: bool
) -> None:
    begun, cleaned = threading.Event(), []

    async def handler(ctx: Context) -> None:
        try:
            begun.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError as error:
            if wraps:
                raise ConnectionError("closed while cleaning up") from error
            raise
        finally:
            cleaned.append(ctx.job_id)

    one = rig(task=on_loop(handler))
    one.feed(claim(1))
    assert begun.wait(WAIT_S)
    one.runner.receive(Halt([1], why))
    assert one.outcome().end is end
    assert cleaned == [1]


async def _cancels_a_child(ctx: Context) -> None:
    child = asyncio.ensure_future(asyncio.sleep(3600))
    await asyncio.sleep(0)
    child.cancel()
    await child


async def _cancels_itself(ctx: Context) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(3600)


async def _raises_it(ctx: Context) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("handler", [_cancels_a_child, _cancels_itself, _raises_it])
def test_a_cancellation_of_its_own_making_is_an_error_like_any_other(
    rig: MakeRig, handler: Callable[[Context], Any]
) -> None:
    one = rig(task=on_loop(handler), after=on_loop(_returns))
    one.feed(claim(1))
    outcome = one.outcome()
    assert outcome.end is End.RETRY
    assert outcome.trouble is not None
    assert outcome.trouble.type.endswith("CancelledError")
    one.feed(claim(2, "after"))
    assert one.outcomes(2)[1].end is End.COMPLETED


async def _returns(ctx: Context) -> str:
    await asyncio.sleep(0)
    return "fine"


def test_an_async_handler_that_swallows_the_cancellation_and_returns_is_completed(
    rig: MakeRig,
) -> None:
    begun = threading.Event()

    async def stubborn(ctx: Context) -> str:
        try:
            begun.set()
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "finished anyway"
        return "never"

    one = rig(task=on_loop(stubborn))
    one.feed(claim(1))
    assert begun.wait(WAIT_S)
    one.runner.receive(Halt([1], "cancelled"))
    assert one.outcome().end is End.COMPLETED


def test_another_jobs_cancellation_is_no_order(rig: MakeRig) -> None:
    one = rig(task=FakeTask(raising(lambda: JobCancelled("the job waited for was cancelled"))))
    one.feed(claim(1))
    assert one.outcome().end is End.RETRY


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_timeout_ends_the_attempt_and_not_the_runner(rig: MakeRig, asynchronous: bool) -> None:
    async def slow(ctx: Context) -> None:
        await asyncio.sleep(3600)

    def slow_too(ctx: Context) -> None:
        while True:
            ctx.check_cancelled()
            threading.Event().wait(0.005)

    one = rig(
        slow=on_loop(slow) if asynchronous else FakeTask(slow_too),
        good=FakeTask(nothing),
    )
    one.feed(claim(1, "slow", timeout_ms=60))
    outcome = one.outcome()
    assert outcome.end is End.TIMED_OUT
    assert outcome.ran_us >= 60_000
    assert outcome.trouble is not None
    said = f"{outcome.trouble.type}: {outcome.trouble.message}"
    assert (said == "TimeoutError: timed out after 0.06 s") is asynchronous
    assert asynchronous or "ran longer than the 60 ms" in said
    one.feed(claim(2, "good"))
    assert one.outcomes(2)[1].end is End.COMPLETED


# --- leases -------------------------------------------------------------------------------------


def test_a_job_whose_lease_has_run_out_is_never_started(rig: MakeRig) -> None:
    clock = ManualClock()
    one = rig(task=FakeTask(nothing), clock=clock)
    clock.advance(60)
    one.feed(claim(1, lease_ms=60_000))
    one.wait(lambda: one.answers)
    (answer,) = one.answers
    assert isinstance(answer, Dropped)
    assert answer.claims == [1]


def test_a_renewal_lengthens_the_lease_of_what_runs_and_of_what_follows(rig: MakeRig) -> None:
    clock, gate, left = ManualClock(), Gate(), []

    def handler(ctx: Context) -> str:
        gate(ctx)
        left.append(ctx.lease_remaining)
        return ""

    one = rig(task=FakeTask(handler), clock=clock, slots=1)
    one.feed(claim(1, lease_ms=60_000), claim(2, lease_ms=60_000))
    gate.wait_begun()
    clock.advance(50)
    one.runner.receive(Renewed(clock.mono()))
    clock.advance(20)
    gate.opened.set()
    one.outcomes(2)
    assert left == [40.0, 40.0]


def test_a_handler_learns_of_its_lost_lease_though_nobody_tells_it(rig: MakeRig) -> None:
    clock, begun = ManualClock(), threading.Event()

    async def handler(ctx: Context) -> None:
        begun.set()
        await asyncio.sleep(3600)

    one = rig(task=on_loop(handler), clock=clock)
    one.feed(claim(1, lease_ms=1_000))
    assert begun.wait(WAIT_S)
    clock.advance(1)
    assert one.outcome().end is End.LEASE_LOST


def test_losing_the_lease_by_ones_own_clock_is_no_failure(rig: MakeRig) -> None:
    clock = ManualClock()

    def handler(ctx: Context) -> None:
        clock.advance(60)
        ctx.check_cancelled()

    one = rig(task=FakeTask(handler), clock=clock)
    one.feed(claim(1))
    assert one.outcome().end is End.LEASE_LOST


def test_somebody_elses_lost_lease_is_an_error_like_any_other(rig: MakeRig) -> None:
    one = rig(task=FakeTask(raising(lambda: LeaseLost("of another job"))))
    one.feed(claim(1))
    assert one.outcome().end is End.RETRY


# --- dropping, marks, progress ------------------------------------------------------------------


def test_dropping_is_answered_after_it_is_sure(rig: MakeRig) -> None:
    gate = Gate()
    one = rig(task=FakeTask(gate), slots=1)
    one.feed(claim(1), claim(2), claim(3))
    gate.wait_begun()
    one.runner.receive(Drop(None))
    gate.opened.set()
    one.outcomes(1)
    (dropped,) = (each for each in one.answers if isinstance(each, Dropped))
    assert dropped.claims == [2, 3]
    assert [outcome.claim for outcome in one.ended] == [1]


def test_marks_say_started_while_the_handler_runs_and_returned_before_the_keeper_hears(
    tmp_path: Path,
) -> None:
    marks = Marks.create(tmp_path / "marks", 4)
    place = marks.enter(Token(claim(1).token.job_id, 1))
    assert place == 0
    seen: list[Stage] = []

    def handler(ctx: Context) -> None:
        seen.append(marks.look(0).stage)

    one = Rig({"task": FakeTask(handler)}, marks=marks.path)
    one.feed(claim(1))
    one.outcomes(1)
    seen.append(marks.look(0).stage)
    one.close()
    marks.close(remove=True)
    assert seen == [Stage.STARTED, Stage.RETURNED]


def test_the_last_progress_goes_before_the_outcome(rig: MakeRig) -> None:
    def handler(ctx: Context) -> None:
        for done in range(100):
            ctx.progress(done, 100)

    one = rig(task=FakeTask(handler))
    one.feed(claim(1))
    one.outcomes(1)
    *before, last = one.answers
    assert isinstance(last, Outcome)
    sent = [value for each in before if isinstance(each, Progressed) for value in each.values]
    assert sent
    assert sent[-1][0] == 1
    assert b'"done":99' in sent[-1][1]
    assert len(sent) <= 3


# --- the runner's own machinery -----------------------------------------------------------------


def test_a_blocked_loop_is_named_with_the_job_and_the_line(rig: MakeRig) -> None:
    release, warned = threading.Event(), threading.Event()
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "event loop blocked" in record.getMessage():
                said.append(record.getMessage())
                warned.set()

    async def blocks(ctx: Context) -> None:
        assert release.wait(WAIT_S)

    listener = Listener()
    logging.getLogger("millpond.worker").addHandler(listener)
    try:
        one = rig(blocks=on_loop(blocks))
        one.feed(claim(17, "blocks"))
        assert warned.wait(WAIT_S)
    finally:
        release.set()
        logging.getLogger("millpond.worker").removeHandler(listener)
    one.outcomes(1)
    message = said[0]
    assert "blocks (job 17)" in message
    # The application's own line comes first, before what it calls in a library.
    first = message.partition("; by one of")[0]
    assert first.partition(" at ")[2].startswith(f"{__file__}:")
    assert "in test_a_blocked_loop" in first
    assert "assert release.wait(WAIT_S)" in first
    assert "(inside " in first
    assert "threading.py:" in first


def test_a_handler_that_stops_the_loop_ends_the_runner_with_a_message(rig: MakeRig) -> None:
    async def stops(ctx: Context) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(3600)

    one = rig(stops=on_loop(stops))
    one.feed(claim(1, "stops"))
    one.wait(lambda: any(isinstance(each, Broken) for each in one.answers))
    (broken,) = (each for each in one.answers if isinstance(each, Broken))
    assert "event loop of this runner has ended" in broken.message


def test_nothing_of_a_finished_job_is_kept(rig: MakeRig) -> None:
    class Canary:
        pass

    alive = 0

    def handler(ctx: Context) -> None:
        canary = Canary()
        raise ValueError(canary)

    one = rig(task=FakeTask(handler), slots=1)
    one.feed(*(claim(number) for number in range(1, 21)))
    one.outcomes(20)
    gc.collect()
    alive = sum(isinstance(each, Canary) for each in gc.get_objects())
    assert alive <= 1
    assert one.runner.busy == 0


def test_thousands_of_small_jobs_mixed_of_both_kinds_all_end_once(rig: MakeRig) -> None:
    one = rig(plain=FakeTask(nothing), looped=on_loop(_returns), slots=4)
    for start in range(0, 2_000, 100):
        one.feed(
            *(
                claim(number, "plain" if number % 3 else "looped")
                for number in range(start + 1, start + 101)
            )
        )
    ended = one.outcomes(2_000)
    assert sorted(outcome.claim for outcome in ended) == list(range(1, 2_001))
    assert {outcome.end for outcome in ended} == {End.COMPLETED}
