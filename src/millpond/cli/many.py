"""Acting on jobs: on some that are named, or on all that a query finds, shown before.

Without --yes a query only counts and shows. What is then acted on is what was counted: the
set is pinned, so that jobs that come or end meanwhile are left alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import click

from millpond.cli.exits import Code, end
from millpond.cli.options import JOB, Place, by_option, json_option, operator, option
from millpond.cli.screen import print_json, say
from millpond.cli.words import clean, plural

if TYPE_CHECKING:
    from millpond.app import Done, Millpond, Selection
    from millpond.model import JobFilter, State

R = TypeVar("R")
Answer = tuple[str, Code]
Progress = Callable[[int, int], None]

_PIN_HINT = 'Only jobs that were there then: what the command printed as "pinned".'


@dataclass(frozen=True, slots=True)
class Act:
    """What a command does to jobs, in its own words and states."""

    name: str
    done: str
    states: tuple[str, ...]
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which jobs a command was told to act on, and how."""

    ids: tuple[int, ...]
    query: tuple[str, ...]
    yes: bool
    dry_run: bool
    pinned: str | None
    as_json: bool


class Who(TypedDict):
    """Who acts, and why."""

    by: str | None
    note: str | None


def choosing(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options that choose jobs; the command gets them as `chosen` and `who`, see `Who`."""

    @functools.wraps(command)
    def run(
        *args: Any,
        job_ids: tuple[int, ...],
        query: tuple[str, ...],
        yes: bool,
        dry_run: bool,
        pinned: str | None,
        as_json: bool,
        by: str | None,
        note: str | None,
        **more: Any,
    ) -> R:
        chosen = Chosen(job_ids, query, yes, dry_run, pinned, as_json)
        return command(*args, chosen=chosen, who=Who(by=operator(by), note=note), **more)

    for add in (
        json_option,
        option("--note", metavar="TEXT", help="Why; kept with the event."),
        by_option,
        option("--pinned", metavar="PIN", help=_PIN_HINT),
        option("--dry-run", is_flag=True, help="Count and show, change nothing."),
        option("--yes", is_flag=True, help="Do it, not only show what would be done."),
        option(
            "--where", "query", metavar="QUERY", multiple=True,
            help="All jobs that a query finds, as `millpond jobs` does.",
        ),
        click.argument("job_ids", metavar="[ID]...", nargs=-1, type=JOB),
    ):  # fmt: skip
        run = add(run)
    return run


def act_on(
    at: Place,
    act: Act,
    chosen: Chosen,
    one: Callable[[Millpond, int], Answer],
    many: Callable[[Selection, Progress], Done],
) -> None:
    """Do what a command does to the jobs that were chosen, and end with its exit code."""
    if bool(chosen.ids) == bool(chosen.query):
        raise click.UsageError("name jobs by their ids, or all that a query finds with --where")
    if chosen.query:
        _on_query(at, act, chosen, many)
        return
    if chosen.pinned is not None:
        raise click.UsageError("--pinned goes with --where")
    with at.existing() as pond:
        step = _shown if chosen.dry_run else one
        found = {job_id: _told(pond, job_id, step) for job_id in dict.fromkeys(chosen.ids)}
    _report_ids(found, as_json=chosen.as_json)


def _told(pond: Millpond, job_id: int, one: Callable[[Millpond, int], Answer]) -> Answer:
    from millpond.errors import JobNotFinal, JobNotFound

    try:
        return one(pond, job_id)
    except JobNotFound:
        return "not found", Code.NOT_FOUND
    except JobNotFinal as error:
        return f"is {error.state}: nothing was done; cancel it first, or wait", Code.FAILED


def _shown(pond: Millpond, job_id: int) -> Answer:
    job = pond.get(job_id)
    return f"is {job.state} ({clean(job.task, 60)}); nothing was changed", Code.OK


def _report_ids(found: dict[int, Answer], *, as_json: bool) -> None:
    if as_json:
        print_json({"jobs": [{"id": one, "answer": answer} for one, (answer, _) in found.items()]})
    else:
        say(*(f"job {job_id}: {answer}" for job_id, (answer, _) in found.items()))
    codes = {code for _, code in found.values()}
    end(next((code for code in (Code.NOT_FOUND, Code.FAILED) if code in codes), Code.OK))


def _on_query(
    at: Place, act: Act, chosen: Chosen, many: Callable[[Selection, Progress], Done]
) -> None:
    where, states = _wanted(act, chosen.query)
    with at.existing() as pond:
        selection = _select(pond, where, states, chosen.pinned)
        if not chosen.yes or chosen.dry_run:
            _show(act, chosen, states, selection)
            return
        done = _watched(act, selection, many)
    _report_done(act, done, selection, as_json=chosen.as_json)


def _wanted(act: Act, query: Sequence[str]) -> tuple[JobFilter, tuple[State, ...]]:
    """Return the filter, and the states of the act or the one that the query names."""
    from dataclasses import replace

    from millpond.cli.query import parse
    from millpond.model import State

    where = parse(query)
    if where.state is None:
        return where, tuple(map(State, act.states))
    if where.state not in act.allowed:
        raise click.UsageError(
            f"{act.name} is for jobs that are {', '.join(act.allowed)}, not {where.state}"
        )
    return replace(where, state=None), (where.state,)


def _select(
    pond: Millpond, where: JobFilter, states: tuple[State, ...], pinned: str | None
) -> Selection:
    from millpond.app.selection import found, parse_pin

    pin = None if pinned is None else parse_pin(pinned)
    return found(pond, where, states, pin, None)


def _show(act: Act, chosen: Chosen, states: tuple[State, ...], selection: Selection) -> None:
    """Print how many jobs it would be, some of them, and how to do it to just these."""
    from millpond.cli.jobs import listed, show_list

    if chosen.as_json:
        print_json(
            {
                "count": selection.count,
                "done": 0,
                "left": {},
                "pinned": selection.pinned,
                "sample": [listed(job) for job in selection.sample],
            }
        )
        return
    found = plural(selection.count, f"{_either(states)} job")
    if not selection.count:
        say(f"{found} fit: there is nothing to do")
        return
    say(f"{found} would be {act.done}; nothing was changed. The newest:")
    click.echo()
    show_list(selection.sample)
    click.echo()
    say("Do it to these, and to none that comes later, with the same command and:")
    say(f"    --yes --pinned {selection.pinned}")


def _either(states: Sequence[State]) -> str:
    return " or ".join(state.value for state in states)


def _watched(act: Act, selection: Selection, many: Callable[[Selection, Progress], Done]) -> Done:
    """Act, on a terminal with a bar; what was done is told before an error ends it."""
    reached = 0
    with bar(selection.count, "jobs") as shown:

        def progress(done: int, _: int) -> None:
            nonlocal reached
            shown.update(done - reached)
            reached = done

        try:
            return many(selection, progress)
        except BaseException:
            _say_how_far(act, reached, selection)
            raise


def _say_how_far(act: Act, reached: int, selection: Selection) -> None:
    click.echo(
        f"{reached:,} of {plural(selection.count, 'job')} had their turn and were {act.done}; go "
        f"on with the same command and --pinned {selection.pinned}",
        err=True,
    )


def _report_done(act: Act, done: Done, selection: Selection, *, as_json: bool) -> None:
    if as_json:
        print_json({**done.to_json(), "pinned": selection.pinned})
        return
    say(f"{done.done:,} of {plural(done.count, 'job')} {act.done}")
    for state, count in done.left.items():
        where = "gone" if state == "gone" else f"{state} by then"
        say(f"{plural(count, 'job')} left alone: {where}")


def bar(length: int, label: str) -> AbstractContextManager[Any]:
    """Return a progress bar on standard error for a `with` block; hidden off a terminal."""
    hidden = not sys.stderr.isatty()
    return click.progressbar(
        length=max(length, 1), label=label, file=sys.stderr, hidden=hidden, show_pos=True
    )
