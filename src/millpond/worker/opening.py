"""What a keeper opens once its first runner has spoken: store, registration, marks, wake-up."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from millpond.clock import SystemClock
from millpond.config import (
    QueueSettings,
    StoreConfig,
    TaskSettings,
    WorkerConfig,
    check_beat,
    parse_url,
)
from millpond.config.worker import DEFAULT_BEAT_MS
from millpond.errors import StoreError
from millpond.model import Dice, WorkerId, WorkerInfo
from millpond.store import open_store
from millpond.store.protocol import Store
from millpond.worker import journal
from millpond.worker.bell import Bell, WakeSocket
from millpond.worker.crew import Crew
from millpond.worker.frames import Begin, Hello
from millpond.worker.marks import Marks
from millpond.worker.places import new_name, run_directory, socket_path, sweep
from millpond.worker.shared import Group, Shared, groups_of, with_solo
from millpond.worker.window import CEILING

LAST_WRITE_S = 10.0


@dataclass(slots=True)
class Opened:
    """An open store in which this keeper is registered, and what must be closed at the end."""

    store: Store
    owned: bool
    config: WorkerConfig
    groups: list[Group]
    tasks: dict[str, TaskSettings]
    worker: WorkerId
    info: WorkerInfo
    marks: Marks
    wake: WakeSocket | None
    dice: Dice
    shared: Shared | None = None

    def share(self, crew: Crew, bell: Bell) -> Shared:
        """Return what the keeper's parts work on."""
        self.shared = Shared(
            store=self.store,
            worker=self.worker,
            info=self.info,
            config=self.config,
            groups=self.groups,
            tasks=self.tasks,
            crew=crew,
            marks=self.marks,
            bell=bell,
            dice=self.dice,
        )
        return self.shared

    def begin(self) -> Begin:
        """Return what runners are told at their start; the sizes of groups are each one's own."""
        return Begin(self.worker, f"{self.info.host}:{self.info.pid}", (), self.marks.path)

    @property
    def _worker(self) -> WorkerId:
        return self.worker if self.shared is None else self.shared.worker

    def close(self, *, whole: bool) -> None:
        """Take the registration back when nothing is held, and close everything.

        What is still held keeps registration and marks: its leases have to end, and whoever
        recovers it reads the marks.
        """
        empty = whole and (self.shared is None or not self.shared.holdings.all)
        if empty:
            with contextlib.suppress(StoreError, TimeoutError):
                self.store.unregister(self._worker).result(LAST_WRITE_S)
        if self.wake is not None:
            self.wake.close()
        self.marks.close(remove=empty)
        if self.owned:
            self.store.close()


def open_for(config: WorkerConfig) -> Callable[[Hello], Opened]:
    """Return how a keeper without the application opens the store that its runner names."""

    def open_up(hello: Hello) -> Opened:
        settings = msgspec.json.decode(hello.store, type=StoreConfig)
        if config.busy_ms is not None:
            settings = replace(settings, busy_ms=config.busy_ms)
        store = open_store(hello.url, clock=SystemClock(), config=settings)
        return _or_close(store, hello, config)

    return open_up


def join(store: Store, config: WorkerConfig) -> Callable[[Hello], Opened]:
    """Return how a keeper inside the application uses the store that is open there."""

    def open_up(hello: Hello) -> Opened:
        return register(store, hello, config, owned=False)

    return open_up


def register(store: Store, hello: Hello, config: WorkerConfig, *, owned: bool) -> Opened:
    """Declare what the application declares and make this keeper known.

    Raises BadConfig when beats and leases do not fit, StoreError when the store refuses.
    """
    tasks = {task.name: task for task in msgspec.json.decode(hello.tasks, type=list[TaskSettings])}
    for task in tasks.values():
        check_beat(config.beat_ms, task.lease_ms, f"the lease of task {task.name!r} in ms")
    for queue in msgspec.json.decode(hello.queues, type=list[QueueSettings]):
        store.put_queue(queue).result()
    store.put_tasks(list(tasks.values())).result()
    groups = groups_of(config)
    if owned:
        groups = with_solo(groups, tasks)
    elif solo := sorted(name for name, task in tasks.items() if task.isolation == "process"):
        journal.no_process(solo)
    marks, wake = _places(hello.url, config, len(groups))
    info = WorkerInfo(
        host=socket.gethostname(),
        pid=os.getpid(),
        wake=None if wake is None else str(wake.path),
        version=hello.version,
        interval_ms=config.beat_ms or DEFAULT_BEAT_MS,
        tasks=tuple(sorted(tasks)),
        queues=tuple(str(replace(serve, slots=None)) for serve in config.queues),
        slots=config.slots,
        marks=marks.path,
    )
    try:
        worker = store.register(info).result()
    except BaseException:
        marks.close(remove=True)
        if wake is not None:
            wake.close()
        raise
    return Opened(
        store=store,
        owned=owned,
        config=config,
        groups=groups,
        tasks=tasks,
        worker=worker,
        info=info,
        marks=marks,
        wake=wake,
        dice=random.random,
    )


def _or_close(store: Store, hello: Hello, config: WorkerConfig) -> Opened:
    try:
        return register(store, hello, config, owned=True)
    except BaseException:
        store.close()
        raise


def _places(url: str, config: WorkerConfig, groups: int) -> tuple[Marks, WakeSocket | None]:
    """Make marks and wake-up socket; a store in memory, or no place for them, goes without.

    Without marks a dead worker's jobs count as started, without a socket jobs wait for the
    next poll: both are worth a warning and neither an end.
    """
    capacity = 2 * config.slots + groups * CEILING + 2 * config.batch
    address = parse_url(url)
    if address.memory:
        return Marks.create(None, capacity), None
    database = Path(address.path).absolute()
    try:
        directory = run_directory(database)
        sweep(directory)
    except OSError as error:
        journal.no_place(error)
        return Marks.create(None, capacity), None
    name = new_name()
    return _marks(directory / f"{name}.marks", capacity), _wake(directory, name)


def _marks(path: Path, capacity: int) -> Marks:
    try:
        return Marks.create(path, capacity)
    except OSError as error:
        journal.no_place(error)
        return Marks.create(None, capacity)


def _wake(directory: Path, name: str) -> WakeSocket | None:
    try:
        return WakeSocket(socket_path(directory, name))
    except OSError as error:
        journal.no_place(error)
        return None
