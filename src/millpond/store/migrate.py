"""Schema migrations: numbered SQL files, applied forwards only, each in one transaction.

A file is named `NNNN_name.sql`, counted from 0001 without gaps. The database remembers number
and SHA-256 of what it was given, so an edited migration is noticed. Comment lines at the top may
say `-- breaks_below: N`: code that knows fewer than N migrations cannot work with the result.
Without such a mark older code goes on working beside the newer schema.

What is to be done is decided by the pure functions; `apply_sqlite` does it on SQLite.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import resources
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from millpond import fault
from millpond.errors import SchemaTooNew, SchemaTooOld, StoreBusy, StoreError, StoreFull

if TYPE_CHECKING:
    import sqlite3

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_MARK = re.compile(r"--\s*breaks_below:\s*(.*)")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema; `breaks_below` 0 means that the mark so far is kept."""

    number: int
    name: str
    sql: str
    sha256: str
    breaks_below: int = 0

    @property
    def file_name(self) -> str:
        """The name of the file it was read from."""
        return f"{self.number:04}_{self.name}.sql"


@dataclass(frozen=True, slots=True)
class Applied:
    """What a database remembers of one migration; the mark is the one in force since then."""

    sha256: str
    breaks_below: int = 0


class SchemaState(StrEnum):
    """How a database's schema stands to the migrations that this code knows."""

    CURRENT = "current"
    BEHIND = "behind"
    NEWER_COMPATIBLE = "newer_compatible"
    NEWER_INCOMPATIBLE = "newer_incompatible"


# Reading the files


def packaged(package: str) -> Traversable:
    """Return the folder `migrations` of an installed package."""
    return resources.files(package) / "migrations"


def load(folder: Traversable) -> tuple[Migration, ...]:
    """Read all migrations of a folder in order; other files than `*.sql` are left alone.

    Raises StoreError for a wrong name, a gap or a mark that cannot hold.
    """
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    migrations = tuple(_parse(name, (folder / name).read_text(encoding="utf-8")) for name in names)
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise StoreError(
                f"migration {migration.file_name} stands where number {expected:04} should: "
                "numbers start at 0001, without gaps or doubles. Rename the file."
            )
    return migrations


def _parse(file_name: str, text: str) -> Migration:
    match = _FILE_NAME.fullmatch(file_name)
    if match is None:
        raise StoreError(
            f"migration {file_name} has no usable name: it must look like 0001_initial.sql. "
            "Rename the file."
        )
    sql, number = _normalised(text), int(match[1])
    sha256 = hashlib.sha256(sql.encode()).hexdigest()
    return Migration(number, match[2], sql, sha256, _mark(file_name, number, sql))


def _normalised(text: str) -> str:
    """Drop what editors and version control change on their own: line ends and end blanks."""
    lines = text.removeprefix("\ufeff").splitlines()
    return "\n".join(line.rstrip() for line in lines).strip() + "\n"


def _mark(file_name: str, number: int, sql: str) -> int:
    for line in sql.splitlines():
        if line and not line.startswith("--"):
            break
        if found := _MARK.fullmatch(line):
            if found[1].isdecimal() and 1 <= int(found[1]) <= number:
                return int(found[1])
            raise StoreError(
                f"migration {file_name} says breaks_below: {found[1]}, which must be a number "
                f"from 1 to {number}. Mend the file."
            )
    return 0


# Deciding, without looking


def known(available: Sequence[Migration]) -> int:
    """Return the schema number of this code."""
    return max((migration.number for migration in available), default=0)


def reached(applied: Mapping[int, Applied]) -> int:
    """Return the schema number of a database, 0 for one without millpond's tables."""
    return max(applied, default=0)


def state(applied: Mapping[int, Applied], available: Sequence[Migration]) -> SchemaState:
    """Compare a database with this code by numbers and marks; checksums are `plan`'s matter."""
    here, there = known(available), reached(applied)
    if there == here:
        return SchemaState.CURRENT
    if there < here:
        return SchemaState.BEHIND
    if max(entry.breaks_below for entry in applied.values()) > here:
        return SchemaState.NEWER_INCOMPATIBLE
    return SchemaState.NEWER_COMPATIBLE


def plan(
    applied: Mapping[int, Applied],
    available: Sequence[Migration],
    *,
    where: str = "the database",
) -> list[Migration]:
    """Return the migrations to apply, in order; none for a newer schema this code can work with.

    Raises SchemaTooNew for a newer schema that breaks this code, StoreError when what was
    applied differs from the file of that number or has a gap.
    """
    if state(applied, available) is SchemaState.NEWER_INCOMPATIBLE:
        oldest = max(entry.breaks_below for entry in applied.values())
        raise SchemaTooNew(
            f"{where} has schema {reached(applied)}, which needs a millpond that knows at least "
            f"schema {oldest}; this one knows up to {known(available)}. Upgrade millpond, or open "
            "a copy made before the upgrade."
        )
    for migration in available:
        _compare(migration, applied, where)
    return [migration for migration in available if migration.number not in applied]


def _compare(migration: Migration, applied: Mapping[int, Applied], where: str) -> None:
    entry = applied.get(migration.number)
    if entry is None and migration.number < reached(applied):
        raise StoreError(
            f"{where} lacks migration {migration.file_name} although it has number "
            f"{reached(applied)}. Its table millpond_schema_version was changed by hand: restore "
            "a backup."
        )
    if entry is not None and entry.sha256 != migration.sha256:
        raise StoreError(
            f"{where} was migrated with another {migration.file_name} (SHA-256 "
            f"{entry.sha256[:12]}…) than this millpond brings ({migration.sha256[:12]}…). Install "
            "the release that migrated it, or restore the file as it was released."
        )


def require_current(
    applied: Mapping[int, Applied],
    available: Sequence[Migration],
    *,
    where: str = "the database",
) -> None:
    """Return when this code can work with the database, without changing anything.

    Raises SchemaTooOld when migrations are missing, and what `plan` raises.
    """
    if plan(applied, available, where=where):
        raise SchemaTooOld(
            f"{where} has schema {reached(applied)}, this millpond needs schema "
            f"{known(available)}. Run `millpond migrate`."
        )


# Doing it on SQLite

_FIND_TABLE = (
    "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'millpond_schema_version'"
)
_READ = "SELECT number, sha256, breaks_below FROM millpond_schema_version"
_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS millpond_schema_version (
    number INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL,
    breaks_below INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT
"""
_INSERT = """
INSERT INTO millpond_schema_version (number, sha256, breaks_below, applied_at)
VALUES (:number, :sha256, :breaks_below, :applied_at)
"""

# They would end the transaction around the migration, or change a file that others share.
_NOT_ALLOWED = frozenset(
    {"ATTACH", "BEGIN", "COMMIT", "DETACH", "END", "PRAGMA", "RELEASE", "ROLLBACK", "SAVEPOINT"}
    | {"VACUUM"}
)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


def _wall() -> int:
    return time.time_ns() // 1_000_000


def read_sqlite(conn: sqlite3.Connection) -> dict[int, Applied]:
    """Return what was applied to this file; writes nothing and takes no write lock."""
    if conn.execute(_FIND_TABLE).fetchone() is None:
        return {}
    rows = conn.execute(_READ).fetchall()
    return {number: Applied(sha256, breaks_below) for number, sha256, breaks_below in rows}


def apply_sqlite(
    conn: sqlite3.Connection,
    begin: Callable[[], object],
    migrations: Sequence[Migration],
    *,
    now: Callable[[], int] = _wall,
    where: str = "the database",
) -> list[int]:
    """Bring a file to the newest schema and return the numbers that this call applied.

    Each migration is one transaction with its row in `millpond_schema_version`; any number of
    processes may do this at once, each migration is applied by one of them. A current file is
    only read. `begin` starts an immediate transaction on `conn`, which must be in autocommit
    mode with none open; `now` gives wall milliseconds, read under the lock. Raises what `plan`
    and `begin` raise, StoreBusy, StoreFull, or StoreError for a statement that fails; the
    migration at hand is then undone, those before it stay.
    """
    if conn.in_transaction:
        raise StoreError(
            f"{where} cannot be migrated inside an open transaction. Commit it first, or run "
            "`millpond migrate`."
        )
    scripts = {step.number: _statements(conn, step) for step in migrations}
    done: list[int] = []
    while _needs_lock(conn, migrations, where):
        number = _apply_next(conn, begin, migrations, scripts, now=now, where=where)
        if number is None:
            break
        done.append(number)
    return done


def _needs_lock(conn: sqlite3.Connection, migrations: Sequence[Migration], where: str) -> bool:
    try:
        applied = read_sqlite(conn)
    except conn.Error as error:
        if _code(error) in _BUSY:
            # A file outside WAL mode may be locked even for readers; `begin` knows how to wait.
            return True
        raise _driver_error(error, where) from error
    return bool(plan(applied, migrations, where=where))


def _apply_next(
    conn: sqlite3.Connection,
    begin: Callable[[], object],
    migrations: Sequence[Migration],
    scripts: Mapping[int, Sequence[str]],
    *,
    now: Callable[[], int],
    where: str,
) -> int | None:
    try:
        begin()
        applied = read_sqlite(conn)
        pending = plan(applied, migrations, where=where)
        if pending:
            _run(conn, pending[0], scripts[pending[0].number], where)
            _record(conn, pending[0], applied, now())
            fault.point("migrate")
        conn.execute("COMMIT")
    except BaseException as error:
        # A full disk or a failed COMMIT may have ended the transaction already.
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        if isinstance(error, conn.Error):
            raise _driver_error(error, where) from error
        raise
    return pending[0].number if pending else None


def _run(
    conn: sqlite3.Connection, migration: Migration, statements: Sequence[str], where: str
) -> None:
    for ordinal, statement in enumerate(statements, start=1):
        try:
            # A statement may return rows, and SQLite does the work of a row when it is fetched.
            conn.execute(statement).fetchall()
        except conn.Error as error:
            if _code(error) in _BUSY | _FULL:
                raise
            raise StoreError(
                f"migration {migration.file_name} of {where} failed at statement {ordinal} "
                f"({error}) and was undone. Mend what it names, then run `millpond migrate`."
            ) from error


def _record(
    conn: sqlite3.Connection, migration: Migration, applied: Mapping[int, Applied], moment: int
) -> None:
    marks = [entry.breaks_below for entry in applied.values()]
    row = {
        "number": migration.number,
        "sha256": migration.sha256,
        "breaks_below": max([migration.breaks_below, *marks]),
        "applied_at": moment,
    }
    conn.execute(_CREATE_TABLE)
    conn.execute(_INSERT, row)


# SQLITE_BUSY and SQLITE_LOCKED, SQLITE_FULL.
_BUSY, _FULL = frozenset({5, 6}), frozenset({13})


def _code(error: BaseException) -> int:
    """Return SQLite's primary result code; the higher bits only tell which kind it is."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _driver_error(error: Exception, where: str) -> StoreError:
    if _code(error) in _BUSY:
        return StoreBusy(
            f"{where} was locked by another connection while it was migrated; what was begun is "
            "undone. Try again."
        )
    if _code(error) in _FULL:
        return StoreFull(
            f"{where} has no room for its migration, which was undone. Free some disk space, then "
            "run `millpond migrate`."
        )
    return StoreError(
        f"{where} could not be migrated ({error}); what was begun is undone. Run `millpond doctor`."
    )


def _statements(conn: sqlite3.Connection, migration: Migration) -> list[str]:
    """Split a migration into its statements, with trigger bodies, strings and comments whole."""
    statements = list(_split(migration, _complete(conn)))
    for statement in statements:
        word = re.match(r"\s*(\w+)", _COMMENT.sub(" ", statement))
        if word and word[1].upper() in _NOT_ALLOWED:
            raise StoreError(
                f"migration {migration.file_name} contains {word[1].upper()}, which would end its "
                "transaction or change the file for others. Take it out."
            )
    return statements


def _split(migration: Migration, complete: Callable[[str], bool]) -> Iterator[str]:
    start = 0
    for semicolon in re.finditer(";", migration.sql):
        candidate = migration.sql[start : semicolon.end()]
        if complete(candidate):
            start = semicolon.end()
            yield candidate
    if _COMMENT.sub("", migration.sql[start:]).strip():
        raise StoreError(
            f"migration {migration.file_name} ends within a statement: its last semicolon is "
            "missing. Mend the file."
        )


def _complete(conn: sqlite3.Connection) -> Callable[[str], bool]:
    """Return `complete_statement` of the connection's own library.

    Importing sqlite3 here would load a second SQLite library into a process that uses another.
    """
    for parent in type(conn).__mro__:
        module = sys.modules.get(parent.__module__)
        if function := getattr(module, "complete_statement", None):
            return function  # type: ignore[no-any-return]
    raise StoreError(
        f"the connection {type(conn).__name__} belongs to no known SQLite library. "
        "Use sqlite3 or pysqlite3."
    )
