"""What a keeper holds: every job it has claimed and not yet seen settled or handed back."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable

from millpond.model import Claim, Token
from millpond.worker.report import Tally


class Held:
    """One held job and how far it has come.

    `member` is the index of the runner it was fed to, None while it waits here. `settling`
    says that its end is known and on its way to the store. `gone` says that the lease is
    known or feared to be lost, `cancelled` that somebody asked for its end.
    """

    __slots__ = ("cancelled", "claim", "gone", "group", "mark", "member", "number", "settling")

    def __init__(self, claim: Claim, group: int) -> None:
        self.claim = claim
        self.number = claim.token.claim
        self.group = group
        self.member: int | None = None
        self.mark = -1
        self.settling = False
        self.gone = False
        self.cancelled = False

    @property
    def alone(self) -> bool:
        """Whether an attempt of it took its runner along: it runs next with nobody beside it."""
        return self.claim.crashes > 0

    @property
    def careful(self) -> bool:
        """Whether it may be fed only into a free slot: being fed must not cost it anything."""
        return self.claim.max_attempts == 1 or self.claim.crashes > 0


class Holdings:
    """All held jobs by claim number, and those that wait here for a runner, by group."""

    def __init__(self, groups: int) -> None:
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
        held = Held(claim, group)
        self.all[held.number] = held
        self.waiting[group].append(held)
        self.counts[group] += 1
        self._leases[claim.lease_ms] += 1
        self.newest = max(self.newest or 0, held.number)
        return held

    def remove(self, held: Held) -> None:
        """Forget a job, when it is settled, handed back or lost."""
        if self.all.pop(held.number, None) is None:
            return
        self.counts[held.group] -= 1
        lease_ms = held.claim.lease_ms
        self._leases[lease_ms] -= 1
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
