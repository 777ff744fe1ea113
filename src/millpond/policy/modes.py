"""Normal, elevated, critical: a queue's mode, by what it holds and by how late its work is.

Up at once where room or disk runs out, after a short while where work is late; down by one
level at a time, when every signal has stayed low for the dwell of the level. Time counts only
while somebody looks, so neither a clock that jumps nor a watcher that slept makes a change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from millpond.policy.pressure import PressureSettings

LONGEST_LOOK_MS = 5_000
"""What lies between two looks counts as at most so much time."""

Figures = Mapping[str, int | float | str | None]


class Mode(StrEnum):
    """How much a queue is under pressure."""

    NORMAL = "normal"
    ELEVATED = "elevated"
    CRITICAL = "critical"

    @property
    def level(self) -> int:
        """0, 1 or 2."""
        return _LEVELS.index(self)


_LEVELS = (Mode.NORMAL, Mode.ELEVATED, Mode.CRITICAL)


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits of one workload and could run: how much, since when, how long it would take.

    `drain_ms` is None where nothing was measured, `deadline_ms` where nothing is late.
    """

    workload: str
    eligible: int = 0
    age_ms: int = 0
    drain_ms: int | None = None
    deadline_ms: int | None = None

    @property
    def lateness(self) -> float:
        """The larger of age and time to drain, in deadlines."""
        if not self.deadline_ms or self.eligible == 0:
            return 0.0
        return max(self.age_ms, self.drain_ms or 0) / self.deadline_ms


@dataclass(frozen=True, slots=True)
class Signals:
    """All that a mode depends on; `health` is 0, 1 or 2 by what a resource's watcher says."""

    utilisation: float
    waiting: Sequence[Waiting] = ()
    disk: int = 0
    health: int = 0

    @property
    def latest(self) -> Waiting | None:
        """The workload that is late the most."""
        return max(self.waiting, key=lambda each: each.lateness, default=None)

    @property
    def lateness(self) -> float:
        """By how many deadlines the latest workload is late."""
        late = self.latest
        return 0.0 if late is None else late.lateness


@dataclass(frozen=True, slots=True)
class ModeState:
    """A mode, and for how long what would change it has been seen; None: not at the last look.

    `late_ms` counts per level above normal, `calm_ms` towards the level below, `settled_ms`
    since the last way down.
    """

    mode: Mode = Mode.NORMAL
    since: int = 0
    signal: str = ""
    epoch: int = 0
    looked: int | None = None
    late_ms: tuple[int | None, int | None] = (None, None)
    calm_ms: int | None = None
    settled_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ModeChange:
    """One change, with the signal that caused it and the figures at that moment."""

    before: Mode
    after: Mode
    signal: str
    figures: Figures = field(default_factory=dict)


def next_mode(
    state: ModeState, signals: Signals, now: int, settings: PressureSettings
) -> tuple[ModeState, ModeChange | None]:
    """Return the state after a look at `now` (milliseconds), and the change if there is one."""
    passed = _passed(state, now)
    late = _late(state, signals, passed, settings)
    calm = _calm(state, signals, passed, settings)
    settled = None if state.settled_ms is None else state.settled_ms + passed
    if settled is not None and settled >= settings.settle_ms:
        settled = None
    seen = replace(state, looked=now, late_ms=late, calm_ms=calm, settled_ms=settled)
    if settled is not None:
        return seen, None
    level, signal = wanted_level(signals, late, settings)
    if level > state.mode.level:
        return _changed(seen, _LEVELS[level], signal, signals, now)
    if calm is not None and calm >= _dwell(state.mode, settings):
        down = _LEVELS[state.mode.level - 1]
        return _changed(seen, down, "calm", signals, now)
    return seen, None


def wanted_level(
    signals: Signals, late_ms: tuple[int | None, int | None], settings: PressureSettings
) -> tuple[int, str]:
    """Return the highest level that a signal asks for, and which signal that is."""
    late = [held is not None and held >= settings.hold_ms for held in late_ms]
    for level, share in ((2, settings.critical), (1, settings.elevated)):
        if signals.utilisation >= share:
            return level, "utilisation"
        if signals.disk >= level:
            return level, "disk"
        if signals.health >= level:
            return level, "health"
        if late[level - 1]:
            return level, _which(signals)
    return 0, ""


def inline_mode(utilisation: float, disk: int, settings: PressureSettings) -> Mode:
    """Return the mode by what an admission can see by itself, when nobody has looked lately."""
    return _LEVELS[wanted_level(Signals(utilisation, disk=disk), (None, None), settings)[0]]


def _passed(state: ModeState, now: int) -> int:
    if state.looked is None:
        return 0
    return min(max(now - state.looked, 0), LONGEST_LOOK_MS)


def _late(
    state: ModeState, signals: Signals, passed: int, settings: PressureSettings
) -> tuple[int | None, int | None]:
    def held(before: int | None, share: float) -> int | None:
        if signals.lateness < share:
            return None
        return 0 if before is None else before + passed

    return (
        held(state.late_ms[0], settings.elevated_age),
        held(state.late_ms[1], settings.critical_age),
    )


def _calm(
    state: ModeState, signals: Signals, passed: int, settings: PressureSettings
) -> int | None:
    """Count how long all signals have been below the exit of the level."""
    match state.mode:
        case Mode.NORMAL:
            return None
        case Mode.ELEVATED:
            share, age, level = settings.elevated_exit, settings.elevated_age, 1
        case Mode.CRITICAL:
            share, age, level = settings.critical_exit, settings.critical_age, 2
    calm = (
        signals.utilisation < share
        and signals.lateness < age * settings.age_exit
        and signals.disk < level
        and signals.health < level
    )
    if not calm:
        return None
    return 0 if state.calm_ms is None else state.calm_ms + passed


def _dwell(mode: Mode, settings: PressureSettings) -> int:
    return settings.critical_dwell_ms if mode is Mode.CRITICAL else settings.elevated_dwell_ms


def _which(signals: Signals) -> str:
    late = signals.latest
    return "drain" if late is not None and (late.drain_ms or 0) > late.age_ms else "age"


def _changed(
    seen: ModeState, after: Mode, signal: str, signals: Signals, now: int
) -> tuple[ModeState, ModeChange]:
    down = after.level < seen.mode.level
    state = replace(
        seen, mode=after, since=now, signal=signal, epoch=seen.epoch + 1, calm_ms=None,
        settled_ms=0 if down else None,
    )  # fmt: skip
    return state, ModeChange(seen.mode, after, signal, figures(signals))


def figures(signals: Signals) -> Figures:
    """Return what was seen, by name, as it is told to people."""
    seen: dict[str, int | float | str | None] = {
        "utilisation": round(signals.utilisation, 4), "disk": signals.disk,
        "health": signals.health,
    }  # fmt: skip
    late = signals.latest
    if late is not None and late.eligible:
        seen |= {
            "workload": late.workload, "eligible": late.eligible, "age_ms": late.age_ms,
            "drain_ms": late.drain_ms, "deadline_ms": late.deadline_ms,
        }  # fmt: skip
    return seen
