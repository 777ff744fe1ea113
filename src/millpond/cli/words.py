"""Text for terminals: what is stored may hold anything, and is shown without doing anything."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
_SECOND = 1_000
_TENTHS_BELOW = 10_000
"""Milliseconds; below them a length shows a tenth of a second."""

_ARGUMENT = re.compile(r"(?<![\w-])([a-z_]+)=(?![\w'\"<])")
"""An argument of Python that a message names without a value."""

PREVIEW = 4_096
"""Characters of a payload or result that are shown."""


def clean(text: str, limit: int | None = None) -> str:
    """Return text in which no character moves a cursor, changes a colour or ends the line.

    Longer than `limit` it is cut, and says so with an ellipsis.
    """
    shown = text if text.isprintable() else "".join(map(_visible, text))
    if limit is not None and len(shown) > limit:
        return shown[: limit - 1] + "…"
    return shown


def block(text: str) -> str:
    """Do what `clean` does for text of several lines."""
    return "\n".join(clean(line.replace("\t", "    ")) for line in text.split("\n"))


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def spoken(message: str, names: Mapping[str, str]) -> str:
    """Return a message about `name=` arguments in the words of who typed them otherwise."""
    return _ARGUMENT.sub(lambda found: names.get(found[1], found[0]), message)


def plural(count: int, noun: str) -> str:
    """Return "1 job" or "12,000 jobs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def length(ms: float) -> str:
    """Return a length of time as a person says it: 250 ms, 3.2 s, 5 m, 3 h, 2 d."""
    if ms < _SECOND:
        return f"{max(round(ms), 0)} ms"
    if ms < _TENTHS_BELOW:
        return f"{ms / _SECOND:.1f} s"
    for unit, above, letter in ((_DAY, 2 * _DAY, "d"), (_HOUR, 2 * _HOUR, "h")):
        if ms >= above:
            return f"{round(ms / unit)} {letter}"
    if ms >= 2 * _MINUTE:
        return f"{round(ms / _MINUTE)} m"
    return f"{round(ms / _SECOND)} s"


def seconds(number: float) -> str:
    """Return a number of seconds, rounded up: who tries again earlier is refused again."""
    return f"{max(-int(-number // 1), 1)} s"


def size(count: int) -> str:
    """Return a number of bytes as a person says it."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:  # noqa: PLR2004  what a KiB has of bytes
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def preview(data: Any) -> str:
    """Return data as JSON on one line, cut to a size that no terminal chokes on."""
    text = json.dumps(data, ensure_ascii=False, separators=(", ", ": "))
    if len(text) <= PREVIEW:
        return clean(text)
    return f"{clean(text[:PREVIEW])}… ({len(text) - PREVIEW:,} more characters; --json shows all)"


def _visible(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in {"W", "F"} else 1
