"""`millpond retry`, `discard`, `cancel` and `failures`: review of jobs by people."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, assert_never

import click

from millpond.cli.exits import Code
from millpond.cli.many import Act, Answer, Chosen, Progress, Who, act_on, choosing
from millpond.cli.options import Place, application, at_store, json_option, option
from millpond.cli.screen import Table, print_json, say, show
from millpond.cli.words import clean, plural

if TYPE_CHECKING:
    from millpond.app import Done, Failure, Failures, Millpond, Selection
    from millpond.model import State

_FINAL = ("completed", "failed", "cancelled")
_WAITING = ("scheduled", "ready", "running")
_RETRY = Act("retry", "put back", ("failed",), _FINAL)
_DISCARD = Act("discard", "discarded", ("failed",), _FINAL)
_CANCEL = Act("cancel", "cancelled or asked to stop", _WAITING, _WAITING)

_UNREAD = 64 * 1024 * 1024
"""Bytes that are read from standard input at most: no payload can be larger."""


@click.command()
@choosing
@option("--payload", metavar="JSON", help="New arguments, for one job; - reads them.")
@option(
    "--attempts", type=click.IntRange(1), metavar="N",
    help="How many more it gets [default: as many as it was enqueued with].",
)  # fmt: skip
@option("--delay", metavar="LENGTH", help="Due so much later: 30, 10m, 1h30m.")
@option("--operation-id", metavar="ID", help="A new operation, for one job.")
@option("--spread", metavar="LENGTH", help="With --where: due evenly over this time, no storm.")
@at_store
def retry(
    at: Place,
    /,
    *,
    chosen: Chosen,
    who: Who,
    payload: str | None,
    attempts: int | None,
    delay: str | None,
    operation_id: str | None,
    spread: str | None,
) -> None:
    """Put final jobs back, with their history and more attempts; admission applies.

    Jobs that are named by their ids are put back at once. With --where, those that failed
    (unless the query names another state) are counted and shown; --yes puts them back.

    With --app, a --payload must fit the function. Exit code 3 when there is no room, 4 when
    one of the jobs is not there, 1 when one is not final.
    """
    if (payload or operation_id) and (chosen.query or len(chosen.ids) > 1):
        raise click.UsageError("--payload and --operation-id are for one job")
    if chosen.query and delay:
        raise click.UsageError("with --where give --spread, which sets the due times evenly")
    if chosen.ids and spread:
        raise click.UsageError("--spread goes with --where; for named jobs there is --delay")
    arguments = None if payload is None else _arguments(payload)

    def one(pond: Millpond, job_id: int) -> Answer:
        if arguments is not None:
            _check_arguments(at, pond, job_id, arguments)
        pond.requeue(
            job_id, payload=arguments, attempts=attempts, delay=delay, operation_id=operation_id,
            **who,
        )  # fmt: skip
        return "put back", Code.OK

    def many(selection: Selection, progress: Progress) -> Done:
        return selection.requeue(attempts=attempts, spread=spread or 0, progress=progress, **who)

    act_on(at, _RETRY, chosen, one, many)


def _arguments(payload: str) -> dict[str, Any]:
    import msgspec

    from millpond.codec import parse_json
    from millpond.errors import BadPayload

    text: str | bytes = payload if payload != "-" else sys.stdin.buffer.read(_UNREAD)
    form = """give the arguments as one JSON object, such as '{"to": "ann@example.org"}'"""
    try:
        found = msgspec.json.decode(parse_json(text, _UNREAD, task="--payload"))
    except BadPayload as error:
        raise BadPayload(f"{error}; {form}") from None
    if not isinstance(found, dict):
        raise BadPayload(f"--payload: {form}")
    return found


def _check_arguments(at: Place, pond: Millpond, job_id: int, arguments: dict[str, Any]) -> None:
    """Hold the arguments to the function, where an application was named that has it."""
    if at.app is None:
        return
    from millpond.codec import encode_json

    app = application(at.app)
    job = pond.get(job_id)
    task = app.registry.get(job.task)
    if task is not None:
        encoded = encode_json(arguments, task=task.name, max_bytes=app.config.max_payload)
        task.signature.check(encoded)


@click.command()
@choosing
@at_store
def discard(at: Place, /, *, chosen: Chosen, who: Who) -> None:
    """Delete final jobs with history, results and keys; an event of each stays for a year.

    Jobs that are named by their ids are deleted at once. With --where, those that failed
    (unless the query names another state) are counted and shown; --yes deletes them.

    Exit code 4 when one of the jobs is not there, 1 when one is not final.
    """

    def one(pond: Millpond, job_id: int) -> Answer:
        pond.discard(job_id, **who)
        return "discarded", Code.OK

    def many(selection: Selection, progress: Progress) -> Done:
        return selection.discard(progress=progress, **who)

    act_on(at, _DISCARD, chosen, one, many)


@click.command()
@choosing
@at_store
def cancel(at: Place, /, *, chosen: Chosen, who: Who) -> None:
    """Cancel jobs: those that wait at once, those that run by asking their handler to stop.

    Jobs that are named by their ids are cancelled at once. With --where, those that wait or
    run are counted and shown; --yes cancels them.

    Exit code 4 when one of the jobs is not there, 1 when one had completed or failed before.
    """

    def one(pond: Millpond, job_id: int) -> Answer:
        return _cancelled(pond.cancel(job_id, **who))

    def many(selection: Selection, progress: Progress) -> Done:
        return selection.cancel(progress=progress, **who)

    act_on(at, _CANCEL, chosen, one, many)


def _cancelled(found: State) -> Answer:
    from millpond.model import State

    match found:
        case State.SCHEDULED | State.READY:
            return "cancelled", Code.OK
        case State.RUNNING:
            return "asked to stop", Code.OK
        case State.CANCELLED:
            return "was cancelled before", Code.OK
        case State.COMPLETED | State.FAILED:
            return f"has {found} before, nothing to cancel", Code.FAILED
        case _:
            assert_never(found)


@click.command()
@option("--limit", default=20, type=click.IntRange(1, 10_000), metavar="N", help="Groups at most.")
@json_option
@at_store
def failures(at: Place, /, *, limit: int, as_json: bool) -> None:
    """Show the failed jobs by kind of error, the most frequent first.

    Jobs of one task that failed with the same error at the same place are one kind, whatever
    numbers, ids and names differ in their messages. The newest 100,000 are looked at.
    """
    with at.existing() as pond:
        found = pond.failures(limit=limit)
    if as_json:
        print_json(found.to_json())
    elif found.groups:
        _show_groups(found)
    else:
        say("no job has failed, of those that are kept")


def _show_groups(found: Failures) -> None:
    columns = ("jobs", "task", "error", "queue", "first", "last", "newest", "fingerprint")
    table = Table(columns, frozenset({"jobs", "newest"}))
    for group in found.groups:
        table.add(*_row(group))
    show(table)
    click.echo()
    if found.more:
        say(f"and {plural(found.more, 'smaller group')}; more with --limit")
    if not found.complete:
        say(f"of the newest {plural(found.counted, 'failed job')}; there are older ones")
    example = found.groups[0]
    say(
        f"look at one:       millpond job {example.samples[0]}",
        f"put one back:      millpond retry {example.samples[0]}",
        f"put a group back:  millpond retry --where fingerprint:{example.fingerprint}",
    )


def _row(group: Failure) -> tuple[object, ...]:
    from millpond.cli.jobs import ago

    error = ": ".join(part for part in (group.error_type, group.message) if part)
    return (
        f"{group.count:,}",
        clean(group.task, 40),
        clean(error or group.reason or "", 70),
        clean(", ".join(group.queues), 40),
        ago(group.first_at),
        ago(group.last_at),
        group.samples[0],
        group.fingerprint,
    )
