"""The plans of the hot statements, looked at on the user's own file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

from millpond.store.sqlite.connect import primary_code
from millpond.store.sqlite.gate import Finding, Severity
from millpond.store.sqlite.named import SQL

HOT = (
    "first_due", "due_jobs", "drop_due", "heads", "chunk", "chunk_first", "chunks",
    "chunks_first", "claim_ready", "claim_ready_to", "claim_running",
    "claimed", "held_jobs", "drop_running_many",
    "count_ended", "count_claimed", "count_accepted", "take_seq", "find_dedup", "find_coalesce",
    "blocked_lanes", "return_heads", "purgeable", "purge_attempts", "get_job", "write_beat",
    "read_mode", "read_flow", "next_ready", "oldest_of_first", "overdue",
)  # fmt: skip
ERROR = 1
"""SQLite's code of a statement that cannot be prepared."""

MAY_SCAN = re.compile(
    r"^SCAN (\(?subquery-\d+\)?$"
    r"|(e|o|s|f|w|step|json_each|millpond_scheduled|CONSTANT ROW|\d+ CONSTANT ROWS?)\b"
    r"|l USING (COVERING )?INDEX millpond_lane_ready)"
)
"""Lists handed in, the lanes that are not empty, and the front of the schedule."""


def explain(execute: Callable[..., Any], name: str) -> list[str]:
    """Return the plan of a statement, a line a step."""
    text = SQL[name]
    params: Any = dict.fromkeys(re.findall(r":(\w+)", text))
    if not params:
        numbered = [int(number) for number in re.findall(r"\?(\d+)", text)]
        params = [None] * max(numbered, default=text.count("?"))
    return [row[3] for row in execute(f"EXPLAIN QUERY PLAN {text}", params).fetchall()]


def plan_findings(execute: Callable[..., Any]) -> list[Finding]:
    """Return a finding for every hot statement that scans a table it should search."""
    found = [finding for name in HOT if (finding := _finding(execute, name)) is not None]
    if not found:
        found.append(Finding("plan", Severity.OK, "all hot statements use their indexes", "", ""))
    return found


def _finding(execute: Callable[..., Any], name: str) -> Finding | None:
    try:
        steps = explain(execute, name)
    except Exception as error:
        if primary_code(error) != ERROR:
            raise
        return _warning(f"the statement {name} cannot run", str(error))
    bad = [step for step in steps if step.startswith("SCAN") and not MAY_SCAN.match(step)]
    return _warning(f"the statement {name} scans", "; ".join(bad)) if bad else None


def _warning(what: str, detail: str) -> Finding:
    cure = (
        "An index is missing or was changed, or ANALYZE ran while a table was nearly empty: "
        "compare with `millpond migrate --check`, then start the processes that use this file "
        "again."
    )
    return Finding("plan", Severity.WARNING, what, detail, cure)


def forget_statistics(conn: Any) -> None:
    """Take what ANALYZE has noted of our tables out of the file and out of this connection.

    Every statement pins its order and its keys, and needs no figures. Those of a moment when a
    table held one row make SQLite read it from end to end ever after, however it has grown. A
    file that is locked is left for the next opening.
    """
    with contextlib.suppress(conn.OperationalError):
        if not conn.execute(_HAS_STATISTICS).fetchone():
            return
        if conn.execute(_HAS_OURS).fetchone():
            conn.execute(_DROP_OURS)
            # Reads the schema anew, without the figures; nothing is written by it.
            conn.execute("PRAGMA writable_schema=RESET").fetchall()


_HAS_STATISTICS = "SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_stat1'"
_HAS_OURS = r"SELECT 1 FROM sqlite_stat1 WHERE tbl LIKE 'millpond\_%' ESCAPE '\' LIMIT 1"
_DROP_OURS = r"DELETE FROM sqlite_stat1 WHERE tbl LIKE 'millpond\_%' ESCAPE '\'"
