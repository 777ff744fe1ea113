"""When a queue is under pressure: the thresholds, their defaults, and what they may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from millpond.errors import BadConfig, refuse_setting
from millpond.policy.control import Line

LONGEST_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class PressureSettings:
    """From which figures on a queue is elevated or critical, and when it is so no more.

    `elevated` and `critical` are shares of the queue's limit, the larger of jobs and bytes;
    `elevated_exit` and `critical_exit` are what the share must stay below, for the dwell of
    the level, before it goes down by one. `elevated_age` and `critical_age` are shares of a
    workload's deadline, for the age of its oldest job that could run and for the time in
    which what waits would drain; they count after `hold_ms`, and `age_exit` of them is their
    exit. For `settle_ms` after a way down nothing changes. The control line of workloads
    that are slowed is free below `line_free`, rests at `line_goal`, and is shut at
    `line_end`. With `dry_run` modes are decided and told, and nobody is refused by them.

    Raises BadConfig for values that cannot work.
    """

    elevated: float = 0.70
    critical: float = 0.90
    elevated_exit: float = 0.60
    critical_exit: float = 0.75
    elevated_dwell_ms: int = 30_000
    critical_dwell_ms: int = 60_000
    elevated_age: float = 0.5
    critical_age: float = 1.0
    age_exit: float = 0.8
    hold_ms: int = 5_000
    settle_ms: int = 10_000
    line_free: float = 0.50
    line_goal: float = 0.70
    line_end: float = 0.90
    dry_run: bool = False

    def __post_init__(self) -> None:
        for name in ("elevated", "critical", "elevated_exit", "critical_exit", "age_exit"):
            _check_share(name, getattr(self, name), 1)
        for name in ("line_free", "line_goal", "line_end"):
            _check_share(name, getattr(self, name), 1)
        for name in ("elevated_age", "critical_age"):
            _check_share(name, getattr(self, name), 1_000)
        for name in ("elevated_dwell_ms", "critical_dwell_ms", "hold_ms", "settle_ms"):
            _check_length(name, getattr(self, name))
        if not isinstance(self.dry_run, bool):
            refuse_setting("pressure.dry_run", self.dry_run, "true or false")
        self._check_order()

    def _check_order(self) -> None:
        _ordered(self, "elevated", "critical")
        _ordered(self, "elevated_age", "critical_age")
        _ordered(self, "elevated_exit", "elevated")
        _ordered(self, "critical_exit", "critical")
        # Else the way down from critical would end where critical begins elevated again.
        _ordered(self, "elevated_exit", "critical_exit")
        _ordered(self, "line_free", "line_goal")
        _ordered(self, "line_goal", "line_end")

    @property
    def line(self) -> Line:
        """The control line of workloads that are slowed."""
        return Line(self.line_free, self.line_goal, self.line_end)

    def to_json(self) -> str:
        """Return the settings as canonical JSON: equal settings give equal text."""
        values = {
            name: float(value) if isinstance(value, int) and name in _SHARES else value
            for name, value in asdict(self).items()
        }
        return json.dumps(values, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> PressureSettings:
        """Return the settings that `to_json` gave; what this version does not know is left out."""
        if text is None:
            return cls()
        stored: Mapping[str, Any] = json.loads(text)
        known = {each.name for each in fields(cls)}
        try:
            return cls(**{name: value for name, value in stored.items() if name in known})
        except BadConfig:
            # A newer version allows what this one does not: its own defaults are safe.
            return cls()


_SHARES = frozenset(each.name for each in fields(PressureSettings) if each.type == "float")


def _check_share(name: str, value: object, most: float) -> None:
    numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not numeric or not 0 < value <= most:  # type: ignore[operator]
        refuse_setting(f"pressure.{name}", value, f"a number above 0, at most {most}")


def _check_length(name: str, value: object) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not 0 <= value <= LONGEST_MS:  # type: ignore[operator]
        refuse_setting(f"pressure.{name}", value, "whole milliseconds from 0 to a day")


def _ordered(settings: PressureSettings, lower: str, upper: str) -> None:
    low, high = getattr(settings, lower), getattr(settings, upper)
    if not low < high:
        msg = f"pressure.{lower} is {low}: it must be below pressure.{upper}, {high}"
        raise BadConfig(msg)
