"""A queue on paper: arrivals at even distances, constant service times, the real policies.

Time is in integer microseconds; of what falls on one moment, ends come before looks and looks
before arrivals, so that two runs are alike to the last job.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millpond.policy import gcra, retry_after
from millpond.policy.causes import Cause
from millpond.policy.effects import Effect, Verdict, deadline_ms, verdict
from millpond.policy.modes import Mode
from millpond.policy.pressure import PressureSettings
from millpond.policy.retry_after import Ghost
from millpond.policy.steering import Lines, Memory, Reading, WorkloadReading, steer

SECOND = 1_000_000
MINUTE = 60 * SECOND
END, LOOK, ARRIVE = 0, 1, 2


@dataclass(frozen=True)
class Span:
    """`rate` jobs a minute from minute `start` to minute `end`."""

    rate: int
    start: float
    end: float


@dataclass
class Load:
    """One workload: what arrives of it, and what became of it."""

    effect: Effect
    spans: Sequence[Span]
    gated: bool = True
    offered: int = 0
    accepted: int = 0
    refused: int = 0
    first_refusal: int | None = None
    max_wait: int = 0
    finished: int = 0
    held: int = 0
    waiting: deque[int] = field(default_factory=deque)
    tat: int = 0
    ghost: Ghost = field(default_factory=Ghost)
    lines: Lines = field(default_factory=Lines)

    def arrivals(self) -> Iterator[int]:
        for span in self.spans:
            first = round(span.start * MINUTE)
            many = round((span.end - span.start) * span.rate)
            yield from (first + k * MINUTE // span.rate for k in range(many))


@dataclass
class Paper:
    """The queue: so many workers, each job as long as the other, a limit, the loads in order."""

    loads: dict[int, Load]
    workers: int
    service: int
    cap: int | None
    settings: PressureSettings = field(default_factory=PressureSettings)
    obey: bool = False
    fixed_s: float | None = None
    now: int = 0
    running: int = 0
    peak: int = 0
    highest: float = 0.0
    empty_at: int | None = None
    memory: Memory = field(default_factory=Memory)
    modes: list[tuple[int, Mode, str]] = field(default_factory=list)
    causes: list[tuple[int, Cause]] = field(default_factory=list)
    returns: dict[int, int] = field(default_factory=dict)
    events: list[tuple[int, int, int, int]] = field(default_factory=list)
    number: int = 0
    rolls: int = 0

    def run(self, minutes: float) -> Paper:
        sources = {ident: load.arrivals() for ident, load in self.loads.items()}
        for ident in sources:
            self._next(sources, ident)
        self._push(SECOND, LOOK, 0)
        last = round(minutes * MINUTE)
        while self.events and self.events[0][0] <= last:
            self.now, kind, _, ident = heapq.heappop(self.events)
            if kind == END:
                self._end(ident)
            elif kind == LOOK:
                self._look()
                self._push(self.now + SECOND, LOOK, 0)
            elif self.now < last:
                self._arrive(abs(ident))
                if ident > 0:
                    self._next(sources, ident)
        return self

    def _push(self, at: int, kind: int, ident: int) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, kind, self.number, ident))

    def _next(self, sources: dict[int, Iterator[int]], ident: int) -> None:
        at = next(sources[ident], None)
        if at is not None:
            self._push(at, ARRIVE, ident)

    def _arrive(self, ident: int) -> None:
        load = self.loads[ident]
        load.offered += 1
        if not self._admitted(load):
            self._refuse(load, ident)
            return
        load.accepted += 1
        load.held += 1
        load.waiting.append(self.now)
        self._start()
        held = sum(each.held for each in self.loads.values())
        self.peak = max(self.peak, held)
        if self.cap:
            self.highest = max(self.highest, held / self.cap)

    def _admitted(self, load: Load) -> bool:
        held = sum(each.held for each in self.loads.values())
        if self.cap is not None and held >= self.cap:
            return False
        state = self.memory
        says = verdict(load.effect, state.mode.mode, state.cause.cause)
        if not load.gated or says is Verdict.OPEN:
            return True
        if says is Verdict.CLOSED:
            return False
        if load.lines.line is None:
            return True
        limit = gcra.Limit.per_second(load.lines.line)
        if limit is None:
            return False
        taken = gcra.take(limit, load.tat, self.now, 1)
        load.tat = taken.tat_us
        return taken.granted == 1

    def _refuse(self, load: Load, ident: int) -> None:
        load.refused += 1
        load.first_refusal = self.now if load.first_refusal is None else load.first_refusal
        if not self.obey:
            return
        self.rolls = (self.rolls * 1_103_515_245 + 12_345) % (1 << 31)
        answer = retry_after.answer(load.ghost, load.lines.room, self.now, self.rolls / (1 << 31))
        load.ghost = answer.ghost
        after = answer.after_s if self.fixed_s is None else self.fixed_s
        back = self.now + round((after if after is not None else 30.0) * SECOND)
        self.returns[back // SECOND] = self.returns.get(back // SECOND, 0) + 1
        self._push(back, ARRIVE, -ident)

    def _start(self) -> None:
        while self.running < self.workers:
            ident = next((each for each, load in self.loads.items() if load.waiting), None)
            if ident is None:
                return
            load = self.loads[ident]
            load.max_wait = max(load.max_wait, self.now - load.waiting.popleft())
            self.running += 1
            self._push(self.now + self.service, END, ident)

    def _end(self, ident: int) -> None:
        load = self.loads[ident]
        load.held -= 1
        load.finished += 1
        self.running -= 1
        self._start()
        if not any(each.waiting for each in self.loads.values()):
            self.empty_at = self.empty_at or self.now
        else:
            self.empty_at = None

    def _look(self) -> None:
        now = self.now // 1_000
        reading = Reading(
            self.cap or 1 << 40, 1 << 40,
            {ident: self._reading(load) for ident, load in self.loads.items()},
            running=self.running, slots=self.workers,
        )  # fmt: skip
        steered = steer(self.memory, reading, now, self.settings)
        self.memory = steered.memory
        for ident, line in steered.lines.items():
            self.loads[ident].lines = line
        if steered.mode is not None:
            self.modes.append((now, steered.mode.after, steered.mode.signal))
        if steered.cause is not None:
            self.causes.append((now, steered.cause.after))

    def _reading(self, load: Load) -> WorkloadReading:
        age = (self.now - load.waiting[0]) // 1_000 if load.waiting else 0
        return WorkloadReading(
            load.effect.value, load.effect, deadline_ms(load.effect), jobs=load.held,
            eligible=len(load.waiting), age_ms=age, accepted=load.accepted,
            refused=load.refused, finished=load.finished, good=load.finished,
        )  # fmt: skip
