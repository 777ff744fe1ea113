"""What type checkers must accept and refuse of the public API; checked by mypy, never run.

Every expected error is ignored by its code, and an ignore that is not needed is an error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type

from millpond import Backoff, Batch, Context, Job, JobRef, Millpond, Snooze, StoreConfig
from millpond.store.protocol import Store
from millpond.store.sqlite.engine import SqliteStore
from millpond.task import Submitter
from millpond.worker.host import Host

pond = Millpond("app.db", busy="5s", eager=True)


@pond.task
def bare(number: int, fmt: Literal["pdf", "csv"] = "pdf") -> dict[str, int]:
    return {fmt: number}


@pond.task(queue="reports", max_attempts=8, retry=Backoff(base=5, cap=900), timeout=600)
def with_options(number: int, *, ctx: Context = Context.injected) -> str:
    ctx.progress(number, 100, "loading")
    return ctx.operation_id


@pond.task(retry_on=(ConnectionError,), on={KeyError: Snooze(5), ValueError: "fail"})
async def asynchronous(number: int) -> list[str]:
    return [str(number)]


@pond.task
def nothing() -> None: ...


def calls() -> None:
    assert_type(bare(1), dict[str, int])
    _ = assert_type(asynchronous(1), Coroutine[Any, Any, list[str]])
    bare("1")  # type: ignore[arg-type]


def enqueues() -> None:
    assert_type(bare.enqueue(1, fmt="csv"), JobRef[dict[str, int]])
    assert_type(with_options.enqueue(1), JobRef[str])
    assert_type(asynchronous.enqueue(1), JobRef[list[str]])
    assert_type(asynchronous.enqueue(1).wait(timeout=30), list[str])
    assert_type(nothing.enqueue(), JobRef[None])
    assert_type(bare.enqueue(1).job(), Job)
    bare.enqueue("812")  # type: ignore[arg-type]
    bare.enqueue(812, formt="csv")  # type: ignore[call-arg]
    bare.enqueue(812, fmt="doc")  # type: ignore[arg-type]
    bare.enqueue()  # type: ignore[call-arg]
    asynchronous.enqueue(1, 2)  # type: ignore[call-arg]


def options(conn: sqlite3.Connection) -> None:
    late = bare.using(delay=timedelta(minutes=5), priority=10, key="report:812", tx=conn)
    assert_type(late.enqueue(1), JobRef[dict[str, int]])
    late.using(at=datetime.now(UTC), meta={"by": ["ann"]}, coalesce_mode="first")
    late.enqueue("1")  # type: ignore[arg-type]
    bare.using(dealy=5)  # type: ignore[call-arg]
    bare.using(priority="high")  # type: ignore[arg-type]
    bare.using(coalesce_mode="last")  # type: ignore[arg-type]
    pond.enqueue("bare", {"number": 1}, queue="reports", delay="5m")
    pond.enqueue("bare", {"number": 1}, que="reports")  # type: ignore[call-arg]


def batches() -> None:
    with pond.batch() as batch:
        assert_type(batch, Batch)
        batch.add(bare, 1, fmt="csv")
        batch.add(bare.using(priority=10), 1)
        batch.add(with_options, 1)
        batch.add(bare, "1")  # type: ignore[arg-type]
        batch.add(bare.using(priority=10))  # type: ignore[call-arg]


async def awaited() -> None:
    ref = await bare.aenqueue(1)
    assert_type(ref, JobRef[dict[str, int]])
    assert_type(await ref.await_(timeout=30), dict[str, int])
    assert_type(await ref.ajob(), Job)
    await bare.aenqueue("1")  # type: ignore[arg-type]
    async with pond.batch() as batch:
        batch.add(asynchronous, 1)


def declares() -> None:
    pond.queue("reports", max_jobs=50_000, workloads={"critical": {"reserved": 5}, "b": {}})
    pond.queue("reports", max_job=5)  # type: ignore[call-arg]
    Millpond("app.db", bussy=5)  # type: ignore[call-arg]
    pond.worker(concurrency="many")  # type: ignore[arg-type]
    pond.task(timeuot=5)  # type: ignore[call-overload]
    pond.task(isolation="process")
    pond.task(isolation="fork")  # type: ignore[call-overload]


def fits_together() -> None:
    submitter: Submitter = pond
    host: Host = pond
    store: Store = SqliteStore("app.db", config=StoreConfig())
    _ = (submitter, host, store)
