"""One look at a queue: from what it holds and has done to its mode, its cause and its lines.

Everything is remembered in one frozen value that goes from look to look, whoever looks. The
counters that are read only grow, so a look that was missed loses no job, only sharpness.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millpond.policy import control, rates
from millpond.policy.causes import Cause, CauseChange, CauseState, Flow, next_cause
from millpond.policy.effects import Effect, above
from millpond.policy.modes import Figures, Mode, ModeChange, ModeState, Signals, Waiting, next_mode
from millpond.policy.modes import figures as mode_figures
from millpond.policy.pressure import PressureSettings
from millpond.policy.rates import Rate

STALE_MS = 15_000
"""After so long without a look nothing that was decided is in force any more."""

TELLING = 20
"""Attempts or ends that must have been seen or expected before their share says anything."""


@dataclass(frozen=True, slots=True)
class WorkloadReading:
    """What a workload holds now, what of it could run, and its counters, which only grow.

    `finished` counts jobs that ended for good, `good` and `bad` attempts by how they ended.
    """

    name: str
    effect: Effect
    deadline_ms: int | None = None
    jobs: int = 0
    bytes: int = 0
    eligible: int = 0
    age_ms: int = 0
    accepted: int = 0
    refused: int = 0
    finished: int = 0
    good: int = 0
    bad: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a queue found; `slots` is None where the workers are not known."""

    max_jobs: int
    max_bytes: int
    workloads: Mapping[int, WorkloadReading] = field(default_factory=dict)
    running: int = 0
    slots: int | None = None
    disk: int = 0
    health: int = 0
    closed: str | None = None

    @property
    def utilisation(self) -> float:
        """The larger share of jobs and bytes that is held; reserves nobody uses do not count."""
        jobs = sum(each.jobs for each in self.workloads.values())
        size = sum(each.bytes for each in self.workloads.values())
        return max(share(jobs, self.max_jobs), share(size, self.max_bytes))

    @property
    def eligible(self) -> int:
        """How many jobs could run."""
        return sum(each.eligible for each in self.workloads.values())


def share(held: int, limit: int) -> float:
    """Return what share of a limit is held; of a limit of 0 all of it."""
    return held / limit if limit else 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Rates of a workload, or of a whole queue; `busy` counts only time in which work waited."""

    eligible: int = 0
    accepted: int = 0
    refused: int = 0
    finished: int = 0
    good: int = 0
    bad: int = 0
    offered: Rate = field(default_factory=Rate)
    let_in: Rate = field(default_factory=Rate)
    drained: Rate = field(default_factory=Rate)
    busy: Rate = field(default_factory=Rate)
    well: Rate = field(default_factory=Rate)
    badly: Rate = field(default_factory=Rate)


@dataclass(frozen=True, slots=True)
class Memory:
    """All that is remembered of a queue from one look to the next."""

    at: int | None = None
    mode: ModeState = field(default_factory=ModeState)
    cause: CauseState = field(default_factory=CauseState)
    whole: Seen = field(default_factory=Seen)
    workloads: Mapping[int, Seen] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lines:
    """Of one workload, in jobs a second: its control line, and how fast room appears for it.

    `line` None slows nothing, `room` None was never measured.
    """

    line: float | None = None
    room: float | None = None


@dataclass(frozen=True, slots=True)
class Steered:
    """What a look led to; the changes are None where there were none."""

    memory: Memory
    lines: Mapping[int, Lines]
    figures: Figures
    mode: ModeChange | None = None
    cause: CauseChange | None = None


@dataclass(frozen=True, slots=True)
class PressureChange:
    """A queue whose mode or cause has changed, as people are told of it."""

    queue: str
    mode: Mode
    signal: str
    cause: Cause
    detail: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class QueuePressure:
    """How a queue stands, as people are shown it; moments in milliseconds.

    `looked_at` is when somebody last looked: older than `STALE_MS`, it binds nobody. `lines`
    are those of its workloads, by name.
    """

    queue: str
    looked_at: int
    mode: Mode = Mode.NORMAL
    since: int | None = None
    signal: str = ""
    cause: Cause = Cause.STEADY
    cause_since: int | None = None
    detail: str = ""
    figures: Figures = field(default_factory=dict)
    lines: Mapping[str, Lines] = field(default_factory=dict)


def steer(memory: Memory, reading: Reading, now: int, settings: PressureSettings) -> Steered:
    """Return what a look at `now` (milliseconds) leads to."""
    seconds = 0.0 if memory.at is None else (now - memory.at) / 1_000
    failing = memory.cause.failing_ms is not None
    whole = _look(memory.whole, _sum(reading), seconds, failing=failing)
    workloads = {
        ident: _look(memory.workloads.get(ident, Seen()), each, seconds, failing=failing)
        for ident, each in reading.workloads.items()
    }
    cause, cause_change = next_cause(memory.cause, _flow(whole, reading, settings), now)
    signals = Signals(
        reading.utilisation,
        [_waiting(each, workloads[ident]) for ident, each in reading.workloads.items()],
        reading.disk,
        reading.health,
    )
    mode, mode_change = next_mode(memory.mode, signals, now, settings)
    after = Memory(now, mode, cause, whole, workloads)
    return Steered(
        after, lines(after, reading, settings), _figures(signals, whole), mode_change, cause_change
    )


def quiet(memory: Memory, reading: Reading, settings: PressureSettings) -> bool:
    """Tell whether a look would only write down that nothing happened since the last one.

    A job that runs for hours, or waits for tomorrow, is no reason to write every second.
    """
    total, seen = _sum(reading), memory.whole
    return (
        memory.mode.mode is Mode.NORMAL
        and memory.cause.cause is Cause.STEADY
        and reading.eligible == 0 == seen.eligible
        and (total.accepted, total.refused, total.finished) == (
            seen.accepted, seen.refused, seen.finished
        )
        and reading.utilisation < settings.elevated
        and reading.disk == reading.health == 0
        and reading.closed is None
    )  # fmt: skip


def lines(memory: Memory, reading: Reading, settings: PressureSettings) -> dict[int, Lines]:
    """Return the lines of all workloads: what drains, less what those above them bring in."""
    if memory.cause.cause is Cause.FAILURE:
        drain: float | None = memory.whole.drained.over(rates.USUAL)
    else:
        drain = memory.whole.busy.measured()
    if drain is None:
        return dict.fromkeys(reading.workloads, Lines())
    found = {}
    for ident, each in reading.workloads.items():
        higher = sum(
            memory.workloads[other].let_in.over(rates.USUAL)
            for other, one in reading.workloads.items()
            if above(one.effect, each.effect)
        )
        slowed = control.rate(drain, higher, reading.utilisation, settings.line)
        found[ident] = Lines(slowed, max(drain - higher, 0.0))
    return found


def _sum(reading: Reading) -> WorkloadReading:
    all_of = list(reading.workloads.values())
    return WorkloadReading(
        "", Effect.ROUTINE,
        eligible=reading.eligible,
        accepted=sum(each.accepted for each in all_of),
        refused=sum(each.refused for each in all_of),
        finished=sum(each.finished for each in all_of),
        good=sum(each.good for each in all_of),
        bad=sum(each.bad for each in all_of),
    )  # fmt: skip


def _look(seen: Seen, now: WorkloadReading, seconds: float, *, failing: bool) -> Seen:
    """Add one interval to the rates; without one only the counters are kept."""
    accepted, refused = now.accepted - seen.accepted, now.refused - seen.refused
    finished = now.finished - seen.finished
    counted = replace(
        seen, eligible=now.eligible, accepted=now.accepted, refused=now.refused,
        finished=now.finished, good=now.good, bad=now.bad,
    )  # fmt: skip
    if seconds <= 0 or min(accepted, refused, finished) < 0:
        # The clock stood or was set back, or somebody mended the counters.
        return counted
    # Time in which nobody looked was perhaps time in which nobody worked either.
    busy = seen.eligible > 0 and now.eligible > 0 and seconds * 1_000 <= STALE_MS and not failing
    return replace(
        counted,
        offered=seen.offered.after(accepted + refused, seconds),
        let_in=seen.let_in.after(accepted, seconds),
        drained=seen.drained.after(finished, seconds),
        busy=seen.busy.after(finished, seconds) if busy else seen.busy,
        well=seen.well.after(now.good - seen.good, seconds),
        badly=seen.badly.after(now.bad - seen.bad, seconds),
    )


def _flow(whole: Seen, reading: Reading, settings: PressureSettings) -> Flow:
    expected = whole.busy.measured(rates.LONG, TELLING)
    horizon = None if expected is None else rates.horizon_for(expected, TELLING)
    return Flow(
        eligible=reading.eligible,
        outstanding=sum(each.jobs for each in reading.workloads.values()),
        bearable=int(settings.elevated * reading.max_jobs),
        offered=whole.offered.over(rates.FAST),
        drained=whole.drained.over(rates.FAST),
        expected=None if horizon is None else expected,
        ended=0.0 if horizon is None else whole.drained.over(horizon),
        running=reading.running,
        slots=reading.slots,
        bad=_bad(whole),
        closed=reading.closed,
    )


def _bad(whole: Seen) -> float | None:
    """Return the share of attempts of the last half minute that ended badly, if they tell."""
    good, bad = whole.well.over(rates.USUAL), whole.badly.over(rates.USUAL)
    if (good + bad) * min(rates.USUAL, whole.well.seen_s) < TELLING:
        return None
    return bad / (good + bad)


def _waiting(each: WorkloadReading, seen: Seen) -> Waiting:
    drain = seen.busy.measured()
    drain_ms = None if not drain else round(each.eligible / drain * 1_000)
    return Waiting(each.name, each.eligible, each.age_ms, drain_ms, each.deadline_ms)


def _figures(signals: Signals, whole: Seen) -> Figures:
    return {
        **mode_figures(signals),
        "offered_per_min": round(whole.offered.over(rates.FAST) * 60, 1),
        "finished_per_min": round(whole.drained.over(rates.FAST) * 60, 1),
    }
