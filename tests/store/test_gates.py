"""Blocked beside several limits: random lives, compared after every claim with a brute-force look.

A job may count against a limit key and its tenant at once, and stand in any of many lanes. The
rule to prove: a claim that took less than it was asked for, and does not say that more is left,
leaves no job behind that could run.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.machine.model import FINAL, Model, Queue, Worker, fits
from tests.store.kit import info, spec

from millpond.clock import ManualClock
from millpond.model import AttemptOutcome, Settlement, Token, Want
from millpond.store import open_store
from millpond.store.sqlite import claims

OUT = AttemptOutcome
TASKS = ("a", "b")
QUEUES = ("q", "r")
LIMITS = {"k1": 1, "k2": 1, "k3": 2}
KEYS = (*LIMITS, None)
TENANTS = ("t1", "t2", None)
STEPS = 250


class Life:
    """One random life of a store under contention for a few limits."""

    def __init__(self, seed: int) -> None:
        self.roll = random.Random(seed)
        self.clock = ManualClock()
        self.store = open_store(":memory:", clock=self.clock, roll=lambda: 0.5)
        self.model = Model()
        self.model.queues = {queue: Queue() for queue in QUEUES}
        for tasks in (TASKS, ("a",), ("b",)):
            number = int(self.store.register(info(*tasks)).result())
            self.model.workers[number] = Worker(tasks, self.clock.mono(), self.clock.now())
        for queue in QUEUES:
            for tenant in TENANTS[:-1]:
                self.set_limit(("tenant", f"{queue}/{tenant}"), self.roll.choice((1, 1, 2)))

    def live(self) -> None:
        often = (self.put, self.claim, self.claim, self.settle)
        acts = (*often * 4, self.cancel, self.cancel, self.limit, self.wait, self.pause)
        for _ in range(STEPS):
            self.model.now, self.model.mono = self.clock.now(), self.clock.mono()
            self.roll.choice(acts)()
        assert self.store.verify() == []
        self.drain()

    def put(self) -> None:
        given = [self._spec() for _ in range(self.roll.randint(1, 6))]
        answers = self.store.enqueue(given).result()
        assert answers == self.model.enqueue(given, answers)

    def _spec(self) -> Any:
        key = self.roll.choice(KEYS)
        more = {} if key is None else {"limit_key": key, "limit": LIMITS[key]}
        return spec(
            self.roll.choice(TASKS), queue=self.roll.choice(QUEUES), max_attempts=3,
            workload=self.roll.choice(("default",) * 4 + ("critical",)), lease_ms=5_000,
            tenant=self.roll.choice(TENANTS), priority=self.roll.randint(98, 102),
            delay_ms=self.roll.choice((0, 0, 0, 50)), **more,
        )  # fmt: skip

    def claim(self) -> None:
        worker = self.roll.choice(list(self.model.workers))
        wants = self.roll.choice(
            ([Want(9)], [Want(9, "q")], [Want(1)], [Want(2, "q"), Want(2, "r")])
        )
        self.take(worker, wants, self.roll.choice((1, 3, 9)))

    def take(self, worker: int, wants: list[Want], limit: int) -> bool:
        """Claim once and compare; return whether there may be more."""
        model = self.model
        model.promote(claims.MOVES)
        batch = self.store.claim(worker, wants, model.workers[worker].tasks, limit).result()
        left = {want: want.slots for want in wants}
        for claim in batch.claims:
            job = model.jobs[claim.token.job_id]
            assert model.free(job), f"job {job.id} was started over a limit"
            left[next(want for want in wants if fits(want, job))] -= 1
            model.take(worker, claim)
        if not batch.more and len(batch.claims) < limit:
            seats = [want for want, slots in left.items() if slots > 0]
            idle = [job.id for job in model.open_to(worker, seats) if model.free(job)]
            assert idle == [], "jobs wait beside free slots and free limits"
        return batch.more or bool(batch.claims)

    def settle(self) -> None:
        running = self.model.running()
        by_worker: dict[int, list[Settlement]] = {}
        for job in self.roll.sample(running, self.roll.randint(0, len(running))):
            token = Token(job.id, job.claim)  # type: ignore[arg-type]
            outcome, delay = self.roll.choice(list(OUT)), self.roll.choice((0, 0, 40))
            end = Settlement(token, outcome, started_at=1, ended_at=1, delay_ms=delay)
            by_worker.setdefault(job.worker, []).append(end)
        for worker, ends in by_worker.items():
            answers = self.store.settle(worker, ends).result()  # type: ignore[arg-type]
            assert answers == [
                self.model.settle(worker, end.token, end.outcome, end.delay_ms, started=True)
                for end in ends
            ]

    def cancel(self) -> None:
        waiting = [job.id for job in self.model.jobs.values() if job.state not in FINAL]
        for ident in self.roll.sample(waiting, min(len(waiting), self.roll.randint(0, 4))):
            assert self.store.cancel(ident).result() is self.model.cancel(ident)  # type: ignore[arg-type]

    def limit(self) -> None:
        gates = [("limit", key) for key in KEYS if key]
        gates += [("tenant", f"{queue}/{name}") for queue in QUEUES for name in TENANTS if name]
        self.set_limit(self.roll.choice(gates), self.roll.choice((None, 0, 1, 1, 2, 3)))

    def set_limit(self, gate: tuple[str, str], limit: int | None) -> None:
        self.store.set_gate(*gate, limit).result()
        self.model.set_limit(gate, limit)

    def wait(self) -> None:
        self.clock.advance(ms=self.roll.choice((1, 50, 500, 5_000)))
        self.model.now, self.model.mono = self.clock.now(), self.clock.mono()
        got = self.store.recover(limit=2).result()
        assert set(got.tokens) == self.model.recover(2)

    def pause(self) -> None:
        queue, paused = self.roll.choice(QUEUES), self.roll.random() < 0.3
        self.store.pause(queue, paused).result()
        self.model.queues[queue].paused = paused

    def drain(self) -> None:
        """With limits of one and nobody in the way, everything that waits comes to its end."""
        for queue in QUEUES:
            self.store.pause(queue, False).result()
            self.model.queues[queue].paused = False
        for gate in list(self.model.limits):
            self.set_limit(gate, 1)
        worker = min(self.model.workers)
        for _ in range(10_000):
            self.clock.advance(ms=1_000)
            self.model.now, self.model.mono = self.clock.now(), self.clock.mono()
            more = self.take(worker, [Want(5)], 5)
            for job in self.model.running():
                end = Settlement(Token(job.id, job.claim), OUT.COMPLETED, started_at=1, ended_at=1)  # type: ignore[arg-type]
                answers = self.store.settle(job.worker, [end]).result()  # type: ignore[arg-type]
                given = self.model.settle(job.worker, end.token, OUT.COMPLETED, 0, started=True)
                assert answers == [given]
            waiting = [job for job in self.model.jobs.values() if job.state not in FINAL]
            if not waiting and not more:
                return
        raise AssertionError("jobs were left waiting for ever")


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("moves", [500, 2])
def test_no_job_waits_beside_a_free_slot_and_free_limits(
    seed: int, moves: int, monkeypatch: pytest.MonkeyPatch
):
    """Also when a claim may set aside no more than two jobs, and says that more is left."""
    monkeypatch.setattr(claims, "MOVES", moves)
    life = Life(seed)
    try:
        life.live()
    finally:
        life.store.close()
