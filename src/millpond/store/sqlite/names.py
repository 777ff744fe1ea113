"""Names and settings by number, cached for as long as `meta.generation` stands.

Every change of names or settings raises the generation inside its transaction, and every
write transaction reads it. What was read or made in a transaction that is not committed yet
is never cached: a rolled back one hands its numbers out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from millpond.errors import StoreClosed
from millpond.store.sqlite.named import SQL


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue's number and what a claim must know of it."""

    id: int
    name: str
    ordering: str
    ageing_ms: int
    paused: bool
    max_running: int | None


@dataclass(frozen=True, slots=True)
class WorkloadName:
    """A workload's number and what a claim must know of it."""

    id: int
    queue: int
    name: str
    paused: bool
    strict: bool
    max_running: int | None


@dataclass(frozen=True, slots=True)
class LaneName:
    """A lane's number and what it stands for."""

    id: int
    queue: QueueName
    workload: WorkloadName
    task_id: int
    task: str
    again: bool


def text(value: Any) -> str:
    """Return a TEXT column as str even where the connection's text_factory is bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


@dataclass(slots=True)
class Names:
    """All names of one generation."""

    generation: int
    queues: dict[int, QueueName] = field(default_factory=dict)
    workloads: dict[int, WorkloadName] = field(default_factory=dict)
    tasks: dict[int, str] = field(default_factory=dict)
    settings: dict[int, str | None] = field(default_factory=dict)
    task_ids: dict[str, int] = field(default_factory=dict)
    lanes: dict[int, LaneName] = field(default_factory=dict)
    lane_of: dict[tuple[str, str, str, bool], LaneName] = field(default_factory=dict)
    wake: dict[int, list[tuple[str, int, int]]] = field(default_factory=dict)
    gates: bool = False
    limits: bool = False
    task_running: dict[int, int] = field(default_factory=dict)
    derived: dict[Any, Any] = field(default_factory=dict)
    """What others compute from these names and may keep as long as they hold."""

    def sibling(self, lane: LaneName, *, again: bool) -> LaneName | None:
        """Return the lane of the same work with the other `again`, if it exists."""
        return self.lane_of.get((lane.queue.name, lane.workload.name, lane.task, again))


Execute = Callable[..., Any]


def load(execute: Execute, generation: int) -> Names:
    """Read all names as the transaction behind `execute` sees them."""
    names = Names(generation)
    for row in execute(SQL["all_queues"]).fetchall():
        names.queues[row[0]] = QueueName(
            row[0], text(row[1]), text(row[2]), row[3], bool(row[4]), row[5]
        )
    for row in execute(SQL["all_workloads"]).fetchall():
        names.workloads[row[0]] = WorkloadName(
            row[0], row[1], text(row[2]), bool(row[3]), bool(row[4]), row[5]
        )
    for ident, name, settings in execute(SQL["all_tasks"]).fetchall():
        names.tasks[ident] = text(name)
        names.task_ids[text(name)] = ident
        names.settings[ident] = None if settings is None else text(settings)
    for ident, queue, workload, task, again in execute(SQL["all_lanes"]).fetchall():
        lane = LaneName(
            ident, names.queues[queue], names.workloads[workload], task, names.tasks[task],
            bool(again),
        )  # fmt: skip
        names.lanes[ident] = lane
        names.lane_of[lane.queue.name, lane.workload.name, lane.task, lane.again] = lane
    for task, path, beat_at, interval_ms in execute(SQL["wake_paths"]).fetchall():
        names.wake.setdefault(task, []).append((text(path), beat_at, interval_ms))
    names.gates = bool(execute(SQL["any_gate"]).fetchone()[0])
    names.task_running = {
        ident: most
        for ident, settings in names.settings.items()
        if settings is not None and (most := _running(settings).running) is not None
    }
    names.limits = (
        bool(names.task_running)
        or any(q.max_running is not None for q in names.queues.values())
        or any(w.max_running is not None for w in names.workloads.values())
    )
    return names


class _Running(msgspec.Struct):
    """The one setting of a task that every claim looks at."""

    running: int | None = None


_running = msgspec.json.Decoder(_Running).decode


class Context:
    """One write transaction: its cursor, its one reading of the clocks, its names."""

    __slots__ = (
        "cacheable", "called", "closed_to", "domain", "execute", "executemany", "mono", "names",
        "now", "roll", "woken",
    )  # fmt: skip

    def __init__(
        self,
        cursor: Any,
        names: Names | None,
        *,
        now: int,
        mono: int,
        domain: str,
        roll: Callable[[], float],
    ) -> None:
        self.execute: Execute = cursor.execute
        self.executemany: Execute = cursor.executemany
        self.now = now
        self.mono = mono
        self.domain = domain
        self.roll = roll
        self.woken: set[int] = set()
        """Tasks whose keepers are told to claim, once this is committed."""
        self.called: set[str] = set()
        """Sockets of keepers that are told to beat, and so hear of a cancel or a pause."""
        self.closed_to: str | None = None
        generation = self.generation()
        fits = names is not None and names.generation == generation
        self.cacheable = True
        self.names: Names = names if fits and names else load(self.execute, generation)

    def generation(self) -> int:
        """Read the generation in force in this transaction, and whether the store is open."""
        generation, state, moved_to = self.execute(SQL["read_meta"]).fetchone()
        self.closed_to = None if text(state) == "open" else text(moved_to or "another store")
        return int(generation)

    def require_open(self) -> None:
        """Raise StoreClosed when the jobs were moved elsewhere: no new ones are taken here."""
        if self.closed_to is not None:
            msg = f"this store is closed, its jobs were moved to {self.closed_to}: use that one."
            raise StoreClosed(msg)

    def renew_names(self) -> Names:
        """Raise the generation and read the names anew, after this transaction changed them."""
        generation = self.execute(SQL["bump_generation"]).fetchone()[0]
        self.names = load(self.execute, generation)
        return self.names

    def forget(self) -> None:
        """Something was undone: read the names anew and do not keep them."""
        self.cacheable = False
        self.names = load(self.execute, self.generation())

    def take(self, name: str, count: int) -> int:
        """Take `count` numbers of a sequence; return the first."""
        last = self.execute(SQL["take_seq"], {"n": count, "name": name}).fetchone()[0]
        return int(last) - count + 1

    def lane(self, queue: str, workload: str, task: str, *, again: bool = False) -> LaneName:
        """Return the lane, made now if it does not exist."""
        found = self.names.lane_of.get((queue, workload, task, again))
        return found if found is not None else self._make_lane(queue, workload, task, again=again)

    def _make_lane(self, queue: str, workload: str, task: str, *, again: bool) -> LaneName:
        run = self.execute
        run(SQL["add_queue"], {"name": queue})
        queue_id = run(SQL["queue_id"], {"name": queue}).fetchone()[0]
        key = {"queue": queue_id, "name": workload}
        run(SQL["add_workload"], {**key, "strict": int(workload == "critical")})
        workload_id = run(SQL["workload_id"], key).fetchone()[0]
        run(SQL["add_task"], {"name": task})
        task_id = run(SQL["task_id"], {"name": task}).fetchone()[0]
        lane = {"queue": queue_id, "workload": workload_id, "task": task_id, "again": int(again)}
        run(SQL["add_lane"], lane)
        self.renew_names()
        return self.names.lane_of[queue, workload, task, again]

    def task(self, name: str) -> int:
        """Return a task's number, made now if it is new."""
        found = self.names.task_ids.get(name)
        if found is None:
            self.execute(SQL["add_task"], {"name": name})
            self.renew_names()
            found = self.names.task_ids[name]
        return found

    def queue(self, name: str) -> int:
        """Return a queue's number, made now if it is new."""
        key = {"name": name}
        if self.execute(SQL["add_queue"], key).rowcount == 1:
            self.renew_names()
        return int(self.execute(SQL["queue_id"], key).fetchone()[0])

    def tenant(self, name: str) -> int:
        """Return a tenant's number, made now if it is new; never cached, tenants are many."""
        self.execute(SQL["add_tenant"], {"name": name})
        return int(self.execute(SQL["tenant_id"], {"name": name}).fetchone()[0])
