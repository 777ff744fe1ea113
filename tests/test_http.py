from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from email.message import Message
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.errors import Retry
from millpond.http import retry_after_seconds, retry_from_response

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@given(st.text())
def test_a_header_never_raises_and_never_asks_for_a_negative_or_endless_wait(text: str) -> None:
    seconds = retry_after_seconds(text, NOW)
    assert seconds is None or 0 <= seconds <= 315_360_000
    Retry(after=seconds)


@given(st.integers(0, 10**8))
def test_a_number_is_seconds(seconds: int) -> None:
    assert retry_after_seconds(f" {seconds} ", NOW) == seconds


@given(st.integers(0, 10**8), st.sampled_from([UTC, timezone(timedelta(hours=2))]))
def test_a_date_is_the_time_until_then(seconds: int, zone: timezone) -> None:
    moment = NOW + timedelta(seconds=seconds)
    header = format_datetime(moment, usegmt=True)
    assert retry_after_seconds(header, NOW.astimezone(zone)) == seconds


@pytest.mark.parametrize(
    "date", ["Sun, 01 Mar 2026 12:01:00 GMT", "Sunday, 01-Mar-26 12:01:00 GMT"]
)
def test_both_ways_to_write_a_date_are_read(date: str) -> None:
    assert retry_after_seconds(date, NOW) == 60


def test_a_date_without_a_zone_is_utc() -> None:
    assert retry_after_seconds("Sun Mar  1 12:01:00 2026", NOW) == 60
    assert retry_after_seconds("Sun, 01 Mar 2026 12:01:00 -0000", NOW) == 60


def test_a_date_that_has_passed_means_now() -> None:
    assert retry_after_seconds("Sun, 01 Mar 2015 12:00:00 GMT", NOW) == 0


@pytest.mark.parametrize("text", [None, "", "soon", "-5", "1e3", "٣", "nan", "99:99", "0x10"])
def test_what_cannot_be_read_says_nothing(text: str | None) -> None:
    assert retry_after_seconds(text, NOW) is None


def test_a_number_beyond_all_reason_is_bounded() -> None:
    assert retry_after_seconds("9" * 400, NOW) == 315_360_000


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_answer_becomes_a_retry_after_what_it_asks(status: int) -> None:
    retry = retry_from_response(status, {"retry-AFTER": "7"}, NOW)
    assert retry is not None
    assert (retry.after, retry.reason) == (7, f"HTTP {status}")


def test_a_busy_answer_without_the_header_leaves_the_wait_to_the_backoff() -> None:
    retry = retry_from_response(503, {}, NOW)
    assert retry is not None
    assert retry.after is None


@pytest.mark.parametrize("status", [200, 404, 500])
def test_any_other_answer_is_not_for_the_helper_to_judge(status: int) -> None:
    assert retry_from_response(status, {"Retry-After": "7"}, NOW) is None


def test_the_headers_that_urllib_gives_are_read_as_they_are() -> None:
    headers: Message[str, str] = Message()
    headers["Retry-After"] = "7"
    retry = retry_from_response(503, headers, NOW)
    assert retry is not None
    assert retry.after == 7
