"""`@pond.task`: how a function becomes a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from millpond.config.checks import refuse_unknown
from millpond.config.settings import TaskSettings
from millpond.config.units import parse_duration
from millpond.errors import BadConfig
from millpond.policy.backoff import Backoff
from millpond.policy.retry import Action, RetryRules
from millpond.task.foreign import TASK_OPTIONS
from millpond.task.task import Task

P = ParamSpec("P")
R = TypeVar("R")
Kinds = type[BaseException] | Collection[type[BaseException]]

_LATER = {
    "resource": "limits of outside resources",
    "lossless": "guards against combining jobs",
}
_LENGTHS = {
    "timeout": "timeout_ms",
    "lease": "lease_ms",
    "key_ttl": "key_ttl_ms",
    "result_ttl": "result_ttl_ms",
    "max_age": "max_age_ms",
    "unknown_task_after": "unknown_task_after_ms",
}
_AS_GIVEN = ("queue", "workload", "priority", "max_attempts", "retry", "isolation", "running")
_RULES = ("retry_on", "fail_on", "on")
_KNOWN = ("name", *_AS_GIVEN, *_LENGTHS, *_RULES)


class TaskOptions(TypedDict, total=False):
    """What `@pond.task(...)` accepts.

    Lengths of time are seconds, timedeltas or texts such as "10m"; `timeout=None` means no
    timeout. `retry_on` names the exceptions that are worth another attempt (then all others
    are permanent), `fail_on` those that never are, and `on` what to do for each: "retry",
    "fail", "complete", a Snooze, a Retry, a Fail, or a callable that returns one of these.
    `running` is how many jobs of the task may run at once, over all workers and queues.
    """

    name: str
    queue: str
    workload: str
    priority: int
    max_attempts: int
    retry: Backoff
    retry_on: Kinds
    fail_on: Kinds
    on: Mapping[type[BaseException], Action]
    timeout: float | str | timedelta | None
    lease: float | str | timedelta
    key_ttl: float | str | timedelta
    result_ttl: float | str | timedelta
    max_age: float | str | timedelta
    unknown_task_after: float | str | timedelta
    isolation: Literal["thread", "process"]
    running: int | None


class Registrar(Protocol):
    """What the decorator asks of the pond."""

    def register(
        self, function: Callable[..., Any], settings: TaskSettings, rules: RetryRules
    ) -> Task[..., Any, Any]:
        """Make a function a task of the pond; raises BadConfig for a name that is taken."""
        ...


class TaskDecorator:
    """Makes functions tasks: `@pond.task` or `@pond.task(queue="reports", ...)`."""

    def __init__(self, pond: Registrar, options: Mapping[str, Any]) -> None:
        self._pond = pond
        self._options = options

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...

    @overload
    def __call__(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def __call__(self, function: Any = None, /, **options: Any) -> Any:
        """Return the function as a task, or, given options, a decorator with these options.

        Raises BadConfig for options that cannot work, a name that is taken, and a function
        whose arguments cannot be stored.
        """
        if function is None:
            _check_options(options)
            return TaskDecorator(self._pond, {**self._options, **options})
        if not callable(function) or options:
            msg = f"@pond.task got {function!r:.200}: write @pond.task or @pond.task(name=..., ...)"
            raise BadConfig(msg)
        settings = task_settings(function, self._options)
        rules = {name: self._options[name] for name in _RULES if name in self._options}
        return self._pond.register(function, settings, RetryRules(**rules))


def task_settings(function: Callable[..., Any], options: Mapping[str, Any]) -> TaskSettings:
    """Return the settings of a task from its decorator's options, checked."""
    name = options.get("name") or _name_of(function)
    at = f"task {name!r}: "
    kind = _kind_refused(function)
    if kind is not None:
        raise BadConfig(f"{at}{kind} cannot be a task: it must be called once and return")
    values = {option: options[option] for option in _AS_GIVEN if option in options}
    for option, setting in _LENGTHS.items():
        if option in options:
            length = options[option]
            values[setting] = None if length is None else parse_duration(length, at + option)
    return TaskSettings(name, **values)


def place_of(function: Callable[..., Any]) -> str:
    """Return where a function stands, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return repr(function)
    return (
        f"{function.__module__}.{function.__qualname__} ({code.co_filename}:{code.co_firstlineno})"
    )


def _check_options(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in _LATER:
            msg = f"{name}={value!r:.200} is not available yet: this version has no {_LATER[name]}"
            raise BadConfig(msg)
        if name in TASK_OPTIONS:
            raise BadConfig(f"@pond.task: there is no option {name!r}: {TASK_OPTIONS[name]}")
    refuse_unknown("@pond.task: ", options, _KNOWN)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        msg = f"{function!r:.200} has no name to store jobs under: use @pond.task(name=...)"
        raise BadConfig(msg)
    return name


def _kind_refused(function: Callable[..., Any]) -> str | None:
    if inspect.isclass(function):
        return "a class"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "a generator function"
    return None
