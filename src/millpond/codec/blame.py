"""Turns the decoder's complaints into a path and a reason in our words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from millpond.codec.place import Culprit, Link

Decode = Callable[[bytes], Any]

_AT = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>.*)`\Z", re.DOTALL)
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d+)\]|(?P<any>\[\.\.\.\])")
_MISSING = re.compile(r"Object missing required field `(.*)`\Z", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`\Z", re.DOTALL)
_EXPECTED = re.compile(r"expected (.*), got (.*)\Z", re.DOTALL)
_LONGEST = 500

_ANY = object()
"""A step that the decoder does not name: some key of a dict."""


def blame(error: Exception, data: bytes, decode: Decode) -> Culprit:
    """Find what a failed `decode(data)` complained about, down to the keys of dicts."""
    steps, reason = _parse(str(error))
    if _ANY in steps:
        try:
            plain = msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            # The decoder may complain about a type before it meets JSON that is broken.
            plain = None
        steps, reason = _name_keys(plain, decode, str(error))
    return Culprit(_link(steps), phrase(reason))


def phrase(complaint: str) -> str:
    """Fit a complaint of the decoder into the middle of a sentence."""
    return complaint.replace("`", "").replace("Expected ", "expected ", 1)


def look_up(root: Any, link: Link) -> Any:
    """Return the part of a Python value at a path of its JSON, `...` when there is none."""
    steps = []
    while link is not None:
        link, step = link
        steps.append(step)
    try:
        for step in reversed(steps):
            keyed = isinstance(root, dict | list | tuple)
            root = root[step] if keyed else getattr(root, str(step))
    except Exception:  # noqa: BLE001  an unhelpful value must not spoil the message
        return ...
    return root


def retell(culprit: Culprit, given: Any) -> Culprit:
    """Name the type that the caller passed, where the decoder speaks of the type of its JSON."""
    wanted = _EXPECTED.search(culprit.reason)
    part = look_up(given, culprit.link)
    if wanted is None or part is ...:
        return culprit
    name = "None" if part is None else type(part).__name__
    reason = f"{culprit.reason[: wanted.start()]}expected {wanted[1]}, got {name}"
    return Culprit(culprit.link, reason)


def _parse(message: str) -> tuple[list[object], str]:
    found = _AT.search(message)
    reason = message[: found.start()] if found else message
    steps = _steps(found["path"]) if found else []
    if found and found["key"]:
        return [*steps, _ANY], f"the key: {reason[:_LONGEST]}"
    for pattern, words in (
        (_MISSING, "is missing"),
        (_UNKNOWN, "is unknown: nothing here takes it"),
    ):
        named = pattern.match(reason)
        if named:
            return [*steps, named[1]], words
    return steps, reason[:_LONGEST]


def _steps(path: str) -> list[object]:
    steps: list[object] = []
    for found in _STEP.finditer(path):
        if found["any"]:
            steps.append(_ANY)
        else:
            steps.append(int(found["index"]) if found["index"] else found["name"])
    return steps


def _link(steps: list[object]) -> Link:
    link: Link = None
    for step in steps:
        link = (link, "..." if step is _ANY else step)
    return link


def _name_keys(plain: Any, decode: Decode, message: str) -> tuple[list[object], str]:
    """Replace each unnamed step by its key: halve the dict until one entry still fails alike."""
    steps, reason = _parse(message)
    for at, step in enumerate(steps):
        if step is not _ANY:
            continue
        node = _follow(plain, steps[:at])
        if not isinstance(node, dict) or not _halve(node, plain, decode, message):
            break
        (steps[at],) = node
    return steps, reason


def _follow(plain: Any, steps: list[object]) -> Any:
    try:
        for step in steps:
            plain = plain[step]
    except (LookupError, TypeError):
        return None
    return plain


def _halve(node: dict[str, Any], plain: Any, decode: Decode, message: str) -> bool:
    """Leave in `node`, a part of `plain`, the entry that makes decoding fail with `message`."""
    entries = list(node.items())
    while len(entries) > 1:
        first, second = entries[: len(entries) // 2], entries[len(entries) // 2 :]
        _refill(node, first)
        entries = first if _complaint(plain, decode) == message else second
    _refill(node, entries)
    return _complaint(plain, decode) == message


def _refill(node: dict[str, Any], entries: list[tuple[str, Any]]) -> None:
    node.clear()
    node.update(entries)


def _complaint(plain: Any, decode: Decode) -> str | None:
    try:
        decode(msgspec.json.encode(plain))
    except Exception as error:  # noqa: BLE001  whatever the types of a user's field raise
        return str(error)
    return None
