"""What the parts of a keeper share, and small helpers for writes that are under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from millpond.clock import Clock
from millpond.config import Serve, TaskSettings, WorkerConfig
from millpond.errors import MillpondError, StoreBusy, StoreClosed, StoreError
from millpond.model import Claim, Dice, Settlement, WorkerId, WorkerInfo
from millpond.store.protocol import Store, Ticket
from millpond.worker import journal
from millpond.worker.bell import Bell
from millpond.worker.crew import Crew
from millpond.worker.holdings import Held, Holdings
from millpond.worker.marks import Marks
from millpond.worker.window import Window

T = TypeVar("T")


class WorkerFailed(MillpondError):
    """The worker cannot go on: the application, a runner or an internal loop has failed."""


@dataclass(frozen=True, slots=True)
class Group:
    """Slots that some queues share; without serves they are for all queues."""

    slots: int
    serves: tuple[Serve, ...] = ()
    tasks: frozenset[str] | None = None
    """Only these tasks; None is all."""
    solo: bool = False
    """Each slot is a runner of its own, with nothing else in its process."""

    def takes(self, claim: Claim) -> int:
        """Return how well a job fits: 0 not at all, 3 when its workload is named."""
        if self.tasks is not None and claim.task not in self.tasks:
            return 0
        if not self.serves:
            return 1
        fits = [
            2 if serve.workload is None else 3
            for serve in self.serves
            if serve.queue == claim.queue and serve.workload in {None, claim.workload}
        ]
        return max(fits, default=0)


def groups_of(config: WorkerConfig) -> list[Group]:
    """Return the groups of slots that the queues to serve ask for."""
    own = [Group(serve.slots, (serve,)) for serve in config.queues if serve.slots is not None]
    sharing = tuple(serve for serve in config.queues if serve.slots is None)
    left = config.slots - sum(group.slots for group in own)
    if sharing or not own:
        own.append(Group(left, sharing))
    return own


def with_solo(groups: list[Group], tasks: Mapping[str, TaskSettings]) -> list[Group]:
    """Return the groups, each with one beside it for tasks that want a process of their own."""
    solo = frozenset(name for name, task in tasks.items() if task.isolation == "process")
    if not solo:
        return groups
    others = frozenset(tasks) - solo
    return [replace(group, tasks=others) for group in groups] + [
        replace(group, tasks=solo, solo=True) for group in groups
    ]


def spread(groups: Sequence[Group], runners: int) -> list[tuple[int, ...]]:
    """Return the slots of each group in each runner, dealt out in turn."""
    sizes = [[0] * len(groups) for _ in range(runners)]
    turn = 0
    for index, group in enumerate(groups):
        for _ in range(group.slots):
            sizes[turn % runners][index] += 1
            turn += 1
    return [tuple(each) for each in sizes]


@dataclass(slots=True)
class Shared:
    """The keeper's state that all its parts see; used by its one thread only."""

    store: Store
    worker: WorkerId
    info: WorkerInfo
    config: WorkerConfig
    groups: list[Group]
    tasks: Mapping[str, TaskSettings]
    crew: Crew
    marks: Marks
    bell: Bell
    dice: Dice
    holdings: Holdings = field(init=False)
    windows: list[Window] = field(init=False)
    stopping: bool = False
    paused: set[tuple[str, str]] = field(default_factory=set)
    """Queue and workload of what is paused, as of the latest change of settings."""

    def __post_init__(self) -> None:
        solo = [index for index, group in enumerate(self.groups) if group.solo]
        self.holdings = Holdings(len(self.groups), solo)
        length_us = self.config.window_ms * 1000
        self.windows = [Window(group.slots, length_us) for group in self.groups]

    @property
    def clock(self) -> Clock:
        """The store's clock."""
        return self.store.clock

    def is_paused(self, claim: Claim) -> bool:
        """Whether jobs of this one's queue or workload must not start."""
        return (claim.queue, claim.workload) in self.paused

    def look(self, read: Callable[[], T], instead: T) -> T:
        """Read from the store; a busy moment answers `instead`, the next look comes soon.

        Raises WorkerFailed when the store cannot be read any more.
        """
        try:
            return read()
        except StoreBusy as error:
            journal.read_refused(error)
            return instead
        except StoreError as error:
            raise WorkerFailed(self._why_unreadable(error)) from error

    def _why_unreadable(self, error: StoreError) -> str:
        try:
            self.store.tick()
        except StoreClosed as closed:
            return str(closed)
        return f"the store cannot be read: {error}"

    def launch(self, make: Callable[[], Ticket[T]]) -> Ticket[T]:
        """Hand a write over; its end rings the bell. A refusal becomes the ticket's error."""
        try:
            ticket = make()
        except StoreError as error:
            ticket = Refused(error)
        ticket.then(self.bell.ring)
        return ticket


class Refused(Generic[T]):
    """A write that was not even taken."""

    def __init__(self, error: StoreError) -> None:
        self._error = error

    def done(self) -> bool:
        """Return True."""
        return True

    def result(self, timeout: float | None = None) -> T:  # noqa: ARG002
        """Raise what the store said."""
        raise self._error

    def then(self, callback: Callable[[], None]) -> None:
        """Call at once."""
        callback()

    def __await__(self):  # type: ignore[no-untyped-def]  # noqa: ANN204
        raise self._error
        yield


@dataclass(slots=True)
class Parcel:
    """Settlements on their way to the store, beside the jobs that they end."""

    held: list[Held]
    settlements: list[Settlement]
