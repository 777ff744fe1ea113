"""A shop's report on a year: minutes of work, done month by month, and no month twice.

python app.py request 2025
python app.py show 2025
python app.py sweep

A month that is finished is a file of its own. Its name is remembered under the operation id, and
only what is remembered is taken over by a later attempt.
"""

from __future__ import annotations

import csv
import os
import sys
import time
from calendar import month_name
from pathlib import Path

import artefacts
import paper
import sales

from millpond import Backoff, Context, JobRef, Millpond

ARTEFACTS = Path("artefacts")
LOG = Path("work.log")

DAY_S = 0.8
"""How long the warehouse takes for a day, so about twenty seconds for a month."""

SPEED = float(os.environ.get("REPORTS_SPEED", "60"))
"""How much faster the clock of this play goes: a minute is a second."""

HEAD = "day,product,units,cents\n"

pond = Millpond("reports.db")


def request(year: int) -> JobRef[dict[str, str]]:
    """Ask for the report on a year; asked twice, it is the same report."""
    once = build_report.using(key=f"report:{year}", operation_id=f"report-{year}")
    return once.enqueue(year)


@pond.task(lease="2s", max_attempts=5, retry=Backoff(base=0.2, cap=30), result_ttl="7d")
def build_report(year: int, *, ctx: Context = Context.injected) -> dict[str, str]:
    """Make what is missing month by month, put the months together, and name the files."""
    folder = ARTEFACTS / ctx.operation_id
    done: dict[str, str] = dict(ctx.remembered or {})
    for number in sales.MONTHS:
        month = f"{number:02}"
        if month not in done or not artefacts.sound(folder / done[month]):
            done[month] = build_month(folder, year, number, ctx)
            ctx.remember(done)
        ctx.progress(number, 12, month_name[number])
    return put_together(folder, year, [folder / done[month] for month in sorted(done)])


def build_month(folder: Path, year: int, month: int, ctx: Context) -> str:
    """Write the sales of a month as the warehouse delivers them, day by day; name the file."""
    note(f"attempt {ctx.attempt} builds {year}-{month:02}")
    with artefacts.writing(folder, f"{month:02}.csv") as part:
        for day in sales.days(year, month):
            ctx.check_cancelled()
            part.write("".join(",".join(map(str, sale)) + "\n" for sale in day))
            time.sleep(DAY_S / SPEED)
    return part.name


def put_together(folder: Path, year: int, parts: list[Path]) -> dict[str, str]:
    """Make the two files of the report from the months; name them."""
    with artefacts.writing(folder, f"report-{year}.csv") as table:
        table.write(HEAD)
        for part in parts:
            table.write(part.read_text())
    totals = {month_name[n]: by_product(part) for n, part in zip(sales.MONTHS, parts, strict=True)}
    with artefacts.writing(folder, f"report-{year}.pdf") as printed:
        printed.file.write(paper.report(f"Sales {year}", totals))
    return {"csv": str(table.path), "pdf": str(printed.path)}


def by_product(part: Path) -> dict[str, int]:
    """Add up the cents of a month."""
    totals = dict.fromkeys(sales.CENTS, 0)
    with part.open(newline="") as rows:
        for _, product, _, cents in csv.reader(rows):
            totals[product] += int(cents)
    return totals


def note(line: str) -> None:
    """Write into a log that the story counts in; one write, so that no line is torn."""
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def show(year: int) -> dict[str, str] | None:
    """Return the files of a report that is ready, None before that."""
    files: dict[str, str] | None = pond.result(operation_id=f"report-{year}")
    return files


def sweep() -> list[str]:
    """Delete the artefacts of operations that the store has forgotten; name them."""
    return artefacts.sweep(ARTEFACTS, is_known)


def is_known(operation_id: str) -> bool:
    """Whether there is a job, or still a result, of an operation."""
    job = pond.jobs(operation_id=operation_id, limit=1)
    return bool(job) or pond.result(operation_id=operation_id) is not None


def main() -> None:
    """Do what was asked."""
    match sys.argv[1:]:
        case ["request", year]:
            ref = request(int(year))
            print(f"the report on {year} is job {ref.id} ({ref.answer})")
        case ["show", year]:
            files = show(int(year))
            print(*(files.values() if files else ["not ready"]), sep="\n")
        case ["sweep"]:
            print(*sweep(), sep="\n")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
