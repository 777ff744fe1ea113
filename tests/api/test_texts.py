"""No text that the database cannot hold reaches it: BadConfig names it first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from millpond import BadConfig, Millpond

BAD = "a\udc80"
Call = Callable[[Millpond], Any]


def listed_by(name: str) -> Call:
    return lambda pond: pond.jobs(**{name: BAD})  # type: ignore[arg-type]


def enqueued_with(name: str) -> Call:
    return lambda pond: pond.enqueue("t", queue="default", **{name: BAD})  # type: ignore[arg-type]


CALLS: dict[str, Call] = {
    **{
        f"jobs {name}": listed_by(name)
        for name in (
            "queue", "workload", "task", "tenant", "key", "operation_id", "reason",
            "fingerprint", "error",
        )
    },
    "select": lambda pond: pond.select(task=BAD),
    "pause": lambda pond: pond.pause(BAD),
    "pause by": lambda pond: pond.pause("default", by=BAD),
    "resume": lambda pond: pond.resume(BAD),
    "cancel by": lambda pond: pond.cancel(1, by=BAD),
    "cancel note": lambda pond: pond.cancel(1, note=BAD),
    "requeue by": lambda pond: pond.requeue(1, by=BAD),
    "requeue note": lambda pond: pond.requeue(1, note=BAD),
    "requeue operation": lambda pond: pond.requeue(1, operation_id=BAD),
    "discard note": lambda pond: pond.discard(1, note=BAD),
    "select cancel": lambda pond: pond.select("ready").cancel(by=BAD),
    "select requeue": lambda pond: pond.select().requeue(note=BAD),
    "select discard": lambda pond: pond.select().discard(note=BAD),
    "events queue": lambda pond: pond.events(queue=BAD),
    "events what": lambda pond: pond.events(what=BAD),
    "result": lambda pond: pond.result(BAD),
    "result task": lambda pond: pond.result("op", BAD),
    "name": lambda pond: pond.enqueue(BAD, queue="default"),
    "queue": lambda pond: pond.enqueue("t", queue=BAD),
    **{
        name: enqueued_with(name)
        for name in ("key", "coalesce", "serial_key", "operation_id", "workload")
    },
    "worker": lambda pond: pond.worker(queues=[BAD]),
    "declared": lambda pond: pond.queue(BAD),
    "address": lambda _: Millpond(BAD),
    "test": lambda pond: pond.testing(BAD).__enter__(),
    "backup": lambda pond: pond.backup(BAD),
    "archive": lambda pond: pond.archive(BAD),
    "prune": lambda pond: pond.prune(archive=BAD),
    "acancel": lambda pond: asyncio.run(pond.acancel(1, by=BAD)),
    "adiscard": lambda pond: asyncio.run(pond.adiscard(1, by=BAD)),
    "arequeue": lambda pond: asyncio.run(pond.arequeue(1, by=BAD)),
    "apause": lambda pond: asyncio.run(pond.apause(BAD)),
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_half_a_character_is_refused_by_name(pond: Millpond, call: Call) -> None:
    pond.enqueue("t", queue="default")
    with pytest.raises(BadConfig, match=r"\\udc80|udc80"):
        call(pond)


def test_what_narrows_must_be_text(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="queue is 5: it must be text"):
        pond.jobs(queue=5)  # type: ignore[arg-type]
