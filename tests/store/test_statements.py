"""Named SQL: every statement is used, exists, stands alone and prepares on a fresh schema."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import millpond.store
from millpond.errors import InvariantBroken
from millpond.store import migrate, statements
from millpond.store.sqlite.named import SQL

SOURCES = sorted(Path(millpond.store.__file__).parent.rglob("*.py"))
BUILT = ("_many", "_one")
"""Endings that code puts to a name it was given."""


def texts() -> Iterator[str]:
    """Give every text that stands in the store's code, and the beginnings of those it builds."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "*"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def subscripts() -> Iterator[tuple[str, str]]:
    """Give every name that code asks the statements for, with the file."""
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
                continue
            if node.value.id == "SQL" and isinstance(node.slice, ast.Constant):
                yield str(node.slice.value), source.name


def test_every_statement_that_code_names_exists():
    missing = [(name, where) for name, where in subscripts() if name not in SQL]
    assert missing == []


def test_every_statement_that_exists_is_named_by_code():
    named = set(texts())
    named |= {text + ending for text in named for ending in BUILT}
    patterns = [text for text in named if re.fullmatch(r"[a-z]{3}[a-z_]*\*", text)]
    built = re.compile("|".join(text.replace("*", r"\w+") for text in patterns) or "(?!)")
    unused = [name for name in SQL if name not in named and not built.fullmatch(name)]
    assert unused == []


@pytest.fixture
def fresh() -> Iterator[sqlite3.Connection]:
    """A fresh schema, once as the store and once as what a shelf is filled from."""
    steps = migrate.load(migrate.packaged("millpond.store.sqlite"))
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        migrate.apply_sqlite(conn, lambda: conn.execute("BEGIN IMMEDIATE"), steps)
        conn.execute("ATTACH ':memory:' AS live")
        for (sql,) in conn.execute("SELECT sql FROM sqlite_schema WHERE type = 'table'").fetchall():
            conn.execute(sql.replace("CREATE TABLE ", "CREATE TABLE live.", 1))
        yield conn


@pytest.mark.parametrize("name", sorted(SQL))
def test_every_statement_prepares(fresh: sqlite3.Connection, name: str):
    text = SQL[name]
    named = dict.fromkeys(re.findall(r"[:@$](\w+)", text))
    unnamed = max(map(int, re.findall(r"\?(\d+)", text)), default=text.count("?"))
    fresh.execute(f"EXPLAIN {text}", named or [None] * unnamed).fetchall()


@pytest.mark.parametrize("name", sorted(SQL))
def test_every_statement_is_one_and_binds_in_one_manner(name: str):
    text = re.sub(r"'[^']*'", "''", SQL[name])
    assert ";" not in text
    assert not (re.search(r"[:@$]\w+", text) and "?" in text)
    assert "millpond_" in text or name in {
        "savepoint", "rollback_savepoint", "release_savepoint", "shelf_attach", "schema_objects",
        "shelf_is_store",
    }  # fmt: skip


def test_statements_for_callers_connections_touch_nothing_but_tables():
    """`tx=` runs on connections of others: no temporary tables, no settings, no vacuum."""
    for name, text in SQL.items():
        words = set(re.findall(r"[A-Z]+", re.sub(r"'[^']*'|--[^\n]*", "", text)))
        assert not words & {"TEMP", "TEMPORARY", "PRAGMA", "VACUUM", "REINDEX"}, name


def test_a_name_used_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "twice"
    (package / "sql").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "sql" / "a.sql").write_text("-- name: one\nSELECT 1;\n", encoding="utf-8")
    (package / "sql" / "b.sql").write_text("-- name: one\nSELECT 2;\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvariantBroken, match=r"one .* stands twice, last in b\.sql"):
        statements.load("twice")
