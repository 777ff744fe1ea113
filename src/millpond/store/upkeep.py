"""A store seen from outside: whether it is there, how its schema stands, how it is migrated.

For commands that must look before they open, since opening makes what is missing. Nothing
here may run in a process that has the same file open: closing a connection of one's own would
drop SQLite's locks on it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.config import StoreConfig
from millpond.errors import MillpondError
from millpond.store import migrate
from millpond.store.migrate import SchemaState
from millpond.store.sqlite.connect import begin, open_connection, primary_code, translate
from millpond.store.sqlite.engine import SqliteStore
from millpond.store.sqlite.gate import Finding, Severity, check, enforce
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import load
from millpond.store.sqlite.probes import SystemProbes, library
from millpond.store.sqlite.views import SCAN_ROWS

__all__ = [
    "SCAN_ROWS",
    "Finding",
    "NoStore",
    "QueueState",
    "Schema",
    "SchemaState",
    "Severity",
    "file_of",
    "gate_findings",
    "migrate_store",
    "queue_states",
    "schema_findings",
    "schema_of",
]


class NoStore(MillpondError):
    """There is no store at the address, and the command at hand does not make one."""


@dataclass(frozen=True, slots=True)
class Schema:
    """How a file's schema (0: none) stands to what this code knows."""

    number: int
    known: int
    state: SchemaState


@dataclass(frozen=True, slots=True)
class QueueState:
    """What is set for a queue: whether it starts jobs, how many may run at once (None: any)."""

    name: str
    paused: bool
    max_running: int | None


def file_of(config: StoreConfig) -> Path:
    """Return the path of the store's file, with symbolic links followed.

    Raises NoStore for a store in memory, which lives and ends with its own process.
    """
    address = config.address
    if address.memory:
        raise NoStore("a store in memory belongs to the process that made it: give a file")
    return Path(os.path.realpath(address.path))


def gate_findings(config: StoreConfig) -> list[Finding]:
    """Return what the start-up gate says of the place, without opening anything."""
    return check(
        file_of(config),
        SystemProbes(library(config.sqlite)),
        strict=config.strict_safety,
        allow_network_fs=config.allow_network_fs,
    )


def schema_of(config: StoreConfig) -> Schema | None:
    """Return how the file's schema stands, None without a file; changes nothing.

    Raises UnsafeStorage when the gate refuses the place, StoreError for what is no database.
    """
    if not file_of(config).exists():
        return None
    available = _migrations()
    with _looking(config) as conn:
        applied = migrate.read_sqlite(conn)
    return Schema(
        migrate.reached(applied), migrate.known(available), migrate.state(applied, available)
    )


def migrate_store(config: StoreConfig) -> list[int]:
    """Bring the schema up to date, making the file when there is none; return what was applied.

    Raises what the gate, the migrations and a busy database raise; see `migrate.apply_sqlite`.
    """
    schema = schema_of(config)
    available = _migrations()
    if schema is None or schema.number == 0:
        SqliteStore(config.address.path, config=config).close()
        return [migration.number for migration in available]
    path = str(file_of(config))
    budget = config.busy_ms / 1000
    with _connected(config, readonly=False) as conn:
        return migrate.apply_sqlite(
            conn,
            lambda: begin(conn, budget_s=budget, roll=random.random, path=path),
            available,
            where=path,
        )


def queue_states(config: StoreConfig) -> dict[str, QueueState]:
    """Return what is set for every queue that the store knows, by name."""
    with _looking(config) as conn:
        names = load(conn.execute, 0)
    return {
        queue.name: QueueState(queue.name, queue.paused, queue.max_running)
        for queue in sorted(names.queues.values(), key=lambda each: each.name)
    }


def schema_findings(config: StoreConfig) -> list[Finding]:
    """Compare the tables, indexes and views of the file with those that the migrations make."""
    with _looking(config) as conn:
        found = _objects(conn)
    where = str(file_of(config))
    expected = _expected(config)
    findings = []
    for name, (kind, sql) in expected.items():
        if name not in found:
            findings.append(_missing(kind, name, sql, where))
        elif _plain(found[name][1]) != _plain(sql):
            findings.append(_altered(kind, name, sql, where))
    findings += [
        _foreign_trigger(name, where)
        for name, (kind, _) in found.items()
        if kind == "trigger" and name not in expected
    ]
    return findings or [
        Finding("schema", Severity.OK, "the schema is what the migrations make", where)
    ]


def _migrations() -> tuple[migrate.Migration, ...]:
    return migrate.load(migrate.packaged("millpond.store.sqlite"))


@contextlib.contextmanager
def _looking(config: StoreConfig) -> Iterator[Any]:
    enforce(gate_findings(config))
    with _connected(config, readonly=True) as conn:
        yield conn


@contextlib.contextmanager
def _connected(config: StoreConfig, *, readonly: bool) -> Iterator[Any]:
    path = str(file_of(config))
    try:
        conn = open_connection(
            library(config.sqlite), path, synchronous=config.synchronous, readonly=readonly
        )
        with contextlib.closing(conn):
            # Another process may hold the file for a moment while it switches the journal mode.
            conn.execute(f"PRAGMA busy_timeout={config.busy_ms}").fetchall()
            yield conn
    except Exception as error:
        if primary_code(error):
            raise translate(error, path) from error
        raise


def _expected(config: StoreConfig) -> Mapping[str, tuple[str, str]]:
    conn = library(config.sqlite).connect(":memory:", isolation_level=None)
    with contextlib.closing(conn):
        migrate.apply_sqlite(conn, lambda: conn.execute("BEGIN IMMEDIATE"), _migrations())
        return _objects(conn)


def _objects(conn: Any) -> dict[str, tuple[str, str]]:
    """Return kind and text of everything that stands on millpond's tables, by name."""
    return {name: (kind, sql) for kind, name, sql in conn.execute(SQL["schema_objects"])}


def _plain(sql: str) -> str:
    # ALTER TABLE … RENAME and dumps may quote names and reflow lines; neither changes anything.
    return " ".join(sql.replace('"', "").split())


def _missing(kind: str, name: str, sql: str, where: str) -> Finding:
    what = f"the {kind} {name} is missing"
    cure = "Restore a backup: its rows are gone with it."
    if kind != "table":
        cure = f"Make it again, with sqlite3 on the file: {' '.join(sql.split())};"
    return Finding("schema", Severity.REFUSE, what, where, cure)


def _altered(kind: str, name: str, sql: str, where: str) -> Finding:
    what = f"the {kind} {name} was changed by hand"
    cure = "Restore a backup, or make it again as the migrations do."
    if kind != "table":
        cure = f"DROP {kind.upper()} {name}, then make it again: {' '.join(sql.split())};"
    return Finding("schema", Severity.REFUSE, what, where, cure)


def _foreign_trigger(name: str, where: str) -> Finding:
    what = f"the trigger {name} stands on a table of millpond and runs inside its transactions"
    return Finding("schema", Severity.WARNING, what, where, f"Take it off: DROP TRIGGER {name}.")
