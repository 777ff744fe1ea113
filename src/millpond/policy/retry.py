"""What the end of a handler means: complete, try again, snooze or fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, assert_never, get_args

from millpond.errors import BadConfig, BadPayload, Fail, Retry, Snooze, refuse_setting
from millpond.policy.backoff import LONGEST_MS

BAD_PAYLOAD = "bad_payload"
"""Reason of a job whose arguments cannot be decoded: every attempt would end the same way."""

PERMANENT_ERROR = "permanent_error"
"""Reason of a job that its task's rules, or a `Fail` without words, ended for good."""


@dataclass(frozen=True, slots=True)
class Complete:
    """The attempt counts as completed although the handler raised, as the task's `on` says."""


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Try again: after the task's backoff, or at the earliest after `after_ms`.

    `note` is what an operator should read beside the error, None when it says all.
    """

    after_ms: int | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class SnoozeUntil:
    """Run again after `delay_ms`, without charging the attempt."""

    delay_ms: int
    note: str | None = None


@dataclass(frozen=True, slots=True)
class FailNow:
    """Fail the job for good, whatever attempts are left."""

    reason: str


Verdict: TypeAlias = Complete | RetryLater | SnoozeUntil | FailNow

Word: TypeAlias = Literal["retry", "fail", "complete"]
Answer: TypeAlias = Word | Retry | Snooze | Fail
Action: TypeAlias = Answer | Callable[[BaseException], "Answer | None"]
"""What `on` maps an exception class to; a callable that returns None has no opinion."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Which exceptions of a task are temporary and which permanent.

    The most specific class of the exception that any of the three names decides. With
    `retry_on` given, an exception that nothing names is permanent, otherwise temporary.

    Raises BadConfig for what is no exception class, an unknown action, or a class that is
    named twice.
    """

    retry_on: tuple[type[BaseException], ...] = ()
    fail_on: tuple[type[BaseException], ...] = ()
    on: Mapping[type[BaseException], Action] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Copies, so that nobody changes the rules of a task that is being run.
        object.__setattr__(self, "retry_on", _classes("retry_on", self.retry_on))
        object.__setattr__(self, "fail_on", _classes("fail_on", self.fail_on))
        object.__setattr__(self, "on", MappingProxyType(dict(self.on)))
        _classes("on", tuple(self.on))
        for kind, action in self.on.items():
            _check_action(kind, action)
        _check_named_once(self)


def verdict(error: BaseException, rules: RetryRules, *, now: int) -> Verdict:
    """Return what the exception that ended a handler means; never raises.

    `Retry`, `Snooze` and `Fail` raised by the handler come first; then the rules; then the
    defaults. `now` is the wall clock in milliseconds, which a snooze until a moment needs.
    An exception group of one exception counts as that exception, unless the rules name the
    group's class.
    """
    error = _alone(error, rules)
    if isinstance(error, (Retry, Snooze, Fail)):
        return _answered(error, now)
    ruled = _ruled(error, rules, now)
    if ruled is not None:
        return ruled
    return FailNow(PERMANENT_ERROR) if rules.retry_on else RetryLater()


def _alone(error: BaseException, rules: RetryRules) -> BaseException:
    named = (*rules.retry_on, *rules.fail_on, *rules.on)
    groups = tuple(kind for kind in named if issubclass(kind, BaseExceptionGroup))
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        if isinstance(error, groups):
            break
        error = error.exceptions[0]
    return error


def _ruled(error: BaseException, rules: RetryRules, now: int) -> Verdict | None:
    for kind in type(error).__mro__:
        if kind in rules.on:
            found = _acted(rules.on[kind], error, now)
            if found is not None:
                return found
        elif kind in rules.fail_on:
            return FailNow(PERMANENT_ERROR)
        elif kind in rules.retry_on:
            return RetryLater()
        elif kind is BadPayload:
            return FailNow(BAD_PAYLOAD)
    return None


def _acted(action: Action, error: BaseException, now: int) -> Verdict | None:
    if not callable(action):
        return _answered(action, now)
    try:
        answer = action(error)
    except (Retry, Snooze, Fail) as raised:
        return _answered(raised, now)
    except Exception as broken:  # noqa: BLE001  a broken rule must not cost the job its attempts
        return RetryLater(note=f"the task's on= callable raised {type(broken).__name__}")
    if answer is None:
        return None
    if not _is_answer(answer):
        return RetryLater(note=f"the task's on= callable returned a {type(answer).__name__}")
    return _answered(answer, now)


def _answered(answer: Answer, now: int) -> Verdict:
    match answer:
        case "retry":
            return RetryLater()
        case "fail":
            return FailNow(PERMANENT_ERROR)
        case "complete":
            return Complete()
        case Retry():
            after = None if answer.after is None else _millis(answer.after)
            return RetryLater(after, answer.reason or None)
        case Snooze():
            return SnoozeUntil(_snooze_ms(answer, now), answer.reason or None)
        case Fail():
            return FailNow(answer.reason or PERMANENT_ERROR)
        case _:
            assert_never(answer)


def _snooze_ms(snooze: Snooze, now: int) -> int:
    if isinstance(snooze.until, (int, float)):
        return _millis(snooze.until)
    return _clamped(round(snooze.until.timestamp() * 1000) - now)


def _millis(seconds: float) -> int:
    return _clamped(round(seconds * 1000))


def _clamped(milliseconds: int) -> int:
    return min(max(milliseconds, 0), LONGEST_MS)


def _is_answer(value: object) -> bool:
    # Asked by type first: to compare with a word, an array would answer with an array.
    if isinstance(value, str):
        return value in get_args(Word)
    return isinstance(value, (Retry, Snooze, Fail))


def _classes(name: str, given: object) -> tuple[type[BaseException], ...]:
    listed = given if isinstance(given, (tuple, list, set, frozenset)) else (given,)
    for kind in listed:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            refuse_setting(name, kind, "an exception class, or several in a tuple")
    return tuple(listed)


def _check_action(kind: type[BaseException], action: object) -> None:
    # A class is callable too, but `Snooze` without its seconds says nothing.
    if not _is_answer(action) and (isinstance(action, type) or not callable(action)):
        allowed = "'retry', 'fail', 'complete', a Retry, a Snooze, a Fail or a callable"
        refuse_setting(f"on[{kind.__name__}]", action, allowed)


def _check_named_once(rules: RetryRules) -> None:
    named = (*rules.retry_on, *rules.fail_on, *rules.on)
    twice = sorted({kind.__name__ for kind in named if named.count(kind) > 1})
    if twice:
        msg = (
            f"{', '.join(twice)} is named more than once in retry_on, fail_on and on: "
            "name each exception class in one of them"
        )
        raise BadConfig(msg)
