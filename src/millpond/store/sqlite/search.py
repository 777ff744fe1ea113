"""Finding all jobs of a pinned set, step by step, each step a short read.

A job's state is where its id stands, so a search walks the places of the wanted states, in
the order of their keys, and remembers how far it came. What the place does not tell (workload,
keys, the error) is looked up for the jobs that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from millpond.model import FINAL_STATES, Found, JobFilter, JobId, Pin, State
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.views import ident_of

SCAN = 20_000
"""Rows that a step looks at: some ten milliseconds of reading."""

Execute = Callable[..., Any]
_encode = msgspec.json.encode
_END = (1 << 63) - 1
_START = -(1 << 63)
_WAITING: dict[State, tuple[str, ...]] = {
    State.SCHEDULED: ("scheduled",),
    State.READY: ("ready", "blocked"),
    State.RUNNING: ("running",),
}
_KEYS: dict[str, tuple[str, ...]] = {
    "scheduled": ("due", "id"),
    "ready": ("lane", "rank", "id"),
    "blocked": ("kind", "ref", "lane", "rank", "id"),
    "running": ("id",),
}
_TEXTS = frozenset({"kind", "ref"})


def matching(
    execute: Execute,
    where: JobFilter,
    states: Collection[State],
    pin: Pin,
    after: tuple[int | str, ...] | None,
) -> Found:
    """Return the jobs that the next SCAN rows hold, and where to go on."""
    places = _places(where, states)
    if not places:
        return Found((), None)
    place, key = (str(after[0]), after[1:]) if after is not None else (places[0], ())
    look = _look_at_final if place in FINAL_STATES else _look_at_waiting
    ids, reached = look(execute, place, key, where, pin)
    if reached is not None:
        return Found(ids, (place, *reached))
    following = places[places.index(place) + 1 :]
    return Found(ids, (following[0],) if following else None)


def _places(where: JobFilter, states: Collection[State]) -> list[str]:
    """Return the places to walk: those of the wanted states that can hold what is wanted."""
    if where.state is not None:
        states = [state for state in states if state is where.state]
    of_final = (where.reason, where.fingerprint, where.finished_after, where.finished_before)
    only_final = any(value is not None for value in of_final)
    found: list[str] = []
    for state in State:
        if state in states and state in FINAL_STATES:
            found.append(state.value)
        elif state in states and not only_final:
            found += _WAITING[state]
    return found


def _look_at_final(
    execute: Execute, place: str, key: tuple[Any, ...], where: JobFilter, pin: Pin
) -> tuple[tuple[JobId, ...], tuple[int, ...] | None]:
    first = _START if where.finished_after is None else where.finished_after - 1
    at, ident = key or (first, _END)
    by = pin.ended_by if where.finished_before is None else min(pin.ended_by, where.finished_before)
    span = {"state": place, "at": at, "id": ident, "by": by}
    bound = execute(SQL["final_bound"], {**span, "scan": SCAN}).fetchone()
    to_at, to_id = bound or (by, _END)
    rows = execute(
        SQL["pick_final"],
        {**span, "to_at": to_at, "to_id": to_id, "max_id": pin.max_id,
         "queue": ident_of(execute, "queue_id", where.queue),
         "task": ident_of(execute, "task_id", where.task), "reason": where.reason,
         "fingerprint": where.fingerprint},
    )  # fmt: skip
    ids = tuple(JobId(row[0]) for row in rows.fetchall())
    return _narrowed(execute, ids, where, pin, asked=False), bound


def _look_at_waiting(
    execute: Execute, place: str, key: tuple[Any, ...], where: JobFilter, pin: Pin
) -> tuple[tuple[JobId, ...], tuple[Any, ...] | None]:
    names = _KEYS[place]
    start = key or tuple("" if name in _TEXTS else _START for name in names)
    param = dict(zip(names, start, strict=True))
    rows = execute(SQL[f"page_{place}"], {**param, "scan": SCAN}).fetchall()
    ids = tuple(JobId(row[-1]) for row in rows)
    reached = tuple(rows[-1][:-1]) if len(rows) == SCAN else None
    return _narrowed(execute, ids, where, pin, asked=True), reached


def _narrowed(
    execute: Execute, ids: tuple[JobId, ...], where: JobFilter, pin: Pin, *, asked: bool
) -> tuple[JobId, ...]:
    """Return the jobs that fit what stands in their own row; without a look when nothing does."""
    param = {
        "workload": where.workload, "tenant": where.tenant, "key": where.key,
        "operation_id": where.operation_id, "created_after": where.created_after,
        "created_before": where.created_before, "error": where.error,
    }  # fmt: skip
    if not ids or not (asked or any(value is not None for value in param.values())):
        return ids
    rows = execute(
        SQL["narrow"],
        {**param, "ids": _encode(ids).decode(), "max_id": pin.max_id,
         "queue": ident_of(execute, "queue_id", where.queue),
         "task": ident_of(execute, "task_id", where.task)},
    )  # fmt: skip
    return tuple(JobId(row[0]) for row in rows.fetchall())
