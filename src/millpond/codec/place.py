"""Where in the arguments something is wrong, and the errors that say it.

A link is a step and the link before it; the path is spelled out only when there is an
error to report, so that a walk over good data builds no text.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from dataclasses import dataclass
from typing import TypeAlias

from millpond.errors import BadPayload

Link: TypeAlias = "tuple[Link, object] | None"

ARGUMENTS = "args"
RESULT = "result"

_LONGEST_STEP = 60
_FIRST_STEPS, _LAST_STEPS = 8, 4
_READABLE = (float, bool, type(None), dt.date, dt.time, dt.timedelta, uuid.UUID, decimal.Decimal)
_SHORT_INT = 10**20


class PayloadTooLarge(BadPayload):
    """Arguments or a result of more bytes than the limit; `size` may be a lower bound."""

    def __init__(self, message: str, size: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class Culprit(Exception):
    """The value at `link` cannot be stored or read, for `reason`; becomes a BadPayload."""

    def __init__(self, link: Link, reason: str) -> None:
        super().__init__(reason)
        self.link = link
        self.reason = reason


class Oversize(Exception):
    """The value takes `size` bytes, or at least so many when not `exact`.

    It becomes a PayloadTooLarge.
    """

    def __init__(self, size: int, *, exact: bool) -> None:
        super().__init__(size)
        self.size = size
        self.exact = exact


@dataclass(frozen=True, slots=True)
class Place:
    """What an error message calls the data: the task, where known, and the root of the path."""

    task: str = ""
    root: str = ARGUMENTS

    def at(self, link: Link = None) -> str:
        """Spell a path out, for instance `report(args.options.items[2].when)`."""
        path = self.root + "".join(_shorten(_steps(link)))
        return f"{self.task}({path})" if self.task else path

    def refuse(self, culprit: Culprit) -> BadPayload:
        """Return the error for a value that cannot be stored or read."""
        return BadPayload(f"{self.at(culprit.link)}: {culprit.reason}")

    def too_large(self, found: Oversize, limit: int) -> PayloadTooLarge:
        """Return the error for data above the limit, with both numbers and the way out."""
        size = f"{found.size:,}" if found.exact else f"at least {found.size:,}"
        return PayloadTooLarge(
            f"{self.at()}: takes {size} bytes as JSON, the limit is {limit:,}; "
            "store the data elsewhere and pass a reference",
            found.size,
            limit,
        )


def graft(link: Link, root: Link) -> Link:
    """Return the path that leads to `root` and from there along `link`."""
    if link is None:
        return root
    before, step = link
    return graft(before, root), step


def _steps(link: Link) -> list[str]:
    steps = []
    while link is not None:
        link, step = link
        steps.append(_spell(step))
    return steps[::-1]


def _shorten(steps: list[str]) -> list[str]:
    if len(steps) <= _FIRST_STEPS + _LAST_STEPS:
        return steps
    return [*steps[:_FIRST_STEPS], "...", *steps[-_LAST_STEPS:]]


def _spell(step: object) -> str:
    if type(step) is str:
        return _spell_name(step)
    if type(step) is int and abs(step) < _SHORT_INT:
        return f"[{step}]"
    # Other keys may be of any size, secret, or without a working repr: their type is enough.
    return f"[{step}]" if type(step) in _READABLE else f"[{type(step).__name__}]"


def _spell_name(name: str) -> str:
    if name.isidentifier() and len(name) <= _LONGEST_STEP:
        return f".{name}"
    if len(name) > _LONGEST_STEP:
        name = name[:_LONGEST_STEP] + "..."
    # In ASCII, since the name may be the very text that is not valid Unicode.
    return f"[{json.dumps(name)}]"
