"""What a mode does to each class of work: whom it lets in, slows or turns away."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from millpond.policy.causes import Cause
from millpond.policy.modes import Mode

MINUTE_MS = 60_000


class Effect(StrEnum):
    """How much a workload matters when there is too much of all; the first is kept longest."""

    CRITICAL = "critical"
    USER = "user"
    ROUTINE = "routine"
    SHEDDABLE = "sheddable"


class Verdict(StrEnum):
    """What holds for a workload above its reserve: open, at a rate, or closed."""

    OPEN = "open"
    LINE = "line"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Gate:
    """What admission must heed: of `LINE`, `grants` jobs may still pass at this moment.

    What lies below a workload's own reserve passes every gate. A batch that is let in as a
    whole or not at all also passes a `full` bucket, whatever its size, and later ones wait for
    it. `would` is what a dry run would have said, None outside one. `inline` tells that nobody
    has looked lately, so that only room and disk decided.
    """

    verdict: Verdict
    grants: int = 0
    full: bool = False
    mode: Mode = Mode.NORMAL
    cause: Cause = Cause.STEADY
    would: Verdict | None = None
    inline: bool = False

    def lets_in(self, jobs: int) -> bool:
        """Tell whether so many jobs above the workload's reserve may pass, all at once."""
        match self.verdict:
            case Verdict.OPEN:
                return True
            case Verdict.LINE:
                return jobs <= self.grants or self.full
            case Verdict.CLOSED:
                return False
            case _:
                assert_never(self.verdict)

    @property
    def reason(self) -> str:
        """The reason of a refusal by this gate."""
        return "mode_critical" if self.mode is Mode.CRITICAL else "mode_elevated"


OPEN = Gate(Verdict.OPEN)

_DEADLINES: dict[Effect, int | None] = {
    Effect.CRITICAL: MINUTE_MS // 2,
    Effect.USER: 5 * MINUTE_MS,
    Effect.ROUTINE: 60 * MINUTE_MS,
    Effect.SHEDDABLE: None,
}
_ORDER = tuple(Effect)


def effect_of(workload: str) -> Effect:
    """Return the class of a workload by its name; names that say nothing are routine."""
    return Effect(workload) if workload in _ORDER else Effect.ROUTINE


def deadline_ms(effect: Effect) -> int | None:
    """Return how long work of a class may wait before it is late, None for as long as likes."""
    return _DEADLINES[effect]


def restricted(effects: Mapping[str, Effect], told: Collection[str]) -> frozenset[str]:
    """Return the workloads of a queue that modes may slow or turn away.

    Where nobody's work matters more there is nobody to keep room for: such a workload is
    bounded by the queue's limits alone, unless its effect was `told`.
    """
    return frozenset(
        name
        for name, effect in effects.items()
        if name in told or any(above(other, effect) for other in effects.values())
    )


def above(one: Effect, other: Effect) -> bool:
    """Tell whether `one` is kept longer than `other`."""
    return _ORDER.index(one) < _ORDER.index(other)


def verdict(effect: Effect, mode: Mode, cause: Cause) -> Verdict:
    """Return what a mode and its cause mean for a class of work.

    Overload that lasts slows what can wait already in normal mode: the line is free below its
    free run, and the level then comes to rest below elevated instead of at the limit.
    """
    match effect:
        case Effect.CRITICAL:
            return Verdict.OPEN
        case Effect.USER:
            return Verdict.LINE if mode is Mode.CRITICAL else Verdict.OPEN
        case Effect.ROUTINE:
            return _routine(mode, cause)
        case Effect.SHEDDABLE:
            return _lasting(cause) if mode is Mode.NORMAL else Verdict.CLOSED
        case _:
            assert_never(effect)


def _lasting(cause: Cause) -> Verdict:
    return Verdict.LINE if cause is Cause.SUSTAINED else Verdict.OPEN


def _routine(mode: Mode, cause: Cause) -> Verdict:
    match mode:
        case Mode.NORMAL:
            return _lasting(cause)
        case Mode.ELEVATED:
            return Verdict.LINE
        case Mode.CRITICAL:
            return Verdict.CLOSED
        case _:
            assert_never(mode)
