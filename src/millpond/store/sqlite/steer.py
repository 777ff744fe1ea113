"""One look at every queue in use: read what it shows, let the policy decide, write it down.

The counters that are read are those that the transactions of jobs move anyway, so a job pays
nothing for it. Reading costs O(lanes + workers), and a few seeks for every priority that waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millpond.policy.causes import Cause
from millpond.policy.effects import Effect, deadline_ms, effect_of
from millpond.policy.modes import Mode
from millpond.policy.pressure import PressureSettings
from millpond.policy.steering import (
    Lines,
    Memory,
    PressureChange,
    QueuePressure,
    Reading,
    Steered,
    WorkloadReading,
    quiet,
    steer,
)
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context, text
from millpond.store.sqlite.views import BEATS_UNTIL_DEAD

Execute = Callable[..., Any]
PRIORITIES = 64
"""Of one lane, so many priorities are asked for their oldest job."""
FIRST = 1_000
"""Of a lane whose order hides age, so many jobs from its head are looked at."""
OVERDUE = 100

_encode = msgspec.json.encode
_decode = msgspec.json.decode
_memory = msgspec.json.Decoder(Memory).decode


@dataclass(slots=True)
class _Lanes:
    """What the lanes of one workload show together."""

    eligible: int = 0
    oldest: int | None = None
    running: int = 0
    accepted: int = 0
    finished: int = 0
    good: int = 0
    bad: int = 0

    def add(self, row: Any) -> None:
        """Add the counters of one lane."""
        _, _, _, _, running, accepted, completed, failed, cancelled, retried = row
        self.running += running
        self.accepted += accepted
        self.finished += completed + failed + cancelled
        self.good += completed
        self.bad += failed + retried

    def waits(self, jobs: int, due: int | None) -> None:
        """Add jobs that could run, the oldest of them due at `due`."""
        self.eligible += jobs
        if due is not None:
            self.oldest = due if self.oldest is None else min(self.oldest, due)


@dataclass(slots=True)
class Look:
    """What one look found of a queue, and what is remembered of it."""

    queue: int
    name: str
    settings: PressureSettings
    memory: Memory
    reading: Reading
    names: dict[int, str] = field(default_factory=dict)


def pressed(execute: Execute, now: int) -> bool:
    """Tell, without the write lock, whether a look could lead to anything."""
    return bool(execute(SQL["any_pressure"], {"now": now}).fetchone()[0])


def shown(execute: Execute) -> list[QueuePressure]:
    """Return how every queue that was ever looked at stands, by the last look."""
    lines: defaultdict[str, dict[str, Lines]] = defaultdict(dict)
    for queue, workload, line, room in execute(SQL["shown_lines"]).fetchall():
        lines[queue][workload] = Lines(line, room)
    return [
        QueuePressure(
            row[0], row[1], Mode(row[2]), row[3], row[4], Cause(row[5]), row[6], row[7],
            _decode(row[8]), lines[row[0]],
        )
        if row[2] is not None
        else QueuePressure(row[0], row[1], lines=lines[row[0]])
        for row in execute(SQL["shown_pressure"]).fetchall()
    ]  # fmt: skip


def look_at_all(tx: Context, *, disk: int = 0) -> list[PressureChange]:
    """Look at every queue in use; return what changed."""
    changed = []
    for look in looks(tx, disk):
        if quiet(look.memory, look.reading, look.settings):
            continue
        steered = steer(look.memory, look.reading, tx.now, look.settings)
        _write(tx, look, steered)
        if steered.mode is not None or steered.cause is not None:
            memory = steered.memory
            changed.append(
                PressureChange(
                    look.name, memory.mode.mode, memory.mode.signal, memory.cause.cause,
                    memory.cause.detail, steered.figures,
                )
            )  # fmt: skip
    return changed


def looks(tx: Context, disk: int = 0) -> list[Look]:
    """Read what every queue in use shows at this moment."""
    rows = tx.execute(SQL["pressed_queues"]).fetchall()
    if not rows:
        return []
    paused = {row[0] for row in rows if row[4]}
    lanes = _lanes(tx, {row[0] for row in rows}, paused)
    workloads: defaultdict[int, dict[int, WorkloadReading]] = defaultdict(dict)
    for row in tx.execute(SQL["pressed_workloads"]).fetchall():
        workloads[row[0]][row[1]] = _workload(tx.now, row, lanes[row[1]])
    live = tx.execute(SQL["pressed_workers"], {"intervals": BEATS_UNTIL_DEAD, "now": tx.now})
    workers = [(slots, _queues(text(queues))) for slots, queues in live.fetchall()]
    return [_look(row, workloads[row[0]], lanes, workers, disk) for row in rows]


def _look(
    row: Any,
    workloads: dict[int, WorkloadReading],
    lanes: dict[int, _Lanes],
    workers: list[tuple[int, frozenset[str]]],
    disk: int,
) -> Look:
    queue, name, max_jobs, max_bytes, _, pressure, memory = row
    name = text(name)
    reading = Reading(
        max_jobs,
        max_bytes,
        workloads,
        running=sum(lanes[ident].running for ident in workloads),
        slots=sum(slots for slots, serves in workers if not serves or name in serves),
        disk=disk,
    )
    settings = PressureSettings.from_json(None if pressure is None else text(pressure))
    return Look(queue, name, settings, _remembered(memory), reading)


def _remembered(memory: Any) -> Memory:
    try:
        return Memory() if memory is None else _memory(memory)
    except msgspec.DecodeError:
        # Another version wrote it: what it measured is measured again within a minute.
        return Memory()


def _queues(serves: str) -> frozenset[str]:
    """Return the queues that a worker names, none when it serves all."""
    return frozenset(part.partition(":")[0].partition("/")[0] for part in serves.split(",") if part)


def _workload(now: int, row: Any, lanes: _Lanes) -> WorkloadReading:
    _, _, name, effect, deadline, paused, jobs, size, refused = row
    kind = effect_of(text(name)) if effect is None else Effect(text(effect))
    late = deadline_ms(kind) if deadline is None else deadline or None
    eligible = 0 if paused else lanes.eligible
    age = 0 if lanes.oldest is None or not eligible else max(now - lanes.oldest, 0)
    return WorkloadReading(
        text(name), kind, late, jobs, size, eligible, age, lanes.accepted, refused,
        lanes.finished, lanes.good, lanes.bad,
    )  # fmt: skip


def _lanes(tx: Context, queues: set[int], paused: set[int]) -> dict[int, _Lanes]:
    """Add up the lanes of the queues looked at, by workload."""
    found: defaultdict[int, _Lanes] = defaultdict(_Lanes)
    for row in tx.execute(SQL["pressed_lanes"]).fetchall():
        lane = tx.names.lanes.get(row[0])
        if lane is None or lane.queue.id not in queues:
            continue
        found[row[1]].add(row)
        if row[3] and lane.queue.id not in paused:
            oldest = _oldest(tx, row[0], again=bool(row[2]), strict=lane.queue.ordering == "strict")
            found[row[1]].waits(row[3], oldest)
    for first, due in tx.execute(SQL["overdue"], {"now": tx.now, "limit": OVERDUE}).fetchall():
        lane = tx.names.lanes[first]
        if lane.queue.id in queues and lane.queue.id not in paused:
            found[lane.workload.id].waits(1, due)
    return found


def _oldest(tx: Context, lane: int, *, again: bool, strict: bool) -> int | None:
    """Return when the oldest ready job of a lane fell due, whatever its priority.

    In strict order the oldest of each priority stands first among its own, so one seek a
    priority finds it, however many wait. A lane of later attempts is in the order of first due
    times, and an ageing one mixes priorities: of these the first thousand are looked at.
    """
    if again or not strict:
        key = {"lane": lane, "rank": -(1 << 63), "limit": FIRST}
        return _int(tx.execute(SQL["oldest_of_first"], key).fetchone()[0])
    oldest, rank = None, -(1 << 63)
    for _ in range(PRIORITIES):
        row = tx.execute(SQL["next_ready"], {"lane": lane, "rank": rank}).fetchone()
        if row is None:
            break
        oldest = row[1] if oldest is None else min(oldest, row[1])
        rank = ((row[0] >> 47) + 1) << 47
    return oldest


def _int(value: Any) -> int | None:
    return None if value is None else int(value)


def _write(tx: Context, look: Look, steered: Steered) -> None:
    for workload, lines in steered.lines.items():
        row = {"workload": workload, "line": lines.line, "room": lines.room}
        tx.execute(SQL["put_flow"], row)
    memory = _encode(steered.memory).decode()
    tx.execute(SQL["put_pulse"], {"queue": look.queue, "now": tx.now, "memory": memory})
    if steered.mode is None and steered.cause is None:
        return
    _write_mode(tx, look, steered)
    if steered.mode is not None:
        note = f"by {steered.mode.signal}, cause {steered.memory.cause.cause}"
        _tell(tx, look, steered, "mode", note)
    if steered.cause is not None:
        _tell(tx, look, steered, "cause", steered.cause.detail or None)


def _write_mode(tx: Context, look: Look, steered: Steered) -> None:
    mode, cause = steered.memory.mode, steered.memory.cause
    row = {
        "queue": look.queue, "mode": mode.mode.value, "since": mode.since or tx.now,
        "signal": mode.signal, "cause": cause.cause.value, "cause_since": cause.since or tx.now,
        "detail": cause.detail, "figures": _encode(steered.figures).decode(), "epoch": mode.epoch,
    }  # fmt: skip
    tx.execute(SQL["put_mode"], row)


def _tell(tx: Context, look: Look, steered: Steered, what: str, note: str | None) -> None:
    """Write a change down among the events, with the figures that led to it."""
    change = steered.mode if what == "mode" else steered.cause
    if change is None:
        return
    row = {
        "id": tx.take("event", 1), "now": tx.now, "what": what, "which": look.name, "note": note,
        "before": _encode({what: change.before}).decode(),
        "after": _encode({what: change.after, **steered.figures}).decode(),
    }  # fmt: skip
    tx.execute(SQL["add_change"], row)
