"""What commands print: tables, with rich where it is installed and wanted, and JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.words import clean, width

if TYPE_CHECKING:
    from rich.table import Table as RichTable

_COLOURS = {
    "failed": "red",
    "running": "cyan",
    "completed": "green",
    "cancelled": "yellow",
    "paused": "yellow",
    "lost": "red",
    "live": "green",
    "warning": "yellow",
    "refuse": "red",
    "ok": "green",
}
"""Words that have a colour; the word itself says the same."""


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of text; columns named in `right` hold numbers."""

    columns: Sequence[str]
    right: frozenset[str] = frozenset()
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: object) -> None:
        """Add a row; None shows as nothing."""
        self.rows.append(["" if cell is None else clean(str(cell)) for cell in cells])


def fancy() -> bool:
    """Whether colours and frames are wanted: a terminal, rich is there, NO_COLOR is not set."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
        and find_spec("rich") is not None
    )


def show(table: Table) -> None:
    """Print a table."""
    if fancy():
        from rich.console import Console

        Console().print(rich_table(table))
    else:
        for line in plain_lines(table):
            click.echo(line)


def plain_lines(table: Table) -> list[str]:
    """Return a table as lines of text in straight columns."""
    rows = [list(table.columns), *map(list, table.rows)]
    widths = [max(width(row[at]) for row in rows) for at in range(len(table.columns))]
    return [_line(table, row, widths) for row in rows]


def _line(table: Table, row: Sequence[str], widths: Sequence[int]) -> str:
    cells = []
    for name, cell, most in zip(table.columns, row, widths, strict=True):
        room = " " * (most - width(cell))
        cells.append(room + cell if name in table.right else cell + room)
    return "  ".join(cells).rstrip()


def rich_table(table: Table) -> RichTable:
    """Return a table for rich; cells are text and never markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in table.columns:
        drawn.add_column(name, justify="right" if name in table.right else "left")
    for row in table.rows:
        drawn.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in row))
    return drawn


def print_json(data: Any) -> None:
    """Print data as JSON; every character that is not plain ASCII is escaped."""
    click.echo(json.dumps(data, indent=2))


def print_json_line(data: Any) -> None:
    """Print data as JSON on one line, for those who read several."""
    click.echo(json.dumps(data, separators=(",", ":")))


def say(*lines: str) -> None:
    """Print lines of text that may hold names from the store."""
    for line in lines:
        click.echo(clean(line))


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns; what is None or empty is left out."""
    shown = [(name, clean(str(value))) for name, value in pairs if value not in (None, "")]
    most = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name:<{most}}  {value}")
