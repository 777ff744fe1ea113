"""Lengths of time and sizes as people write them."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from millpond.errors import refuse_setting
from millpond.policy.backoff import LONGEST_MS

_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES: dict[str, int] = {"": 1, "b": 1} | {
    f"{letter}{infix}b": base**power
    for power, letter in enumerate("kmgt", start=1)
    for infix, base in (("", 1_000), ("i", 1_024))
}
_LARGEST = (1 << 63) - 1

_NUMBER = r"\d{1,20}(?:\.\d{1,20})?"
_DURATION = re.compile(rf"(?:{_NUMBER}\s*(?:ms|s|m|h|d|w)\s*)+", re.ASCII)
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(ms|s|m|h|d|w)", re.ASCII)
_PLAIN = re.compile(_NUMBER, re.ASCII)
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]*)", re.ASCII)


def parse_duration(value: object, name: str = "duration") -> int:
    """Return milliseconds from seconds (30, 0.5), a text ("10m", "1h30m", "250ms") or a timedelta.

    A text without a unit counts seconds. What lies between two milliseconds is rounded.
    Raises BadConfig, naming the setting `name`, for anything else, below 0 or above ten years.
    """
    length = _duration_ms(value)
    if length is None or not 0 <= length <= LONGEST_MS:
        allowed = (
            "a length of time from 0 to ten years: seconds, a timedelta, or a text such as "
            "'250ms', '30s', '10m', '1h30m', '7d'"
        )
        refuse_setting(name, value, allowed)
    return round(length)


def parse_bytes(value: object, name: str = "bytes") -> int:
    """Return bytes from an integer or a text: "64KiB", "2 GiB" (of 1,024), "500MB" (of 1,000).

    Raises BadConfig, naming the setting `name`, for anything else, and for parts of a byte.
    """
    size = _size(value)
    if size is None or not 0 <= size <= _LARGEST or size != int(size):
        allowed = (
            "a whole number of bytes, at least 0: an integer, or a text such as "
            "'64KiB', '2GiB', '500MB'"
        )
        refuse_setting(name, value, allowed)
    return int(size)


def _duration_ms(value: object) -> Decimal | None:
    if isinstance(value, timedelta):
        return Decimal(value // timedelta(microseconds=1)) / 1_000
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # The comparison refuses NaN, infinities and what no Decimal could round.
        inside = 0 <= value <= LONGEST_MS
        return Decimal(repr(float(value))) * 1_000 if inside else None
    if not isinstance(value, str):
        return None
    text = value.strip().lower()
    if _PLAIN.fullmatch(text):
        return Decimal(text) * 1_000
    if not _DURATION.fullmatch(text):
        return None
    length = Decimal(0)
    for number, unit in _DURATION_PART.findall(text):
        length += Decimal(number) * _MS[unit]
    return length


def _size(value: object) -> Decimal | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    found = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if found is None or found[2] not in _BYTES:
        return None
    return Decimal(found[1]) * _BYTES[found[2]]
