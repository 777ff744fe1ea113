"""`millpond queues`: lists queues, pauses and resumes one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

import click

from millpond.cli.exits import NotFound
from millpond.cli.options import (
    NAME,
    Place,
    at_store,
    by_option,
    json_option,
    operator,
    typed,
)
from millpond.cli.screen import Table, print_json, say, show
from millpond.cli.words import clean


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
    from millpond.store.upkeep import queue_states

    place = _meant(at)
    with place.existing() as pond:
        known = pond.store.pause(name, paused, by=by).result()
    if not known:
        raise NotFound(f"there is no queue {name!r}: {_hint(name, queue_states(place.checked()))}")
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
    if close:
        return f"did you mean {close[0]!r}?"
    return (
        "see `millpond queues` (a queue that an application declares is there once that "
        "application has used the store)"
    )
