"""Which jobs a list or a selection means, as keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from millpond.config.checks import check_choice, check_text
from millpond.model import JobFilter, State
from millpond.task.options import moment_ms

STATES = tuple(state.value for state in State)

_MOMENTS = ("created_after", "created_before", "finished_after", "finished_before")


class Where(TypedDict, total=False):
    """What narrows a list of jobs; each argument does, None does not."""

    queue: str | None
    workload: str | None
    task: str | None
    tenant: str | None
    key: str | None
    operation_id: str | None
    reason: str | None
    fingerprint: str | None
    error: str | None
    created_after: datetime | None
    created_before: datetime | None
    finished_after: datetime | None
    finished_before: datetime | None


def job_filter(state: State | str | None, where: Mapping[str, Any]) -> JobFilter:
    """Return the filter that keyword arguments mean.

    Raises TypeError for an argument there is not, BadConfig for a value that cannot be.
    """
    unknown = set(where) - set(Where.__annotations__)
    if unknown:
        known = ", ".join(Where.__annotations__)
        msg = f"jobs have no {', '.join(sorted(unknown))}: narrow by state, {known}"
        raise TypeError(msg)
    for name, value in where.items():
        if name not in _MOMENTS:
            check_text(name, value)
    moments = {
        name: moment_ms(name, where[name]) for name in _MOMENTS if where.get(name) is not None
    }
    return JobFilter(**{**where, **moments}, state=one_state(state))


def one_state(state: State | str | None) -> State | None:
    """Return a state given as itself or by its name; raises BadConfig for none there is."""
    if state is None:
        return None
    check_choice("state", state, STATES)
    return State(state)
