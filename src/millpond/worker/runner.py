"""A runner: calls handlers in threads and on an event loop, and tells its keeper how they ended.

The same object serves in a process of its own (`millpond.worker.child`) and in
threads of the keeper's process.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import assert_never

import msgspec

from millpond import fault
from millpond.clock import Clock
from millpond.context import Context, Control
from millpond.log import Line, event
from millpond.model import Claim, Token, WorkerId
from millpond.worker.attempt import Running, run_async, run_plain
from millpond.worker.frames import (
    Begin,
    Drop,
    Dropped,
    End,
    Fed,
    Feed,
    Halt,
    Hello,
    Outcome,
    Progressed,
    Quit,
    Renewed,
    ToKeeper,
    ToRunner,
)
from millpond.worker.host import Host
from millpond.worker.loop import LoopThread
from millpond.worker.marks import Marks
from millpond.worker.monitor import TICK_S, Monitor
from millpond.worker.slots import Slots

_log = logging.getLogger("millpond.worker")

PROGRESS_S = 1.0
"""How often the latest progress travels to the keeper, at most."""


class Runner:
    """Runs what it is fed; every frame it sends goes through `answer`, from any thread.

    `broke` is called when its own machinery fails, never because of what a handler does.
    """

    def __init__(
        self,
        host: Host,
        answer: Callable[[ToKeeper], None],
        clock: Clock,
        broke: Callable[[str], None],
    ) -> None:
        self._host = host
        self._tasks = dict(host.registry)
        self._answer = answer
        self._clock = clock
        self._broke = broke
        self._marks: Marks | None = None
        self._groups: list[Slots] = []
        self._running: dict[int, Running] = {}
        self._renewed = 0
        self._tell = False
        self._loop = LoopThread(self._attempt_async, self._broke)
        self._handlers = _HandlersHost(host, clock, answer)
        self._monitor = Monitor(self._watched, self._loop, clock, self._handlers.flush)

    def hello(self) -> Hello:
        """Return what the application declares."""
        declared = self._host.declarations()
        return Hello(
            pid=os.getpid(),
            version=installed_version(),
            url=declared.url,
            store=msgspec.json.encode(declared.store),
            queues=msgspec.json.encode(list(declared.queues)),
            tasks=msgspec.json.encode(list(declared.tasks)),
        )

    @property
    def busy(self) -> int:
        """How many handlers are running."""
        return len(self._running)

    def receive(self, frame: ToRunner) -> None:
        """Do what the keeper says, without waiting for any handler."""
        match frame:
            case Feed(jobs):
                self._feed(jobs)
            case Renewed(mono):
                self._renew(mono)
            case Drop(claims):
                wanted = None if claims is None else set(claims)
                dropped = [claim for group in self._groups for claim in group.drop(wanted)]
                self._answer(Dropped(dropped))
            case Halt(claims, why):
                for running in self._named(claims):
                    running.stop(why)
            case Begin():
                self._begin(frame)
            case Quit():
                self.close(0)
            case _:
                assert_never(frame)

    def close(self, timeout: float) -> bool:
        """Let threads and loop end; tell whether all did within `timeout` seconds."""
        ends = time.monotonic() + timeout

        def left() -> float:
            return ends - time.monotonic()

        for group in self._groups:
            group.close()
        self._loop.close()
        self._handlers.flush(force=True)
        ended = [group.join(left) for group in self._groups]
        ended += [self._loop.join(left()), self._monitor.close(left())]
        whole = all(ended)
        if whole and self._marks is not None:
            # Not before: a handler left behind still marks its end, and its lock says it lives.
            marks, self._marks = self._marks, None
            marks.close()
        return whole

    def _begin(self, begin: Begin) -> None:
        self._handlers.name(WorkerId(begin.worker), begin.owner)
        if self._groups:
            return
        if begin.marks is not None:
            self._marks = Marks.attach(begin.marks)
        on_loop = frozenset(name for name, task in self._tasks.items() if task.is_async)
        self._groups = [
            Slots(size, self._attempt, self._loop.start, on_loop, f"millpond-slot-{index}")
            for index, size in enumerate(begin.groups)
        ]

    def _feed(self, jobs: list[Fed]) -> None:
        self._tell = _log.isEnabledFor(logging.DEBUG)
        if len(self._groups) == 1:
            self._groups[0].put(jobs)
            return
        for index, group in enumerate(self._groups):
            group.put([job for job in jobs if job.group == index])

    def _renew(self, mono: int) -> None:
        self._renewed = max(self._renewed, mono)
        for running in self._watched():
            running.control.lease_until = self._lease_until(running.claim)

    def _lease_until(self, claim: Claim) -> int:
        return max(claim.claimed_mono, self._renewed) + claim.lease_ms

    def _catch_up(self) -> None:
        """Learn of a renewal that the link has brought and nobody could read yet."""
        renewed = self._marks.renewed if self._marks is not None else 0
        if renewed > self._renewed:
            self._renew(renewed)

    def _named(self, claims: list[int] | None) -> Iterable[Running]:
        if claims is None:
            return self._watched()
        return [found for claim in claims if (found := self._running.get(claim)) is not None]

    def _watched(self) -> list[Running]:
        return list(self._running.values())

    # --- one attempt ----------------------------------------------------------------------------

    def _attempt(self, job: Fed) -> None:
        """Run a plain handler in this thread; never raises."""
        try:
            running = self._open(job)
            if running is not None:
                context = Context(job.claim, running.control, self._handlers)
                self._close(job, run_plain(running, context, self._clock))
        except BaseException:  # noqa: BLE001  a fault of the runner itself: the keeper must know
            self._broke(f"a slot of this runner has failed:\n{_stack()}")

    async def _attempt_async(self, job: Fed) -> None:
        """Run an async handler in the current task, then start what its slot allows."""
        try:
            running = self._open(job)
            if running is not None:
                running.interrupt = self._interrupt()
                if running.control.why is not None:
                    # The order came between the two lines above.
                    running.interrupt()
                context = Context(job.claim, running.control, self._handlers)
                self._close(job, await run_async(running, context, self._clock))
        except BaseException:  # noqa: BLE001  a fault of the runner itself: the keeper must know
            self._broke(f"the loop of this runner has failed:\n{_stack()}")
        self._loop.begin(self._groups[job.group].release())

    def _interrupt(self) -> Callable[[], None]:
        import asyncio

        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        if task is None:
            raise RuntimeError("an async handler runs only inside a task")
        cancel = task.cancel

        def interrupt() -> None:
            loop.call_soon_threadsafe(cancel)

        return interrupt

    def _open(self, job: Fed) -> Running | None:
        """Mark the job started; None when it must not start any more."""
        claim = job.claim
        number = claim.token.claim
        control = Control(None, self._lease_until(claim), self._catch_up)
        task = self._tasks.get(claim.task)
        if task is None:
            # Claims name the tasks that were declared, so only a changed registry leads here.
            self._answer(Outcome(number, End.RELEASED, None, self._clock.now(), 0))
            return None
        if control.expired(self._clock.mono):
            # It may belong to somebody else by now: never start what is not surely ours.
            self._answer(Dropped([number]))
            return None
        running = Running(claim, task, control, self._clock.now())
        self._running[number] = running
        control.lease_until = self._lease_until(claim)
        if self._marks is not None:
            self._marks.started(job.mark, running.started_at)
        if not self._monitor.awake or (claim.timeout_ms or TICK_S * 1000) < TICK_S * 1000:
            self._monitor.notice()
        if self._tell:
            self._tell_start(running)
        fault.point("started")
        return running

    def _tell_start(self, running: Running) -> None:
        claim = running.claim
        event(
            _log, logging.DEBUG, Line.STARTED, job=claim.token.job_id, attempt=claim.attempt,
            task=claim.task, queue=claim.queue, wait_ms=running.started_at - claim.due_at,
        )  # fmt: skip

    def _close(self, job: Fed, outcome: Outcome) -> None:
        if self._marks is not None:
            self._marks.returned(job.mark)
        fault.point("returned")
        del self._running[outcome.claim]
        self._handlers.ended(outcome.claim)
        self._answer(outcome)


def _stack() -> str:
    try:
        return traceback.format_exc()
    except Exception:  # noqa: BLE001  it hangs together with an exception that cannot be printed
        return "(its traceback cannot be printed)"


@cache
def installed_version() -> str:
    """Return the version of millpond that runs here."""
    try:
        return version("millpond")
    except PackageNotFoundError:
        return "unknown"


class _HandlersHost:
    """What contexts ask of the runner: clock, name, progress and memory."""

    def __init__(self, host: Host, clock: Clock, answer: Callable[[ToKeeper], None]) -> None:
        self._host = host
        self._answer = answer
        self._id = WorkerId(0)
        self._latest: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._flushed = 0.0
        self.mono = clock.mono
        self.worker = ""

    def name(self, worker: WorkerId, owner: str) -> None:
        """Take over what the keeper registered as."""
        self._id = worker
        self.worker = owner

    def progress(self, token: Token, value: bytes) -> None:
        """Keep the latest progress until it is flushed."""
        with self._lock:
            self._latest[token.claim] = value

    def remember(self, token: Token, value: bytes) -> bool:
        """Store the value over this process's own connection; returns after the commit."""
        return self._host.store.remember(self._id, token, value).result()

    def flush(self, *, force: bool = False) -> None:
        """Send what has gathered, at most once a second."""
        now = time.monotonic()
        if not self._latest or (now - self._flushed < PROGRESS_S and not force):
            return
        self._flushed = now
        with self._lock:
            values, self._latest = list(self._latest.items()), {}
        self._answer(Progressed(values))

    def ended(self, claim: int) -> None:
        """Send the last progress of a job before its outcome."""
        if self._latest:
            with self._lock:
                value = self._latest.pop(claim, None)
            if value is not None:
                self._answer(Progressed([(claim, value)]))
