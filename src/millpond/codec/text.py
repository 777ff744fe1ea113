"""Turns the text of `name=value` on a command line into a value of the annotated type."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import msgspec

from millpond.codec.blame import phrase
from millpond.codec.coder import Coder, from_json
from millpond.codec.place import Culprit, Link, graft
from millpond.codec.plain import parse_text


def coerce(hint: Any, text: str, link: Link, max_bytes: int) -> Any:
    """Return the value that a text means for an annotation.

    A parameter without annotation takes the text itself. Otherwise tried in this order: as a
    JSON string would be read (text, dates, Decimals, UUIDs, enums, base64 for bytes), as a
    scalar (`5`, `true`, `null`), as JSON (lists, objects, models). Raises Culprit when the text
    means nothing.
    """
    try:
        return msgspec.convert(text, hint, dec_hook=from_json)
    except Exception:  # noqa: BLE001, S110  the next reading may succeed, the last one tells
        pass
    if text.lstrip()[:1] in ("[", "{"):
        return _as_json(hint, text, link, max_bytes)
    return _as_scalar(hint, text, link)


def _as_scalar(hint: Any, text: str, link: Link) -> Any:
    try:
        value = msgspec.convert(text, hint, strict=False, dec_hook=from_json)
    except Exception as error:  # noqa: BLE001  a caller's types may raise anything
        raise Culprit(link, phrase(f"{error}, from the text given")) from None
    if isinstance(value, float) and not math.isfinite(value):
        raise Culprit(link, f"{value} is no JSON number")
    if isinstance(value, dt.datetime):
        # A bare number would silently become seconds since 1970.
        raise Culprit(link, "expected a date and time such as 2024-05-31T08:00:00Z")
    return value


def _as_json(hint: Any, text: str, link: Link, max_bytes: int) -> Any:
    try:
        return Coder(hint).load(parse_text(text, max_bytes))
    except Culprit as culprit:
        raise Culprit(graft(culprit.link, link), culprit.reason) from None
