"""`millpond demo`: watch millpond work, without any preparation."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import click

from millpond.cli.exits import Code, end
from millpond.cli.options import json_option, option
from millpond.cli.screen import Table, fancy, plain_lines, print_json, rich_table, say, show
from millpond.cli.words import length

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from millpond.demo.story import Summary
    from millpond.model import StatusSnapshot

SECONDS = 20.0
"""How long a demo lasts that nobody watches."""

_PLAIN_EVERY = 20
"""Turns between two tables where they cannot be drawn over: about two seconds."""


@click.command()
@option("--headless", is_flag=True, help="Tell the story line by line, and end by itself.")
@option(
    "--seconds", type=click.FloatRange(1, 3_600), metavar="N",
    help="How long jobs are made [default: 20].",
)  # fmt: skip
@json_option
def demo(headless: bool, seconds: float | None, as_json: bool) -> None:
    """Make a temporary store with three queues, start two workers, and give them work.

    On the way somebody wants a long report, and its worker is killed with kill -9 half-way.
    What the worker held comes back when the leases end, and the report goes on from the months
    that were finished. On a terminal the demo goes on until Ctrl-C; elsewhere, and with
    --headless, it ends by itself. Nothing is left behind. Exit code 1 when a job was lost.
    """
    from millpond.demo.story import Story
    from millpond.log import configure

    configure("text", "error")  # the store's remarks about this machine belong to `doctor`
    live = sys.stdout.isatty() and not (headless or as_json)
    if not live and seconds is None:
        seconds = SECONDS
    with Stops() as stops, _audience(live=live, as_json=as_json) as audience:
        summary = Story(audience, seconds=seconds, stopped=stops.asked).run()
    if as_json:
        print_json(summary.to_json())
    else:
        _show(summary)
    end(Code.OK if summary.good else Code.FAILED)


class Stops:
    """Takes Ctrl-C, SIGTERM and a closed terminal: the first is a wish, the second an order.

    So the demo cleans up behind itself, whoever ends it. What was ignored when it started
    (`nohup`) stays ignored.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def asked(self) -> bool:
        """Tell whether somebody wants it to end."""
        return self._asked

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._heed)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _heed(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


@contextlib.contextmanager
def _audience(*, live: bool, as_json: bool) -> Iterator[Lines]:
    if as_json:
        yield Lines(err=True)
    elif live and fancy():
        from rich.live import Live

        with Live(refresh_per_second=8, transient=True) as screen:
            yield Screen(screen)
    else:
        yield Lines(tables=live)


class Lines:
    """Prints the story line by line, and now and then a table when asked to."""

    def __init__(self, *, err: bool = False, tables: bool = False) -> None:
        self._err = err
        self._every = _PLAIN_EVERY if tables else 0
        self._turns = 0

    def tell(self, line: str) -> None:
        """Print the line at once."""
        click.echo(line, err=self._err)
        (sys.stderr if self._err else sys.stdout).flush()

    def see(self, now: StatusSnapshot, left_s: float | None) -> None:
        """Print a table every so many turns."""
        self._turns += 1
        if self._every and self._turns % self._every == 0:
            say("", headline(now, left_s))
            show(queue_rows(now))


class Screen(Lines):
    """Draws tables and story over and over, with rich."""

    def __init__(self, live: Live) -> None:
        super().__init__()
        self._live = live

    def tell(self, line: str) -> None:
        """Print the line above the drawing, where it stays."""
        from rich.text import Text

        self._live.console.print(Text(line))

    def see(self, now: StatusSnapshot, left_s: float | None) -> None:
        """Draw how things stand."""
        self._live.update(self._drawn(now, left_s))

    def _drawn(self, now: StatusSnapshot, left_s: float | None) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        from millpond.cli.status import worker_table

        return Group(
            Text(headline(now, left_s), style="bold"),
            rich_table(queue_rows(now)),
            rich_table(worker_table(now.workers, now.at)),
            Text("kill -9 one of the workers, or Ctrl-C to end", style="dim"),
        )


def headline(now: StatusSnapshot, left_s: float | None) -> str:
    """Return the verdict and how long it goes on."""
    from millpond.cli.verdict import verdict

    until = "" if left_s is None else f"; {length(max(left_s, 0) * 1_000)} left"
    return f"{verdict(now)}{until}"


def queue_rows(now: StatusSnapshot) -> Table:
    """Return the table of queues without the columns that stay empty in a demo."""
    counts = ("ready", "running", "completed", "retried", "failed")
    table = Table(("queue", *counts), frozenset(counts))
    for queue in sorted({lane.queue for lane in now.lanes}):
        lanes = [lane for lane in now.lanes if lane.queue == queue]
        table.add(queue, *(f"{sum(getattr(lane, name) for lane in lanes):,}" for name in counts))
    return table


def _show(summary: Summary) -> None:
    counts = ("completed", "retried", "failed")
    table = Table(("queue", *counts), frozenset(counts))
    for queue, of in sorted(summary.queues.items()):
        table.add(queue, *(f"{of[name]:,}" for name in counts))
    click.echo("")
    for line in plain_lines(table):
        click.echo(line)
    click.echo("")
    done = sum(of["completed"] for of in summary.queues.values())
    retried = sum(of["retried"] for of in summary.queues.values())
    say(
        f"summary: {done:,} completed, {retried:,} retried, {summary.recovered} recovered from "
        f"the killed worker, {summary.unfinished} unfinished, in {summary.seconds:.0f} s"
    )
    say(*(summary.problems or ["verify: clean"]))
    say("", "Next: `millpond init` in a folder of your own.")
