"""The demo's reports as files: made month by month, each month once, whatever is killed."""

from __future__ import annotations

import os
from calendar import month_name
from collections.abc import Callable, Sequence
from pathlib import Path

REPORTS = Path("reports")
"""The folder of the reports, in the folder of the demo, where its workers are."""

PRODUCTS = ("bread", "cheese", "coffee", "tea")
HEAD = "month,product,units"


def rows(number: int, month: int) -> list[str]:
    """Return what was sold in a month: made up, and the same for everybody who asks."""
    sold = ((number * 31 + month * 17 + at * 43) % 97 + 1 for at in range(len(PRODUCTS)))
    return [f"{month},{name},{units}" for name, units in zip(PRODUCTS, sold, strict=True)]


def write_month(folder: Path, number: int, month: int, pause: Callable[[], None]) -> None:
    """Write a month's file; `pause` stands for the work, and is called when half is written."""
    lines = rows(number, month)
    folder.mkdir(parents=True, exist_ok=True)
    _write_whole(folder / f"{month:02}.csv", lines[:2], lines[2:], pause)


def put_together(folder: Path, number: int, months: Sequence[int]) -> Path:
    """Make the report, as a table and as a text, from the files of its months."""
    table = [line for month in months for line in _lines(folder / f"{month:02}.csv")]
    sums = dict.fromkeys(months, 0)
    for line in table:
        month, _, units = line.split(",")
        sums[int(month)] += int(units)
    text = [f"{month_name[month]:<12}{units:>6}" for month, units in sums.items()]
    _write_whole(folder / "report.txt", [f"Report {number}"], text)
    _write_whole(folder / "report.csv", [HEAD], table)
    return folder / "report.csv"


def finished(folder: Path) -> list[str]:
    """Name the months whose files are complete."""
    return [month_name[int(path.stem)] for path in sorted(folder.glob("[0-9]*.csv"))]


def half_written(folder: Path) -> list[str]:
    """Name the months that somebody has begun to write."""
    return [month_name[int(path.name[1:3])] for path in sorted(folder.glob(".[0-9]*"))]


def is_right(table: Path, number: int, months: Sequence[int]) -> bool:
    """Tell whether a report has every row once, in order, and none besides."""
    wanted = [HEAD, *(line for month in months for line in rows(number, month))]
    return table.is_file() and _lines(table) == wanted


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _write_whole(
    path: Path,
    first: Sequence[str],
    rest: Sequence[str],
    between: Callable[[], None] = lambda: None,
) -> None:
    """Write beside the file's place, sync, rename: it is there as a whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in first)
        file.flush()
        between()
        file.writelines(f"{line}\n" for line in rest)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
