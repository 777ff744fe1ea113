"""How a worker runs: what it serves, with how many slots, and how often it does what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from millpond.config.checks import check_int, check_length, check_name
from millpond.config.settings import DAY_MS
from millpond.errors import BadConfig, refuse_setting

DEFAULT_CONCURRENCY = 4
"""The same on every machine: how many jobs run at once should not change with the host."""

DEFAULT_BEAT_MS = 15_000

_MOST_SLOTS = 10_000
_MOST_PROCESSES = 256
_COUNT = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Serve:
    """A queue that a worker serves, or one workload of it, with slots of its own (None: shared)."""

    queue: str
    workload: str | None = None
    slots: int | None = None

    def __post_init__(self) -> None:
        check_name("the name of a queue to serve", self.queue)
        if self.workload is not None:
            check_name("the name of a workload to serve", self.workload)
        if self.slots is not None:
            check_int(f"the slots of {self}", self.slots, 1, _MOST_SLOTS)

    def __str__(self) -> str:
        workload = "" if self.workload is None else f"/{self.workload}"
        slots = "" if self.slots is None else f":{self.slots}"
        return f"{self.queue}{workload}{slots}"

    @classmethod
    def parse(cls, text: str) -> Serve:
        """Return what "reports", "reports:4" or "reports/routine:2" asks to serve."""
        place, colon, slots = text.strip().partition(":")
        queue, slash, workload = place.partition("/")
        count = slots.strip()
        if colon and not _COUNT.fullmatch(count):
            refuse_setting("a queue to serve", text, "QUEUE, QUEUE:SLOTS or QUEUE/WORKLOAD:SLOTS")
        return cls(
            queue.strip(), workload.strip() if slash else None, int(count) if colon else None
        )


def parse_serves(texts: Iterable[str]) -> tuple[Serve, ...]:
    """Return the queues to serve from texts, each of which may hold several after commas."""
    parts = (part for text in texts for part in text.split(","))
    return tuple(Serve.parse(part) for part in parts if part.strip())


@dataclass(frozen=True, slots=True)
class Retention:
    """How long final jobs are kept, in milliseconds since they became final."""

    completed_ms: int = 7 * DAY_MS
    failed_ms: int = 30 * DAY_MS
    cancelled_ms: int = 7 * DAY_MS

    def __post_init__(self) -> None:
        check_length("retention.completed_ms", self.completed_ms)
        check_length("retention.failed_ms", self.failed_ms)
        check_length("retention.cancelled_ms", self.cancelled_ms)


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One keeper and its runners.

    `concurrency` is how many jobs each runner runs at once, `processes` how many runners
    there are; 0 runs the jobs inside the keeper's process. `queues` empty serves all.
    `beat_ms` None beats every 15 s, or four times in the shortest lease held.
    `busy_ms` None leaves it to the store. `window_ms` is how much measured work
    the keeper holds beyond what runs, `batch` how many jobs one claim takes at most,
    `drain_ms` how long running jobs may go on after the worker was told to stop.

    Raises BadConfig for values that cannot work, alone or together.
    """

    concurrency: int = DEFAULT_CONCURRENCY
    processes: int = 1
    queues: tuple[Serve, ...] = ()
    beat_ms: int | None = None
    poll_ms: int = 1_000
    recover_ms: int = 5_000
    drain_ms: int = 25_000
    busy_ms: int | None = None
    window_ms: int = 500
    batch: int = 256
    retention: Retention = field(default_factory=Retention)

    def __post_init__(self) -> None:
        check_int("worker.concurrency", self.concurrency, 1, _MOST_SLOTS)
        check_int("worker.processes", self.processes, 0, _MOST_PROCESSES)
        check_length("worker.poll_ms", self.poll_ms, 1)
        check_length("worker.recover_ms", self.recover_ms, 1)
        check_length("worker.drain_ms", self.drain_ms)
        check_length("worker.window_ms", self.window_ms)
        check_int("worker.batch", self.batch, 1, 10_000)
        if self.busy_ms is not None:
            check_length("worker.busy_ms", self.busy_ms)
        if self.beat_ms is not None:
            check_length("worker.beat_ms", self.beat_ms, 1)
        self._check_queues()

    def _check_queues(self) -> None:
        places = [(serve.queue, serve.workload) for serve in self.queues]
        if len(set(places)) < len(places):
            names = ", ".join(str(serve) for serve in self.queues)
            refuse_setting("worker.queues", names, "a list without repetitions")
        asked = slots_asked(self.queues)
        if asked > self.slots:
            msg = (
                f"worker.queues asks for {asked} slots of its own and there are {self.slots} "
                f"(concurrency {self.concurrency}, processes {self.processes}): raise "
                "concurrency or ask for fewer"
            )
            raise BadConfig(msg)

    @property
    def slots(self) -> int:
        """How many jobs run at once in all runners together."""
        return self.concurrency * max(self.processes, 1)


def slots_asked(queues: Sequence[Serve]) -> int:
    """Return how many slots these queues need: their own, and one for all that share."""
    own = [serve.slots for serve in queues if serve.slots is not None]
    return sum(own) + (1 if len(own) < len(queues) else 0)


def concurrency_for(queues: Sequence[Serve], processes: int) -> int:
    """Return the concurrency to use when nobody asked for one: the default, or what queues need."""
    runners = max(processes, 1)
    return max(DEFAULT_CONCURRENCY, -(-slots_asked(queues) // runners))


def beat_interval_ms(beat_ms: int | None, shortest_lease_ms: int) -> int:
    """Return how often to beat while the shortest lease held is this long.

    A quarter of the lease leaves room for a beat that is missed and for one that is late.
    """
    wanted = DEFAULT_BEAT_MS if beat_ms is None else beat_ms
    return max(min(wanted, shortest_lease_ms // 4), 1)


def check_beat(beat_ms: int | None, lease_ms: int, source: str) -> None:
    """Refuse an explicit beat that is longer than a third of a lease; `source` names the lease.

    Such a beat is shortened as long as the lease is held, so it is a contradiction rather
    than a danger, and the one who wrote it should know.
    """
    if beat_ms is not None and beat_ms * 3 > lease_ms:
        msg = (
            f"worker.beat_ms is {beat_ms} and {source} is {lease_ms}: a beat must come at "
            f"least three times in a lease, so at most every {lease_ms // 3} ms; shorten the "
            "beat, lengthen the lease, or leave the beat out to have it follow the leases"
        )
        raise BadConfig(msg)
