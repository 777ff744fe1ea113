"""The shop floor: what becomes of fed jobs when runners answer, drop them, stall or die."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import assert_never

from millpond import fault
from millpond.model import AttemptOutcome, Claim, Settlement
from millpond.worker import journal
from millpond.worker.beats import Beats
from millpond.worker.crew import Member
from millpond.worker.desk import Desk
from millpond.worker.frames import (
    Broken,
    Drop,
    Dropped,
    End,
    Hello,
    Outcome,
    Progressed,
    ToKeeper,
)
from millpond.worker.holdings import Held
from millpond.worker.marks import Stage
from millpond.worker.settling import (
    how_it_ended,
    settlement_after_death,
    settlement_after_doom,
    settlement_after_kill,
    settlement_of,
)
from millpond.worker.shared import Shared
from millpond.worker.staff import Staff

STALL_WINDOWS = 2
"""After so many windows without an end, what waits in a runner is fetched back."""

SHORTEST_STALL_S = 0.5


class Floor:
    """Moves jobs between waiting, fed and settling; every held job is in one of the three."""

    def __init__(self, shared: Shared, staff: Staff, desk: Desk, beats: Beats) -> None:
        self._shared = shared
        self._staff = staff
        self._desk = desk
        self._beats = beats
        self._stall_s = max(STALL_WINDOWS * shared.config.window_ms / 1000, SHORTEST_STALL_S)

    # --- in --------------------------------------------------------------------------------------

    def take(self, claims: Sequence[Claim]) -> None:
        """Take claimed jobs in; while stopping they go straight back."""
        if not claims:
            return
        holdings = self._shared.holdings
        if len(self._shared.groups) == 1:
            taken = holdings.add_all(claims, 0)
        else:
            taken = [holdings.add(claim, self._group(claim)) for claim in claims]
        if self._shared.stopping:
            # The claim was under way when the signal came: nothing of it starts here.
            self.release_waiting()
        else:
            journal.claimed(taken)

    def feed(self) -> None:
        """Feed what waits as far as runners may take it."""
        shared = self._shared
        if any(shared.holdings.waiting):
            now = time.monotonic()
            ahead = [window.ahead for window in shared.windows]
            for member in shared.crew.feed(shared.holdings, shared.marks, ahead):
                member.heard_at = now

    def release_waiting(self) -> None:
        """Hand back everything that was not fed."""
        for held in self._shared.holdings.take_waiting():
            self._release(held)

    def _group(self, claim: Claim) -> int:
        groups = self._shared.groups
        counts, windows = self._shared.holdings.counts, self._shared.windows
        fitting = [index for index, group in enumerate(groups) if group.takes(claim)] or [0]
        # The most specific slots that have room; all full, the most specific ones.
        fitting.sort(key=lambda index: -groups[index].takes(claim))
        roomy = (index for index in fitting if windows[index].room(counts[index]))
        return next(roomy, fitting[0])

    # --- answers ---------------------------------------------------------------------------------

    def hear(self, member: Member, frames: Sequence[ToKeeper]) -> None:
        """Take what a runner has said."""
        ran = [[0, 0] for _ in self._shared.groups]
        for frame in frames:
            if type(frame) is Outcome:
                self._outcome(member, frame, ran)
            else:
                self._other(member, frame)
        ended = sum(count for _, count in ran)
        if ended:
            member.heard_at = time.monotonic()
            member.worked = True
            for window, (total_us, count) in zip(self._shared.windows, ran, strict=True):
                window.observe(total_us, count)
            fault.point("outcome-read")

    def _outcome(self, member: Member, outcome: Outcome, ran: list[list[int]]) -> None:
        held = member.returned(outcome.claim)
        if held is None:
            return
        measure = ran[held.group]
        measure[0] += outcome.ran_us
        measure[1] += 1
        claim = held.claim
        settings = self._shared.tasks[claim.task]
        roll = 0.0 if outcome.end is End.COMPLETED else self._shared.dice()
        self._desk.add(
            held, settlement_of(outcome, claim, settings.retry, settings.result_ttl_ms, roll)
        )

    def _other(self, member: Member, frame: ToKeeper) -> None:
        match frame:
            case Dropped(claims):
                self._dropped(member, claims)
            case Progressed(values):
                for number, value in values:
                    held = member.fed.get(number)
                    if held is not None:
                        self._beats.note_progress(held, value)
            case Hello() | Broken():
                self._staff.hear(member, frame)
            case Outcome():
                raise AssertionError("outcomes are taken before")
            case _:
                assert_never(frame)

    def _dropped(self, member: Member, claims: Sequence[int]) -> None:
        back = []
        for number in claims:
            held = member.returned(number)
            if held is not None:
                back.append(held)
        self._unstarted(back)

    def _unstarted(self, back: Sequence[Held]) -> None:
        """Send jobs that never started where they belong: back in line, back to the store, away."""
        shared = self._shared
        again = []
        for held in back:
            if held.gone:
                shared.marks.leave(held.mark)
                shared.holdings.remove(held)
                shared.holdings.tally.lost += 1
            elif held.cancelled:
                self._desk.add(held, Settlement(held.claim.token, AttemptOutcome.CANCELLED))
            elif shared.stopping or shared.is_paused(held.claim):
                self._release(held)
            else:
                shared.marks.leave(held.mark)
                held.mark = -1
                again.append(held)
        shared.holdings.put_back(again)
        self._release_surplus()

    def _release_surplus(self) -> None:
        holdings = self._shared.holdings
        for line, window in zip(holdings.waiting, self._shared.windows, strict=True):
            group_over = (holdings.counts[line[0].group] - window.target) if line else 0
            for _ in range(min(max(group_over, 0), len(line))):
                self._release(line.pop())

    def _release(self, held: Held) -> None:
        self._desk.add(held, Settlement(held.claim.token, AttemptOutcome.RELEASED))

    # --- pauses ----------------------------------------------------------------------------------

    def hand_back_paused(self) -> None:
        """Hand back what has not started of queues that are paused now."""
        shared = self._shared
        shared.paused = shared.look(self._paused_now, shared.paused)
        if not shared.paused:
            return
        for line in shared.holdings.waiting:
            for held in [each for each in line if shared.is_paused(each.claim)]:
                line.remove(held)
                self._release(held)
        for member in shared.crew.members.values():
            fed = [n for n, held in member.fed.items() if shared.is_paused(held.claim)]
            if fed:
                member.link.send(Drop(fed))

    def _paused_now(self) -> set[tuple[str, str]]:
        lanes = self._shared.store.status().lanes
        return {(lane.queue, lane.workload) for lane in lanes if lane.paused}

    # --- trouble ---------------------------------------------------------------------------------

    def crowded(self) -> float | None:
        """Return in how many seconds a runner counts as stalled, None when none can."""
        waits = [
            member.heard_at + self._stall_s - time.monotonic()
            for member in self._shared.crew.members.values()
            if member.crowded and not member.dropping
        ]
        return max(min(waits), 0) if waits else None

    def fetch_back_from_stalled(self) -> None:
        """Fetch back what waits in a runner whose running jobs take longer than was measured."""
        now = time.monotonic()
        for member in self._shared.crew.members.values():
            if not member.crowded or member.dropping or now - member.heard_at < self._stall_s:
                continue
            look = self._shared.marks.look
            waiting = [n for n, held in member.fed.items() if look(held.mark).stage is Stage.FED]
            for group, load in enumerate(member.loads):
                if load > member.sizes[group]:
                    self._shared.windows[group].stall(int((now - member.heard_at) * 1e6))
            member.heard_at = now
            if waiting:
                member.link.send(Drop(waiting))

    def buried(self, member: Member, code: int) -> None:
        """Settle what a runner held that is gone."""
        shared = self._shared
        how, number = how_it_ended(code, member.handle.memory)
        now = shared.clock.now()
        unstarted = []
        for held in list(member.fed.values()):
            member.returned(held.number)
            mark = shared.marks.look(held.mark)
            if mark.stage <= Stage.FED:
                unstarted.append(held)
                continue
            claim = held.claim
            rule, roll = shared.tasks[claim.task].retry, shared.dice()
            if member.doom is not None:
                why = member.doom
                settlement = settlement_after_doom(mark, claim, rule, roll, why=why, now=now)
                self._desk.add(held, settlement)
            elif member.killed:
                self._desk.add(held, settlement_after_kill(mark, claim, rule, roll, now))
            else:
                said = f"{how}: {member.said}" if member.said else how
                settlement = settlement_after_death(
                    mark, claim, rule, roll, how=said, number=number, now=now
                )
                journal.crashed(held, said)
                self._desk.add(held, settlement)
        self._unstarted(unstarted)
