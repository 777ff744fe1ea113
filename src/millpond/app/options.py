"""The options of a pond, a queue and a worker, as type checkers and editors see them.

They are checked where they are read, so that a configuration file is held to the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypedDict

Length = float | str | timedelta
Size = int | str


class StoreOptions(TypedDict, total=False):
    """Options of `Millpond(...)`: the [store] table of `millpond.toml`."""

    busy: float | str
    synchronous: Literal["full", "normal"]
    sqlite: Literal["stdlib", "pysqlite3"]
    strict_safety: bool
    allow_network_fs: bool
    max_payload: Size
    max_result: Size
    inbox: int
    checkpoint_pages: int


class QueueOptions(TypedDict, total=False):
    """Options of `pond.queue(...)`; `workloads` maps each name to options of its own."""

    max_jobs: int
    max_bytes: Size
    order: Literal["strict", "ageing"]
    ageing: Length
    full: Literal["reject"]
    running: int | None
    pressure: Mapping[str, Any]
    workloads: Mapping[str, Mapping[str, Any]]


class WorkerOptions(TypedDict, total=False):
    """Options of an embedded worker: the [worker] table of `millpond.toml`."""

    concurrency: int
    queues: Sequence[str] | str
    beat: float | str
    poll: float | str
    recover: float | str
    drain: float | str
    window: float | str
    batch: int
