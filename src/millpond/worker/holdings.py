"""What a keeper holds: every job it has claimed and not yet seen settled or handed back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence

from millpond.model import Claim, Token
from millpond.worker.report import Tally


class Held:
    """One held job and how far it has come.

    `member` is the index of the runner it was fed to, None while it waits here. `settling`
    says that its end is known and on its way to the store. `gone` says that the lease is
    known or feared to be lost, `cancelled` that somebody asked for its end.

    An attempt of an `alone` job took its runner along: it runs next with nobody beside it. A
    `careful` one is fed only into a free slot, as being fed must not cost it anything.
    """

    __slots__ = (
        "alone",
        "cancelled",
        "careful",
        "claim",
        "gone",
        "group",
        "mark",
        "member",
        "number",
        "settling",
    )

    def __init__(self, claim: Claim, group: int) -> None:
        self.claim = claim
        self.number = claim.token.claim
        self.group = group
        self.member: int | None = None
        self.mark = -1
        self.settling = False
        self.gone = False
        self.cancelled = False
        self.alone = claim.crashes > 0
        self.careful = self.alone or claim.max_attempts == 1


class Holdings:
    """All held jobs by claim number, and those that wait here for a runner, by group."""

    def __init__(self, groups: int, solo: Collection[int] = ()) -> None:
        self.solo = frozenset(solo)
        self.all: dict[int, Held] = {}
        self.waiting: list[deque[Held]] = [deque() for _ in range(groups)]
        self.counts = [0] * groups
        self.newest: int | None = None
        self.tally = Tally()
        self._leases: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.all)

    def add(self, claim: Claim, group: int) -> Held:
        """Take a claimed job into the waiting line of its group."""
        (held,) = self.add_all([claim], group)
        return held

    def add_all(self, claims: Sequence[Claim], group: int) -> list[Held]:
        """Take claimed jobs into the waiting line of their group, in their order."""
        taken = [Held(claim, group) for claim in claims]
        if group in self.solo:
            for held in taken:
                # Nothing else runs in its runner anyway.
                held.alone = False
        numbers = [held.number for held in taken]
        self.all.update(zip(numbers, taken, strict=True))
        self.waiting[group].extend(taken)
        self.counts[group] += len(taken)
        self._leases.update([claim.lease_ms for claim in claims])
        self.newest = max(self.newest or 0, *numbers)
        return taken

    def remove(self, held: Held) -> None:
        """Forget a job, when it is settled, handed back or lost."""
        self.remove_all([held])

    def remove_all(self, gone: Sequence[Held]) -> None:
        """Forget jobs; those that are forgotten already do not count."""
        pop = self.all.pop
        known = [held for held in gone if pop(held.number, None) is not None]
        for held in known:
            self.counts[held.group] -= 1
        for lease_ms, count in Counter([held.claim.lease_ms for held in known]).items():
            self._leases[lease_ms] -= count
            if not self._leases[lease_ms]:
                del self._leases[lease_ms]

    def put_back(self, held: Iterable[Held]) -> None:
        """Let jobs that did not start wait again, before all others and in their old order."""
        for one in sorted(held, key=lambda each: each.number, reverse=True):
            one.member = None
            self.waiting[one.group].appendleft(one)

    def take_waiting(self) -> list[Held]:
        """Empty the waiting lines."""
        taken = [held for line in self.waiting for held in line]
        for line in self.waiting:
            line.clear()
        return taken

    def tokens(self) -> frozenset[Token]:
        """Name all that is held, for a beat."""
        return frozenset(held.claim.token for held in self.all.values())

    @property
    def shortest_lease_ms(self) -> int | None:
        """The shortest lease that is held."""
        return min(self._leases) if self._leases else None
