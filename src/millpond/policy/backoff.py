"""How long a failed job waits before its next attempt: exponential windows with jitter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from millpond.errors import refuse_setting

Jitter = Literal["full", "equal", "none"]

LONGEST_MS = 10 * 365 * 86_400_000
"""Ten years: no wait is longer, so a due time always fits the signed 64 bits of a rank."""

_MOST_STEPS = 1 << 53
"""The largest exponent a float holds exactly; any growing window is at its cap long before."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The wait before the next attempt, in seconds: after attempt n a window of base·factor^(n-1).

    The window never exceeds `cap`. `jitter` says where in it a wait falls: "full" anywhere
    between `minimum` and the window, "equal" in its upper half, "none" at its end. No wait is
    shorter than `minimum`. Full jitter, and the reason to have it as the default, is from
    "Exponential Backoff And Jitter" (Marc Brooker, AWS Architecture Blog, 2015): jobs that
    failed at one instant must not come back at one instant.

    Raises BadConfig for values that are no finite numbers in their range.
    """

    base: float = 5.0
    factor: float = 2.0
    cap: float = 900.0
    jitter: Jitter = "full"
    minimum: float = 0.0

    def __post_init__(self) -> None:
        longest = LONGEST_MS / 1000
        _check_number("Backoff.base", self.base, 0, longest)
        # Below 1 the waits would shrink from one failure to the next.
        _check_number("Backoff.factor", self.factor, 1)
        _check_number("Backoff.cap", self.cap, 0, longest)
        _check_number("Backoff.minimum", self.minimum, 0, longest)
        if self.minimum > self.cap:
            refuse_setting("Backoff.minimum", self.minimum, f"at most the cap, {self.cap}")
        if self.jitter not in get_args(Jitter):
            refuse_setting("Backoff.jitter", self.jitter, "'full', 'equal' or 'none'")

    def to_json(self) -> dict[str, float | str]:
        """Return the rule as plain values, equal for equal rules, for the stored settings."""
        # 5 and 5.0 are equal to Python and differ as text.
        values = asdict(self)
        return {name: v if name == "jitter" else float(v) for name, v in values.items()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Backoff:
        """Return the rule that `to_json` gave; what a newer version added is left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in known})


def delay_ms(attempt: int, rule: Backoff, roll: float) -> int:
    """Return the wait after the `attempt`-th charged attempt, counted from 1, in milliseconds.

    Always from the rule's minimum to its cap, both rounded to whole milliseconds, whatever
    the attempt. `roll` is in [0, 1).
    """
    low, high = _window(attempt, rule)
    return low + _part(high - low, roll)


def after_ms(requested_ms: int, attempt: int, rule: Backoff, roll: float) -> int:
    """Return the wait when the handler asked for at least `requested_ms`.

    Jitter adds up to the width of the backoff's window, so that jobs told the same moment do
    not return in the same moment. Neither jitter nor cap ever shorten what was asked for.
    """
    low, high = _window(attempt, rule)
    least = max(requested_ms, _whole_ms(rule.minimum))
    return min(least, LONGEST_MS) + _part(high - low, roll)


def _window(attempt: int, rule: Backoff) -> tuple[int, int]:
    high = max(_grown(attempt, rule), rule.minimum)
    match rule.jitter:
        case "full":
            low = rule.minimum
        case "equal":
            low = max(high / 2, rule.minimum)
        case "none":
            low = high
    return _whole_ms(low), _whole_ms(high)


def _grown(attempt: int, rule: Backoff) -> float:
    if rule.base == 0:
        return 0.0
    try:
        window = rule.base * float(rule.factor) ** min(max(attempt, 1) - 1, _MOST_STEPS)
    except OverflowError:
        # Past the range of a float any window has long reached the cap.
        return rule.cap
    return min(window, rule.cap)


def _part(width_ms: int, roll: float) -> int:
    # Both ends are reached, each as often as any millisecond between them.
    return int(roll * (width_ms + 1))


def _whole_ms(seconds: float) -> int:
    return round(seconds * 1000)


def _check_number(name: str, value: object, least: float, most: float | None = None) -> None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    # NaN fails every comparison, so it is refused along with what is too small or too large.
    end = sys.float_info.max if most is None else most
    if not (numeric and least <= value <= end):  # type: ignore[operator]
        allowed = f"a finite number, at least {least}"
        refuse_setting(name, value, allowed if most is None else f"{allowed}, at most {most:,.0f}")
