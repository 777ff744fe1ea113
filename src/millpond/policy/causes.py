"""Why there is too much: a spike, overload that lasts, workers that fail, or the way back.

None of it needs a window to be tuned. What comes in faster than it ends is a spike as long as
the queue could bear the same again; when it could not, it is sustained. Work that waits while
far less ends than the same workers used to end is a failure, whatever comes in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

LONGEST_LOOK_MS = 5_000
HOLD_MS = 5_000
"""How long growth, its end or a failure must be seen before one already named is left."""

BUSY_SHARE = 0.5
"""Less than this of what busy workers used to end is a failure, if one of its kinds is seen."""

BAD_SHARE = 0.5


class Cause(StrEnum):
    """Why a queue is as it is."""

    STEADY = "steady"
    SPIKE = "spike"
    SUSTAINED = "sustained"
    FAILURE = "failure"
    RECOVERING = "recovering"


@dataclass(frozen=True, slots=True)
class Flow:
    """What a queue shows at one look; rates are jobs a second.

    `expected` is what busy workers used to end (None: never measured) and `ended` what ends
    now, both over a time in which some twenty ends were expected. `bad` is the share of
    attempts that ended badly (None: too few). `closed` names a resource known to be down.
    """

    eligible: int
    outstanding: int
    bearable: int
    offered: float
    drained: float
    expected: float | None = None
    ended: float = 0.0
    running: int = 0
    slots: int | None = None
    bad: float | None = None
    closed: str | None = None

    @property
    def growth(self) -> float:
        """Jobs a second by which what is wanted outruns what ends."""
        return self.offered - self.drained

    @property
    def stands(self) -> bool:
        """Whether so much waits that it is worth a name: a thousandth of what is bearable."""
        return self.eligible >= max(10, self.bearable // 1_000)

    @property
    def over(self) -> bool:
        """Whether what waits is gone within a second."""
        return self.eligible <= self.drained


@dataclass(frozen=True, slots=True)
class CauseState:
    """A cause with its detail, and for how long what would change it has been seen."""

    cause: Cause = Cause.STEADY
    detail: str = ""
    since: int = 0
    looked: int | None = None
    growing_ms: int = 0
    easing_ms: int = 0
    failing_ms: int | None = None
    working_ms: int = 0


@dataclass(frozen=True, slots=True)
class CauseChange:
    """One change of the cause."""

    before: Cause
    after: Cause
    detail: str


def next_cause(state: CauseState, flow: Flow, now: int) -> tuple[CauseState, CauseChange | None]:
    """Return the state after a look at `now` (milliseconds), and the change if there is one."""
    passed = 0
    if state.looked is not None:
        passed = min(max(now - state.looked, 0), LONGEST_LOOK_MS)
    seen = _timed(replace(state, looked=now), flow, passed)
    kind = failure(flow)
    cause, detail = _named(seen, flow, kind)
    if cause is Cause.STEADY or cause is Cause.FAILURE:
        seen = replace(seen, growing_ms=0, easing_ms=0)
    if (cause, detail) == (state.cause, state.detail):
        return seen, None
    changed = replace(seen, cause=cause, detail=detail, since=now)
    return changed, CauseChange(state.cause, cause, detail)


def failure(flow: Flow) -> str | None:
    """Return the kind of failure that is seen: no_workers, resource(...) or hung; else None."""
    if flow.eligible <= 0:
        return None
    if flow.closed is not None:
        return f"resource({flow.closed})"
    if flow.slots == 0:
        return "no_workers"
    if flow.bad is not None and flow.bad > BAD_SHARE:
        return "resource"
    starved = flow.expected is not None and flow.ended < flow.expected * BUSY_SHARE
    busy = flow.slots is not None and flow.running >= flow.slots
    return "hung" if starved and busy and flow.ended <= 0.05 * (flow.expected or 0) else None


def _timed(state: CauseState, flow: Flow, passed: int) -> CauseState:
    failing: int | None = None
    if failure(flow) is not None:
        failing = 0 if state.failing_ms is None else state.failing_ms + passed
    working = state.working_ms + passed if failing is None else 0
    if flow.growth > 0:
        grown = state.growing_ms + passed
        return replace(state, growing_ms=grown, easing_ms=0, failing_ms=failing, working_ms=working)
    easing = state.easing_ms + passed
    grown = 0 if easing >= HOLD_MS else state.growing_ms
    return replace(
        state, growing_ms=grown, easing_ms=easing, failing_ms=failing, working_ms=working
    )


def _named(state: CauseState, flow: Flow, kind: str | None) -> tuple[Cause, str]:
    if state.cause is Cause.FAILURE:
        if flow.eligible and state.working_ms < HOLD_MS:
            return Cause.FAILURE, kind or state.detail
    elif kind is not None and state.failing_ms is not None and state.failing_ms >= HOLD_MS:
        return Cause.FAILURE, kind
    if state.cause is Cause.STEADY:
        # What is gone within a second would be steady again at the next look.
        grows = flow.stands and flow.growth > 0 and not flow.over
        return (_overload(state, flow) if grows else Cause.STEADY), ""
    if flow.over:
        return Cause.STEADY, ""
    return _after(state, flow), ""


def _after(state: CauseState, flow: Flow) -> Cause:
    """Return what follows an overload while work still waits."""
    if state.cause is Cause.RECOVERING or state.cause is Cause.FAILURE:
        growing = flow.growth > 0 and state.growing_ms >= HOLD_MS and flow.stands
        return _overload(state, flow) if growing else Cause.RECOVERING
    if state.easing_ms >= HOLD_MS:
        return Cause.RECOVERING
    if state.cause is Cause.SUSTAINED:
        return Cause.SUSTAINED
    return _overload(state, flow)


def _overload(state: CauseState, flow: Flow) -> Cause:
    """Return whether the queue could bear it if this lasts as long again as it has lasted."""
    again = max(flow.growth, 0.0) * state.growing_ms / 1_000
    return Cause.SPIKE if flow.outstanding + again <= flow.bearable else Cause.SUSTAINED
