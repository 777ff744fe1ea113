"""`millpond cancel` and `millpond queues`: what changes jobs and queues."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, assert_never

import click

from millpond.cli.exits import Code, NotFound, end
from millpond.cli.options import (
    JOB,
    NAME,
    Place,
    at_store,
    by_option,
    json_option,
    operator,
    option,
    typed,
)
from millpond.cli.screen import Table, print_json, say, show
from millpond.cli.words import clean

if TYPE_CHECKING:
    from millpond.app import Millpond
    from millpond.model import State


@click.command()
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JOB)
@by_option
@option("--note", metavar="TEXT", help="Why; kept with the event.")
@json_option
@at_store
def cancel(
    at: Place, /, *, job_ids: tuple[int, ...], by: str | None, note: str | None, as_json: bool
) -> None:
    """Cancel jobs: those that wait at once, those that run by asking their handler to stop.

    Exit code 4 when one of them is not there, 1 when one had completed or failed before.
    """
    with at.existing() as pond:
        found = {job_id: _cancel(pond, job_id, operator(by), note) for job_id in job_ids}
    told = [{"id": job_id, "answer": answer} for job_id, (answer, _) in found.items()]
    if as_json:
        print_json({"jobs": told})
    else:
        say(*(f"job {job_id}: {answer}" for job_id, (answer, _) in found.items()))
    codes = {code for _, code in found.values()}
    end(next((code for code in (Code.NOT_FOUND, Code.FAILED) if code in codes), Code.OK))


def _cancel(pond: Millpond, job_id: int, by: str | None, note: str | None) -> tuple[str, Code]:
    from millpond.errors import JobNotFound

    try:
        return _answer(pond.cancel(job_id, by=by, note=note))
    except JobNotFound:
        return "not found", Code.NOT_FOUND


def _answer(found: State) -> tuple[str, Code]:
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


@click.group(invoke_without_command=True)
@json_option
@at_store
def queues(at: Place, /, *, as_json: bool) -> None:
    """List queues; with pause or resume, stop or start the starting of a queue's jobs."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.obj = at
        return
    from millpond.store.upkeep import queue_states

    states = queue_states(at.checked())
    with at.existing() as pond:
        counts = {name: _plain(of) for name, of in pond.status().queues.items()}
    rows = [
        {
            "queue": name,
            "paused": state.paused,
            "max_running": state.max_running,
            **counts.get(name, _plain({})),
        }
        for name, state in states.items()
    ]
    if as_json:
        print_json({"queues": rows})
    else:
        _show_queues(rows)


def _plain(counts: Any) -> dict[str, int]:
    from millpond.model import State

    return {state.value: counts.get(state, 0) for state in State}


def _show_queues(rows: list[dict[str, Any]]) -> None:
    from millpond.model import State

    if not rows:
        say("there is no queue yet: a queue is made when it is declared, or by its first job")
        return
    counts = [state.value for state in State]
    table = Table(("queue", *counts, "limit", ""), frozenset(counts) | {"limit"})
    for row in rows:
        numbers = (f"{row[name]:,}" for name in counts)
        remark = "paused" if row["paused"] else ""
        table.add(clean(row["queue"], 60), *numbers, row["max_running"], remark)
    show(table)


@queues.command()
@click.argument("name", type=NAME)
@by_option
@json_option
@at_store
def pause(at: Place, /, *, name: str, by: str | None, as_json: bool) -> None:
    """Start no more jobs of a queue; it goes on accepting, and what runs runs on."""
    _set(at, name, operator(by), paused=True, as_json=as_json)


@queues.command()
@click.argument("name", type=NAME)
@by_option
@json_option
@at_store
def resume(at: Place, /, *, name: str, by: str | None, as_json: bool) -> None:
    """Start the jobs of a paused queue again."""
    _set(at, name, operator(by), paused=False, as_json=as_json)


def _set(at: Place, name: str, by: str | None, *, paused: bool, as_json: bool) -> None:
    with _meant(at).existing() as pond:
        if not pond.store.pause(name, paused, by=by).result():
            raise NotFound(f"there is no queue {name!r}: {_hint(name, pond.status().queues)}")
    if as_json:
        print_json({"queue": name, "paused": paused})
    else:
        say(f"{name} is {'paused: it accepts jobs and starts none' if paused else 'resumed'}")


def _meant(at: Place) -> Place:
    """Return the store to use: one typed before the subcommand holds for it, too."""
    here = click.get_current_context()
    above: Place | None = here.obj
    if above is None or here.parent is None or typed(here) or not typed(here.parent):
        return at
    return above


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]!r}?" if close else "see `millpond queues`"
