"""The query language of `jobs`: `state:failed queue:reports key:"report 812"`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

import click

from millpond.cli.words import clean
from millpond.model import JobFilter, State

TOKENS = {
    "state": ("state", "where jobs stand: scheduled, ready, running, completed, failed, cancelled"),
    "queue": ("queue", "the queue's name"),
    "workload": ("workload", "the workload's name"),
    "task": ("task", "the task's name"),
    "key": ("key", "the key that the job was enqueued with"),
    "operation": ("operation_id", "the operation id"),
    "reason": ("reason", "why a job is final: unknown_task, cancelled, …"),
    "fingerprint": ("fingerprint", "the kind of error that a failed job ended with"),
    "error": ("error", "a part of the last error, in any case of letters"),
    "tenant": ("tenant", "the tenant's name"),
    "age": ("created_before", "time since it was enqueued: age:<1h, age:>2d"),
    "ended": ("finished_before", "time since it became final: ended:<1h, ended:>2d"),
}
"""The tokens, the field of the filter that each sets, and what it means."""

_SPANS = frozenset({"age", "ended"})
_MOMENTS = ("created_after", "created_before", "finished_after", "finished_before")
_TOKEN = re.compile(r'([\w.]+):("(?:[^"\\]|\\.)*"|\S+)|(\S+)')
_ESCAPED = re.compile(r"\\(.)")
_WHOLE = re.compile(r'(\w+):([^":]+)')


class BadQuery(click.UsageError):
    """A query that cannot be understood, or that this version cannot answer."""


def parse(words: Sequence[str], now: int | None = None) -> JobFilter:
    """Return the filter that a query means at a moment; without words, all jobs.

    A value with blanks in it stands in quotes, `key:"report 812"`, which a shell must leave
    in place. Raises BadQuery that names the tokens there are.
    """
    found: dict[str, str] = {}
    for token, value in (pair for word in words for pair in _tokens(word)):
        field = _field(token, value)
        if field in found:
            raise BadQuery(f"{token}: is there twice; a job has one {token}")
        found[field] = value
    return JobFilter(**{**found, **_state(found), **_moments(found, now)})  # type: ignore[arg-type]


def _tokens(word: str) -> list[tuple[str, str]]:
    """Split one argument into tokens and values.

    A shell takes the quotes off, so an argument that names one token is taken as a whole.
    """
    whole = _WHOLE.fullmatch(word)
    if whole is not None and whole[1] in TOKENS:
        return [(whole[1], whole[2].strip())]
    return [(m[1] or "", _unquoted(m[2] or m[3] or "")) for m in _TOKEN.finditer(word)]


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] == '"':
        return _ESCAPED.sub(r"\1", value[1:-1])
    return value


def _field(token: str, value: str) -> str:
    if not token:
        raise BadQuery(_bare(value))
    if token not in TOKENS:
        close = difflib.get_close_matches(token, TOKENS, n=1)
        hint = f"did you mean {close[0]}:? " if close else ""
        known = ", ".join(f"{name}:" for name in TOKENS)
        raise BadQuery(f"this version knows no token {clean(token, 60)}: {hint}There are {known}")
    field = TOKENS[token][0]
    if token in _SPANS and value.startswith("<"):
        return field.replace("_before", "_after")
    return field


def _bare(value: str) -> str:
    if value.isdigit():
        return f"a query is made of tokens; for one job: millpond job {value[:30]}"
    shown = clean(value, 60)
    return (
        f"{shown!r} is no token: write NAME:VALUE, in quotes if it holds blanks, "
        'for example state:failed key:"report 812"'
    )


def _moments(found: dict[str, str], now: int | None) -> dict[str, int]:
    """Return the moments that lengths of time mean, counted back from now."""
    spans = {field: found[field] for field in _MOMENTS if field in found}
    if spans and now is None:
        from millpond.clock import SystemClock

        now = SystemClock().now()
    return {field: (now or 0) - _length(value) for field, value in spans.items()}


def _length(value: str) -> int:
    from millpond.config.units import parse_duration
    from millpond.errors import BadConfig

    try:
        return parse_duration(value[1:] if value[0] in "<>" else value)
    except BadConfig:
        msg = f"{clean(value, 60)!r} is no length of time: write <30m, >1h30m or >7d"
        raise BadQuery(msg) from None


def _state(found: dict[str, str]) -> dict[str, State]:
    if "state" not in found:
        return {}
    states = [state.value for state in State]
    if found["state"] not in states:
        close = difflib.get_close_matches(found["state"], states, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(states)}"
        raise BadQuery(f"there is no state {clean(found['state'], 60)!r}: {hint}")
    return {"state": State(found["state"])}
