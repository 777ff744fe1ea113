"""The story of a report: its worker is killed half-way, and no month is made twice for it.

python story.py [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from calendar import month_name
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from stage import PATIENCE_S, Stage, check, say, stage, until

SEVENTH = 7
"""The month that is in work when two minutes have passed."""

EIGHT_DAYS_S = str(8 * 24 * 3_600)


def play(stage: Stage) -> None:
    """Tell it from the beginning to the end."""
    import app

    asked_twice()
    killed_at_minute_two(stage)
    recovered(stage)
    the_report()
    frozen(stage)
    eight_days_later(stage)
    app.pond.close()
    say(f"\nLook around in {stage.folder}: fetched, old.jsonl, work.log.")


def asked_twice() -> None:
    """Enqueue twice under one key."""
    import app

    say("1. Somebody asks for the report on 2025, and asks again.")
    asked = [app.request(2025), app.request(2025)]
    check([ref.answer for ref in asked] == ["admitted", "duplicate"], "The second is a duplicate.")
    check(app.show(2025) is None, "The report is not ready.")


def killed_at_minute_two(stage: Stage) -> None:
    """Kill a worker in the middle of the seventh month, which begins at minute 2."""
    say("\n2. A worker makes a month in 20 s, the year in 4 minutes; here a minute is a second.")
    worker = stage.worker()
    until(lambda: caught(worker.pid), "a month is half written after minute 2")
    stage.kill(worker)
    month = month_name[in_work()]
    say(f"   At minute 2 of its clock, in {month}, it gets kill -9.")
    check(len(parts(2025)) == in_work() - 1, f"The {in_work() - 1} months before are finished.")
    check(0 < days_of(half_written(2025)[0]) < 25, f"{month} lies half-written beside them.")


def caught(group: int) -> bool:
    """Stop a worker for a look; let it go on unless it is in the middle of a month now."""
    if not half_written(2025, SEVENTH):
        return False
    os.killpg(group, signal.SIGSTOP)
    half = half_written(2025, SEVENTH)
    if len(half) == 1 and days_of(half[0]) < 25:
        return True
    os.killpg(group, signal.SIGCONT)
    return False


def recovered(stage: Stage) -> None:
    """Let another worker finish, and count what it made."""
    before, month = files(2025), in_work()
    name = month_name[month]
    say("\n3. When the lease has run out, another worker takes the report.")
    worker = stage.worker()
    finished(2025)
    stage.stop(worker)
    check(outcomes(2025) == ["lease_lost", "completed"], "Two attempts.")
    check(built(2025, 1) == months(1, month), f"The first has begun January to {name},")
    check(built(2025, 2) == months(month, 12), f"the second has made {name} to December:")
    check(before.items() <= files(2025).items(), "what was finished was taken over as it was,")
    check(in_work() == month, f"and the half-written {name} was left where it lies.")


def the_report() -> None:
    """Look at what came out."""
    import sales

    say("\n4. The report is found by its operation id, and fetched.")
    table, printed = fetch(2025)
    rows = table.read_text().splitlines()[1:]
    sold = [sale for month in sales.MONTHS for day in sales.days(2025, month) for sale in day]
    check(rows == [",".join(map(str, sale)) for sale in sold], f"{table}: every sale once,")
    check(printed.read_bytes().startswith(b"%PDF-"), f"{printed}: the same on paper.")


def fetch(year: int) -> list[Path]:
    """Copy the files of a report that is ready to where its reader wants them."""
    import app

    Path("fetched").mkdir(exist_ok=True)
    ready = app.show(year) or {}
    return [Path(shutil.copy(file, f"fetched/{year}.{kind}")) for kind, file in ready.items()]


def frozen(stage: Stage) -> None:
    """Stop a worker in its work, let another one finish, and wake the first one up."""
    import app

    say("\n5. The report on 2024. This time the worker is frozen (SIGSTOP) in March.")
    app.request(2024)
    sleeper = stage.worker()
    until(lambda: half_written(2024, 3), "March is half written")
    until(lambda: freeze(sleeper.pid), "it is frozen outside of a transaction")
    say("   Its lease runs out, and another worker makes the report.")
    worker = stage.worker()
    finished(2024)
    stage.stop(worker)
    before = contents(2024)
    say("   Now the first one wakes up and goes on (SIGCONT).")
    os.killpg(sleeper.pid, signal.SIGCONT)
    until(lambda: attempts(2024)[0].late_at, "it has told what it did")
    stage.stop(sleeper)
    check(outcomes(2024) == ["lease_lost", "completed"], "What it says comes too late:")
    check(attempts(2024)[0].late_at is not None, "its attempt is lease_lost, and that it came")
    check(contents(2024) == before, "late is noted. Not a byte of the report has changed.")
    fetch(2024)


def freeze(group: int) -> bool:
    """Stop a worker; not while it holds the write lock, or everybody would wait for it."""
    os.killpg(group, signal.SIGSTOP)
    with closing(sqlite3.connect("reports.db", timeout=0.2, isolation_level=None)) as store:
        try:
            store.execute("BEGIN IMMEDIATE")
            store.execute("ROLLBACK")
        except sqlite3.OperationalError:
            os.killpg(group, signal.SIGCONT)
            return False
    return True


def eight_days_later(stage: Stage) -> None:
    """Prune by another day's clock."""
    import app

    say("\n6. Eight days later. Completed jobs are kept for seven.")
    later(stage, ["-m", "millpond", "prune", "--archive", "old.jsonl", "--app", "app:pond"])
    check(
        app.pond.jobs() == [],
        "The jobs are gone from the store; with their history they are in old.jsonl.",
    )
    check(list(Path("artefacts").iterdir()), "The files are the shop's: it sweeps them itself.")
    later(stage, ["app.py", "sweep"])
    check(not list(Path("artefacts").iterdir()), "Every file of both reports is gone there.")
    check(app.pond.verify() == [], "The file is sound.")


def later(stage: Stage, command: list[str]) -> None:
    """Run a program to whom it is eight days later."""
    program = stage.start(command, MILLPOND_CLOCK_OFFSET=EIGHT_DAYS_S)
    check(program.wait(PATIENCE_S) == 0, f"$ {' '.join(command).removeprefix('-m ')}")


def finished(year: int) -> None:
    """Wait until the job of a report has ended."""
    until(lambda: job(year).final, f"the report on {year} is there")


def job(year: int) -> Any:
    """Return the job of a report."""
    import app

    (found,) = app.pond.jobs(operation_id=f"report-{year}")
    return found


def attempts(year: int) -> list[Any]:
    """Return the attempts of a report's job."""
    import app

    return list(app.pond.attempts(job(year).id))


def outcomes(year: int) -> list[str]:
    """Return how the attempts ended."""
    return [attempt.outcome.value for attempt in attempts(year)]


def parts(year: int) -> list[Path]:
    """Return the finished months of a report."""
    return sorted(Path(f"artefacts/report-{year}").glob("[01][0-9]-*.csv"))


def half_written(year: int, since: int = 1) -> list[Path]:
    """Return what lies beside the finished months and has something in it."""
    beside = Path(f"artefacts/report-{year}").glob(".[01][0-9].csv.*")
    return [path for path in beside if int(path.name[1:3]) >= since and size(path)]


def size(path: Path) -> int:
    """Return the bytes of a file, 0 when it has got its last name just now."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def in_work() -> int:
    """Return the number of the month that was half written when the worker died."""
    (half,) = half_written(2025)
    return int(half.name[1:3])


def days_of(path: Path) -> int:
    """Count the days in a file of sales."""
    return len({row.partition(",")[0] for row in path.read_text().splitlines()})


def files(year: int) -> dict[Path, tuple[int, int]]:
    """Return the finished months as files: a file that was written anew is another one."""
    return {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in parts(year)}


def contents(year: int) -> dict[str, bytes]:
    """Return what is in the finished files of a report."""
    folder = Path(f"artefacts/report-{year}")
    return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}


def built(year: int, attempt: int) -> Counter[str]:
    """Count the months that an attempt has begun to make."""
    lines = Path("work.log").read_text().splitlines()
    start = f"attempt {attempt} builds {year}-"
    return Counter(line.removeprefix(start) for line in lines if line.startswith(start))


def months(first: int, last: int) -> Counter[str]:
    """Return each of the months once."""
    return Counter(f"{month:02}" for month in range(first, last + 1))


if __name__ == "__main__":
    with stage(Path(__file__).parent, sys.argv[1:]) as playing:
        play(playing)
