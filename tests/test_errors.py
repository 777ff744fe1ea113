from __future__ import annotations

import inspect
import pickle
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from millpond import errors
from millpond.errors import (
    BadConfig,
    Fail,
    JobFailed,
    MillpondError,
    Overloaded,
    Retry,
    Snooze,
    refuse_setting,
)

TREE = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, MillpondError) and kind is not MillpondError
]


def test_the_tree_in_the_docstring_shows_every_error() -> None:
    drawn = re.findall(r"── (\w+)", str(errors.__doc__))
    assert sorted(drawn) == sorted(kind.__name__ for kind in TREE)


def test_what_steers_a_job_is_no_error_of_millpond() -> None:
    assert not any(issubclass(kind, MillpondError) for kind in (Retry, Snooze, Fail))


@pytest.mark.parametrize(
    "error",
    [
        Overloaded("full", reason="queue_full", queue="q", workload="w", retry_after=2.5, used=3),
        JobFailed("no", {"id": 3}),
        BadConfig("no"),
        Retry("later", after=3),
        Snooze(30),
        Snooze(datetime(2030, 1, 1, tzinfo=UTC), "closed"),
        Fail("no"),
    ],
)
def test_an_error_survives_pickling_with_all_it_carries(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (copy.args, copy.__dict__) == (error.args, error.__dict__)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e30, 10**400, "5", True])
def test_waits_that_are_no_sane_number_of_seconds_are_refused(seconds: Any) -> None:
    with pytest.raises(ValueError, match="number of seconds from 0"):
        Retry(after=seconds)
    with pytest.raises(ValueError, match="number of seconds from 0"):
        Snooze(seconds)


def test_a_snooze_until_a_naive_datetime_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match="has no time zone: use an aware datetime"):
        Snooze(datetime(2030, 1, 1))  # noqa: DTZ001  the point of the test


def test_a_reason_may_be_the_exception_that_was_caught() -> None:
    assert Fail(OSError("gone")).reason == "gone"  # type: ignore[arg-type]


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("value", ["x" * 5_000, [10**10_000], Unshowable()])
def test_a_refused_setting_is_named_even_when_its_value_cannot_be_shown(value: object) -> None:
    with pytest.raises(BadConfig, match=r"^worker\.slots is .*: it must be small") as caught:
        refuse_setting("worker.slots", value, "small")
    assert len(str(caught.value)) < 300
