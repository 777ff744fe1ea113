"""B12: whatever a handler raises becomes text in its job's history, and nothing else."""

from __future__ import annotations

import pytest
from tests.scenarios.mill import Mill, soak

APP = """
import _thread, concurrent.futures, enum, weakref
from millpond import StoreBusy

class NeedsTwo(Exception):
    def __init__(self, one, two):
        super().__init__(one)

class HoldsLock(Exception):
    def __init__(self):
        super().__init__("held")
        self.lock = threading.Lock()
        self.frame = sys._getframe()

class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")
    __repr__ = __str__

class NotText(Exception):
    def __str__(self):
        return 7

class NoPickle(Exception):
    def __reduce__(self):
        os._exit(9)

class OddName(Exception):
    __module__ = None
OddName.__qualname__ = "a\\x00b\\ud800"

class NoTraceback(Exception):
    @property
    def __traceback__(self):
        raise RuntimeError("no traceback")

class Quiet(BaseException):
    pass

class NoBool(Exception):
    def __bool__(self):
        raise RuntimeError("no truth")
    def __eq__(self, other):
        raise RuntimeError("no equality")
    __hash__ = None

class NoAttributes(Exception):
    def __getattribute__(self, name):
        raise RuntimeError("no attribute " + name)

def caused(error):
    raise ValueError("outer") from error

def looped():
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    raise one

def deep():
    try:
        return deep()
    finally:
        pass

def long_chain():
    error = ValueError("first")
    for n in range(2_000):
        following = ValueError(n)
        following.__context__ = error
        error = following
    raise error

def throw(error):
    raise error

WAYS = {
    "two arguments": lambda: throw(NeedsTwo("one", "two")),
    "a lock": lambda: throw(HoldsLock()),
    "a cause of two arguments": lambda: caused(NeedsTwo("one", "two")),
    "a cause with a lock": lambda: caused(HoldsLock()),
    "no text": lambda: throw(NoText()),
    "a number for text": lambda: throw(NotText()),
    "no pickle": lambda: throw(NoPickle("plain")),
    "an odd name": lambda: throw(OddName("x")),
    "no traceback": lambda: throw(NoTraceback("x")),
    "no truth": lambda: throw(NoBool("x")),
    "no attributes": lambda: throw(NoAttributes("x")),
    "much text": lambda: throw(ValueError("x" * 10_000_000)),
    "bad characters": lambda: throw(ValueError("\\x00 \\ud800 \\x1b[31m")),
    "a group": lambda: throw(ExceptionGroup("both", [NeedsTwo(1, 2), HoldsLock()])),
    "a loop of causes": looped,
    "too deep": deep,
    "a long chain": long_chain,
    "interrupt": lambda: throw(KeyboardInterrupt()),
    "exit": lambda: throw(SystemExit(0)),
    "generator exit": lambda: throw(GeneratorExit()),
    "stop": lambda: throw(StopIteration(3)),
    "cancelled": lambda: throw(asyncio.CancelledError()),
    "cancelled future": lambda: throw(concurrent.futures.CancelledError()),
    "no exception": lambda: throw(Quiet("quiet")),
    "one of the store's": lambda: throw(StoreBusy("busy")),
    "a lost lease": lambda: throw(LeaseLost("not really")),
    "a cancelled job": lambda: throw(JobCancelled("not really")),
    "a time-out": lambda: throw(TimeoutError("not really")),
}

@pond.task(**{**FAST, "max_attempts": 1})
def plain(way: str) -> None:
    note("ran", way.replace(" ", "-"))
    WAYS[way]()

@pond.task(**{**FAST, "max_attempts": 1})
async def coro(way: str) -> None:
    note("ran", way.replace(" ", "-"))
    WAYS[way]()

@pond.task(**FAST)
def permanent() -> None:
    note("ran", "permanent")
    raise Fail("no such account")

@pond.task(**FAST)
async def apermanent() -> None:
    note("ran", "permanent")
    try:
        raise ValueError("below")
    except ValueError as error:
        raise Fail("no such account") from error

@pond.task(**FAST, fail_on=(NeedsTwo,))
def declared() -> None:
    note("ran", "permanent")
    raise NeedsTwo("one", "two")

@pond.task(**FAST)
def good() -> None:
    note("ran", "good")
"""

NAMES = {
    "two arguments": "NeedsTwo",
    "a lock": "HoldsLock",
    "a cause of two arguments": "ValueError",
    "a group": "ExceptionGroup",
    "too deep": "RecursionError",
    "interrupt": "KeyboardInterrupt",
    "exit": "SystemExit",
    "much text": "ValueError",
    "no exception": "Quiet",
    "a lost lease": "LeaseLost",
}


@pytest.mark.parametrize("task", ["plain", "coro"])
@pytest.mark.parametrize("form", ["runner", soak("keeper")])
def test_b12_what_a_handler_raises_costs_its_attempt_and_nothing_else(
    mill: Mill, task: str, form: str
) -> None:
    mill.write(APP)
    ways = list(mill.app.WAYS)
    refs = {way: mill.one(task, way) for way in ways}
    good = mill.one("good")
    worker = mill.worker(processes=1 if form == "runner" else 0, concurrency=2).ready()
    assert mill.all_final() == {"failed": len(ways), "completed": 1}

    assert len(mill.pids("ran")) == 1, "the same process ran them all"
    assert worker.process.poll() is None
    assert mill.state(good) == "completed"
    for way, ref in refs.items():
        (attempt,) = mill.history(ref)
        assert (attempt.outcome, attempt.number) == ("failed", 1), way
        assert attempt.error_type, way
        assert attempt.message is not None, way
        assert attempt.traceback, way
        assert len(attempt.message) <= 10_000, way
        assert len(attempt.traceback) <= 100_000, way
        assert NAMES.get(way, "") in attempt.error_type
        attempt.to_json()
        f"{attempt.error_type} {attempt.message} {attempt.traceback}".encode()
        assert mill.job(ref).last_error is not None
    shown = mill.run("job", str(refs["bad characters"].id), "--app", "app:pond")
    assert shown.returncode == 0, shown.stderr
    assert "\x1b[31m" not in shown.stdout
    assert worker.stop() == 0


def test_b12_the_traceback_shows_the_handlers_own_lines_and_the_cause(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("plain", "a cause of two arguments")
    assert mill.worker("--drain").ended() == 0
    (attempt,) = mill.history(ref)
    text = str(attempt.traceback)
    assert "in caused" in text
    assert "NeedsTwo" in text
    assert "direct cause" in text
    assert "millpond/worker" not in text.split("direct cause")[1]


@pytest.mark.parametrize("task", ["permanent", "apermanent", "declared"])
def test_b12_a_permanent_failure_is_final_at_once(mill: Mill, task: str) -> None:
    mill.write(APP)
    ref, good = mill.one(task), mill.one("good")
    worker = mill.worker().ready()
    job = mill.becomes(ref, "failed")
    assert (job.attempts, job.max_attempts) == (1, 3)
    assert mill.outcomes(ref) == [("failed", 1)]
    assert "no such account" in str(job.reason) or task == "declared"
    mill.becomes(good, "completed")
    assert len(mill.pids("ran")) == 1
    assert worker.process.poll() is None
