"""What the ready order sorts by: one number a job, smaller first, compared within a queue."""

from __future__ import annotations

from typing import Literal, assert_never

from millpond.errors import refuse_setting

Order = Literal["strict", "ageing"]

CRITICAL = 10
SECURITY = 20
USER = 50
ROUTINE = 100
MAINTENANCE = 200

LOWEST_PRIORITY = 32_767
HIGHEST_PRIORITY = -32_768

LONGEST_AGEING_MS = 365 * 86_400_000

_DUE_BITS = 47
_LATEST_DUE = (1 << _DUE_BITS) - 1
"""The year 6429: sixteen bits of priority above it leave a signed 64-bit number room."""


def rank(priority: int, due_ms: int, order: Order, ageing_ms: int) -> int:
    """Return a signed 64-bit number that sorts jobs of one queue; ties go by id, the caller's part.

    "strict" sorts by priority, then due time, and has no bound for the wait of low
    priorities. "ageing" sorts by due time plus `ageing_ms` for every step of priority:
    see `overtaken_for_ms` for the bound. Due times outside 0 to 2^47 count as the nearer end.

    Raises BadConfig for a priority outside 16 bits. `ageing_ms` must have passed `check_ageing`.
    """
    check_priority(priority)
    due = min(max(due_ms, 0), _LATEST_DUE)
    match order:
        case "strict":
            return (priority << _DUE_BITS) + due
        case "ageing":
            return due + priority * ageing_ms
        case _:
            assert_never(order)


def overtaken_for_ms(waiting: int, arriving: int, ageing_ms: int) -> int:
    """Return for how long arrivals of priority `arriving` still pass a job of priority `waiting`.

    Under "ageing", a job that falls due this long after the waiting one, or later, is ranked
    behind it; 0 when the arriving priority is not the more urgent one.
    """
    return max(waiting - arriving, 0) * ageing_ms


def check_priority(priority: object, name: str = "priority") -> None:
    """Raise BadConfig, naming the setting `name`, unless `priority` is an integer of 16 bits."""
    if not _within(priority, HIGHEST_PRIORITY, LOWEST_PRIORITY):
        allowed = f"an integer from {HIGHEST_PRIORITY} (first) to {LOWEST_PRIORITY} (last)"
        refuse_setting(name, priority, allowed)


def check_ageing(ageing_ms: object, name: str = "ageing_ms") -> None:
    """Raise BadConfig, naming the setting `name`, unless ranks with this ageing fit 64 bits."""
    if not _within(ageing_ms, 1, LONGEST_AGEING_MS):
        refuse_setting(name, ageing_ms, f"milliseconds from 1 to {LONGEST_AGEING_MS} (a year)")


def _within(value: object, least: int, most: int) -> bool:
    # True and False are integers to Python, and mistakes here.
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
