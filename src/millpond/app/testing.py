"""`pond.testing()`: the same pond and its tasks on another store, for the length of a block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from millpond.app.opening import Opening
from millpond.clock import Clock
from millpond.config.store import StoreConfig
from millpond.context import current_context
from millpond.errors import BadConfig
from millpond.store import forking

PondT = TypeVar("PondT")


class Working(Protocol):
    """What is asked of the workers that a pond has made."""

    @property
    def alive(self) -> bool:
        """Whether it works."""
        ...

    @property
    def started(self) -> bool:
        """Whether it works in a thread of its own, which `stop` ends."""
        ...

    def stop(self) -> object:
        """Stop in order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a pond's calls go, and by which clock: all that a test changes of it."""

    config: StoreConfig
    address: str
    clock: Clock
    eager: bool
    opening: Opening


class Testing(Generic[PondT]):
    """Points a pond at another store while its block runs, and gives back what was before.

    Blocks may stand inside one another. One that ends before a block inside it has ended
    leaves the pond where that one has it, so that no test meets the application's own store.
    """

    __test__ = False  # Keeps pytest from collecting the class by its name.

    def __init__(
        self,
        pond: PondT,
        *,
        place: Callable[[], Place],
        move: Callable[[Place], Place],
        inside: list[Testing[PondT]],
        workers: Iterable[Working],
    ) -> None:
        self._pond = pond
        self._place = place
        self._move = move
        self._inside = inside
        self._workers = workers
        self._there: Place | None = None
        self.before: Place | None = None

    def __enter__(self) -> PondT:
        self._check()
        with forking.guard:
            self._there = there = self._place()
            self.before = before = self._move(there)
            if any(_same_file(known, there) for known in self._known(before)):
                self._move(before)
                msg = (
                    f"pond.testing() was given {there.address}, the store that the pond has "
                    "already: a test needs one of its own, for example :memory:"
                )
                raise BadConfig(msg)
            self._inside.append(self)
        return self._pond

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            for worker in list(self._workers):
                if worker.started:
                    worker.stop()
        finally:
            self._leave()

    async def __aenter__(self) -> PondT:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from asyncio import to_thread

        await to_thread(self.__exit__, kind, error, trace)

    def _known(self, before: Place) -> list[Place]:
        return [before, *(block.before for block in self._inside if block.before is not None)]

    def _check(self) -> None:
        if any(worker.alive for worker in list(self._workers)):
            msg = (
                "pond.testing() cannot move the pond while a worker of this process works on "
                "it: begin the test first, and start the worker inside its block"
            )
            raise BadConfig(msg)
        if current_context.get() is not None:
            msg = "pond.testing() cannot move the pond while a handler runs: call it in a test"
            raise BadConfig(msg)
        if self in self._inside:
            raise BadConfig("this pond.testing() block has begun already: call testing() anew")

    def _leave(self) -> None:
        there, before = self._there, self.before
        if there is None or before is None:
            return
        with forking.guard:
            at = self._inside.index(self)
            del self._inside[at]
            if at == len(self._inside):
                self._move(before)
            else:
                self._inside[at].before = before
        there.opening.close()


def _same_file(one: Place, other: Place) -> bool:
    if one.config.address.memory or other.config.address.memory:
        return False
    return os.path.realpath(one.address) == os.path.realpath(other.address)
