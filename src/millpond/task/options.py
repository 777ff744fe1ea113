"""The options of one enqueue: what `using(...)` accepts, checked before anything is written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict, get_args

from msgspec.structs import replace

from millpond.codec.coder import Coder
from millpond.codec.place import Place
from millpond.config.checks import (
    check_int,
    check_length,
    check_name,
    check_optional_int,
    is_utf8,
)
from millpond.config.settings import SHORTEST_LEASE_MS
from millpond.config.units import parse_duration
from millpond.errors import BadConfig, BadPayload, refuse_setting
from millpond.model import Coalesce, Connection, JobSpec
from millpond.policy.ordering import check_priority
from millpond.task.foreign import ENQUEUE_OPTIONS
from millpond.task.jobs import EPOCH

META_MAX = 16 * 1024
"""Bytes of JSON that `meta` may take: it is read with every claim of the job."""

_KEY_MAX = 512
_MILLISECOND = timedelta(milliseconds=1)
_LATER = {"tenant": "quotas of tenants", "reservation": "reservations"}
_NONE_MEANS_SOMETHING = frozenset({"timeout", "limit"})
_JSON = Coder(Any, depth=-1)
_META = Place(root="meta")


Duration = float | str | timedelta


class Options(TypedDict, total=False):
    """What `using(...)`, and enqueueing by name, accept; None means not given.

    Lengths of time are seconds, timedeltas or texts such as "10m"; `at` is an aware datetime.
    `timeout=None` means no timeout, and `limit=None` lifts the limit of that key.
    """

    delay: Duration | None
    at: datetime | None
    priority: int | None
    queue: str | None
    workload: str | None
    max_attempts: int | None
    timeout: Duration | None
    lease: Duration | None
    operation_id: str | None
    key: str | None
    key_ttl: Duration | None
    coalesce: str | None
    coalesce_mode: Coalesce | None
    serial_key: str | None
    limit_key: str | None
    limit: int | None
    meta: Mapping[str, Any] | None
    tx: Connection | None


def read_options(template: JobSpec, options: Mapping[str, object]) -> JobSpec:
    """Return the template with the options applied; `tx` is not part of a spec.

    Raises BadConfig for an option that is unknown, out of range or contradicts another, and
    BadPayload for meta that is no JSON.
    """
    given = {
        name: value
        for name, value in options.items()
        if value is not None or name in _NONE_MEANS_SOMETHING
    }
    if given.get("limit", 0) is None and "limit_key" not in given:
        del given["limit"]
    _check_together(given)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name == "tx":
            continue
        reader = _READERS.get(name)
        if reader is None:
            raise _unknown(name)
        field, read = reader
        fields[field] = read(name, value)
    if "serial_key" in given:
        fields["limit"] = 1
    return replace(template, **fields)


def with_payload(spec: JobSpec, payload: bytes) -> JobSpec:
    """Return the spec with its payload."""
    return replace(spec, payload=payload)


def text_key(name: str, value: object) -> str:
    """Return a key: any text of 1 to 512 characters that can be stored as UTF-8."""
    if isinstance(value, str) and 0 < len(value) <= _KEY_MAX and is_utf8(value):
        return value
    return refuse_setting(name, value, f"text of 1 to {_KEY_MAX} characters of valid Unicode")


def _moment(name: str, value: object) -> int:
    return moment_ms(name, value)


def moment_ms(name: str, value: object) -> int:
    """Return an aware datetime as milliseconds since 1970, rounded up.

    Raises BadConfig, naming the setting, for anything else.
    """
    if not isinstance(value, datetime):
        refuse_setting(name, value, "an aware datetime; for a length of time use delay=")
    if value.utcoffset() is None:
        raise BadConfig(
            f"{name}={value!r} has no time zone, so it could be any of 24 hours: give an aware "
            f"datetime, for example {name}=datetime({value.year}, {value.month}, {value.day}, "
            f'{value.hour}, {value.minute}, tzinfo=ZoneInfo("Asia/Kolkata")), or delay='
        )
    if not 2 <= value.year <= 9998:  # noqa: PLR2004  a zone's offset may move it by one
        refuse_setting(name, value, "a moment of the years 2 to 9998")
    # Rounded up, since a job never runs before its due time.
    return -((EPOCH - value) // _MILLISECOND)


def _delay(name: str, value: object) -> int:
    return parse_duration(value, name)


def _length(name: str, value: object) -> int:
    length = parse_duration(value, name)
    check_length(name, length, 1)
    return length


def _timeout(name: str, value: object) -> int | None:
    return None if value is None else _length(name, value)


def _lease(name: str, value: object) -> int:
    length = parse_duration(value, name)
    check_length(name, length, SHORTEST_LEASE_MS)
    return length


def _name(name: str, value: object) -> str:
    check_name(name, value)
    return value  # type: ignore[return-value]


def _priority(name: str, value: object) -> int:
    check_priority(value, name)
    return value  # type: ignore[return-value]


def _attempts(name: str, value: object) -> int:
    check_int(name, value, 1)
    return value  # type: ignore[return-value]


def _limit(name: str, value: object) -> int | None:
    check_optional_int(name, value, 1)
    return value  # type: ignore[return-value]


def _mode(name: str, value: object) -> Coalesce:
    for mode in get_args(Coalesce):
        if value == mode:
            return mode  # type: ignore[no-any-return]
    return refuse_setting(name, value, "'latest' or 'first'")


def _meta(name: str, value: object) -> bytes:
    if not isinstance(value, Mapping):
        raise BadPayload(f"{name}: give a mapping of names to JSON data, no {type(value).__name__}")
    return _JSON.encode(dict(value), _META, META_MAX)


def _check_together(given: Mapping[str, object]) -> None:
    pairs = (
        ("delay", "at", "give the due time once"),
        ("serial_key", "limit_key", "a serial key is a limit key with limit=1"),
        ("serial_key", "limit", "a serial key is a limit key with limit=1"),
    )
    for one, other, why in pairs:
        if one in given and other in given:
            raise BadConfig(f"{one}= and {other}= exclude each other: {why}")
    if ("limit_key" in given) != ("limit" in given):
        raise BadConfig(
            "limit_key= and limit= belong together: name the key and how many of its jobs may "
            "run at once (limit=None lifts its limit)"
        )
    for one, other in (("coalesce_mode", "coalesce"), ("key_ttl", "key")):
        if one in given and other not in given:
            raise BadConfig(f"{one}= says something only together with {other}=")


def _unknown(name: str) -> BadConfig:
    if name in _LATER:
        return BadConfig(f"{name}= is not available yet: this version has no {_LATER[name]}")
    if name in ENQUEUE_OPTIONS:
        return BadConfig(f"{name}= is no option of an enqueue: {ENQUEUE_OPTIONS[name]}")
    close = difflib.get_close_matches(name, [*_READERS, "tx"], n=1)
    hint = f"did you mean {close[0]}=?" if close else f"there are {', '.join([*_READERS, 'tx'])}"
    return BadConfig(f"{name}= is no option of an enqueue: {hint}")


_Read = Callable[[str, object], object]
_READERS: dict[str, tuple[str, _Read]] = {
    "delay": ("delay_ms", _delay),
    "at": ("due_at", _moment),
    "priority": ("priority", _priority),
    "queue": ("queue", _name),
    "workload": ("workload", _name),
    "max_attempts": ("max_attempts", _attempts),
    "timeout": ("timeout_ms", _timeout),
    "lease": ("lease_ms", _lease),
    "operation_id": ("operation_id", text_key),
    "key": ("key", text_key),
    "key_ttl": ("key_ttl_ms", _length),
    "coalesce": ("coalesce_key", text_key),
    "coalesce_mode": ("coalesce", _mode),
    "serial_key": ("limit_key", text_key),
    "limit_key": ("limit_key", text_key),
    "limit": ("limit", _limit),
    "meta": ("meta", _meta),
}
