"""The keeper: one loop that claims, feeds, settles, beats and recovers, and runs no user code.

Each turn hears what has come (runners' answers, committed writes, wake-ups, signals), then
hands over what is due: settlements first and a claim in the same breath, so that the storage
thread commits both together. Nothing in the loop waits for a handler or for the database.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from enum import Enum, auto

from millpond.config import WorkerConfig
from millpond.model import Claim
from millpond.worker import journal, unserved
from millpond.worker.beats import Beats
from millpond.worker.bell import Bell, WakeSocket
from millpond.worker.crew import Crew
from millpond.worker.deadlines import Deadlines
from millpond.worker.desk import Answered, Desk
from millpond.worker.floor import Floor
from millpond.worker.forms import Form
from millpond.worker.frames import Hello
from millpond.worker.link import PipeLink
from millpond.worker.maintenance import Care
from millpond.worker.opening import Opened
from millpond.worker.report import DrainReport
from millpond.worker.shared import groups_of, spread
from millpond.worker.staff import Staff
from millpond.worker.stopping import Stopping
from millpond.worker.supply import Supply

QUIT_S = 6.0
LEFT_BEHIND_S = 0.1
"""Threads that did not heed the stop will hardly end now; idle ones do at once."""

_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Until(Enum):
    """When a keeper ends by itself."""

    STOPPED = auto()
    IDLE = auto()
    """Nothing is ready and nothing runs; what falls due later is not waited for."""
    ONCE = auto()
    """One job a slot was claimed, or nothing was there, and all have ended."""


class Keeper:
    """Runs in one thread until it is told to stop, or until what it was started for is done.

    `open_up` is called once, with what the first runner declares, and opens the store.
    `stops` counts the requests to stop so far: the first one drains, a second one hurries.
    """

    def __init__(
        self,
        form: Form,
        config: WorkerConfig,
        open_up: Callable[[Hello], Opened],
        *,
        bell: Bell,
        stops: Callable[[], int],
        until: Until = Until.STOPPED,
        signal: Callable[[], str | None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._form = form
        self._config = config
        self._open_up = open_up
        self._bell = bell
        self._stops = stops
        self._until = until
        self.signal = signal
        self.on_ready = on_ready
        self.left_behind = False
        """Whether threads are still running handlers that did not heed the stop."""
        self.reap: Callable[[], object] | None = None
        """What process 1 does about children that are not its own, at each turn."""
        self._groups = groups_of(config)
        self.crew = Crew()
        self.staff = Staff(form, self.crew, spread(self._groups, max(config.processes, 1)))
        self._links: dict[PipeLink, int] = {}
        self.readable: set[PipeLink] = set()
        """The links that something has come over since."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(bell, _READ)

    def run(self) -> DrainReport:
        """Work until the end and return the counts.

        Raises WorkerFailed when the worker cannot go on, and what opening the store raises.
        """
        whole = False
        opened: Opened | None = None
        try:
            self.staff.start()
            hello = self._first_hello()
            if hello is None:
                whole = True
                return DrainReport()
            opened = self._open_up(hello)
            report = Serving(self, opened).run()
            whole = True
            return report
        finally:
            self._end(opened, whole=whole)

    def listen(self, timeout: float | None) -> None:
        """Sleep until something comes, at most `timeout` seconds, and take the bell's news."""
        self._watch_links()
        self.readable.clear()
        for key, events in self._selector.select(timeout):
            link = key.fileobj
            if isinstance(link, PipeLink):
                if events & _READ:
                    self.readable.add(link)
                if link.unsent:
                    link.flush()
        self._bell.hear()
        if self.reap is not None:
            self.reap()

    def also_hear(self, listener: WakeSocket) -> None:
        """Wake up for a further descriptor."""
        self._selector.register(listener, _READ)

    @property
    def stops(self) -> int:
        """How often the keeper was told to stop."""
        return self._stops()

    @property
    def until(self) -> Until:
        """When it ends by itself."""
        return self._until

    @property
    def config(self) -> WorkerConfig:
        """Its settings."""
        return self._config

    @property
    def kills(self) -> bool:
        """Whether it can end a handler that does not return."""
        return self._form.processes

    @property
    def bell(self) -> Bell:
        """What wakes its loop."""
        return self._bell

    def forget_ended_links(self) -> None:
        """Stop listening to links that have ended, before their descriptors are closed.

        A runner that is gone ends its link, though a process it has started may keep it open.
        """
        gone = {each.link for each in self.crew.members.values() if each.code is not None}
        for link in [each for each in self._links if each.ended or each in gone]:
            self._selector.unregister(link)
            del self._links[link]

    def _first_hello(self) -> Hello | None:
        """Wait for the first runner; None when told to stop meanwhile."""
        while self.staff.hello is None:
            if self._stops():
                return None
            self.listen(self._config.poll_ms / 1000)
            self.staff.look()
            for member in self.staff.members:
                for frame in member.link.receive():
                    self.staff.hear(member, frame)
            self.forget_ended_links()
            for member, code in self.staff.ended():
                self.staff.bury(member, code)
        return self.staff.hello

    def _watch_links(self) -> None:
        for member in self.crew.members.values():
            link = member.link
            if not isinstance(link, PipeLink) or link.ended:
                continue
            wanted = _READ | _WRITE if link.unsent else _READ
            if link not in self._links:
                self._selector.register(link, wanted)
            elif self._links[link] != wanted:
                self._selector.modify(link, wanted)
            self._links[link] = wanted

    def _end(self, opened: Opened | None, *, whole: bool) -> None:
        self._selector.close()
        if not whole or opened is None:
            self.staff.halt_all("shutdown")
            self.staff.kill_all()
        gone = self.staff.quit(LEFT_BEHIND_S if self.left_behind else QUIT_S)
        if opened is not None:
            opened.close(whole=whole and gone)


class Serving:
    """The keeper from its registration to its end."""

    def __init__(self, keeper: Keeper, opened: Opened) -> None:
        self._keeper = keeper
        self._staff = staff = keeper.staff
        self._shared = shared = opened.share(keeper.crew, keeper.bell)
        slots = sum(group.slots for group in shared.groups)
        self._supply = Supply(shared, slots if keeper.until is Until.ONCE else None)
        self._desk = Desk(shared, self._supply.due)
        self._beats = Beats(shared, staff, self._desk.add)
        self._floor = Floor(shared, staff, self._desk, self._beats)
        self._stopping = Stopping(shared, staff, self._floor, kills=keeper.kills)
        self._care = Care(shared, self._supply.look_again)
        self._generation = 0
        self._wake = opened.wake
        self._told = False
        # Whoever drains inside an application, as eager tests do, has its answer in the counts.
        self._by_hand = opened.owned
        self._deaf: Callable[[], None] = lambda: None
        if opened.wake is not None:
            keeper.also_hear(opened.wake)
        else:
            self._deaf = shared.store.listen(self._tell)
        self._deadlines = Deadlines(shared)
        staff.house(shared.groups)
        staff.welcome(opened.begin())
        keeper.on_ready()

    def run(self) -> DrainReport:
        """Turn until the end; return the counts."""
        keeper, shared = self._keeper, self._shared
        slots = sum(group.slots for group in shared.groups)
        queues = ",".join(map(str, shared.config.queues)) or "all"
        journal.started(shared.worker, shared.store.path, sorted(shared.tasks), queues, slots)
        if keeper.until is not Until.IDLE:
            unserved.tell(shared.store)
        self._turn()
        while not self._over():
            keeper.listen(self._timeout())
            heard = b"" if self._wake is None else self._wake.hear()
            if b"?" in heard:
                self._beats.hurry()
            if self._told or b"!" in heard:
                self._told = False
                self._woken()
            self._turn()
        self._deaf()
        holdings = shared.holdings
        left = sum(not held.gone for held in holdings.all.values())
        holdings.tally.lost += left
        keeper.left_behind = self._stopping.gave_up
        report = DrainReport.of(holdings.tally)
        if keeper.until is Until.IDLE and self._by_hand:
            unserved.tell(shared.store)
        journal.stopped(report, self._beats.smallest_margin)
        return report

    def _tell(self) -> None:
        """Hear of a commit of this process, where there is no socket; in the storage thread."""
        self._told = True
        self._keeper.bell.ring()

    def _woken(self) -> None:
        """Claim; an idle keeper before all else, since whoever enqueued waits for nothing else.

        It sleeps at once: the storage thread gets the interpreter only when this one lets go.
        """
        self._supply.woken()
        if self._shared.holdings.all or self._supply.claiming:
            return
        self._heed_stops()
        self._supply.turn(settled=False)
        self._keeper.listen(self._timeout())

    def _turn(self) -> None:
        """Hear everything, then hand over everything that is due."""
        self._heed_stops()
        self._hear()
        mono = self._shared.clock.mono()
        self._exchange(mono)
        self._stopping.turn()
        self._floor.fetch_back_from_stalled()
        self._beats.turn(mono, claiming=self._supply.claiming)
        self._heed_settings()
        self._desk.submit(mono)
        self._floor.feed()
        waits_alone = self._shared.crew.waits_alone(self._shared.holdings)
        waiting = [len(line) for line in self._shared.holdings.waiting]
        self._staff.turn(waits_alone=waits_alone, waiting=waiting)
        self._deadlines.turn()
        self._care.turn()

    def _exchange(self, mono: int) -> None:
        """Take the storage thread's answers, and keep it busy before acting upon them."""
        answered = self._desk.collect(mono)
        claims = self._supply.collect()
        # With several groups of slots, how much may be claimed for each is known only after.
        late = len(self._shared.groups) > 1
        if late:
            self._digest(answered, claims)
        self._desk.submit(mono)
        gone = len(answered.parcel.held) if answered is not None and not late else 0
        coming = 0 if late else len(claims) - gone
        self._supply.turn(settled=answered is not None, coming=coming)
        if not late:
            self._digest(answered, claims)

    def _digest(self, answered: Answered | None, claims: list[Claim]) -> None:
        if answered is not None:
            self._desk.finish(answered)
        self._floor.take(claims)

    def _hear(self) -> None:
        self._staff.look()
        for member in self._staff.members:
            link = member.link
            quiet = isinstance(link, PipeLink) and link not in self._keeper.readable
            # The last words of a runner that is gone may have come since the loop woke up.
            if quiet and member.code is None:
                continue
            frames = link.receive()
            if frames:
                self._floor.hear(member, frames)
        self._keeper.forget_ended_links()
        for member, code in self._staff.ended():
            self._floor.buried(member, code)
            self._staff.bury(member, code)

    def _heed_settings(self) -> None:
        if self._beats.generation != self._generation:
            self._generation = self._beats.generation
            self._floor.hand_back_paused()

    def _heed_stops(self) -> None:
        stops = self._keeper.stops
        if stops > 1:
            self._stopping.hurry()
        elif stops:
            if not self._stopping.begun:
                journal.stopping(self._keeper.signal(), len(self._shared.holdings.all))
            self._stopping.begin()

    def _over(self) -> bool:
        settled = self._desk.idle and not self._supply.claiming
        if self._stopping.begun:
            return self._stopping.over(settled=settled)
        if self._keeper.until is Until.STOPPED or self._shared.holdings.all or not settled:
            return False
        if self._keeper.until is Until.ONCE and self._supply.allowance == 0:
            return True
        if self._care.recovering:
            return False
        if not self._supply.dry:
            # Only a claim can tell whether the last settlements made anything ready.
            self._supply.hungry = True
        return self._supply.dry

    def _timeout(self) -> float:
        shared, mono = self._shared, self._shared.clock.mono()
        waits = [
            self._supply.timeout(),
            self._care.timeout(),
            (self._beats.due(mono) - mono) / 1000,
            shared.config.poll_ms / 1000,
        ]
        if self._desk.rests_until:
            waits.append((self._desk.rests_until - mono) / 1000)
        optional = (
            self._staff.next_start(), self._floor.crowded(), self._stopping.timeout(),
            self._deadlines.timeout(),
        )  # fmt: skip
        waits += [each for each in optional if each is not None]
        return max(min(waits), 0)
