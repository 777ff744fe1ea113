"""The plans of the hot statements, looked at on the user's own file."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from millpond.store.sqlite.gate import Finding, Severity
from millpond.store.sqlite.named import SQL

HOT = (
    "first_due", "due_jobs", "drop_due_many", "heads", "chunk", "chunk_first", "chunks",
    "chunks_first", "count_claimed_many", "claim_ready_many", "claim_ready_to", "claim_running",
    "claimed", "held_jobs", "drop_running_many",
    "count_ended", "count_claimed", "count_accepted", "take_seq", "find_dedup", "find_coalesce",
    "blocked_lanes", "return_heads", "purgeable", "purge_attempts", "get_job", "write_beat",
)  # fmt: skip
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
        params = [None] * len(set(re.findall(r"\?(\d+)", text)))
    return [row[3] for row in execute(f"EXPLAIN QUERY PLAN {text}", params).fetchall()]


def plan_findings(execute: Callable[..., Any]) -> list[Finding]:
    """Return a finding for every hot statement that scans a table it should search."""
    found = []
    for name in HOT:
        bad = [
            step
            for step in explain(execute, name)
            if step.startswith("SCAN") and not MAY_SCAN.match(step)
        ]
        if bad:
            found.append(
                Finding(
                    "plan", Severity.WARNING, f"the statement {name} scans", "; ".join(bad),
                    "An index is missing or was changed: compare with `millpond migrate --check`.",
                )
            )  # fmt: skip
    if not found:
        found.append(Finding("plan", Severity.OK, "all hot statements use their indexes", "", ""))
    return found
