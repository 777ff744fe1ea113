"""What `doctor` looks at, from the outside inwards: it stops where going on would be unsafe."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

from millpond.cli.exits import Code
from millpond.cli.verdict import live, warnings
from millpond.cli.words import length, plural, size
from millpond.config import StoreConfig
from millpond.errors import MillpondError
from millpond.model import StatusSnapshot
from millpond.store.protocol import Store
from millpond.store.upkeep import (
    Finding,
    Schema,
    SchemaState,
    Severity,
    file_of,
    gate_findings,
    schema_findings,
    schema_of,
)

_MIB = 1 << 20
_LEAST_FREE, _MOST_FREE, _FREE_SHARE = 256 * _MIB, 4096 * _MIB, 20
_LARGE_WAL = 128 * _MIB
_MANY_LANES = 256
_CLOCK_SLACK_MS = 2_000

_SCHEMA = "schema-number"


def examine(config: StoreConfig) -> tuple[list[Finding], Code]:
    """Return all findings and the exit code that the gravest of them means."""
    findings: list[Finding] = []
    for step in (_place, _schema, _objects, _disk, _settings, _inside):
        findings += _safely(step, config)
        if step in {_place, _schema} and _serious(findings):
            break
    serious = _serious(findings)
    if not serious:
        return findings, Code.OK
    only_schema = all(finding.code == _SCHEMA for finding in serious)
    return findings, Code.SCHEMA if only_schema else Code.UNHEALTHY


def _serious(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.REFUSE]


def _safely(step: Callable[[StoreConfig], list[Finding]], config: StoreConfig) -> list[Finding]:
    """Run a step; what keeps it from looking is a finding itself."""
    try:
        return step(config)
    except MillpondError as error:
        return [Finding("store", Severity.REFUSE, str(error), "", "")]


def _place(config: StoreConfig) -> list[Finding]:
    return gate_findings(config)


def _schema(config: StoreConfig) -> list[Finding]:
    file = str(file_of(config))
    schema = schema_of(config)
    if schema is None or schema.number == 0:
        what = "there is no store here yet" if schema is None else "no tables of millpond in here"
        return [Finding("store", Severity.REFUSE, what, file, "Make it with `millpond init`.")]
    return [_number(schema, file)]


def _number(schema: Schema, file: str) -> Finding:
    what = f"the store has schema {schema.number}, this millpond knows {schema.known}"
    match schema.state:
        case SchemaState.CURRENT | SchemaState.NEWER_COMPATIBLE:
            return Finding(_SCHEMA, Severity.OK, what, file)
        case SchemaState.BEHIND:
            return Finding(_SCHEMA, Severity.REFUSE, what, file, "Run `millpond migrate`.")
        case SchemaState.NEWER_INCOMPATIBLE:
            return Finding(_SCHEMA, Severity.REFUSE, what, file, "Upgrade millpond here.")


def _objects(config: StoreConfig) -> list[Finding]:
    newer = schema_of(config)
    if newer is not None and newer.state is SchemaState.NEWER_COMPATIBLE:
        return []  # what belongs to it, only the newer version knows
    return schema_findings(config)


def _disk(config: StoreConfig) -> list[Finding]:
    file = file_of(config)
    usage = shutil.disk_usage(file.parent)
    wal = file.with_name(f"{file.name}-wal")
    large = wal.stat().st_size if wal.exists() else 0
    found = [_free(usage.total, usage.free, file.stat().st_size, str(file))]
    if large > _LARGE_WAL:
        what = f"the write-ahead log has {size(large)}"
        cure = "A reader that never ends keeps it from shrinking: look for a connection left open."
        found.append(Finding("wal", Severity.WARNING, what, str(wal), cure))
    return found


def _free(total: int, free: int, used: int, file: str) -> Finding:
    needed = max(_LEAST_FREE, min(total // _FREE_SHARE, _MOST_FREE))
    what = f"the file has {size(used)}, the disk {size(free)} free"
    if free >= needed:
        return Finding("disk", Severity.OK, what, file)
    cure = f"Make room: below {size(needed)} a spike of work can fill the disk."
    return Finding("disk", Severity.WARNING, what, file, cure)


def _settings(config: StoreConfig) -> list[Finding]:
    found = []
    if config.synchronous != "full":
        what = f"synchronous is {config.synchronous!r}: a power loss may take accepted jobs"
        cure = 'Set synchronous = "full" under [store] unless that is wanted.'
        found.append(Finding("synchronous", Severity.WARNING, what, config.url, cure))
    else:
        what = "synchronous is 'full': what was accepted survives a power loss"
        found.append(Finding("synchronous", Severity.OK, what, config.url))
    offset = os.environ.get("MILLPOND_CLOCK_OFFSET")
    if offset:
        what = f"MILLPOND_CLOCK_OFFSET moves this process's clock by {offset} s"
        cure = "It is for tests: unset it."
        found.append(Finding("clock", Severity.WARNING, what, "", cure))
    return found


def _inside(config: StoreConfig) -> list[Finding]:
    """Look with the store open: plans, counters, workers, and work that nobody does."""
    from millpond.store import open_store

    store = open_store(config.url, config=config)
    try:
        return [
            *(finding for finding in store.doctor() if finding.code == "plan"),
            *_drift(store),
            *_work(store.status()),
        ]
    finally:
        store.close()


def _drift(store: Store) -> list[Finding]:
    drift = store.drift()
    if not drift:
        return [Finding("counters", Severity.OK, "every counter is what a recount gives", "")]
    first = drift[0]
    what = f"{plural(len(drift), 'counter')} differ from a recount"
    which = f"{first.what} of {first.which} says {first.counter}, counted {first.counted}"
    return [Finding("counters", Severity.REFUSE, what, which, "Run `millpond reconcile --repair`.")]


def _work(now: StatusSnapshot) -> list[Finding]:
    cure = "Start a worker that has the task and serves the queue, or cancel the jobs."
    found = [Finding("work", Severity.WARNING, line, "", cure) for line in warnings(now)]
    found += _workers(now)
    if len(now.lanes) > _MANY_LANES:
        what = f"there are {len(now.lanes)} combinations of queue, workload and task"
        cure = "Every claim looks at those that are not empty: use fewer queues or workloads."
        found.append(Finding("lanes", Severity.WARNING, what, "", cure))
    return found


def _workers(now: StatusSnapshot) -> Iterator[Finding]:
    workers = live(now.workers)
    yield Finding("workers", Severity.OK, plural(len(workers), "live worker"), "")
    versions = sorted({worker.version for worker in workers})
    if len(versions) > 1:
        cure = "That is fine during an upgrade; afterwards restart those that were left behind."
        what = f"workers of several versions are live: {', '.join(versions)}"
        yield Finding("versions", Severity.WARNING, what, "", cure)
    for worker in workers:
        ahead = worker.beat_at - now.at
        if ahead > _CLOCK_SLACK_MS:
            what = f"the clock of this worker is {length(ahead)} ahead of the one here"
            which = f"{worker.host}:{worker.pid}"
            cure = "Due times follow the wall clock: keep the clocks in step, for example by NTP."
            yield Finding("clock", Severity.WARNING, what, which, cure)
