"""What an HTTP answer says about trying again: the `Retry-After` header of 429 and 503."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Protocol

from millpond.errors import Retry

TRY_AGAIN = frozenset({429, 503})
"""Statuses whose answer may carry a `Retry-After`."""

_LONGEST = 10 * 365 * 86_400
"""Seconds, the longest that `Retry` accepts: a server may send any number of digits."""

_SECONDS = re.compile(r"\d+(\.\d*)?", re.ASCII)


class Headers(Protocol):
    """The headers of an answer, of any HTTP library: a mapping, or urllib's message."""

    def items(self) -> Iterable[tuple[str, str]]:
        """Return names and values."""
        ...


def retry_after_seconds(header_value: str | None, now: datetime | None = None) -> float | None:
    """Return the seconds that a `Retry-After` header asks to wait, None when it says nothing.

    It holds a number of seconds or an HTTP date; a date that has passed gives 0. `now` is an
    aware datetime, by default the host's clock. What cannot be read counts as absent, since
    a job's backoff is the better answer to a malformed header than a failure.
    """
    text = (header_value or "").strip()
    if _SECONDS.fullmatch(text):
        return min(float(text), _LONGEST)
    moment = _http_date(text)
    if moment is None:
        return None
    wait = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(wait, 0.0), _LONGEST)


def retry_from_response(status: int, headers: Headers, now: datetime | None = None) -> Retry | None:
    """Return the `Retry` to raise for a 429 or 503 answer, None for any other status.

    Without a readable `Retry-After` the task's backoff decides alone. Header names count
    without regard to case.

        if retry := retry_from_response(answer.status_code, answer.headers):
            raise retry
    """
    if status not in TRY_AGAIN:
        return None
    header = next((v for k, v in headers.items() if k.lower() == "retry-after"), None)
    return Retry(f"HTTP {status}", after=retry_after_seconds(header, now))


def _http_date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # An HTTP date is in UTC by definition, also where it does not say so.
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
