"""`millpond prune`, `archive` and `backup`: how long jobs are kept, and copies of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from millpond.cli.many import bar
from millpond.cli.options import Place, at_store, json_option, option
from millpond.cli.screen import print_json, say
from millpond.cli.words import plural, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.app import Millpond
    from millpond.model import State

_WINDOW = "Of {} jobs, keep those that ended within this time [default: that of the settings]."


@click.command()
@option("--archive", metavar="FILE", help="Move the jobs to this file, as `archive` does.")
@option("--dry-run", is_flag=True, help="Count, change nothing.")
@option("--completed", metavar="LENGTH", help=_WINDOW.format("completed"))
@option("--failed", metavar="LENGTH", help=_WINDOW.format("failed"))
@option("--cancelled", metavar="LENGTH", help=_WINDOW.format("cancelled"))
@json_option
@at_store
def prune(
    at: Place,
    /,
    *,
    archive: str | None,
    dry_run: bool,
    completed: str | None,
    failed: str | None,
    cancelled: str | None,
    as_json: bool,
) -> None:
    """Delete final jobs past their time, in small steps that others hardly notice.

    Workers do this by themselves. It may be stopped at any time and started again. The file
    does not shrink: the space is used for new jobs.
    """
    windows = {"completed": completed, "failed": failed, "cancelled": cancelled}
    with at.existing() as pond:
        counts = pond.prunable(**windows)
        if dry_run:
            _report_counts(counts, as_json=as_json)
            return
        total = sum(counts.values())
        jobs = _watched(
            total, lambda progress: pond.prune(**windows, archive=archive, progress=progress)
        )
    _report(jobs, "deleted" if archive is None else f"moved to {archive}", as_json=as_json)


def _report_counts(counts: dict[State, int], *, as_json: bool) -> None:
    told = {state.value: count for state, count in counts.items()}
    if as_json:
        print_json({"prunable": told, "jobs": sum(told.values())})
        return
    say(f"{plural(sum(told.values()), 'job')} would be deleted; nothing was changed")
    say(*(f"  {count:,} {state}" for state, count in told.items() if count))


def _watched(total: int, act: Callable[[Callable[[int, int], None]], int]) -> int:
    reached = 0
    with bar(total, "jobs") as shown:

        def progress(done: int, _: int) -> None:
            nonlocal reached
            shown.update(done - reached)
            reached = done

        return act(progress)


def _report(jobs: int, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"jobs": jobs})
    else:
        say(f"{plural(jobs, 'job')} {what}")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@option(
    "--older-than", metavar="LENGTH",
    help="Jobs that ended longer ago than this [default: the windows of the settings].",
)  # fmt: skip
@json_option
@at_store
def archive(at: Place, /, *, file: str, older_than: str | None, as_json: bool) -> None:
    """Move final jobs with history and results to FILE.

    FILE gets one line of JSON for each job. With a name that ends in .db, .sqlite or .sqlite3
    it is a store of its own, which `millpond jobs --url FILE` and `millpond job` read. An
    archive that is there already is added to.

    Jobs are written and on disk before they are deleted: killed at any point and started
    again, nothing is missing and nothing is there twice.
    """
    with at.existing() as pond:
        total = _count(pond, older_than)
        jobs = _watched(
            total, lambda progress: pond.archive(file, older_than=older_than, progress=progress)
        )
    _report(jobs, f"moved to {file}", as_json=as_json)


def _count(pond: Millpond, older_than: str | None) -> int:
    windows: dict[str, Any] = dict.fromkeys(("completed", "failed", "cancelled"), older_than)
    return sum(pond.prunable(**windows).values())


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@json_option
@at_store
def backup(at: Place, /, *, file: str, as_json: bool) -> None:
    """Copy the whole store to FILE, a new file, while workers go on, and check the copy.

    The copy holds everything that was committed when the command began. Never copy the file
    of a store with other means while it is in use.
    """
    reached = 0
    with at.existing() as pond, bar(1, "pages") as shown:

        def progress(done: int, total: int) -> None:
            nonlocal reached
            shown.length = total
            shown.update(done - reached)
            reached = done

        made = pond.backup(file, progress=progress)
    if as_json:
        print_json(made.to_json())
    else:
        say(f"{made.path}: {size(made.size)}, checked")
