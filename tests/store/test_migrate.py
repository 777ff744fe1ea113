"""Migrations: planned by pure rules, applied once by whoever comes first, never by halves."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.libraries import need_pysqlite3

from millpond.errors import SchemaTooNew, SchemaTooOld, StoreBusy, StoreError, StoreFull
from millpond.store import migrate
from millpond.store.migrate import Applied, Migration, SchemaState

FIRST = "CREATE TABLE millpond_a (x INTEGER) STRICT;\nINSERT INTO millpond_a VALUES (1);\n"
SECOND = "CREATE TABLE millpond_b (x INTEGER) STRICT;\nINSERT INTO millpond_a VALUES (2);\n"
THIRD = "-- breaks_below: 2\nALTER TABLE millpond_b ADD COLUMN y TEXT;\n"
NOW = 1_700_000_000_000


def write(folder: Path, *texts: str) -> Path:
    folder.mkdir(exist_ok=True)
    for number, text in enumerate(texts, start=1):
        (folder / f"{number:04}_step.sql").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "migrations", FIRST, SECOND, THIRD)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def connect(file: Path, timeout: float = 0) -> sqlite3.Connection:
    return sqlite3.connect(file, isolation_level=None, timeout=timeout)


@pytest.fixture
def conn(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(file)) as connection:
        yield connection


def apply(conn: sqlite3.Connection, steps: tuple[Migration, ...]) -> list[int]:
    return migrate.apply_sqlite(
        conn, lambda: conn.execute("BEGIN IMMEDIATE"), steps, now=lambda: NOW, where="app.db"
    )


def tables(conn: sqlite3.Connection) -> set[str]:
    rows = conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    return {name for (name,) in rows}


def steps_of(tmp_path: Path, *texts: str) -> tuple[Migration, ...]:
    return migrate.load(write(tmp_path / "other", *texts))


# Reading the files


def test_files_are_read_in_order_with_their_marks(folder: Path) -> None:
    (folder / "__init__.py").write_text("")
    steps = migrate.load(folder)
    assert [(step.number, step.file_name, step.breaks_below) for step in steps] == [
        (1, "0001_step.sql", 0),
        (2, "0002_step.sql", 0),
        (3, "0003_step.sql", 2),
    ]


def test_the_migrations_in_the_package_can_be_read() -> None:
    steps = migrate.load(migrate.packaged("millpond.store.sqlite"))
    assert steps[0].file_name == "0001_initial.sql"


def test_line_ends_and_end_blanks_do_not_change_the_checksum(tmp_path: Path) -> None:
    plain, dressed = tmp_path / "plain", tmp_path / "dressed"
    write(plain, "SELECT 1;\nSELECT 2;\n")
    dressed.mkdir()
    (dressed / "0001_step.sql").write_bytes(b"\xef\xbb\xbf\r\nSELECT 1;  \r\nSELECT 2;\r\n\r\n")
    assert migrate.load(plain)[0].sha256 == migrate.load(dressed)[0].sha256


def test_any_other_change_changes_the_checksum(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", "SELECT 1;"), write(tmp_path / "2", "SELECT  1;")
    assert migrate.load(one)[0].sha256 != migrate.load(two)[0].sha256


@pytest.mark.parametrize("name", ["1_step.sql", "0004.sql", "0004-step.sql", "0004_Step.sql"])
def test_a_file_whose_name_has_no_number_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("SELECT 1;")
    with pytest.raises(StoreError, match=r"0001_initial\.sql"):
        migrate.load(folder)


@pytest.mark.parametrize("name", ["0003_twice.sql", "0005_gap.sql", "0000_zero.sql"])
def test_doubles_and_gaps_in_the_numbers_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_text("SELECT 1;")
    with pytest.raises(StoreError, match="without gaps or doubles"):
        migrate.load(folder)


@pytest.mark.parametrize("mark", ["x", "", "0", "-1", "2", "1 2"])
def test_a_mark_that_cannot_hold_is_refused(tmp_path: Path, mark: str) -> None:
    folder = write(tmp_path / "m", f"-- why\n-- breaks_below: {mark}\nSELECT 1;")
    with pytest.raises(StoreError, match="breaks_below"):
        migrate.load(folder)


def test_a_mark_below_the_top_comment_is_only_a_comment(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", "SELECT 1;\n-- breaks_below: 1\n")
    assert migrate.load(folder)[0].breaks_below == 0


# Deciding


def step(number: int, sha: str = "s", breaks_below: int = 0) -> Migration:
    return Migration(number, "step", "SELECT 1;", sha, breaks_below)


def code(number: int) -> list[Migration]:
    return [step(n) for n in range(1, number + 1)]


def database(number: int, marks: Mapping[int, int] | None = None) -> dict[int, Applied]:
    oldest, applied = 0, {}
    for n in range(1, number + 1):
        oldest = max(oldest, (marks or {}).get(n, 0))
        applied[n] = Applied("s", oldest)
    return applied


@given(
    st.integers(0, 6),
    st.integers(0, 6),
    st.dictionaries(st.integers(1, 6), st.integers(1, 6)),
)
def test_state_and_plan_follow_numbers_and_marks_alone(
    there: int, here: int, marks: dict[int, int]
) -> None:
    marks = {n: min(mark, n) for n, mark in marks.items() if n <= there}
    applied, available = database(there, marks), code(here)
    state = migrate.state(applied, available)
    if there > here and any(mark > here for mark in marks.values()):
        assert state is SchemaState.NEWER_INCOMPATIBLE
        with pytest.raises(SchemaTooNew):
            migrate.plan(applied, available)
        return
    pending = migrate.plan(applied, available)
    assert [entry.number for entry in pending] == list(range(there + 1, here + 1))
    assert (state is SchemaState.BEHIND) == (there < here)
    assert (state is SchemaState.CURRENT) == (there == here)
    assert (state is SchemaState.NEWER_COMPATIBLE) == (there > here)


def test_b34_an_older_schema_is_refused_with_both_numbers_and_the_command() -> None:
    with pytest.raises(SchemaTooOld) as caught:
        migrate.require_current(database(4), code(5), where="app.db")
    message = str(caught.value)
    assert message == "app.db has schema 4, this millpond needs schema 5. Run `millpond migrate`."


def test_b34_a_newer_schema_without_a_mark_is_accepted() -> None:
    migrate.require_current(database(6), code(5))


def test_b34_a_newer_schema_marked_as_breaking_is_refused_with_both_numbers() -> None:
    with pytest.raises(SchemaTooNew, match=r"schema 6.*at least schema 6.*up to 5.*Upgrade"):
        migrate.require_current(database(6, {6: 6}), code(5), where="app.db")


def test_r58_a_breaking_mark_stays_in_force_under_later_migrations() -> None:
    with pytest.raises(SchemaTooNew):
        migrate.plan(database(8, {6: 6}), code(5))
    assert migrate.plan(database(8, {6: 6}), code(6)) == []


def test_a_migration_that_was_edited_after_its_release_is_refused_by_name() -> None:
    applied = {1: Applied("s"), 2: Applied("another")}
    with pytest.raises(StoreError, match=r"0002_step\.sql.*restore the file"):
        migrate.require_current(applied, code(2))


def test_a_gap_in_what_was_applied_is_refused() -> None:
    with pytest.raises(StoreError, match=r"lacks migration 0002_step\.sql"):
        migrate.plan({1: Applied("s"), 3: Applied("s")}, code(3))


# Doing it on SQLite


def test_a_fresh_file_gets_every_migration_once(conn: sqlite3.Connection, folder: Path) -> None:
    steps = migrate.load(folder)
    assert migrate.read_sqlite(conn) == {}
    assert apply(conn, steps) == [1, 2, 3]
    assert conn.execute("SELECT x FROM millpond_a").fetchall() == [(1,), (2,)]
    assert migrate.read_sqlite(conn) == {
        1: Applied(steps[0].sha256, 0),
        2: Applied(steps[1].sha256, 0),
        3: Applied(steps[2].sha256, 2),
    }
    moments = conn.execute("SELECT DISTINCT applied_at FROM millpond_schema_version").fetchall()
    assert moments == [(NOW,)]


def test_a_later_migration_keeps_the_mark_in_force(
    conn: sqlite3.Connection, folder: Path, tmp_path: Path
) -> None:
    apply(conn, migrate.load(folder))
    longer = write(folder, FIRST, SECOND, THIRD, "CREATE TABLE millpond_c (x);")
    assert apply(conn, migrate.load(longer)) == [4]
    assert migrate.read_sqlite(conn)[4].breaks_below == 2


def test_a_current_file_is_read_without_asking_for_the_lock(
    conn: sqlite3.Connection, folder: Path
) -> None:
    steps = migrate.load(folder)
    apply(conn, steps)
    asked: list[str] = []
    assert migrate.apply_sqlite(conn, lambda: asked.append("lock"), steps) == []
    assert asked == []


def test_what_another_process_did_before_the_lock_was_got_is_not_done_again(
    conn: sqlite3.Connection, file: Path, folder: Path
) -> None:
    steps = migrate.load(folder)

    def begin_late() -> None:
        with closing(connect(file)) as other:
            apply(other, steps)
        conn.execute("BEGIN IMMEDIATE")

    assert migrate.apply_sqlite(conn, begin_late, steps) == []
    assert not conn.in_transaction
    assert conn.execute("SELECT x FROM millpond_a").fetchall() == [(1,), (2,)]


def test_each_migration_is_a_transaction_of_its_own(conn: sqlite3.Connection, folder: Path) -> None:
    statements: list[str] = []
    conn.set_trace_callback(statements.append)
    apply(conn, migrate.load(folder))
    control = [text for text in statements if text in {"BEGIN IMMEDIATE", "COMMIT"}]
    assert control == ["BEGIN IMMEDIATE", "COMMIT"] * 3


def test_a_failing_statement_undoes_its_migration_and_leaves_those_before(
    conn: sqlite3.Connection, tmp_path: Path
) -> None:
    bad = "CREATE TABLE millpond_half (x);\nINSERT INTO nowhere VALUES (1);\n"
    with pytest.raises(StoreError, match=r"0002_step\.sql.*statement 2.*nowhere") as caught:
        apply(conn, steps_of(tmp_path, FIRST, bad))
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    assert not conn.in_transaction
    assert tables(conn) == {"millpond_a", "millpond_schema_version"}
    assert set(migrate.read_sqlite(conn)) == {1}


def test_a_failing_first_migration_leaves_no_table_behind(
    conn: sqlite3.Connection, tmp_path: Path
) -> None:
    with pytest.raises(StoreError):
        apply(conn, steps_of(tmp_path, "CREATE TABLE millpond_half (x);\nSELECT nothing;"))
    assert tables(conn) == set()


def test_r58_a_newer_compatible_file_is_left_as_it_is(
    conn: sqlite3.Connection, folder: Path, tmp_path: Path
) -> None:
    apply(conn, migrate.load(folder))
    assert apply(conn, steps_of(tmp_path, FIRST, SECOND)) == []
    with pytest.raises(SchemaTooNew):
        apply(conn, migrate.load(write(tmp_path / "oldest", FIRST)))


def test_tables_and_numbers_of_the_application_are_untouched(
    conn: sqlite3.Connection, folder: Path
) -> None:
    conn.execute("PRAGMA user_version = 77")
    conn.execute("PRAGMA application_id = 4711")
    conn.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
    conn.execute("INSERT INTO orders VALUES (1, 'kept')")
    before = conn.execute("SELECT sql FROM sqlite_schema WHERE name = 'orders'").fetchall()
    apply(conn, migrate.load(folder))
    assert conn.execute("PRAGMA user_version").fetchone() == (77,)
    assert conn.execute("PRAGMA application_id").fetchone() == (4711,)
    assert conn.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert conn.execute("SELECT * FROM orders").fetchall() == [(1, "kept")]
    assert conn.execute("SELECT sql FROM sqlite_schema WHERE name = 'orders'").fetchall() == before


TRICKY = """
-- A semicolon; in a comment, and a quote ' in one.
CREATE TABLE millpond_a (x INTEGER, note TEXT DEFAULT 'a;b'); /* one; more */
CREATE TRIGGER millpond_t AFTER INSERT ON millpond_a BEGIN
  UPDATE millpond_a SET note = CASE WHEN new.x > 1 THEN 'big; very' ELSE 'it''s' END
  WHERE x = new.x;
  INSERT INTO millpond_log VALUES (new.x);
END;
CREATE TABLE millpond_log ("odd;name" INTEGER);
INSERT INTO millpond_a (x) VALUES (1), (2);
-- The end; truly.
"""


def test_triggers_strings_and_comments_are_not_cut_at_their_semicolons(
    conn: sqlite3.Connection, tmp_path: Path
) -> None:
    apply(conn, steps_of(tmp_path, TRICKY))
    assert conn.execute("SELECT * FROM millpond_a").fetchall() == [(1, "it's"), (2, "big; very")]
    assert conn.execute("SELECT * FROM millpond_log").fetchall() == [(1,), (2,)]


def test_a_select_in_a_migration_works_through_all_its_rows(
    conn: sqlite3.Connection, tmp_path: Path
) -> None:
    seen: list[int] = []
    conn.create_function("see", 1, seen.append)
    apply(conn, steps_of(tmp_path, "SELECT see(value) FROM json_each('[1,2,3]');"))
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "statement",
    ["COMMIT;", "-- x\n begin;", "PRAGMA user_version = 5;", "/* x */ VACUUM;", "Savepoint a;"],
)
def test_what_would_break_the_transaction_or_change_the_file_is_refused_before_it_runs(
    conn: sqlite3.Connection, tmp_path: Path, statement: str
) -> None:
    with pytest.raises(StoreError, match="Take it out"):
        apply(conn, steps_of(tmp_path, FIRST, statement))
    assert tables(conn) == set()


def test_a_file_that_ends_within_a_statement_is_refused_before_it_runs(
    conn: sqlite3.Connection, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match="last semicolon is missing"):
        apply(conn, steps_of(tmp_path, FIRST + "CREATE TABLE millpond_cut (x"))
    assert tables(conn) == set()


def test_an_open_transaction_of_the_caller_is_never_used(
    conn: sqlite3.Connection, folder: Path
) -> None:
    conn.execute("BEGIN")
    with pytest.raises(StoreError, match="open transaction"):
        apply(conn, migrate.load(folder))
    assert conn.in_transaction


def test_a_busy_error_of_begin_reaches_the_caller(conn: sqlite3.Connection, folder: Path) -> None:
    def begin() -> None:
        raise StoreBusy("locked for 5 s")

    with pytest.raises(StoreBusy, match="5 s"):
        migrate.apply_sqlite(conn, begin, migrate.load(folder))


def test_a_reader_in_the_way_of_the_commit_makes_it_busy_and_undoes_all(
    conn: sqlite3.Connection, file: Path, folder: Path
) -> None:
    conn.execute("CREATE TABLE orders (id)")
    conn.execute("INSERT INTO orders VALUES (1)")
    with closing(connect(file)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM orders").fetchall()
        with pytest.raises(StoreBusy, match="Try again"):
            apply(conn, migrate.load(folder))
    assert tables(conn) == {"orders"}
    assert apply(conn, migrate.load(folder)) == [1, 2, 3]


def test_an_exclusive_lock_while_peeking_leads_to_begin_which_knows_how_to_wait(
    conn: sqlite3.Connection, file: Path, folder: Path
) -> None:
    with closing(connect(file)) as other:
        other.execute("BEGIN EXCLUSIVE")

        def begin() -> None:
            other.execute("COMMIT")
            conn.execute("BEGIN IMMEDIATE")

        assert migrate.apply_sqlite(conn, begin, migrate.load(folder)[:1]) == [1]


def test_a_full_database_undoes_the_migration_and_says_so(
    conn: sqlite3.Connection, tmp_path: Path
) -> None:
    big = "CREATE TABLE millpond_big (x); INSERT INTO millpond_big VALUES (zeroblob(1000000));"
    conn.execute("PRAGMA max_page_count = 20")
    with pytest.raises(StoreFull, match="Free some disk space"):
        apply(conn, steps_of(tmp_path, FIRST, big))
    assert tables(conn) == {"millpond_a", "millpond_schema_version"}


def test_a_file_that_is_no_database_is_a_store_error(file: Path, folder: Path) -> None:
    file.write_bytes(b"no database, " * 100)
    with closing(connect(file)) as conn, pytest.raises(StoreError, match="not a database"):
        apply(conn, migrate.load(folder))


def test_a_connection_of_another_class_of_the_same_library_is_understood(
    file: Path, folder: Path
) -> None:
    class Own(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(file, isolation_level=None, factory=Own)) as conn:
        assert apply(conn, migrate.load(folder)) == [1, 2, 3]


def test_pysqlite3_is_served_without_loading_the_other_library(file: Path, folder: Path) -> None:
    need_pysqlite3()
    program = """
import sys, pysqlite3
from pathlib import Path
from millpond.store import migrate
conn = pysqlite3.connect(sys.argv[1], isolation_level=None)
steps = migrate.load(Path(sys.argv[2]))
print(migrate.apply_sqlite(conn, lambda: conn.execute("BEGIN IMMEDIATE"), steps))
print("_sqlite3" in sys.modules)
"""
    done = run(program, file, folder)
    assert done.split("\n")[:2] == ["[1, 2, 3]", "False"]


# Several processes


def run(program: str, *args: object) -> str:
    command = [sys.executable, "-c", program, *map(str, args)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


CHILD = """
import json, sqlite3, sys
from pathlib import Path
from millpond.store import migrate
conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
steps = migrate.load(Path(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
print(json.dumps(migrate.apply_sqlite(conn, lambda: conn.execute("BEGIN IMMEDIATE"), steps)))
"""


def spawn(program: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_from(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for child in started:
        child.kill()
        child.communicate(timeout=30)


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_twelve_processes_at_once_on_a_fresh_file_apply_each_migration_once(
    file: Path, folder: Path, journal: str, children: list[subprocess.Popen[str]]
) -> None:
    with closing(connect(file)) as conn:
        conn.execute(f"PRAGMA journal_mode = {journal}")
    children += [spawn(CHILD, file, folder) for _ in range(12)]
    assert [line_from(child) for child in children] == ["ready"] * 12
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=90)[0] for child in children]
    assert [child.returncode for child in children] == [0] * 12
    assert sorted(number for answer in answers for number in json.loads(answer)) == [1, 2, 3]
    with closing(connect(file)) as conn:
        assert conn.execute("SELECT x FROM millpond_a").fetchall() == [(1,), (2,)]
        assert set(migrate.read_sqlite(conn)) == {1, 2, 3}


# The cache holds few pages, so that most of the migration is in the files when it is killed.
DYING = """
import sqlite3, sys
from pathlib import Path
from millpond.store import migrate
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("PRAGMA cache_size = 5")
def pause():
    print("paused", flush=True)
    sys.stdin.read()
conn.create_function("pause", 0, pause)
steps = migrate.load(Path(sys.argv[2]))
migrate.apply_sqlite(conn, lambda: conn.execute("BEGIN IMMEDIATE"), steps)
"""
HALF = """
CREATE TABLE millpond_half (x BLOB);
WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
INSERT INTO millpond_half SELECT zeroblob(1000) FROM n;
DELETE FROM millpond_a;
SELECT pause();
CREATE TABLE millpond_rest (x);
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_process_killed_within_a_migration_leaves_nothing_half_done(
    file: Path, tmp_path: Path, journal: str, children: list[subprocess.Popen[str]]
) -> None:
    folder = write(tmp_path / "half", FIRST, HALF)
    with closing(connect(file)) as conn:
        conn.execute(f"PRAGMA journal_mode = {journal}")
    child = spawn(DYING, file, folder)
    children.append(child)
    assert line_from(child) == "paused"
    spilled = file if journal == "delete" else file.with_name("app.db-wal")
    assert spilled.stat().st_size > 1_000_000
    child.send_signal(signal.SIGKILL)
    assert child.wait(timeout=30) == -signal.SIGKILL
    with closing(connect(file)) as conn:
        assert tables(conn) == {"millpond_a", "millpond_schema_version"}
        assert conn.execute("SELECT x FROM millpond_a").fetchall() == [(1,)]
        assert conn.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        conn.create_function("pause", 0, lambda: None)
        assert apply(conn, migrate.load(folder)) == [2]
        assert {"millpond_half", "millpond_rest"} <= tables(conn)


def test_a_process_killed_just_before_the_commit_leaves_what_was_committed_before(
    file: Path, folder: Path
) -> None:
    program = CHILD.replace("sys.stdin.readline()", "")
    done = subprocess.run(
        [sys.executable, "-c", program, str(file), str(folder)],
        env={**os.environ, "MILLPOND_FAULT": "migrate:kill@1"},
        check=False,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    with closing(connect(file)) as conn:
        assert set(migrate.read_sqlite(conn)) == {1}
        assert apply(conn, migrate.load(folder)) == [2, 3]
        assert conn.execute("SELECT x FROM millpond_a").fetchall() == [(1,), (2,)]
