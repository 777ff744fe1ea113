"""How long final jobs are kept: counted, deleted in small batches, moved into archives first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from millpond.errors import InvariantBroken
from millpond.model import JobId, Purged, State
from millpond.store.shelf import Ref
from millpond.store.sqlite import care
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context
from millpond.store.sqlite.part import Part, timed
from millpond.store.sqlite.sweep import Sweep
from millpond.store.sqlite.tickets import Ticket

EVENTS_MS = 365 * 86_400_000
"""What people did is kept for a year; what they did to a job, as long as the job."""

Execute = Callable[..., Any]
Windows = Mapping[State, int]
_encode = msgspec.json.encode


def past(execute: Execute, now: int, windows: Windows, limit: int) -> list[Ref]:
    """Return jobs past their state's window, the oldest of each state first."""
    found: list[Ref] = []
    for state, window in windows.items():
        if len(found) >= limit:
            break
        key = {"state": state, "before": now - window, "limit": limit - len(found)}
        found += [Ref(JobId(row[0]), row[1]) for row in execute(SQL["purgeable"], key).fetchall()]
    return found


def count_past(execute: Execute, now: int, windows: Windows) -> dict[State, int]:
    """Return how many jobs of each state are past its window, from an index."""
    counts = {}
    for state, window in windows.items():
        key = {"state": state, "before": now - window}
        counts[state] = int(execute(SQL["count_purgeable"], key).fetchone()[0])
    return counts


def purge(tx: Context, sweep: Sweep, windows: Windows, limit: int) -> tuple[int, bool]:
    """Delete jobs past their window, and what expired; return how many, and whether to go on."""
    refs = past(tx.execute, tx.now, windows, limit)
    if refs:
        delete_jobs(tx, [ref.id for ref in refs])
    expired = purge_expired(tx, sweep, limit)
    if windows:
        care.forget_workers(tx, max(windows.values()))
    return len(refs), expired or len(refs) >= limit


def purge_expired(tx: Context, sweep: Sweep, limit: int) -> bool:
    """Delete expired keys and results, old events and idle limits; tell whether to go on."""
    key = {"now": tx.now, "before": tx.now - EVENTS_MS, "limit": limit}
    names = ("purge_dedup", "purge_results", "purge_events")
    full = max(int(tx.execute(SQL[name], key).rowcount) for name in names) >= limit
    return sweep.step(tx, limit) or full


def delete_jobs(tx: Context, ids: Collection[int]) -> None:
    """Delete final jobs with their history; dedup and result rows live until they expire."""
    param = {"ids": _encode(list(ids)).decode()}
    if tx.execute(SQL["any_memo"]).fetchone()[0]:
        tx.execute(SQL["purge_memos"], param)
    if tx.execute(SQL["any_event"]).fetchone()[0]:
        tx.execute(SQL["purge_job_events"], param)
    for name in ("purge_attempts", "purge_tracebacks", "purge_again"):
        tx.execute(SQL[name], param)
    jobs = tx.execute(SQL["purge_jobs"], param).rowcount
    finals = tx.execute(SQL["purge_finals"], param).rowcount
    if jobs != len(ids) or finals != len(ids):
        msg = f"{len(ids)} final jobs were to be deleted; {jobs} jobs and {finals} finals were"
        raise InvariantBroken(msg)


def delete_unchanged(tx: Context, refs: Sequence[Ref]) -> bool:
    """Delete jobs that are just as they were found; nothing when one of them is not."""
    param = {"refs": _encode(refs).decode()}
    if tx.execute(SQL["unchanged"], param).fetchone()[0] != len(refs):
        return False
    delete_jobs(tx, [ref.id for ref in refs])
    return True


class RetentionPart(Part):
    """The engine's methods for retention; see `millpond.store.protocol` for what each promises."""

    @cached_property
    def _sweep(self) -> Sweep:
        return Sweep()

    def purge(
        self, *, completed_ms: int, failed_ms: int, cancelled_ms: int, limit: int
    ) -> Ticket[Purged]:
        """Delete final jobs past their window."""
        windows = {
            State.COMPLETED: completed_ms,
            State.FAILED: failed_ms,
            State.CANCELLED: cancelled_ms,
        }
        return self._purge(lambda tx: purge(tx, self._sweep, windows, limit))

    def purge_expired(self, limit: int) -> Ticket[Purged]:
        """Delete expired keys and results, old events and limits without jobs, but no job."""
        return self._purge(lambda tx: (0, purge_expired(tx, self._sweep, limit)))

    def _purge(self, run: Callable[[Context], tuple[int, bool]]) -> Ticket[Purged]:
        measured = timed(run)

        def purged(tx: Context) -> Purged:
            (jobs, more), held_us = measured(tx)
            return Purged(jobs, more, held_us)

        return self._write(purged)

    def past(self, windows: Mapping[State, int]) -> dict[State, int]:
        """Return how many final jobs are older than their state's window."""
        now = self.clock.now()
        return self._read(lambda run: count_past(run, now, windows))
