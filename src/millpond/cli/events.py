"""`millpond events`: who did what to jobs and queues, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.options import JOB, NAME, Place, at_store, json_option, option
from millpond.cli.screen import Table, print_json, say, show
from millpond.cli.words import clean, preview

if TYPE_CHECKING:
    from millpond.app import Event

KINDS = ("cancel", "requeue", "discard", "pause", "resume")

_DONE = {
    "requeue": "requeued",
    "cancel": "cancelled",
    "discard": "discarded",
    "pause": "paused",
    "resume": "resumed",
}
_CELL = 60


@click.command()
@click.argument("job_id", metavar="[ID]", type=JOB, required=False)
@option("--queue", metavar="NAME", type=NAME, help="What was done to this queue.")
@option("--what", type=click.Choice(KINDS), help="One kind only.")
@option("--limit", default=50, type=click.IntRange(1, 10_000), metavar="N", help="At most.")
@option("--before", metavar="EVENT", type=JOB, help="Older than this event: the next page.")
@option("--reveal", is_flag=True, help="Show values whose names look like secrets, too.")
@json_option
@at_store
def events(
    at: Place,
    /,
    *,
    job_id: int | None,
    queue: str | None,
    what: str | None,
    limit: int,
    before: int | None,
    reveal: bool,
    as_json: bool,
) -> None:
    """Show what people did to jobs and queues, newest first: who, what, and why.

    With ID, to one job, also when it was discarded since. What was done to a job is kept as long
    as the job, a discard and what was done to queues for a year.
    """
    if job_id is not None and queue is not None:
        raise click.UsageError("name a job or a queue, not both")
    with at.existing() as pond:
        found = pond.events(job_id, queue=queue, what=what, before=before, limit=limit + 1)
    further, found = (found[limit - 1].id if len(found) > limit else None), found[:limit]
    if as_json:
        told = [as_data(event, reveal=reveal) for event in found]
        print_json({"events": told, "next_before": further})
        return
    _show(found)
    if further is not None:
        say(f"more with --before {further}")


def as_data(event: Event, *, reveal: bool) -> dict[str, Any]:
    """Return an event as JSON data, what looks like a secret in it hidden unless revealed."""
    from millpond.cli.jobs import hidden

    shown = event.to_json()
    return shown if reveal else hidden(shown)


def told(event: Event) -> str:
    """Return an event as a sentence."""
    from millpond.cli.jobs import ago

    why = f": {event.note}" if event.note else ""
    return f"{_DONE.get(event.what, event.what)} by {event.who or 'nobody'} {ago(event.at)}{why}"


def corrected(event: Event, *, reveal: bool) -> str | None:
    """Return which arguments a requeue has replaced; None when it left them."""
    before = as_data(event, reveal=reveal)["before"]
    if event.what != "requeue" or not isinstance(before, dict) or "payload" not in before:
        return None
    return f"its arguments were {preview(before['payload'])}"


def _show(found: list[Event]) -> None:
    from millpond.cli.jobs import ago

    if not found:
        say("nobody has done anything, of what is kept")
        return
    table = Table(("event", "when", "who", "what", "to", "why"), frozenset({"event"}))
    for event in found:
        table.add(
            event.id, ago(event.at), clean(event.who or "", _CELL), event.what,
            clean(_target(event), _CELL), clean(event.note or "", _CELL),
        )  # fmt: skip
    show(table)


def _target(event: Event) -> str:
    kind = "queue" if event.what in {"pause", "resume"} else "job"
    return f"{kind} {event.which}"
