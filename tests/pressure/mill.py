"""The same queue on the real store: its admission of modes, its claims, settles and looks.

Each second of the scenario is one write transaction, in which the moments of its events are set
one after the other; the order among events of one moment is that of `Paper`. Arrivals that meet
no free worker are stored together with the next event, each due at its own moment, since nothing
that happens in between depends on them.

Room itself (`SUM(max(used, reserved)) <= max`) is decided here, on the counters of the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.pressure.loop import ARRIVE, END, LOOK, MINUTE, SECOND, Load
from tests.store.kit import info

from millpond.clock import ManualClock
from millpond.config import PressureSettings, QueueSettings, WorkloadSettings
from millpond.model import AttemptOutcome, JobSpec, Settlement, Token, Want, WorkerId
from millpond.policy.causes import Cause
from millpond.policy.effects import Verdict
from millpond.policy.modes import Mode
from millpond.store.sqlite import admit, claims, endings, pressure, steer
from millpond.store.sqlite.engine import SqliteStore
from millpond.store.sqlite.names import Context

BEAT = 15 * SECOND
TASK = "work"


@dataclass
class Mill:
    """Workers of one task at a store in memory, and the loads in the order of their claims.

    `shares` gives each load that is not strict so many turns; without them the order of the
    loads decides. A `cap` of 0 is no limit. In the minutes `down` no worker lives. Times of the
    store are whole milliseconds, those of the scenario microseconds.
    """

    loads: dict[str, Load]
    workers: int
    service: int
    cap: int
    reserved: dict[str, int] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)
    settings: PressureSettings = field(default_factory=PressureSettings)
    down: tuple[int, int] = (0, 0)
    now: int = 0
    highest: float = 0.0
    empty_at: int | None = None
    peak: int = 0
    modes: list[tuple[int, Mode, str]] = field(default_factory=list)
    causes: list[tuple[int, Cause, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = ManualClock()
        self.zero = self.clock.now()
        self.store = SqliteStore(":memory:", clock=self.clock, roll=lambda: 0.5)
        self.store.put_queue(
            QueueSettings(
                "default", max_jobs=self.cap or 1 << 40, max_bytes=1 << 40, pressure=self.settings,
                workloads=tuple(
                    WorkloadSettings(name, reserved=self.reserved.get(name, 0))
                    for name in self.loads
                ),
            )
        ).result()  # fmt: skip
        self.worker: WorkerId = self.store.register(
            info(TASK, slots=self.workers, interval_ms=BEAT // 1_000)
        ).result()
        self.running = 0
        self.waiting_for: list[tuple[int, str]] = []
        self.refusals = pressure.Refusals(lambda: 0.5)
        self.passes = dict.fromkeys(self.shares, 0.0)
        self.held: dict[int, Token] = {}
        self.since: dict[int, int] = {}
        self.queued = dict.fromkeys(self.loads, 0)
        self.events: list[tuple[int, int, int, str, int]] = []
        self.number = 0

    def close(self) -> None:
        self.store.close()

    # -- the course of time ----------------------------------------------------------------

    def run(self, minutes: float) -> Mill:
        sources = {name: load.arrivals() for name, load in self.loads.items()}
        for name in sources:
            self._next(sources, name)
        self._push(SECOND, LOOK, "")
        last = round(minutes * MINUTE)
        for second in range(last // SECOND + 1):
            until = min(second * SECOND + SECOND - 1, last)
            self.store._write(lambda tx, to=until: self._until(tx, sources, to, last)).result()
            self.clock.advance(1)
        return self

    def _until(self, tx: Context, sources: dict[str, Iterator[int]], to: int, last: int) -> None:
        while self.events and self.events[0][0] <= to:
            self.now, kind, _, name, job = heapq.heappop(self.events)
            self._set(tx, self.now)
            if kind == ARRIVE:
                if self.now < last:
                    self.waiting_for.append((self.now, name))
                    self._next(sources, name)
                if self.running < self.workers:
                    self._store_arrivals(tx)
                    self._start(tx)
                continue
            self._store_arrivals(tx)
            if kind == END:
                self._end(tx, name, job)
            else:
                self._look(tx)
                self._push(self.now + SECOND, LOOK, "")
        self._store_arrivals(tx)

    def _set(self, tx: Context, moment: int) -> None:
        passed = moment // 1_000
        tx.now = self.zero + passed
        tx.mono = 1_000_000 + passed

    def _push(self, at: int, kind: int, name: str, job: int = 0) -> None:
        self.number += 1
        heapq.heappush(self.events, (at, kind, self.number, name, job))

    def _next(self, sources: dict[str, Iterator[int]], name: str) -> None:
        at = next(sources[name], None)
        if at is not None:
            self._push(at, ARRIVE, name)

    # -- admission -------------------------------------------------------------------------

    def _store_arrivals(self, tx: Context) -> None:
        specs, moments = [], []
        for moment, name in self.waiting_for:
            load = self.loads[name]
            load.offered += 1
            self._set(tx, moment)
            if not self._admitted(tx, name, load):
                self._refuse(tx, name, load, moment)
                continue
            load.accepted += 1
            load.held += 1
            self.queued[name] += 1
            moments.append(moment)
            specs.append(JobSpec(task=TASK, queue="default", workload=name, due_at=tx.now))
        self.waiting_for.clear()
        self._set(tx, self.now)
        if specs:
            answers = admit.enqueue(tx, specs)
            self.since.update(
                (answer.job_id, at) for answer, at in zip(answers, moments, strict=True)
            )
        held = sum(load.held for load in self.loads.values())
        self.peak = max(self.peak, held)
        self.highest = max(self.highest, held / self.cap if self.cap else 0.0)

    def _admitted(self, tx: Context, name: str, load: Load) -> bool:
        if not self.cap or load.held < self.reserved.get(name, 0):
            return True
        held = sum(each.held for each in self.loads.values())
        promised = sum(
            max(each.held, self.reserved.get(other, 0)) for other, each in self.loads.items()
        )
        gate = pressure.gate(tx, self._id(tx, name), held / self.cap)
        if not gate.lets_in(1) or promised >= self.cap:
            return False
        if gate.verdict is Verdict.LINE:
            pressure.passed(tx, self._id(tx, name), 1)
        return True

    def _refuse(self, tx: Context, name: str, load: Load, moment: int) -> None:
        load.refused += 1
        load.first_refusal = moment if load.first_refusal is None else load.first_refusal
        self.refusals.refused(tx, self._id(tx, name), "queue_full")

    def _id(self, tx: Context, name: str) -> int:
        known = tx.names.derived.setdefault("mill", {})
        if name not in known:
            known |= {each.name: each.id for each in tx.names.workloads.values()}
        found: int = known[name]
        return found

    # -- work ------------------------------------------------------------------------------

    @property
    def _dead(self) -> bool:
        return self.down[0] * MINUTE <= self.now < self.down[1] * MINUTE

    def _start(self, tx: Context) -> None:
        while not self._dead and self.running < self.workers and (name := self._turn()) is not None:
            want = Want(1, "default", name)
            (claim,) = claims.claim(tx, self.worker, [want], {TASK}, 1).claims
            job = claim.token.job_id
            self.held[job] = claim.token
            load = self.loads[name]
            load.max_wait = max(load.max_wait, self.now - self.since.pop(job))
            self.queued[name] -= 1
            self.running += 1
            self._push(self.now + self.service, END, name, job)

    def _turn(self) -> str | None:
        """Return the workload that is served next: in order, or by strides where shares are."""
        ready = [name for name in self.loads if self.queued[name]]
        first = next((name for name in ready if name not in self.shares), None)
        if first is not None or not ready:
            return first
        name = min(ready, key=lambda each: self.passes[each])
        least = self.passes[name]
        self.passes[name] = least + 1 / self.shares[name]
        for other in self.shares:
            if not self.queued[other]:
                # Who has nothing to do saves no turns.
                self.passes[other] = max(self.passes[other], least)
        return name

    def _end(self, tx: Context, name: str, job: int) -> None:
        said = Settlement(self.held.pop(job), AttemptOutcome.COMPLETED)
        (settled,) = endings.settle(tx, self.worker, [said])
        assert settled.held, f"the lease of job {job} was lost"
        load = self.loads[name]
        load.held -= 1
        load.finished += 1
        self.running -= 1
        self._start(tx)
        if any(self.queued.values()):
            self.empty_at = None
        else:
            self.empty_at = self.empty_at or self.now

    # -- once a second ---------------------------------------------------------------------

    def _look(self, tx: Context) -> None:
        if self.now % BEAT == 0 and not self._dead:
            endings.beat(tx, self.worker, list(self.held.values()), None, BEAT // 1_000)
            self._start(tx)
        if self.refusals.untold:
            self.refusals.told(self.refusals.flush(tx))
        for change in steer.look_at_all(tx):
            second = self.now // SECOND
            if change.mode is not (self.modes[-1][1] if self.modes else Mode.NORMAL):
                self.modes.append((second, change.mode, change.signal))
            if change.cause is not (self.causes[-1][1] if self.causes else Cause.STEADY):
                self.causes.append((second, change.cause, change.detail))

    def rows(self, text: str) -> list[Any]:
        found: list[Any] = self.store._read(lambda run: run(text).fetchall())
        return found
