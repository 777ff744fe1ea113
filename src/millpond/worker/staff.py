"""Runners come and go: starting them, hearing them out, and settling what they leave behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from millpond.context import Why
from millpond.worker import journal
from millpond.worker.crew import Crew, Member, Stand
from millpond.worker.forms import Form
from millpond.worker.frames import Begin, Broken, Drop, Halt, Hello, Quit, Renewed, ToKeeper
from millpond.worker.settling import how_it_ended
from millpond.worker.shared import Group, WorkerFailed

START_FAILURES = 3
"""So many runners in a row that end before they are ready: the next one would as well."""

RESTART_S = (0.0, 0.2, 1.0, 5.0)
"""Pauses before a runner is started again, by how many died young before it."""

YOUNG_S = 5.0
"""A runner that dies within this time without finishing a job has died young."""

PATIENCE_S = 5.0
"""How long a job that runs alone waits for an empty runner before one is started for it."""

_log = logging.getLogger("millpond.worker")


class Staff:
    """Starts `sizes` runners, keeps that many, and ends them all."""

    def __init__(self, form: Form, crew: Crew, sizes: Sequence[tuple[int, ...]]) -> None:
        self._form = form
        self._crew = crew
        self._sizes = list(sizes)
        self._vacant: list[tuple[float, int]] = []
        self._young_deaths = 0
        self._start_failures = 0
        self._next_guest = len(sizes)
        self._solo: dict[int, int] = {}
        self._solo_from = 0.0
        self._alone_since: float | None = None
        self.hello: Hello | None = None
        self.begin: Begin | None = None
        self.renewed = 0
        self.ending = False

    @property
    def members(self) -> list[Member]:
        """All runners that are started and not yet buried."""
        return list(self._crew.members.values())

    def start(self) -> None:
        """Start all runners; they report when their application is imported."""
        for index in range(len(self._sizes)):
            self._start(index, self._sizes[index])

    def house(self, groups: Sequence[Group]) -> None:
        """Learn which groups consist of runners with one slot; the others have none of them."""
        self._solo = {index: group.slots for index, group in enumerate(groups) if group.solo}
        none = (0,) * len(self._solo)
        self._sizes = [sizes + none for sizes in self._sizes]
        for member in self.members:
            member.sizes += none
            member.loads += none

    def next_start(self) -> float | None:
        """Return in how many seconds a runner is to be started, None when none is."""
        now = time.monotonic()
        waits = [moment - now for moment, _ in self._vacant]
        if self._alone_since is not None and not self._has_guest():
            waits.append(self._alone_since + PATIENCE_S - now)
        if self._solo_from > now:
            waits.append(self._solo_from - now)
        return max(min(waits), 0) if waits else None

    def turn(self, *, waits_alone: bool, waiting: Sequence[int] = ()) -> None:
        """Start what is due: successors, a guest for a job that runs alone, one-slot runners.

        `waiting` counts the jobs of each group that wait here.
        """
        if self.ending:
            self._vacant.clear()
            self._alone_since = None
            return
        now = time.monotonic()
        for moment, index in list(self._vacant):
            if moment <= now:
                self._vacant.remove((moment, index))
                self._start(index, self._sizes[index])
        self._care_for_lone_jobs(now, waits_alone=waits_alone)
        if self._solo and now >= self._solo_from:
            self._start_solo(waiting)

    def _start_solo(self, waiting: Sequence[int]) -> None:
        for group, slots in self._solo.items():
            mine = [each for each in self.members if each.solo == group]
            # Those that wait here and behind others, less the places that are free or coming.
            missing = waiting[group] - sum(
                each.spare(group) for each in mine if each.stand is not Stand.ENDED
            )
            for _ in range(min(missing, slots - len(mine))):
                sizes = tuple(int(index == group) for index in range(len(waiting)))
                self._start(self._next_guest, sizes, solo=group)
                self._next_guest += 1

    def hear(self, member: Member, frame: ToKeeper) -> None:
        """Take Hello or Broken; raises WorkerFailed when there is no use in going on."""
        if isinstance(frame, Hello):
            self._greet(member, frame)
            return
        if not isinstance(frame, Broken):
            return
        if self.hello is None or not self._form.processes:
            raise WorkerFailed(frame.message)
        member.said = frame.message
        journal.runner_broken(member.index, frame.message)

    def welcome(self, begin: Begin) -> None:
        """The keeper is registered: members that are there may begin, later ones do at once."""
        self.begin = begin
        for member in self.members:
            if member.stand is Stand.STARTING and member.greeted:
                self._begin(member)

    def rename(self, begin: Begin) -> None:
        """The keeper had to register anew: tell the runners, which name it when they write."""
        self.begin = begin
        for member in self.members:
            if member.stand is Stand.READY:
                member.link.send(begin)

    def look(self) -> None:
        """See which processes are gone, before their last frames are read.

        A link may stay open after its runner: a child that a handler left behind holds it.
        """
        for member in self.members:
            if member.code is None:
                member.code = member.handle.poll()

    def ended(self) -> list[tuple[Member, int]]:
        """Return the members whose process is gone, with how it ended; each of them once.

        All at one moment: what is done about one of them may end another's link.
        """
        gone = []
        for member in self.members:
            if not member.link.ended and member.code is None:
                continue
            if member.stand is not Stand.ENDED:
                member.stand = Stand.ENDED
                # Without its link it runs nothing that counts; it may hang in its exit.
                member.handle.kill()
            code = member.code if member.code is not None else member.handle.poll()
            if code is not None:
                self._crew.leave(member)
                member.link.close()
                gone.append((member, code))
        return gone

    def bury(self, member: Member, code: int) -> None:
        """Plan the successor of a member that has died by itself."""
        how, _ = how_it_ended(code, member.handle.memory)
        now = time.monotonic()
        if member.greeted and member.solo is not None:
            self._start_failures = 0
        elif member.greeted:
            self._start_failures = 0
            young = now - member.started_at < YOUNG_S and not member.worked
            self._young_deaths = self._young_deaths + 1 if young else 0
        else:
            self._start_failures += 1
            if self.hello is None or self._start_failures >= START_FAILURES:
                raise WorkerFailed(
                    f"{how} before it was ready"
                    + (f", {START_FAILURES} times in a row" if self.hello else "")
                    + (f": {member.said}" if member.said else "")
                )
        if self.ending or member.guest:
            return
        if member.doom is not None:
            journal.runner_killed(member.index, member.doom)
            return
        pause = RESTART_S[min(self._young_deaths + self._start_failures, len(RESTART_S) - 1)]
        if member.solo is not None:
            # The next one is started when a job waits for it.
            self._solo_from = now + (pause if self._start_failures else 0)
            journal.runner_died(member.index, how, pause)
            return
        self._vacant.append((now + pause, member.index))
        journal.runner_died(member.index, how, pause)

    def renew(self, beat: int) -> None:
        """Tell every runner that its leases have their whole length again."""
        self.renewed = beat
        for member in self.members:
            if member.stand is Stand.READY:
                member.link.send(Renewed(beat))

    def halt(self, claims: Sequence[int], why: Why) -> None:
        """Tell the runners of these jobs to stop them, or to forget those not started."""
        for member in self.members:
            mine = [claim for claim in claims if claim in member.fed]
            if mine:
                member.link.send(Drop(mine))
                member.link.send(Halt(mine, why))

    def drop_all(self, member: Member) -> None:
        """Ask a member to forget everything that has not started there."""
        if member.stand is Stand.READY and not member.dropping:
            member.dropping = True
            member.link.send(Drop(None))

    def halt_all(self, why: Why) -> None:
        """Tell every running handler to stop."""
        for member in self.members:
            member.link.send(Halt(None, why))

    def kill_all(self) -> None:
        """End all runners at once, as far as they can be."""
        for member in self.members:
            member.killed = member.handle.kill()

    def quit(self, timeout: float) -> bool:
        """Let all runners end in order; tell whether all threads and processes are gone."""
        self.ending = True
        for member in self.members:
            member.link.send(Quit())
            if not member.greeted:
                # It is still importing and would read this much later.
                member.handle.kill()
        ends = time.monotonic() + timeout
        whole = True
        for member in self.members:
            whole &= member.handle.finish(max(ends - time.monotonic(), 0))
            member.link.close()
            self._crew.leave(member)
        return whole

    def _start(
        self, index: int, sizes: tuple[int, ...], *, guest: bool = False, solo: int | None = None
    ) -> None:
        handle = self._form.start(leader=solo is not None)
        member = Member(index, handle, sizes, time.monotonic(), guest=guest, solo=solo)
        self._crew.members[index] = member

    def _greet(self, member: Member, hello: Hello) -> None:
        if self.hello is None:
            self.hello = hello
        elif difference := disagreement(self.hello, hello):
            raise WorkerFailed(
                f"runner {member.index} imported another application than the first one: "
                f"{difference}. Restart the worker when the code has changed."
            )
        member.greeted = True
        if self.begin is not None:
            self._begin(member)

    def _begin(self, member: Member) -> None:
        begin = self.begin
        if begin is not None:
            member.link.send(msgspec.structs.replace(begin, groups=member.sizes))
            member.link.send(Renewed(self.renewed))
            member.stand = Stand.READY

    def _care_for_lone_jobs(self, now: float, *, waits_alone: bool) -> None:
        if not waits_alone or not self._form.processes:
            self._alone_since = None
            self._dismiss_guests()
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= PATIENCE_S and not self._has_guest():
            # All others run long jobs: one crash must not keep their free slots empty.
            sizes = tuple(int(index not in self._solo) for index in range(len(self._sizes[0])))
            self._start(self._next_guest, sizes, guest=True)
            self._crew.keep_nobody_free()
            self._next_guest += 1

    def _has_guest(self) -> bool:
        return any(member.guest for member in self._crew.members.values())

    def _dismiss_guests(self) -> None:
        for member in self.members:
            if member.guest and member.stand is Stand.READY and not member.fed:
                member.link.send(Quit())
                member.dropping = True


def disagreement(first: Hello, other: Hello) -> str | None:
    """Say in which names and settings two runners differ, None when they agree."""
    if first.version != other.version:
        return f"version {first.version} and {other.version}"
    if first.url != other.url or first.store != other.store:
        return f"store {first.url} and {other.url}" if first.url != other.url else "store settings"
    parts = [
        _differing("task", first.tasks, other.tasks),
        _differing("queue", first.queues, other.queues),
    ]
    return "; ".join(filter(None, parts)) or None


def _differing(noun: str, first: bytes, other: bytes) -> str | None:
    if first == other:
        return None
    one, two = (
        {each["name"]: each for each in msgspec.json.decode(raw, type=list[dict[str, Any]])}
        for raw in (first, other)
    )
    names = sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
    return f"{noun} {', '.join(map(str, names))} differs" if names else None
