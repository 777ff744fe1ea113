"""What the tests of the store share: jobs in one line, and a keeper that is moved by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.clock import ManualClock
from millpond.model import (
    Admission,
    AttemptOutcome,
    Claim,
    ClaimBatch,
    JobId,
    JobRow,
    JobSpec,
    Settled,
    Settlement,
    State,
    Token,
    Want,
    WorkerId,
    WorkerInfo,
)
from millpond.store.protocol import Store

TASK = "mail"
LEASE_MS = 60_000


class Dice:
    """Gives the numbers it was told, then always the last one."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers) or [0.5]

    def __call__(self) -> float:
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


def spec(task: str = TASK, **more: Any) -> JobSpec:
    return JobSpec(**{"task": task, "queue": "default", "workload": "default"} | more)


def specs(count: int, **more: Any) -> list[JobSpec]:
    return [spec(**more) for _ in range(count)]


def info(*tasks: str, **more: Any) -> WorkerInfo:
    given = {"host": "host", "pid": 1, "wake": None, "version": "0", "interval_ms": 15_000}
    return WorkerInfo(**given | more, tasks=tasks)


@dataclass
class Keeper:
    """A registered worker that claims and settles one step at a time."""

    store: Store
    tasks: tuple[str, ...] = (TASK,)
    more: dict[str, Any] = field(default_factory=dict)
    id: WorkerId = field(init=False)

    def __post_init__(self) -> None:
        self.id = self.store.register(info(*self.tasks, **self.more)).result()

    def batch(self, limit: int = 1, *wants: Want) -> ClaimBatch:
        asked = wants or (Want(limit),)
        return self.store.claim(self.id, asked, self.tasks, limit).result()

    def claim(self, limit: int = 1, *wants: Want) -> list[Claim]:
        return self.batch(limit, *wants).claims

    def one(self) -> Claim:
        (claim,) = self.claim(1)
        return claim

    def settle(self, *ends: Settlement) -> list[Settled]:
        return self.store.settle(self.id, ends).result()

    def end(self, claim: Claim | Token, outcome: AttemptOutcome, **more: Any) -> Settled:
        token = claim if isinstance(claim, Token) else claim.token
        now = self.store.clock.now()
        given = {"started_at": now, "ended_at": now} | more
        (settled,) = self.settle(Settlement(token, outcome, **given))
        return settled

    def complete(self, claim: Claim | Token, **more: Any) -> Settled:
        return self.end(claim, AttemptOutcome.COMPLETED, **more)

    def beat(self, *held: Token, known: int | None = None, interval_ms: int = 15_000) -> Any:
        return self.store.beat(self.id, held, known, interval_ms, 1_000).result()


@dataclass
class Bench:
    """A store with its clock, and short words for what most tests do."""

    store: Store
    clock: ManualClock
    dice: Dice

    def put(self, *many: JobSpec) -> list[JobId]:
        """Enqueue and return the ids."""
        return [answer.job_id for answer in self.store.enqueue(many).result()]

    def job(self, **more: Any) -> JobId:
        """Enqueue one job."""
        (ident,) = self.put(spec(**more))
        return ident

    def answer(self, **more: Any) -> Admission:
        (answer,) = self.store.enqueue([spec(**more)]).result()
        return answer

    def keeper(self, *tasks: str, **more: Any) -> Keeper:
        return Keeper(self.store, tasks or (TASK,), more)

    def state(self, ident: JobId) -> State:
        return self.row(ident).state

    def row(self, ident: JobId) -> JobRow:
        row = self.store.get(ident)
        assert row is not None, f"job {ident} is gone"
        return row

    def outcomes(self, ident: JobId) -> list[tuple[str, int | None]]:
        """Return outcome and charged number of every attempt."""
        return [(a.outcome.value, a.number) for a in self.store.attempts(ident)]

    def held(self, workload: str = "default", queue: str = "default") -> int:
        """Return how many jobs hold capacity."""
        return self.store.status().workload_jobs.get((queue, workload), (0, 0))[0]

    def bytes(self, workload: str = "default", queue: str = "default") -> int:
        return self.store.status().workload_jobs.get((queue, workload), (0, 0))[1]


def ids(claims: Sequence[Claim]) -> list[JobId]:
    return [claim.token.job_id for claim in claims]


def sound(store: Store) -> None:
    """Assert that file, places and counters agree."""
    assert store.verify() == []
    assert store.drift() == []


Make = Callable[[], Store]


def closing(store: Store) -> Iterator[Store]:
    """Hand a store out, then require that all of it is sound, then close it."""
    try:
        yield store
        sound(store)
    finally:
        store.close()
