"""Producers and real workers, killed at random and at every fault point, then counted.

One round: a few processes of each kind work on one store while one after the other is
killed, stopped for a while, or dies at the fault point it was given; whoever has ended is
started again. Then all are killed, and one clean worker brings everything to its end.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field

import psutil
from tests.scenarios.mill import Mill, Worker, until
from tests.scenarios.standing import complaints

from millpond.fault import POINTS

ACTIONS = ("kill", "exit", "stop")
ELSEWHERE = ("migrate", "archive")
FAULTS = [
    f"{point}:{action}" for point in POINTS if not point.startswith(ELSEWHERE) for action in ACTIONS
]
"""Every way to die, or to stand still, at every step that a worker comes by."""

PRODUCERS_FAULTS = [f"{point}:{how}" for point in ("before-commit", "after-commit")
                    for how in ("kill", "exit")]  # fmt: skip

LEASE = "700ms"

APP = """
import socket

pond.queue("mail", workloads={"critical": {}})
AGAIN = dict(lease=LEASE, max_attempts=30, retry=Backoff(base=0.05))

def ran(ctx):
    note("run", ctx.job_id, ctx._claim.token.claim)

@pond.task(**AGAIN)
def quick(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    return ctx.job_id

@pond.task(**AGAIN)
async def aquick(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    await asyncio.sleep(0.01)
    return ctx.job_id

@pond.task(queue="mail", workload="critical", **AGAIN)
def slow(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    pause(0.15)
    return ctx.job_id

@pond.task(queue="mail", **AGAIN)
def flaky(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    if ctx.attempt % 2:
        raise ConnectionError("once more")
    return ctx.job_id

@pond.task(**AGAIN)
async def snoozes(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    if ctx.remembered is None:
        await ctx.aremember("seen")
        raise Snooze(0.05)
    return ctx.job_id

OWN = dict(AGAIN, isolation="process")

@pond.task(**OWN)
def own(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    return ctx.job_id

@pond.task(queue="mail", **OWN)
async def aown(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    await asyncio.sleep(0.1)
    return ctx.job_id

@pond.task(**dict(OWN, timeout=0.3))
def hangs(*, ctx: Context = Context.injected) -> int:
    ran(ctx)
    if ctx.attempt % 2:
        ours, theirs = socket.socketpair()
        ours.recv(1)
    return ctx.job_id
""".replace("LEASE", repr(LEASE))

PRODUCER = """
import random, sys
import app

roll = random.Random(int(sys.argv[1]))
log = open(f"accepted-{sys.argv[1]}", "a", buffering=1)
tasks = [app.quick, app.aquick, app.slow, app.flaky, app.snoozes] + 2 * [app.own, app.aown]
while True:
    task = roll.choice(tasks)
    kind = roll.randrange(6)
    if kind == 0:
        with app.pond.batch() as batch:
            for _ in range(roll.randrange(1, 20)):
                batch.add(roll.choice(tasks))
        refs = batch.refs
    elif kind == 1:
        refs = [task.using(delay=0.3).enqueue()]
    elif kind == 2:
        key = f"key-{roll.randrange(200)}"
        refs = [app.quick.using(key=key).enqueue()]
        log.write(f"key {key} {refs[0].id}\\n")
    elif kind == 3:
        refs = [task.using(serial_key=f"lane-{roll.randrange(3)}").enqueue()]
    elif kind == 4 and roll.random() < 0.2:
        refs = [app.hangs.enqueue()]
    else:
        refs = [task.enqueue()]
    log.write("".join(f"accepted {ref.id}\\n" for ref in refs))
    app.pause(0.03)
"""


@dataclass
class Figures:
    """What a round, or all of them, came to."""

    accepted: int = 0
    runs: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    armed: Counter[str] = field(default_factory=Counter)
    fired: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        self.accepted += other.accepted
        self.runs += other.runs
        for name in ("deaths", "outcomes", "armed", "fired"):
            getattr(self, name).update(getattr(other, name))

    def __str__(self) -> str:
        def shown(counts: Counter[str]) -> str:
            return ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))

        return (
            f"{self.accepted} jobs accepted, {self.runs} runs; deaths: {shown(self.deaths)}; "
            f"attempts: {shown(self.outcomes)}; faults met, of {sum(self.armed.values())} armed: "
            f"{shown(self.fired)}"
        )


class Mayhem:
    """One round in the folder of a mill; `faults` are given to workers one after the other."""

    def __init__(self, mill: Mill, seed: int, faults: list[str]) -> None:
        self._mill = mill
        self._roll = random.Random(seed)
        self._faults = list(faults)
        self._standing: dict[int, float] = {}
        self._fault_of: dict[int, str] = {}
        self._struck: set[int] = set()
        self._runners_struck: Counter[int] = Counter()
        self._tries: Counter[str] = Counter()
        self._number = 0
        self.figures = Figures()
        mill.write(APP)
        mill.pond.open().close()
        (mill.folder / "producer.py").write_text(PRODUCER)
        self._producers = [self._producer() for _ in range(2)]
        self._workers = [self._worker() for _ in range(3)]

    def run(self, seconds: float) -> Figures:
        """Let it go on for so long, at least until every fault was armed, then end everybody.

        On a machine that has too much to do it goes on for up to a minute, until something has
        happened that can be counted.
        """
        wait, began = threading.Event(), time.monotonic()
        while (lasts := time.monotonic() - began) < (3 * seconds if self._faults else seconds) or (
            lasts < 60 and len(self._mill.notes("run")) < 100
        ):
            wait.wait(self._roll.uniform(0.05, 0.25))
            self._wake_those_who_stand()
            self._replace_the_dead()
            if self._roll.random() < 0.25:
                self._strike()
        for each in [*self._producers, *self._workers]:
            each.kill_all()
        return self.figures

    def _producer(self) -> Worker:
        self._number += 1
        env = dict(self._mill.environment)
        if self._roll.random() < 0.3:
            fault = self._roll.choice(PRODUCERS_FAULTS)
            env["MILLPOND_FAULT"] = f"{fault}@{self._roll.randrange(3, 20)}"
        seed = str(self._number * 1_000 + self._roll.randrange(1_000))
        return self._mill.start([sys.executable, "producer.py", seed], env)

    def _worker(self) -> Worker:
        fault = self._faults.pop() if self._faults else ""
        # Rare steps are met at their first pass, those of every job a little later.
        rare = not fault or fault.startswith(("recover-read", "beat", "checkpoint"))
        worker = self._mill.worker(
            fault=fault if rare else f"{fault}@{self._roll.randrange(12)}", recover="200ms",
            poll="100ms", drain="1s", level="warning", env={"MILLPOND_CHECKPOINT_PAGES": "20"},
            concurrency=self._roll.choice((1, 4)), processes=self._roll.choice((1, 1, 2)),
        )  # fmt: skip
        if fault:
            self.figures.armed[fault] += 1
            self._fault_of[worker.pid] = fault
        return worker

    def _arm_again(self, worker: Worker) -> None:
        """Give the fault of a worker that died of something else to another one."""
        fault = self._fault_of.pop(worker.pid, None)
        if fault is not None and self._tries[fault] < 3:
            self._tries[fault] += 1
            self._faults.insert(0, fault)

    def _fired(self, worker: Worker, *, ended: int | None) -> None:
        """Note that a worker has met its fault, as far as that can be told apart."""
        fault = self._fault_of.get(worker.pid)
        if fault is None:
            return
        died = ended == 86 or (ended == -signal.SIGKILL and worker.pid not in self._struck)
        runner = worker.said.count("runner_died") > self._runners_struck[worker.pid]
        if ended is None or died or (runner and not fault.endswith("stop")):
            self.figures.fired[fault] += 1
            del self._fault_of[worker.pid]

    # --- what happens to them --------------------------------------------------------------------

    def _strike(self) -> None:
        victim = self._roll.choice([*self._workers, *self._workers, *self._producers])
        way = self._roll.choice(("keeper", "all", "runner", "pause", "stand", "stop"))
        runners = victim.runners()
        self._struck.add(victim.pid)
        if victim in self._producers or way == "all":
            victim.kill_all()
        elif way == "keeper":
            victim.kill()
        elif way == "runner" and runners:
            with suppress(ProcessLookupError):
                os.kill(self._roll.choice(runners), signal.SIGKILL)
                self._runners_struck[victim.pid] += 1
        elif way == "stand" and runners:
            with suppress(ProcessLookupError):
                os.kill(self._roll.choice(runners), signal.SIGSTOP)
        elif way == "pause" and victim.process.poll() is None:
            victim.send(signal.SIGSTOP)
        elif way == "stop" and victim.process.poll() is None:
            victim.send(signal.SIGTERM)
        self.figures.deaths[f"by {way}"] += 1

    def _wake_those_who_stand(self) -> None:
        """Let go on who was stopped, by us or by its fault, after a while or much later."""
        for each in [*self._producers, *self._workers]:
            for pid in [each.pid, *each.runners()]:
                with suppress(psutil.Error, ProcessLookupError):
                    if psutil.Process(pid).status() != psutil.STATUS_STOPPED:
                        self._standing.pop(pid, None)
                    elif pid not in self._standing:
                        until = time.monotonic() + self._roll.choice((0.2, 1.5))
                        self._standing[pid] = until
                        self.figures.deaths["stood still"] += 1
                        if not {each.pid, pid} & self._struck:
                            self._fired(each, ended=None)
                    elif time.monotonic() >= self._standing[pid]:
                        os.kill(pid, signal.SIGCONT)

    def _replace_the_dead(self) -> None:
        for crowd, start in ((self._producers, self._producer), (self._workers, self._worker)):
            for at, each in enumerate(crowd):
                code = each.process.poll()
                if code is None:
                    continue
                # Told to stop, in time or before it could listen; killed; a fault.
                known = {0, -signal.SIGTERM, -signal.SIGKILL, 86}
                # A first runner that is killed while it starts ends its worker with a word.
                young = code == 1 and "before it was ready" in each.said
                assert code in known or young, f"{code}: {each.said[-3000:]}"
                self.figures.deaths[f"ended {code}"] += 1
                self._fired(each, ended=code)
                self._arm_again(each)
                each.kill_all()
                crowd[at] = start()

    # --- the reckoning ---------------------------------------------------------------------------

    def settle(self, within: float = 60) -> list[str]:
        """Bring all jobs to their end with one clean worker; return what is wrong then."""
        mill = self._mill
        mill.pond.open()
        clean = mill.worker(recover="200ms", poll="100ms", concurrency=8, level="warning")
        until(lambda: mill.pond.status().outstanding == 0, within, what="all jobs are final")
        assert clean.stop() == 0, clean.said
        mill.pond.close()
        accepted, keys = self._told()
        self.figures.accepted = len(accepted)
        wrong = complaints(mill.path, accepted)
        wrong += [f"{key} names jobs {ids}" for key, ids in keys.items() if len(ids) > 1]
        return wrong + self._runs()

    def _told(self) -> tuple[set[int], dict[str, set[int]]]:
        accepted: set[int] = set()
        keys: dict[str, set[int]] = {}
        for log in self._mill.folder.glob("accepted-*"):
            for line in log.read_text().splitlines():
                word, *rest = line.split()
                if word == "accepted":
                    accepted.add(int(rest[0]))
                else:
                    keys.setdefault(rest[0], set()).add(int(rest[1]))
        return accepted, keys

    def _runs(self) -> list[str]:
        """Compare what handlers did, claim by claim, with what the history says they did."""
        notes = self._mill.notes("run")
        runs = Counter((int(note.words[1]), int(note.words[2])) for note in notes)
        began = {(int(note.words[1]), int(note.words[2])): note.at for note in notes}
        self.figures.runs = len(notes)
        with closing(sqlite3.connect(self._mill.path)) as conn:
            rows = conn.execute("SELECT job, claim, outcome, ended_at FROM millpond_attempt")
            attempts = {(job, claim): (outcome, ended) for job, claim, outcome, ended in rows}
            finals = conn.execute("SELECT id, state FROM millpond_final").fetchall()
        self.figures.outcomes = Counter(outcome for outcome, _ in attempts.values())
        wrong = [f"claim {claim} of job {job} ran {n} times"
                 for (job, claim), n in runs.items() if n > 1]  # fmt: skip
        for (job, claim), at in began.items():
            outcome, ended = attempts.get((job, claim), ("unknown", 0))
            # Whoever stood still between its last look at the lease and the handler starts late:
            # its results are refused, and its lease is lost.
            if at > ended and outcome != "lease_lost":
                wrong.append(f"claim {claim} of job {job} began after it had ended, {outcome}")
        ran = {job for job, _ in runs}
        for job, state in finals:
            if state != "completed":
                wrong.append(f"job {job} is {state}")
            elif job not in ran:
                wrong.append(f"job {job} is completed and never ran")
        return wrong
