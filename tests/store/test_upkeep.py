from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from millpond.config import QueueSettings, StoreConfig
from millpond.errors import StoreError, UnsafeStorage
from millpond.store import open_store
from millpond.store.migrate import SchemaState
from millpond.store.upkeep import (
    NoStore,
    QueueState,
    Schema,
    Severity,
    file_of,
    migrate_store,
    schema_findings,
    schema_of,
)


@pytest.fixture
def config(tmp_path):
    return StoreConfig(url=str(tmp_path / "a.db"))


def test_a_store_that_is_not_there_has_no_schema_and_is_not_made(config):
    assert schema_of(config) is None
    assert not file_of(config).exists()


def test_an_empty_file_and_one_of_others_have_schema_zero(config):
    file_of(config).touch()
    assert schema_of(config) == Schema(0, 1, SchemaState.BEHIND)
    with closing(sqlite3.connect(file_of(config))) as theirs:
        theirs.execute("CREATE TABLE orders (id INTEGER)")
    assert schema_of(config) == Schema(0, 1, SchemaState.BEHIND)


def test_migrating_makes_the_store_once(config):
    assert migrate_store(config) == [1]
    assert migrate_store(config) == []
    assert schema_of(config) == Schema(1, 1, SchemaState.CURRENT)


def test_looking_leaves_a_live_store_alone(config):
    store = open_store(config.url, config=config)
    try:
        store.put_queue(QueueSettings("reports", running=3)).result()
        store.pause("reports", True).result()
        before = file_of(config).stat().st_mtime_ns
        assert looked_at(config) == str({"reports": QueueState("reports", True, 3)})
        assert file_of(config).stat().st_mtime_ns == before
        assert store.verify() == []
    finally:
        store.close()


def looked_at(config):
    """Look from another process, as commands do: this one has the file open."""
    program = (
        "import sys; from millpond.config import StoreConfig; from millpond.store.upkeep import *;"
        "print(queue_states(StoreConfig(url=sys.argv[1])), end='')"
    )
    command = [sys.executable, "-c", program, config.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout


def test_a_store_in_memory_cannot_be_looked_at_from_outside():
    with pytest.raises(NoStore):
        file_of(StoreConfig(url=":memory:"))


def test_what_is_no_database_is_said(config):
    file_of(config).write_bytes(b"x" * 4096)
    with pytest.raises(StoreError, match="no SQLite database"):
        schema_of(config)


def test_the_gate_comes_first(config):
    file_of(config).mkdir()
    with pytest.raises(UnsafeStorage):
        schema_of(config)


def test_a_sound_schema_is_one_good_finding(config):
    migrate_store(config)
    (finding,) = schema_findings(config)
    assert finding.severity is Severity.OK


def test_an_index_that_is_missing_is_named_with_the_statement_that_makes_it_again(config):
    migrate_store(config)
    with closing(sqlite3.connect(file_of(config))) as bent:
        bent.execute("DROP INDEX millpond_final_state")
        bent.commit()
    (finding,) = schema_findings(config)
    assert finding.severity is Severity.REFUSE
    assert "millpond_final_state" in finding.what
    statement = finding.cure.partition(": ")[2]
    with closing(sqlite3.connect(file_of(config))) as mended:
        mended.execute(statement)
        mended.commit()
    assert schema_findings(config)[0].severity is Severity.OK


def test_a_trigger_of_others_on_our_tables_is_a_warning_and_their_own_tables_are_theirs(config):
    migrate_store(config)
    with closing(sqlite3.connect(file_of(config))) as theirs:
        theirs.execute("CREATE TABLE orders (id INTEGER)")
        theirs.execute(
            "CREATE TRIGGER spy AFTER INSERT ON millpond_job BEGIN INSERT INTO orders VALUES (1);"
            " END"
        )
        theirs.commit()
    (finding,) = schema_findings(config)
    assert finding.severity is Severity.WARNING
    assert "spy" in finding.what
