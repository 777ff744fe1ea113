"""What an application has declared: its queues and its tasks, each name once."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from millpond.app.opening import Opened
from millpond.config.settings import QueueSettings, TaskSettings
from millpond.config.store import StoreConfig
from millpond.errors import BadConfig
from millpond.model import JobSpec
from millpond.task.decorator import place_of
from millpond.task.task import Task


@dataclass(frozen=True, slots=True)
class Declarations:
    """What a process that does not import the application must know of it."""

    url: str
    store: StoreConfig
    queues: tuple[QueueSettings, ...]
    tasks: tuple[TaskSettings, ...]


@dataclass(slots=True)
class Declared:
    """The registry; what is added to it is written to the store at the next use."""

    queues: dict[str, QueueSettings] = field(default_factory=dict)
    tasks: dict[str, Task[..., Any, Any]] = field(default_factory=dict)
    log: list[QueueSettings | TaskSettings] = field(default_factory=list)

    @property
    def registry(self) -> Mapping[str, Task[..., Any, Any]]:
        """The tasks by name, to look at."""
        return MappingProxyType(self.tasks)

    def add_queue(self, settings: QueueSettings) -> None:
        """Add a queue; the same once more is no harm.

        Raises BadConfig for one that was declared otherwise.
        """
        known = self.queues.get(settings.name)
        if known == settings:
            return
        if known is not None:
            msg = (
                f"queue {settings.name!r} is declared twice with different settings: "
                f"{known} and {settings}; declare it in one place"
            )
            raise BadConfig(msg)
        self.queues[settings.name] = settings
        self.log.append(settings)

    def add_task(self, task: Task[..., Any, Any]) -> None:
        """Add a task; raises BadConfig, with both places, for a name that is taken."""
        known = self.tasks.get(task.name)
        if known is not None:
            msg = (
                f"two tasks are named {task.name!r}: {place_of(known.function)} and "
                f"{place_of(task.function)}; give one of them another name= "
                "(jobs find their function by it)"
            )
            raise BadConfig(msg)
        self.tasks[task.name] = task
        self.log.append(task.settings)

    def tell(self, opened: Opened) -> None:
        """Write to the store what it was not told yet: one commit for all, as a rule."""
        news = self.log[opened.declared :]
        store = opened.store
        queues = [item for item in news if isinstance(item, QueueSettings)]
        tasks = [item for item in news if isinstance(item, TaskSettings)]
        tickets = [store.put_queue(queue) for queue in queues]
        if tasks:
            tickets.append(store.put_tasks(tasks))
        for ticket in tickets:
            ticket.result()
        opened.declared += len(news)


def template_of(settings: TaskSettings) -> JobSpec:
    """Return the job that a task's settings mean, without a payload."""
    return JobSpec(
        task=settings.name,
        queue=settings.queue,
        workload=settings.workload,
        priority=settings.priority,
        max_attempts=settings.max_attempts,
        lease_ms=settings.lease_ms,
        timeout_ms=settings.timeout_ms,
        key_ttl_ms=settings.key_ttl_ms,
    )


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint at names that look like the one that is not known."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {', '.join(map(repr, close))}?"
    shown = ", ".join(map(repr, names[:10]))
    return f"known are {shown}" if shown else "none is known yet"
