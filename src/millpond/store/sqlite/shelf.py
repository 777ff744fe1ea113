"""The two kinds of archives of a SQLite store: lines of JSON, and a store of final jobs.

The second has the same tables, so `millpond jobs`, `millpond job` and the view read it as any
store. It is closed: no job can be enqueued into it or put back from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from millpond.errors import BadConfig
from millpond.store.shelf import LineFile, Ref, moment
from millpond.store.sqlite.named import SQL

Execute = Callable[..., Any]
Look = Callable[[Callable[[Execute], Any]], Any]
"""Runs a function in one snapshot of the live store."""

_encode = msgspec.json.encode
_TIMES = ("created_at", "due_at", "finished_at", "claimed_at", "started_at", "ended_at", "late_at")
_BODIES = ("payload", "meta", "result")
_NAMES = ("queues", "workloads", "tasks", "lanes", "tenants", "workers")
_CLEARED = ("empty_lanes", "empty_workloads", "end_workers")
_ROWS = ("jobs", "finals", "again", "attempts", "tracebacks", "results", "events")
_NOT_ERRORS = frozenset({"completed", "released", "snoozed"})


class Lines(LineFile):
    """An archive of one JSON object a job."""

    def __init__(self, path: Path, store_id: str, look: Look) -> None:
        super().__init__(path, store_id)
        self._store_id = store_id
        self._look = look

    def write(self, refs: Sequence[Ref]) -> int:
        """Write the jobs as they are in one snapshot, and return how many are still final."""
        ids = [ref.id for ref in refs]
        found = self._look(lambda run: records(run, ids, self._store_id))
        self.append(found)
        return len(found)


def records(execute: Execute, ids: Sequence[int], store_id: str) -> list[dict[str, Any]]:
    """Return final jobs with all that belongs to them, as they stand in an archive."""
    param = {"ids": _encode(ids).decode()}
    history = _by_job(execute(SQL["export_attempts"], param))
    events = _by_job(execute(SQL["export_events"], param))
    return [
        _record(job, store_id, history[job["id"]], events[job["id"]])
        for job in _dicts(execute(SQL["export_jobs"], param))
    ]


def _dicts(cursor: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in cursor.description]
    return [_shown(dict(zip(names, row, strict=True))) for row in cursor.fetchall()]


def _by_job(cursor: Any) -> defaultdict[int, list[dict[str, Any]]]:
    found: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in _dicts(cursor):
        found[row.pop("job_id")].append(row)
    return found


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    for name in _TIMES:
        if name in row:
            row[name] = moment(row[name])
    for name in _BODIES:
        if name in row:
            row[name] = _json(row[name])
    return row


def _json(raw: bytes | None) -> Any:
    """Return stored JSON to stand inside other JSON; what is none, as text."""
    if raw is None:
        return None
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw.decode("utf-8", "backslashreplace")
    return msgspec.Raw(raw)


def _record(
    job: dict[str, Any], store_id: str, history: list[dict[str, Any]], events: list[dict[str, Any]]
) -> dict[str, Any]:
    started = [each["started_at"] or each["claimed_at"] for each in history]
    for event in events:
        event["at"] = moment(event["at"])
        for side in ("before", "after"):
            event[side] = event[side] and _json(event[side].encode())
    return {
        "store": store_id,
        **job,
        "started_at": started[-1] if started else None,
        "attempts": max((each["number"] or 0 for each in history), default=0),
        "crashes": sum(each["outcome"] == "crashed" for each in history),
        "last_error": _last_error(job["state"], history),
        "history": history,
        "events": events,
    }


def _last_error(state: str, history: list[dict[str, Any]]) -> str | None:
    errors = [each for each in history if each["outcome"] not in _NOT_ERRORS]
    if state == "completed" or not errors:
        return None
    return ": ".join(part for part in (errors[-1]["error_type"], errors[-1]["message"]) if part)


class StoreFile:
    """An archive that is a store itself.

    `make` opens the file as a store, which makes its tables, and closes it again; `connect`
    opens a plain connection.
    """

    def __init__(
        self,
        path: Path,
        store_id: str,
        live: str,
        make: Callable[[str], None],
        connect: Callable[[str], Any],
    ) -> None:
        self._path = path
        self._owner = f"archive of {store_id}"
        if path.exists():
            self._require_store(connect)
        make(str(path))
        self._conn = connect(str(path))
        try:
            self._prepare(live)
            self._batch, self._refs = self._last()
        except BaseException:
            self._conn.close()
            raise

    def _require_store(self, connect: Callable[[str], Any]) -> None:
        """Refuse another application's database, in which tables would be made otherwise."""
        if self._path.stat().st_size == 0:
            return
        conn = connect(str(self._path))
        try:
            found = conn.execute(SQL["shelf_is_store"]).fetchone()[0]
        finally:
            conn.close()
        if not found:
            raise self._refused("a database of something else")

    def _prepare(self, live: str) -> None:
        for pragma in ("busy_timeout=5000", "wal_autocheckpoint=1000"):
            self._conn.execute(f"PRAGMA {pragma}").fetchall()
        state, owner, jobs = self._conn.execute(SQL["shelf_owner"]).fetchone()
        if state == "open" and jobs:
            raise self._refused("a store that takes jobs")
        if state == "open":
            self._conn.execute(SQL["shelf_close_intake"], {"owner": self._owner})
        elif owner != self._owner:
            raise self._refused("an archive of another store")
        self._conn.execute(SQL["shelf_attach"], {"address": f"file:{quote(live)}?mode=ro"})

    def _refused(self, what: str) -> BadConfig:
        return BadConfig(f"{self._path} is {what}: nothing was written; name another file")

    def _last(self) -> tuple[int, list[Ref]]:
        row = self._conn.execute(SQL["shelf_last"]).fetchone()
        if row is None:
            return 0, []
        batch, refs = msgspec.json.decode(row[0], type=tuple[int, list[Ref]])
        return batch, refs

    def position(self) -> int:
        """Return the number of the last batch."""
        return self._batch

    def tail(self, position: int) -> list[Ref] | None:
        """Return the jobs of the last batch if it is the one after a position."""
        if position > self._batch:
            return None
        return self._refs if position < self._batch else []

    def cut(self, position: int) -> None:
        """Take the last batch off, written to the end or not."""
        if self._conn.in_transaction:
            self._conn.execute("ROLLBACK")
            self._batch, self._refs = self._last()
        if position >= self._batch:
            return
        self._conn.execute("BEGIN")
        param = {"ids": _encode([ref.id for ref in self._refs]).decode()}
        for name in _ROWS:
            self._conn.execute(SQL[f"shelf_drop_{name}"], param)
        self._note(position, [])
        self._conn.execute("COMMIT")

    def write(self, refs: Sequence[Ref]) -> int:
        """Copy the rows of the jobs, and the names that they need; return how many are final."""
        ids = [ref.id for ref in refs]
        param = {"ids": _encode(ids).decode()}
        run = self._conn.execute
        run("BEGIN")
        for name in _NAMES:
            run(SQL[f"shelf_{name}"], param if name in {"tenants", "workers"} else {})
        for name in _CLEARED:
            run(SQL[f"shelf_{name}"])
        for name in _ROWS:
            run(SQL[f"shelf_{name}"], param)
        self._note(self._batch + 1, list(refs))
        return int(run(SQL["shelf_count"], param).fetchone()[0])

    def _note(self, batch: int, refs: list[Ref]) -> None:
        self._conn.execute(SQL["shelf_put_last"], {"value": _encode((batch, refs)).decode()})
        self._batch, self._refs = batch, refs

    def sync(self) -> int:
        """Commit, which syncs, and return the number of the batch."""
        if self._conn.in_transaction:
            self._conn.execute("COMMIT")
        return self._batch

    def close(self) -> None:
        """Close the connection, which copies the log into the file."""
        self._conn.close()
