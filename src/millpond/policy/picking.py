"""Which ready jobs a claim takes: strict lanes first, queues in turn, then by rank.

Pure: the store hands in the heads of the non-empty lanes, feeds rows when asked, and takes
what was picked. Within a queue the lanes are merged by (rank, id), so the order over many
lanes is the order one lane would give. Queues are served in turn, so that a long one cannot
hold up the others. A lane draws on *meters* (places of its queue, workload and task) and on
one of its *seats* (the worker's slots it may use); it closes when a meter or all seats are
used up.

Cost: O(lanes + picked · log lanes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any

import msgspec

Row = tuple[Any, ...]
"""(rank, id, due, …): what follows the id is the store's own."""
Place = tuple[int, int, int]
"""(rank, id, lane): where a lane's next row stands among those of the others."""
Heap = list[Place]
"""Lanes of one queue by their next row."""


class Meter:
    """Places that several lanes draw on."""

    __slots__ = ("room",)

    def __init__(self, room: int) -> None:
        self.room = room


class Lane(msgspec.Struct, eq=False):
    """A non-empty lane as the picker sees it; `left` counts rows not fed yet."""

    id: int
    queue: int
    strict: bool
    head: Row
    left: int
    seats: tuple[Meter, ...]
    meters: tuple[Meter, ...] = ()
    rows: deque[Row] = msgspec.field(default_factory=deque)
    last: tuple[int, int] | None = None

    def room(self) -> int:
        """Return how many more jobs this lane may give."""
        room = 0
        for seat in self.seats:
            room += seat.room
        for meter in self.meters:
            room = min(room, meter.room)
        return room

    def use(self, many: int = 1) -> None:
        """Take places of every meter, and seats, the most specific with room first."""
        if len(self.seats) == 1 and not self.meters:
            self.seats[0].room -= many
            return
        for meter in self.meters:
            meter.room -= many
        for seat in self.seats:
            if many <= seat.room:
                seat.room -= many
                return
            many -= seat.room
            seat.room = 0


class Picker:
    """Picks up to `limit` rows; `run` says which lanes it must be fed before it can go on."""

    def __init__(
        self,
        lanes: Iterable[Lane],
        limit: int,
        *,
        turn: int = 0,
        may_run: Callable[[Lane, Row], bool] | None = None,
    ) -> None:
        self.picked: list[tuple[int, Row]] = []
        self._limit = limit
        self._may_run = may_run
        self._lanes: dict[int, Lane] = {}
        strict: dict[int, Heap] = {}
        others: dict[int, Heap] = {}
        for lane in lanes:
            if lane.room() > 0:
                self._lanes[lane.id] = lane
                heap = (strict if lane.strict else others).setdefault(lane.queue, [])
                heap.append((lane.head[0], lane.head[1], lane.id))
        self._phases = deque(_around(heaps, turn) for heaps in (strict, others) if heaps)

    @property
    def missing(self) -> int:
        """How many more jobs are wanted."""
        return self._limit - len(self.picked)

    def stop(self) -> None:
        """Pick nothing more."""
        self._limit = len(self.picked)

    def run(self) -> list[Lane]:
        """Pick until done (an empty list) or until the lanes returned must be fed."""
        # Read once a row of every claim: attributes, not properties.
        phases, picked = self._phases, self.picked
        while phases and len(picked) < self._limit:
            phase = phases[0]
            if not phase:
                phases.popleft()
                continue
            hungry = self._serve(phase)
            if hungry is not None:
                return self._hungry(hungry)
        return []

    def _serve(self, phase: deque[Heap]) -> Lane | None:
        heap = phase[0]
        if not heap:
            phase.popleft()
            return None
        lane = self._lanes[heap[0][2]]
        room = lane.room()
        if room > 0 and lane.rows:
            self._take(heap, lane, room, phase)
        elif room > 0 and lane.left > 0:
            return lane
        else:
            heappop(heap)
        return None

    def _take(self, heap: Heap, lane: Lane, room: int, phase: deque[Heap]) -> None:
        """Take the lane's next row; alone in its phase, all rows up to the next lane's head."""
        alone = len(phase) == 1
        most = min(self._limit - len(self.picked), room) if alone else 1
        if len(heap) == 1 and self._may_run is None:
            taken = self._take_all(lane, most)
        else:
            taken = self._take_before(_rival(heap), lane, most)
        if taken:
            lane.use(taken)
        if lane.rows:
            rank, ident = lane.rows[0][:2]
            heapreplace(heap, (rank, ident, lane.id))
        elif lane.left <= 0:
            heappop(heap)
        else:
            self._unknown_head(heap, lane)
        if taken and not alone:
            phase.rotate(-1)

    def _take_all(self, lane: Lane, most: int) -> int:
        """Take rows that nothing can come before."""
        most = min(most, len(lane.rows))
        self.picked += [(lane.id, lane.rows.popleft()) for _ in range(most)]
        return most

    def _take_before(self, rival: Place | None, lane: Lane, most: int) -> int:
        """Take rows, one after the other, as long as they sort before the rival and may run."""
        rows, ident, may_run, taken = lane.rows, lane.id, self._may_run, 0
        # What is asked whether a row may run may also stop the picking.
        while rows and taken < most and (may_run is None or self.missing > 0):
            row = rows[0]
            # Ids differ, so what follows the id is never compared.
            if rival is not None and row > rival:
                break
            rows.popleft()
            if may_run is None or may_run(lane, row):
                self.picked.append((ident, row))
                taken += 1
        return taken

    def _unknown_head(self, heap: Heap, lane: Lane) -> None:
        # The next row is not known yet, but it sorts after the last one: staying in front
        # at that place makes the lane be fed before anything that sorts later is picked.
        rank, ident = lane.last or lane.head[:2]
        heapreplace(heap, (rank, ident, lane.id))

    def _hungry(self, first: Lane) -> list[Lane]:
        """Ask for the lane in front and for all others that have nothing buffered either."""
        others = (
            lane
            for lane in self._lanes.values()
            if lane is not first
            and not lane.rows
            and lane.left > 0
            and lane.strict is first.strict
            and lane.room() > 0
        )
        return [first, *others] if self.missing > 1 else [first]

    def feed(self, lane: Lane, rows: Sequence[Row]) -> None:
        """Hand in the next rows of a lane, in order; none means that it is empty after all."""
        lane.rows.extend(rows)
        lane.left = lane.left - len(rows) if rows else 0
        if rows:
            lane.last = (rows[-1][0], rows[-1][1])


def _rival(heap: Heap) -> Place | None:
    """Return the place that is next after the first."""
    if len(heap) < 3:  # noqa: PLR2004  both children of the first are there
        return heap[1] if len(heap) > 1 else None
    return min(heap[1], heap[2])


def _around(heaps: dict[int, Heap], turn: int) -> deque[Heap]:
    """Return the queues' heaps in the order of their turns."""
    for heap in heaps.values():
        heapify(heap)
    around = deque(heaps[queue] for queue in sorted(heaps))
    around.rotate(-(turn % len(around)))
    return around
