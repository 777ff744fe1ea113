"""JSON without a signature: payloads by name, text typed by a person, and results."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from millpond.codec.coder import MAX_BYTES, Coder
from millpond.codec.hints import storable
from millpond.codec.place import RESULT, Culprit, Oversize, Place
from millpond.codec.walk import MAX_DEPTH, locate

_VALUE = Coder(Any)
_OBJECT = Coder(Any, depth=-1)
_NESTING = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
"""Texts in quotes, even unclosed ones, so that brackets inside them do not count."""

_MOST_WHITESPACE = 8
"""Text of more than so many times the limit is refused unread; whitespace else is free."""


class _Twice:
    """Stands where an object names a key twice, until the path to it is known."""

    def __init__(self, key: str) -> None:
        self.key = key


def encode_json(obj: Mapping[str, Any], *, task: str = "", max_bytes: int = MAX_BYTES) -> bytes:
    """Return the payload for arguments given as plain JSON data, without the task's code.

    Raises BadPayload with the path of what is not plain JSON data or would not come back the
    same, and PayloadTooLarge above `max_bytes`.
    """
    place = Place(task)
    if not isinstance(obj, Mapping):
        reason = f"expected a mapping of parameter names to values, got {type(obj).__name__}"
        raise place.refuse(Culprit(None, reason))
    try:
        plain = dict(obj)
    except Exception as error:
        reason = f"this {type(obj).__name__} cannot be read as a mapping"
        raise place.refuse(Culprit(None, reason)) from error
    return _OBJECT.encode(plain, place, max_bytes)


def parse_json(text: str | bytes, max_bytes: int = MAX_BYTES, *, task: str = "") -> bytes:
    """Return the canonical form of JSON text that a person or another program wrote.

    Canonical is: UTF-8, no whitespace, no escapes that need not be. Raises BadPayload for what
    is no strict JSON: NaN and infinities (also a number too large for a float), a key named
    twice, lone surrogates, text after the end, more than 200 levels; and PayloadTooLarge.
    """
    place = Place(task)
    try:
        return parse_text(text, max_bytes)
    except Culprit as culprit:
        raise place.refuse(culprit) from None
    except Oversize as found:
        raise place.too_large(found, max_bytes) from None


def parse_text(text: str | bytes, max_bytes: int) -> bytes:
    """Do what `parse_json` does, but raise Culprit and Oversize, for callers that know the path."""
    data = _parse(text, max_bytes)
    return (_OBJECT if type(data) is dict else _VALUE).dump(data, max_bytes)


def encode_result(
    value: Any,
    annotation: Any = None,
    *,
    task: str = "",
    max_bytes: int = MAX_BYTES,
) -> bytes:
    """Return the JSON of a task's result; `annotation` None means that none is declared.

    Raises BadPayload with the path of what would not come back the same, or PayloadTooLarge.
    """
    place = Place(task, RESULT)
    return _result_coder(annotation, place).encode(value, place, max_bytes)


def decode_result(data: bytes, annotation: Any = None, *, task: str = "") -> Any:
    """Return a stored result; raises BadPayload when it does not fit the annotation any more."""
    place = Place(task, RESULT)
    return _result_coder(annotation, place).decode(data, place)


def _result_coder(annotation: Any, place: Place) -> Coder:
    if annotation is None:
        return _VALUE
    try:
        return _coder_of(annotation)
    except TypeError as error:
        # Also raised for an annotation that cannot be a key of the cache; then it is made anew.
        reason = f"the return annotation cannot be told apart in JSON: {error}"
    except Exception as error:  # noqa: BLE001  types of the caller's own are looked at
        reason = f"the return annotation cannot be used: {error}"
    raise place.refuse(Culprit(None, reason))


@functools.lru_cache(maxsize=512)
def _coder_of(annotation: Any) -> Coder:
    return Coder(storable(annotation))


def _parse(text: str | bytes, max_bytes: int) -> Any:
    if len(text) > max_bytes * _MOST_WHITESPACE:
        raise Oversize(len(text), exact=isinstance(text, bytes))
    characters = _decode_text(text)
    _check_nesting(characters)
    try:
        data = json.loads(characters, object_pairs_hook=_object)
    except RecursionError:
        raise Culprit(None, "is nested too deeply") from None
    except ValueError as error:
        raise Culprit(None, f"is not valid JSON: {error}") from None
    found = locate(data, _twice)
    if found is not None:
        raise found
    return data


def _decode_text(text: str | bytes) -> str:
    if isinstance(text, str):
        return text
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise Culprit(None, f"is not valid UTF-8: {error.reason} at byte {error.start}") from None


def _check_nesting(text: str) -> None:
    """Refuse nesting before the parser, which recurses, meets it."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for found in _NESTING.finditer(text):
        first = found[0][0]
        depth += (first in "[{") - (first in "]}")
        # One more than allowed, for the object of the arguments; the exact count comes later.
        if depth > MAX_DEPTH + 1:
            raise Culprit(None, f"is nested deeper than {MAX_DEPTH} levels")


def _object(pairs: list[tuple[str, Any]]) -> Any:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Twice(key)
        seen.add(key)
    return made


def _twice(leaf: object) -> str | None:
    return f"names the key {json.dumps(leaf.key)} twice" if isinstance(leaf, _Twice) else None
