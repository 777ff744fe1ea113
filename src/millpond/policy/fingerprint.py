"""Failures of one kind get one fingerprint; their texts are cut so that any store can hold them."""

from __future__ import annotations

import hashlib
import re

MESSAGE_LIMIT = 2_000
TRACEBACK_LIMIT = 8_000

_LEFT_OUT = " ... {} characters left out ... "

_LINES_MARK = 40
"""Characters kept free in each half of a traceback for the line that says what is missing."""

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")

# In this order, since what is more specific is replaced before its parts look like numbers.
_VARIABLE = tuple(
    (re.compile(pattern, re.ASCII), placeholder)
    for pattern, placeholder in (
        (r"(?<![\w-])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![\w-])", "<uuid>"),
        (
            (
                r"\b\d{4}-\d\d-\d\d"
                r"([T ]\d\d:\d\d(:\d\d([.,]\d{1,9})?)?( ?(Z|UTC|[+-]\d\d:?\d\d))?)?"
            ),
            "<time>",
        ),
        (r"(?<!\w)'[^'\n]*'(?!\w)", "<text>"),
        (r'(?<!\w)"[^"\n]*"(?!\w)', "<text>"),
        (r"\b[a-z][a-z0-9+.-]{0,20}://[^\s,;)>\]]+", "<url>"),
        (r"(?<![\w<])([A-Za-z]:\\|~?/)[^\s:,;'\"()<>\[\]]+", "<path>"),
        (r"\b0[xX][0-9a-fA-F]+", "<n>"),
        # A hash, which now and then has no letter: so it shares the placeholder of numbers.
        (r"[-+]?\b(?=[a-fA-F]{0,128}\d)[0-9a-fA-F]{8,128}\b", "<n>"),
        (r"[-+]?\d+([.,_]\d+)*([eE][-+]?\d+)?", "<n>"),
    )
)


def fingerprint(task: str, error_type: str, message: str, frame: str) -> str:
    """Return 16 hex digits that are equal for failures of one kind.

    `frame` names the function where it happened, without a line number, so that an edit
    elsewhere in its file starts no new group. The message counts without what varies from
    one occurrence to the next: see `normalised`.
    """
    parts = (task, error_type, normalised(message), frame)
    digest = hashlib.blake2s(digest_size=8)
    for part in parts:
        text = storable(part).encode()
        # The length keeps ("ab", "c") apart from ("a", "bc").
        digest.update(f"{len(text)}:".encode() + text)
    return digest.hexdigest()


def normalised(message: str) -> str:
    """Return the message with ids, moments, quoted texts, addresses, paths and numbers replaced."""
    text = safe_message(message)
    for pattern, placeholder in _VARIABLE:
        text = pattern.sub(placeholder, text)
    return text


def storable(text: str) -> str:
    """Return text that UTF-8 and a database column can hold: no lone surrogate, no NUL."""
    return _UNSTORABLE.sub("\ufffd", text)


def safe_message(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return storable text of at most `limit` characters: head and tail of what is longer."""
    if len(text) <= limit:
        return storable(text)
    # The mark is measured with the largest number it could have to show.
    room = limit - len(_LEFT_OUT.format(len(text)))
    if room <= 0:
        return storable(text[:limit])
    head = room * 2 // 3
    end = len(text) - (room - head)
    return storable(text[:head] + _LEFT_OUT.format(end - head) + text[end:])


def bounded_traceback(text: str, limit: int = TRACEBACK_LIMIT) -> str:
    """Return a storable traceback of at most `limit` characters, its middle left out by lines.

    The head shows where the job entered and the tail the error itself; what repeats in a
    deep recursion stands between them.
    """
    if len(text) <= limit:
        return storable(text)
    room = max(limit // 2 - _LINES_MARK, 0)
    head = text[: text.rfind("\n", 0, room) + 1]
    tail = text[text.find("\n", len(text) - room) + 1 :]
    if not head or not tail or len(tail) > room:
        return safe_message(text, limit)
    lines = text.count("\n") - head.count("\n") - tail.count("\n")
    return storable(f"{head}  ... {lines} lines left out ...\n{tail}")
