"""B33: workers of two versions side by side. B34: schemas of two versions."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.scenarios.mill import ROOT, Mill, Worker, soak, until

OLD = """
@pond.task(**FAST)
def v1() -> None:
    note("v1")
"""

NEW = (
    OLD
    + """
@pond.task(name="v2.export", **FAST)
def export(n: int = 0, *, ctx: Context = Context.injected) -> str:
    note("v2", n, ctx.attempt)
    if n == 99 and ctx.attempt == 1:
        raise ConnectionError
    return "exported"
"""
)


def both(mill: Mill) -> None:
    """Write the application in its old and its new version, on one store."""
    mill.write(OLD, name="old")
    mill.write(NEW, name="new")


def test_b33_an_old_worker_leaves_new_tasks_to_the_new_one(mill: Mill) -> None:
    both(mill)
    old = mill.worker(app="old:pond").ready()
    new = mill.worker(app="new:pond").ready()
    (runner,) = new.runners()
    refs = mill.put("export", count=20)
    others = mill.put("v1", count=20)
    assert mill.all_final() == {"completed": 40}
    assert mill.pids("v2") == {runner}
    assert len(mill.notes("v2")) == 20
    assert {tuple(mill.outcomes(ref)) for ref in [*refs, *others]} == {(("completed", 1),)}
    assert old.process.poll() is None


def test_b33_without_the_new_worker_a_new_task_waits_and_is_told_about(mill: Mill) -> None:
    both(mill)
    old = mill.worker(app="old:pond", recover="100ms", poll="50ms").ready()
    ref = mill.one("export")
    mill.becomes(mill.one("v1"), "completed")
    assert mill.pond.status().unserved_tasks == (("v2.export", 1),)
    shown = mill.run("status", "--url", "jobs.db")
    assert "no handler for v2.export: 1" in shown.stdout
    doctor = mill.run("doctor", "--url", "jobs.db")
    assert "no handler for v2.export: 1" in doctor.stdout
    reason = mill.run("explain", str(ref.id), "--url", "jobs.db")
    assert "v2.export" in reason.stdout
    job = mill.job(ref)
    assert (job.state, job.attempts, mill.history(ref)) == ("ready", 0, [])

    mill.worker(app="new:pond")
    assert mill.becomes(ref, "completed").result == "exported"
    assert mill.outcomes(ref) == [("completed", 1)]
    assert mill.pond.status().unserved_tasks == ()
    assert old.process.poll() is None


def test_b33_a_retry_waits_for_the_new_worker_too(mill: Mill) -> None:
    both(mill)
    ref = mill.one("export", 99)
    new = mill.worker(app="new:pond").ready()
    until(lambda: mill.history(ref))
    new.kill_all()
    old = mill.worker(app="old:pond", recover="100ms", poll="50ms").ready()
    for _ in range(3):
        mill.becomes(mill.one("v1"), "completed")
    if not mill.job(ref).final:
        assert mill.state(ref) in {"ready", "scheduled", "running"}
        mill.worker(app="new:pond")
    assert mill.becomes(ref, "completed").result == "exported"
    numbers = [attempt.number for attempt in mill.history(ref)]
    assert numbers in ([1, 2], [1, 2, 3])
    assert old.process.poll() is None


def test_b33_a_task_that_nobody_serves_for_its_time_fails_with_a_reason(mill: Mill) -> None:
    mill.write(OLD, name="old")
    gone = NEW.replace('name="v2.export"', 'name="v2.export", unknown_task_after=0.5')
    mill.write(gone, name="new")
    ref = mill.one("export")
    mill.worker(app="old:pond").ready()
    until(lambda: mill.pond.status().unserved_tasks == (("v2.export", 1),))
    # Housekeeping comes round every half minute; what it does then is asked for here.
    until(lambda: mill.pond.store.expire_unserved(100).result() or mill.job(ref).final, 5)
    job = mill.job(ref)
    assert (job.state, job.reason, job.attempts) == ("failed", "unknown_task", 0)


NEWER = "0002_more.sql"
TABLE = "CREATE TABLE millpond_more (id INTEGER PRIMARY KEY) STRICT;\n"


def newer_millpond(mill: Mill, *, breaks: bool) -> dict[str, str]:
    """Make a copy of millpond with one more migration; return the environment that uses it."""
    home = mill.folder / "newer"
    shutil.copytree(
        ROOT / "src" / "millpond", home / "millpond", ignore=shutil.ignore_patterns("__pycache__")
    )
    mark = "-- breaks_below: 2\n" if breaks else ""
    (home / "millpond" / "store" / "sqlite" / "migrations" / NEWER).write_text(mark + TABLE)
    return {"PYTHONPATH": f"{home}:{ROOT}"}


APP = """
@pond.task(**FAST)
def work(n: int = 0) -> int:
    note("ran", n)
    return n
"""

COMMANDS = {
    "worker": ["worker", "app:pond"],
    "worker in one process": ["worker", "app:pond", "--processes", "0"],
    "enqueue": ["enqueue", "work", "--app", "app:pond"],
    "status": ["status", "--url", "jobs.db"],
    "jobs": ["jobs", "--app", "app:pond"],
    "doctor": ["doctor", "--url", "jobs.db"],
    "migrate --check": ["migrate", "--check", "--url", "jobs.db"],
}

SCHEMA = 6


@pytest.mark.parametrize(
    "command",
    ["worker", "worker in one process", "enqueue", "doctor"]
    + [soak(name) for name in ("status", "jobs", "migrate --check")],
)
def test_b34_an_older_schema_is_refused_with_both_numbers_and_the_cure(
    mill: Mill, command: str
) -> None:
    mill.write(APP)
    mill.one("work")
    env = newer_millpond(mill, breaks=False)
    done = mill.run(*COMMANDS[command], env=env, within=15)
    said = done.stdout + done.stderr
    assert done.returncode == SCHEMA, said
    assert "Traceback" not in said
    assert "schema 1" in said
    assert "2" in said
    assert "millpond migrate" in said


LIBRARY = """
import sys
from millpond import Millpond, StoreError
try:
    Millpond("jobs.db").open()
except StoreError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.parametrize(
    ("made_by", "breaks", "answer"),
    [("older", False, "SchemaTooOld"), ("newer", True, "SchemaTooNew"), ("newer", False, "")],
)
def test_b34_the_library_raises_its_typed_error(
    mill: Mill, made_by: str, breaks: bool, answer: str
) -> None:
    mill.write(APP)
    env = newer_millpond(mill, breaks=breaks)
    newer = {**mill.environment, **env}
    makes, opens = (newer, mill.environment) if made_by == "newer" else (mill.environment, newer)
    script = [sys.executable, "-c", LIBRARY]
    assert mill.start(script, makes).ended() == 0
    opened = mill.start(script, opens)
    code = opened.ended()
    unmark(mill.path)
    assert (code == 0) == (answer == "")
    said = opened.said.splitlines()[-1] if answer else ""
    assert said.startswith(answer)
    if answer:
        assert "schema 1" in said or "schema 2" in said
        assert "up to 1" in said or "needs schema 2" in said


def test_b34_migrate_brings_an_older_store_up_and_its_jobs_run(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("work", 7)
    env = newer_millpond(mill, breaks=False)
    assert mill.run("migrate", "--check", "--url", "jobs.db", env=env).returncode == SCHEMA
    done = mill.run("migrate", "--url", "jobs.db", env=env)
    assert done.returncode == 0, done.stderr
    assert mill.run("migrate", "--check", "--url", "jobs.db", env=env).returncode == 0
    assert mill.worker("--drain", env=env).ended() == 0
    assert mill.job(ref).result == 7


def migrated(mill: Mill, *, breaks: bool) -> None:
    env = newer_millpond(mill, breaks=breaks)
    done = mill.run("migrate", "--url", "jobs.db", env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    ["worker", "status", "doctor"]
    + [soak(name) for name in ("worker in one process", "enqueue", "jobs", "migrate --check")],
)
def test_b34_a_newer_schema_that_breaks_older_code_is_refused(mill: Mill, command: str) -> None:
    mill.write(APP)
    mill.one("work")
    migrated(mill, breaks=True)
    done = mill.run(*COMMANDS[command], within=15)
    said = done.stdout + done.stderr
    assert done.returncode == SCHEMA, said
    assert "Traceback" not in said
    assert "schema 2" in said
    assert "1" in said
    assert "pgrade millpond" in said
    unmark(mill.path)


def unmark(path: Path) -> None:
    """Let the standing checks, which know the older schema, open the file again."""
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("UPDATE millpond_schema_version SET breaks_below = 0")


def test_b34_a_newer_schema_that_is_compatible_is_worked_with(mill: Mill) -> None:
    mill.write(APP)
    first = mill.one("work", 1)
    live = mill.worker().ready()
    migrated(mill, breaks=False)
    second = mill.one("work", 2)
    assert mill.becomes(second, "completed").result == 2
    assert live.stop(signal.SIGTERM) == 0
    third = mill.run("enqueue", "work", "n=3", "--app", "app:pond")
    assert third.returncode == 0, third.stderr
    mill.accepted.append(int(third.stdout))
    assert mill.worker("--drain").ended() == 0
    assert mill.all_final() == {"completed": 3}
    assert mill.run("doctor", "--url", "jobs.db").returncode == 0
    assert mill.job(first).state == "completed"


def test_b34_old_and_new_workers_share_a_compatible_store(mill: Mill) -> None:
    mill.write(APP)
    env = newer_millpond(mill, breaks=False)
    mill.one("work")
    assert mill.run("migrate", "--url", "jobs.db", env=env).returncode == 0
    workers: list[Worker] = [mill.worker().ready(), mill.worker(env=env).ready()]
    mill.put("work", 1, count=200)
    assert mill.all_final() == {"completed": 201}
    assert [worker.stop() for worker in workers] == [0, 0]


@pytest.mark.parametrize("death", ["migrate:kill", soak("migrate:raise"), soak("migrate:exit")])
def test_b34_a_migration_that_dies_half_way_leaves_the_old_schema_whole(
    mill: Mill, death: str
) -> None:
    mill.write(APP)
    ref = mill.one("work", 7)
    env = newer_millpond(mill, breaks=True)
    died = mill.run("migrate", "--url", "jobs.db", env={**env, "MILLPOND_FAULT": death})
    assert died.returncode != 0
    assert mill.worker("--drain").ended() == 0
    assert mill.job(ref).result == 7
    assert mill.run("migrate", "--url", "jobs.db", env=env).returncode == 0
    unmark(mill.path)


@pytest.mark.parametrize("death", ["migrate:kill", soak("migrate:exit")])
def test_b34_a_store_whose_maker_died_is_made_by_the_next(mill: Mill, death: str) -> None:
    mill.write(APP)
    died = mill.run("init", "--url", "jobs.db", env={"MILLPOND_FAULT": death})
    assert died.returncode != 0
    ref = mill.one("work", 7)
    assert mill.worker("--drain").ended() == 0
    assert mill.job(ref).result == 7


def test_b34_a_store_that_lacks_its_last_row_is_completed(mill: Mill) -> None:
    """Its maker died between the migration's commit and the row that says it is open."""
    mill.write(APP)
    mill.pond.status()
    mill.pond.close()
    with closing(sqlite3.connect(mill.path)) as conn, conn:
        conn.execute("DELETE FROM millpond_meta")
    mill.pond.open()
    ref = mill.one("work", 7)
    assert mill.worker("--drain").ended() == 0
    assert mill.job(ref).result == 7
