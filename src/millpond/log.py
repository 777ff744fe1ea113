"""One structured line for each thing that happens to a job, over the standard library's logging.

Every line has a name and fields: `event(log, logging.INFO, Line.STARTED, job=12, attempt=1)`.
A handler of anybody's shows them as text, since the record's message holds them too;
`JsonFormatter` makes an object of them. Values are cut to a size, secrets are hidden by their
names, and what a job carries (payload, arguments, result) never appears.

Nothing here touches the root logger or prints by itself. `configure` is for processes that
are millpond's own, such as its worker.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from functools import lru_cache
from pathlib import PurePath
from typing import Any, Literal, TextIO
from uuid import UUID

from millpond.outlet import Outlet

NAME = "millpond"

HIDDEN = "[redacted]"
NOT_LOGGED = "[not logged]"
LEFT_OUT = "[left out]"

TEXT_LIMIT = 500
"""Characters of one text in a field; the whole belongs into the job's history."""

MESSAGE_LIMIT = 2_000
"""Characters of a line in plain sentences: what to do about it stands at its end."""

TRACEBACK_LIMIT = 8_000
ITEM_LIMIT = 20
DEPTH_LIMIT = 4
VALUE_LIMIT = 64
"""Values inside one field, over all its depths."""

_PAIR = 2

_SECRETS = re.compile(
    r"passw|passphrase|token|secret|authorization|api[_\-. ]?key|private[_\-. ]?key|credential"
    r"|cookie",
    re.IGNORECASE,
)
_BODIES = frozenset({"payload", "args", "kwargs", "arguments", "result", "body", "remembered"})

# The last @ ends it: a password may hold one of its own.
_USERINFO = re.compile(r"(?<=://)[^\s/?#]*:[^\s/?#]*@")

_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""What every record has; the rest came as `extra`."""

_BARE = re.compile(r"[\w.,:;/@#%&*+(){}<>~^|$!?-]+")

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["text", "json"]


class Line(StrEnum):
    """The lines that tell a job's life; each has `job`, `attempt`, `task` and `queue`."""

    CLAIMED = "claimed"
    """A worker took it: `wait_ms` since it was due."""
    STARTED = "started"
    """Its handler is called: `wait_ms`."""
    FINISHED = "finished"
    """It completed: `wait_ms`, `run_ms`."""
    RETRIED = "retried"
    """The attempt failed, another comes: `max_attempts`, `next_due`, `error`, `run_ms`."""
    SNOOZED = "snoozed"
    """It runs again later, uncharged: `next_due`, `run_ms`."""
    FAILED = "failed"
    """It failed for good: `reason`, `error`, `run_ms`."""
    CANCELLED = "cancelled"
    """It was cancelled: `run_ms`."""
    LEASE_LOST = "lease_lost"
    """It is no longer this worker's: `run_ms`."""
    RECOVERED = "recovered"
    """An expired lease was taken back: `next_due`."""
    RELEASED = "released"
    """The worker handed it back unfinished, uncharged."""


def event(
    logger: logging.Logger,
    level: int,
    name: str,
    /,
    *,
    exc_info: BaseException | None = None,
    **fields: Any,
) -> None:
    """Log one line; fields that are None are left out, `exc_info` adds a traceback.

    Costs a comparison when nobody wants the level.
    """
    if not logger.isEnabledFor(level):
        return
    shown = _redacted(fields)
    extra = {"millpond_event": str(name), "millpond_fields": shown}
    words = _Words(str(name), shown)
    logger.log(level, "%s", words, extra=extra, exc_info=exc_info, stacklevel=2)


def redact(value: object, name: str = "") -> Any:
    """Return a bounded copy of a value, as JSON data, with what secret names stand for hidden.

    A name counts as secret when it holds password, token, secret, authorization, api_key,
    credential, cookie or the like, in any case and at any depth; passwords in addresses are
    hidden too. Never raises, whatever the value's own methods do.
    """
    return _Redactor().shown(value, name, DEPTH_LIMIT)


def configure(
    format: Format = "text",
    level: Level = "info",
    stream: TextIO | None = None,
    *,
    outlet: Outlet | None = None,
) -> logging.Handler:
    """Send millpond's lines to a stream, standard error by default; for our own processes only.

    A second call replaces what the first one set up. The root logger is left alone. With an
    `outlet` no line ever waits for its reader.
    """
    logger = logging.getLogger(NAME)
    for old in [h for h in logger.handlers if isinstance(h, _OwnHandler | _OutletHandler)]:
        logger.removeHandler(old)
    handler: logging.Handler
    if outlet is not None:
        handler = _OutletHandler(outlet)
    else:
        handler = _OwnHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


class JsonFormatter(logging.Formatter):
    """One JSON object a line: at, level, logger, event or message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON, whatever it holds."""
        line = _head(record)
        for key, value in _fields(record).items():
            # A field never hides what the line itself says.
            line[f"{key}_" if key in line else key] = value
        traceback = _traceback(self, record)
        if traceback:
            line["traceback"] = traceback
        return _JSON.encode(line)


class TextFormatter(logging.Formatter):
    """One line for people: moment, level, name and `key=value` fields; a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, with everything that could forge another one escaped."""
        head = _head(record)
        words = _words(head.get("event") or head["message"], _fields(record))
        line = f"{head['at']} {head['level']:<7} {words}"
        traceback = _traceback(self, record)
        return "\n".join([line, *map(_visible, traceback.split("\n"))]) if traceback else line


class _OwnHandler(logging.StreamHandler[TextIO]):
    """Marks the handler that `configure` may replace."""


class _OutletHandler(logging.Handler):
    """Hands lines to an outlet, which never blocks."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._outlet.put(self.format(record))
        except Exception:  # noqa: BLE001  as every handler of the standard library
            self.handleError(record)


class _Words:
    """The text of a line, made only if some formatter asks for it."""

    __slots__ = ("_fields", "_name")

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._name = name
        self._fields = fields

    def __str__(self) -> str:
        return _words(self._name, self._fields)


def _head(record: logging.LogRecord) -> dict[str, Any]:
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    head = {
        "at": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    name = getattr(record, "millpond_event", None)
    if name is not None:
        return head | {"event": name}
    return head | {"message": _text(_message(record), MESSAGE_LIMIT)}


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  a mistake in a log call must not stop a worker
        return f"{record.msg!r} could not be formatted: {type(error).__name__}"


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the fields of a line of ours, or what anybody else passed as `extra`."""
    fields: Mapping[str, Any] | None = getattr(record, "millpond_fields", None)
    if fields is not None:
        return fields
    return _redacted({key: v for key, v in vars(record).items() if key not in _STANDARD})


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    text = _clean(formatter.formatException(record.exc_info))
    if len(text) > TRACEBACK_LIMIT:
        half = TRACEBACK_LIMIT // 2
        missing = len(text) - 2 * half
        text = f"{text[:half]}\n... {missing} characters left out ...\n{text[-half:]}"
    return text


def _words(name: str, fields: Mapping[str, Any]) -> str:
    return " ".join([_visible(name), *(f"{key}={_word(value)}" for key, value in fields.items())])


def _word(value: object) -> str:
    if isinstance(value, str) and _BARE.fullmatch(value):
        return _visible(value)
    return _visible(_JSON.encode(value))


def _visible(text: str) -> str:
    """Return text in which no character moves a terminal's cursor or starts another line."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def _redacted(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _field_name(key): redact(value, key) for key, value in fields.items() if value is not None
    }


class _Redactor:
    """Copies one value, counting what it has shown, so that width times depth stays bounded."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = VALUE_LIMIT

    def shown(self, value: object, name: str, depth: int) -> Any:
        self._left -= 1
        hidden = _hidden(name)
        if hidden is not None:
            return hidden
        if self._left < 0:
            return LEFT_OUT
        try:
            return self._copied(value, depth)
        except Exception as error:  # noqa: BLE001  a value's own methods may do anything
            return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"

    def _copied(self, value: object, depth: int) -> Any:
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        flat = isinstance(value, (str, bytes, bytearray, memoryview))
        if not flat and isinstance(value, (Sequence, set, frozenset)):
            return self._items(list(value), depth)
        return _scalar(value)

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        if depth == 0:
            return f"<{len(value)} entries>"
        entries = list(value.items())
        shown = {
            _text(str(key)): self.shown(entry, str(key), depth - 1)
            for key, entry in entries[:ITEM_LIMIT]
        }
        more = len(entries) - ITEM_LIMIT
        return shown | {"...": f"<{more} more>"} if more > 0 else shown

    def _items(self, items: list[Any], depth: int) -> Any:
        if depth == 0:
            return f"<{len(items)} items>"
        # A pair of a name and a value is how headers travel.
        paired = len(items) == _PAIR and isinstance(items[0], str)
        names = ["", items[0]] if paired else [""] * ITEM_LIMIT
        shown = [
            self.shown(item, name, depth - 1) for item, name in zip(items, names, strict=False)
        ]
        more = len(items) - ITEM_LIMIT
        return [*shown, f"<{more} more>"] if more > 0 else shown


@lru_cache(1_024)  # the same few names come with every line
def _hidden(name: str) -> str | None:
    if _SECRETS.search(name):
        return HIDDEN
    return NOT_LOGGED if name.lower() in _BODIES else None


@lru_cache(1_024)
def _field_name(key: str) -> str:
    return _visible(_text(key))


def _scalar(value: object) -> Any:
    match value:
        case None | bool():
            return value
        case Enum():
            return _scalar(value.value)
        case str():
            return _text(value)
        case int():
            # What is longer than a column of ours cannot be an id, and readers lose its digits.
            return value if -(1 << 63) <= value < 1 << 63 else "<an integer beyond 64 bits>"
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case datetime() if value.utcoffset() is not None:
            shown = value.astimezone(UTC).isoformat(timespec="milliseconds")
            return shown.replace("+00:00", "Z")
        case date() | time() | timedelta() | Decimal() | UUID() | PurePath():
            return _text(str(value))
        case BaseException():
            return _text(f"{type(value).__name__}: {value}")
        case _:
            return f"<{type(value).__name__}>"


def _text(text: str, limit: int = TEXT_LIMIT) -> str:
    if len(text) <= limit and text.isascii() and "://" not in text and "\x00" not in text:
        return text  # nearly every one, so the rest of the work is seldom done
    clean = _clean(text)
    if len(clean) <= limit:
        return clean
    return f"{clean[:limit]}... ({len(clean) - limit} more characters)"


def _clean(text: str) -> str:
    return _USERINFO.sub(f"{HIDDEN}@", _UNSTORABLE.sub("\ufffd", text))
