"""Doubles that tests of the worker share: a small application without a store, and claims."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millpond.clock import Clock, ManualClock
from millpond.config import QueueSettings, StoreConfig, TaskSettings
from millpond.context import Context
from millpond.errors import BadPayload
from millpond.model import Claim, JobId, Token
from millpond.policy.retry import RetryRules, Verdict, verdict
from millpond.worker.frames import Begin, Broken, Fed, Feed, Outcome, ToKeeper
from millpond.worker.runner import Runner

WAIT_S = 60.0
"""How long a test waits for an event that must come; nothing waits this long on success."""


def claim(
    number: int,
    task: str = "task",
    *,
    payload: bytes = b"{}",
    lease_ms: int = 60_000,
    claimed_mono: int = 1_000_000,
    **changes: Any,
) -> Claim:
    values: dict[str, Any] = {
        "token": Token(JobId(number), number),
        "task": task,
        "queue": "default",
        "workload": "default",
        "payload": payload,
        "attempts": 0,
        "max_attempts": 5,
        "crashes": 0,
        "lease_ms": lease_ms,
        "timeout_ms": None,
        "operation_id": f"operation-{number}",
        "priority": 100,
        "created_at": 1,
        "due_at": 2,
        "claimed_at": 3,
        "claimed_mono": claimed_mono,
        **changes,
    }
    return Claim(**values)


class FakeTask:
    """A task around a function that takes the context only."""

    def __init__(self, function: Callable[[Context], Any], *, on_loop: bool = False) -> None:
        self.function = function
        self.is_async = on_loop

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if payload == b"broken":
            raise BadPayload("payload.n: expected int, got str")
        return (), {}

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: Context) -> Any:
        assert (args, kwargs) == ((), {})
        return self.function(ctx)

    def verdict(self, exc: BaseException, now: int) -> Verdict:
        return verdict(exc, RetryRules(), now=now)

    def encode_result(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise BadPayload(f"result: a {type(value).__name__} cannot be stored")
        return value.encode()


def nothing(ctx: Context) -> None:
    """A handler that does nothing."""


class FakeDeclarations:
    url = ":memory:"
    store = StoreConfig(url=":memory:")
    queues: Sequence[QueueSettings] = ()
    tasks: Sequence[TaskSettings] = ()


class FakeHost:
    """An application with these tasks and no store."""

    def __init__(self, tasks: Mapping[str, FakeTask]) -> None:
        self.registry = tasks

    def declarations(self) -> FakeDeclarations:
        return FakeDeclarations()

    @property
    def store(self) -> Any:
        raise AssertionError("this test has no store")

    def close(self) -> None:
        """Nothing was opened."""


class Rig:
    """A runner whose answers are gathered, and waited for with an end."""

    def __init__(
        self,
        tasks: Mapping[str, FakeTask],
        *,
        slots: int = 2,
        clock: Clock | None = None,
        marks: str | None = None,
    ) -> None:
        self.answers: list[ToKeeper] = []
        self._news = threading.Condition()
        self.clock = clock or ManualClock()
        self.runner = Runner(FakeHost(tasks), self._answer, self.clock, self._broke)
        self.runner.receive(Begin(1, "host:1", (slots,), marks))

    def feed(self, *claims: Claim) -> None:
        self.runner.receive(Feed([Fed(index, 0, each) for index, each in enumerate(claims)]))

    def outcomes(self, count: int) -> list[Outcome]:
        """Wait until so many attempts have ended."""
        self.wait(lambda: len(self.ended) >= count)
        return self.ended

    def outcome(self) -> Outcome:
        (only,) = self.outcomes(1)
        return only

    @property
    def ended(self) -> list[Outcome]:
        return [each for each in list(self.answers) if isinstance(each, Outcome)]

    def wait(self, there: Callable[[], Any]) -> None:
        with self._news:
            assert self._news.wait_for(there, WAIT_S), f"it never came; there is {self.answers}"

    def close(self) -> None:
        assert self.runner.close(WAIT_S), "threads were left behind"

    def _answer(self, frame: ToKeeper) -> None:
        with self._news:
            self.answers.append(frame)
            self._news.notify_all()

    def _broke(self, message: str) -> None:
        self._answer(Broken(message))
