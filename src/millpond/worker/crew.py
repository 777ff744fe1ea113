"""The runners of a keeper and the rule by which jobs are spread over them: no I/O but sending."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from enum import Enum, auto
from typing import Protocol

from millpond import fault
from millpond.context import Why
from millpond.worker.frames import Fed, Feed
from millpond.worker.holdings import Held, Holdings
from millpond.worker.link import Link
from millpond.worker.marks import Marks


class Handle(Protocol):
    """A started runner: its link, and what can be done to it from outside."""

    @property
    def link(self) -> Link:
        """The keeper's end of the link."""
        ...

    @property
    def memory(self) -> str | None:
        """What memory may have to do with its end by SIGKILL, in words, once it has ended."""
        ...

    def poll(self) -> int | None:
        """Return how it ended (a negative number is a signal), None while it lives."""
        ...

    def kill(self) -> bool:
        """End it at once; False when that is impossible, as it is for threads."""
        ...

    def finish(self, timeout: float) -> bool:
        """Wait for its end after Quit; tell whether it came."""
        ...


class Stand(Enum):
    """Where a member of the crew stands."""

    STARTING = auto()
    READY = auto()
    ENDED = auto()
    """Its link has ended; what it held is settled once its process is reaped."""


class Member:
    """One runner, what it was fed, and how much of each group's slots that fills."""

    __slots__ = (
        "alone", "code", "doom", "dropping", "fed", "front", "greeted", "guest", "handle",
        "heard_at", "index", "killed", "loads", "said", "sizes", "solo", "stand", "started_at",
        "worked",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        handle: Handle,
        sizes: tuple[int, ...],
        now: float,
        *,
        guest: bool = False,
        solo: int | None = None,
    ) -> None:
        self.index = index
        self.handle = handle
        self.sizes = sizes
        self.stand = Stand.STARTING
        self.fed: dict[int, Held] = {}
        self.loads = [0] * len(sizes)
        self.alone = False
        self.code: int | None = None
        self.guest = guest
        self.solo = solo
        """The group whose one slot this runner is; it may be killed for what runs there."""
        self.doom: Why | None = None
        """Why this keeper has killed it, when that was for the job in it."""
        self.front: tuple[int, float] | None = None
        """The job that runs in a one-slot runner, or starts next, and since when at the latest."""
        self.greeted = False
        self.worked = False
        self.dropping = False
        self.killed = False
        self.said: str | None = None
        self.started_at = now
        self.heard_at = now

    @property
    def link(self) -> Link:
        """The keeper's end of its link."""
        return self.handle.link

    @property
    def crowded(self) -> bool:
        """Whether jobs wait in this runner behind those that run."""
        return any(load > size for load, size in zip(self.loads, self.sizes, strict=True))

    def spare(self, group: int) -> int:
        """Return how many slots of a group are free; below zero so many jobs wait there."""
        return self.sizes[group] - self.loads[group]

    def room(self, group: int, ahead: float) -> float:
        """Return how much more it may be fed when so many jobs may wait for each slot."""
        return self.sizes[group] * (1 + ahead) - self.loads[group]

    def returned(self, number: int) -> Held | None:
        """Take a job out that has ended or was dropped; None when it was not here."""
        held = self.fed.pop(number, None)
        if held is not None:
            self.loads[held.group] -= 1
            if self.alone:
                self.alone = bool(self.fed)
        return held


class Crew:
    """All members; feeds them so that each job may start, and none waits beside a free slot."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self._kept: Member | None = None

    @property
    def ready(self) -> list[Member]:
        """Members that can be fed."""
        return [each for each in self.members.values() if each.stand is Stand.READY]

    def feed(self, holdings: Holdings, marks: Marks, ahead: Sequence[float]) -> list[Member]:
        """Feed what waits, as far as members may take it; return who was fed.

        `ahead` is how many jobs may wait in a runner for each slot of a group. More stays
        here: another runner may be about to come.
        """
        batches: defaultdict[int, list[Fed]] = defaultdict(list)
        open_to = [m for m in self.ready if not (m.alone or m.dropping)]
        for group, line in enumerate(holdings.waiting):
            only = self._only(open_to, group)
            while line:
                held = line[0]
                if only is not None and not held.careful:
                    member = only if only.room(group, ahead[group]) > 0 else None
                else:
                    member = self._place(held, open_to, ahead[group])
                mark = None if member is None else marks.enter(held.claim.token)
                if member is None or mark is None:
                    break
                line.popleft()
                self._give(held, member, mark)
                batches[member.index].append(Fed(mark, group, held.claim))
                if held.alone:
                    open_to.remove(member)
                    only = None
        for index, jobs in batches.items():
            self.members[index].link.send(Feed(jobs))
        if batches:
            fault.point("fed")
        return [self.members[index] for index in batches]

    def waits_alone(self, holdings: Holdings) -> bool:
        """Whether a job waits for a runner of its own and no member is, or gets, empty for it."""
        return any(line and line[0].alone for line in holdings.waiting)

    def leave(self, member: Member) -> None:
        """Forget a member that has ended."""
        self.members.pop(member.index, None)
        if self._kept is member:
            self._kept = None

    def _only(self, open_to: list[Member], group: int) -> Member | None:
        """Return the member that every plain job goes to, when there is but one."""
        able = [member for member in open_to if member.sizes[group]]
        if len(able) != 1:
            return None
        (member,) = able
        return None if member is self._kept or member.guest else member

    def _place(self, held: Held, open_to: list[Member], ahead: float) -> Member | None:
        if held.alone:
            return self._empty([each for each in open_to if each.sizes[held.group]])
        found = None
        group = held.group
        for member in open_to:
            if member is self._kept or member.guest or not member.sizes[group]:
                continue
            if found is None or member.spare(group) > found.spare(group):
                found = member
        if found is None or found.room(group, 0 if held.careful else ahead) <= 0:
            return None
        return found

    def keep_nobody_free(self) -> None:
        """Feed all members again: a job that runs alone gets a runner of its own."""
        self._kept = None

    def _empty(self, open_to: list[Member]) -> Member | None:
        """Return a member that runs nothing, else keep the emptiest one free from new work."""
        empty = next((each for each in open_to if not each.fed), None)
        if empty is not None:
            self._kept = None
        elif self._kept is None or self._kept not in open_to:
            own = [each for each in open_to if not each.guest]
            self._kept = min(own, key=lambda each: len(each.fed), default=None)
        return empty

    def _give(self, held: Held, member: Member, mark: int) -> None:
        held.member = member.index
        held.mark = mark
        member.fed[held.number] = held
        member.loads[held.group] += 1
        member.alone = held.alone
