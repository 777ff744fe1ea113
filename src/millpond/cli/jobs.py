"""`millpond jobs` and `millpond job`: lists, and one job with its history."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.exits import Code, end
from millpond.cli.options import JOB, Place, at_store, json_option, option
from millpond.cli.screen import Table, fields, print_json, print_json_line, say, show
from millpond.cli.words import block, clean, length, plural, preview, size

if TYPE_CHECKING:
    from datetime import datetime

    from millpond.app import Event, Millpond
    from millpond.model import JobFilter
    from millpond.task.jobs import Attempt, Job

LARGEST_ID = (1 << 63) - 1

LOOK_EVERY_S = 0.25
"""How often `--follow` looks."""

_BODIES = ("payload", "meta", "result")
_CELL = 60


@click.command()
@click.argument("query", nargs=-1)
@option(
    "--limit", default=50, type=click.IntRange(1, 10_000), metavar="N", help="How many at most."
)
@option("--before", metavar="ID", type=JOB, help="Only jobs with a smaller id: the next page.")
@json_option
@at_store
def jobs(
    at: Place, /, *, query: tuple[str, ...], limit: int, before: int | None, as_json: bool
) -> None:
    """List jobs, newest first, without their payloads.

    QUERY is made of tokens, for example: millpond jobs state:failed queue:reports "age:<1h"
    """
    from millpond.cli.query import parse

    where = parse(query)
    with at.existing() as pond:
        found = _find(pond, where, before, limit + 1)
        further = _further(pond, where, before, found, limit)
    found = found[:limit]
    if as_json:
        print_json({"jobs": [listed(job) for job in found], "next_before": further})
        return
    show_list(found)
    if further is not None and len(found) < limit:
        say(f"looked through many jobs; look on with --before {further}")
    elif further is not None:
        say(f"more with --before {further}")


def _find(pond: Millpond, where: JobFilter, before: int | None, limit: int) -> list[Job]:
    from millpond.model import JobId
    from millpond.task.jobs import Job

    start = None if before is None else JobId(min(before, LARGEST_ID))
    return [Job.of(row) for row in pond.store.find(where, before=start, limit=limit)]


def _further(
    pond: Millpond, where: JobFilter, before: int | None, found: list[Job], limit: int
) -> int | None:
    """Return where to look on, None when all was seen; `found` has one more than are shown.

    A search that no index helps ends after so many rows, whatever it found in them.
    """
    from millpond.model import JobFilter
    from millpond.store.upkeep import SCAN_ROWS

    everything = JobFilter()
    if len(found) > limit:
        return found[limit - 1].id
    if where == everything or where.operation_id is not None:
        return None
    newest = _find(pond, everything, before, 1)
    if not newest or newest[0].id <= SCAN_ROWS:
        return None
    # Ids may have gaps, so the search came at least as far as this one.
    reached = newest[0].id - SCAN_ROWS + 1
    return reached if _find(pond, everything, reached, 1) else None


def listed(job: Job) -> dict[str, Any]:
    """Return a job of a list as JSON data; what lists do not load is left out, not null."""
    return {name: value for name, value in job.to_json().items() if name not in _BODIES}


def show_list(found: list[Job]) -> None:
    """Print jobs as a table."""
    if not found:
        say("no job fits")
        return
    table = Table(("id", "task", "queue", "state", "attempts", "when", ""), frozenset({"id"}))
    for job in found:
        when = _when(job)
        table.add(
            job.id, clean(job.task, _CELL), clean(_place(job), _CELL), job.state,
            f"{job.attempts}/{job.max_attempts}", when, clean(_remark(job), _CELL),
        )  # fmt: skip
    show(table)


def _place(job: Job) -> str:
    return job.queue if job.workload == "default" else f"{job.queue}/{job.workload}"


def _when(job: Job) -> str:
    now = _now()
    if job.finished_at is not None:
        return ago(job.finished_at)
    if job.lease is not None and job.started_at is not None:
        return f"for {_since(job.started_at, now)}"
    if job.due_at > now:
        return f"in {_since(now, job.due_at)}"
    return f"waits {_since(job.due_at, now)}"


def _remark(job: Job) -> str:
    if job.blocked_by:
        return f"waits for {job.blocked_by}"
    if job.cancel_requested:
        return "cancel asked for"
    return (job.last_error or job.reason or "") if job.state != "completed" else ""


def ago(at: datetime) -> str:
    """Return how long ago something was."""
    return f"{_since(at, _now())} ago"


def _now() -> datetime:
    from millpond.clock import SystemClock
    from millpond.task.jobs import moment

    return moment(SystemClock().now())


def _since(start: datetime, stop: datetime) -> str:
    return length((stop - start).total_seconds() * 1_000)


@click.command()
@click.argument("job_id", metavar="ID", type=JOB)
@option("--follow", is_flag=True, help="Go on until the job is final; exit code 1 if it failed.")
@option("--reveal", is_flag=True, help="Show values whose names look like secrets, too.")
@json_option
@at_store
def job(at: Place, /, *, job_id: int, follow: bool, reveal: bool, as_json: bool) -> None:
    """Show one job with its history.

    Values in payload, meta and result whose names look like secrets (password, token, …) are
    hidden. With --follow, a line is printed whenever something changes.
    """
    from millpond.cli.events import as_data

    with at.existing() as pond:
        if follow:
            final = _follow(pond, job_id, as_json=as_json)
            end(Code.OK if final.state == "completed" else Code.FAILED)
        found = _get(pond, job_id)
        history = pond.attempts(job_id)
        events = pond.events(job_id)
        late = None if found.lease is None else _late(pond, job_id)
    if as_json:
        told = found.to_json() | {name: _body(found, name, reveal=reveal) for name in _BODIES}
        told["worker_late"] = late
        told["history"] = [attempt.to_json() for attempt in history]
        told["events"] = [as_data(event, reveal=reveal) for event in events]
        print_json(told)
    else:
        _show_job(found, history, late, reveal=reveal)
        _show_events(events, reveal=reveal)


def _get(pond: Millpond, job_id: int) -> Job:
    """Return the job; of one that was discarded the error says who did it, and why."""
    from millpond.cli.events import told
    from millpond.errors import JobNotFound

    try:
        return pond.get(job_id)
    except JobNotFound:
        for event in pond.events(job_id, what="discard", limit=1):
            raise JobNotFound(f"there is no job {job_id} any more: {told(event)}") from None
        raise


def _show_events(events: list[Event], *, reveal: bool) -> None:
    from millpond.cli.events import corrected, told

    if events:
        click.echo()
    for event in reversed(events):
        say(told(event), *filter(None, [corrected(event, reveal=reveal)]))


def _body(job: Job, name: str, *, reveal: bool) -> Any:
    shown = job.to_json()[name]
    return shown if reveal else hidden(shown)


def hidden(value: Any) -> Any:
    """Return JSON data with what stands under secret names replaced, at any depth."""
    if isinstance(value, dict):
        return {name: _guarded(name, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [hidden(item) for item in value]
    return value


def _guarded(name: str, value: Any) -> Any:
    from millpond.log import HIDDEN, redact

    return HIDDEN if value is not None and redact("", name) == HIDDEN else hidden(value)


def _late(pond: Millpond, job_id: int) -> str | None:
    from millpond.cli.reasons import silent
    from millpond.model import JobId

    row = pond.store.get(JobId(job_id), payload=False)
    return None if row is None else silent(row, pond.store.status())


def _show_job(job: Job, history: list[Attempt], late: str | None, *, reveal: bool) -> None:
    from millpond.task.jobs import rfc3339

    fields(
        [
            ("job", f"{job.id} {job.task}"),
            ("state", f"{job.state}, {_when(job)}"),
            ("reason", job.reason),
            ("queue", _place(job)),
            ("priority", job.priority),
            ("attempts", f"{job.attempts} of {job.max_attempts}"),
            ("created", rfc3339(job.created_at)),
            ("due", rfc3339(job.due_at)),
            ("started", job.started_at and rfc3339(job.started_at)),
            ("finished", job.finished_at and rfc3339(job.finished_at)),
            ("worker", job.lease and _lease(job)),
            ("", late),
            ("waits for", job.blocked_by),
            ("cancel", "asked for" if job.cancel_requested else None),
            ("operation", job.operation_id),
            ("key", job.key),
            ("coalesce key", job.coalesce_key),
            ("limit key", job.limit_key),
            ("last error", clean(job.last_error or "", 1_000)),
            ("progress", job.progress and _progress(job)),
            *((name, _previewed(job, name, reveal=reveal)) for name in _BODIES),
            ("size", size(job.payload_bytes)),
        ]
    )
    _show_history(history)


def _previewed(job: Job, name: str, *, reveal: bool) -> str | None:
    value = _body(job, name, reveal=reveal)
    return None if value is None else preview(value)


def _lease(job: Job) -> str:
    from millpond.task.jobs import rfc3339

    lease = job.lease
    if lease is None:
        return ""
    until = "" if lease.expires_at is None else f", lease until {rfc3339(lease.expires_at)}"
    return f"{lease.owner} (claim {lease.claim}{until})"


def _progress(job: Job) -> str:
    progress = job.progress
    if progress is None:
        return ""
    total = "" if progress.total is None else f" of {progress.total:g}"
    return f"{progress.done:g}{total} {progress.text or ''}".strip()


def _show_history(history: list[Attempt]) -> None:
    if not history:
        return
    table = Table(("attempt", "outcome", "worker", "ended", "took", "error"))
    for attempt in history:
        table.add(*_entry(attempt))
    click.echo()
    show(table)
    traceback = history[-1].traceback
    if traceback:
        click.echo(f"\n{block(traceback.rstrip())}")


def _entry(attempt: Attempt) -> tuple[object, ...]:
    from millpond.task.jobs import rfc3339

    took = None if attempt.started_at is None else _since(attempt.started_at, attempt.ended_at)
    error = ": ".join(part for part in (attempt.error_type, attempt.message) if part)
    if attempt.signal is not None:
        error = f"{error} (signal {attempt.signal})".strip()
    number = "-" if attempt.number is None else attempt.number
    ended = rfc3339(attempt.ended_at)
    return number, attempt.outcome, attempt.worker, ended, took, clean(error, 120)


def _follow(pond: Millpond, job_id: int, *, as_json: bool) -> Job:
    """Print a line for every change until the job is final; return it."""
    told: tuple[object, ...] | None = None
    while True:
        found = pond.look(job_id, payload=False) or pond.get(job_id)
        news = (found.state, found.attempts, found.due_at, found.raw_progress)
        if news != told:
            told = news
            if as_json:
                print_json_line(listed(found))
            else:
                say(_line(found))
            sys.stdout.flush()
        if found.final:
            return found
        time.sleep(LOOK_EVERY_S)


def _line(job: Job) -> str:
    parts = [f"job {job.id} {job.state}", plural(job.attempts, "attempt"), _when(job)]
    if job.lease is not None:
        parts.append(job.lease.owner)
    parts += [part for part in (_progress(job), _remark(job)) if part]
    return ", ".join(parts)
