"""The reference is complete: every name of the code's own tables has its row, and no other has."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sqlite3
import typing
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.docs import pages
from tests.docs.pages import DOCS, ROOT

import millpond
from millpond import config, errors, fault
from millpond.codec import PayloadTooLarge
from millpond.config.settings import QueueSettings, WorkloadSettings
from millpond.log import Line
from millpond.model import Answer, AttemptOutcome, State
from millpond.policy.lifecycle import is_charged
from millpond.task.decorator import TaskOptions
from millpond.task.options import Options
from millpond.worker import DrainReport, EmbeddedWorker, WorkerFailed

REFERENCE = DOCS / "reference"
PACKAGE = ROOT / "src" / "millpond"


def words(page: str) -> frozenset[str]:
    """Every identifier that a page shows as code or in a heading."""
    prose = pages.prose(REFERENCE / page)
    spans = re.findall(r"`([^`]+)`", prose) + re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return frozenset(re.findall(r"[A-Za-z_]\w*", " ".join(spans)))


def public(kind: type) -> set[str]:
    """The names that a class adds to what Python's own classes have."""
    own = {name for name in dir(kind) if not name.startswith("_")}
    for base in kind.__mro__:
        if base.__module__ in {"builtins", "enum", "typing", "datetime"}:
            own -= set(dir(base))
    return own


# --- python.md ----------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    assert sorted(set(millpond.__all__) - words("python.md")) == []


@pytest.mark.parametrize(
    "name", [name for name in millpond.__all__ if inspect.isclass(getattr(millpond, name))]
)
def test_every_method_and_attribute_of_a_public_class_is_in_the_reference(name: str) -> None:
    kind = getattr(millpond, name)
    known = words("python.md") | words("errors.md")
    # How the classes themselves are made is nobody's business.
    assert sorted(public(kind) - known - {"of"}) == []


@pytest.mark.parametrize("kind", [EmbeddedWorker, DrainReport], ids=lambda kind: kind.__name__)
def test_what_the_worker_returns_is_in_the_reference(kind: type) -> None:
    assert sorted(public(kind) - words("python.md") - {"of"}) == []


@pytest.mark.parametrize("options", [TaskOptions, Options], ids=lambda kind: kind.__name__)
def test_every_option_of_a_task_and_an_enqueue_is_in_the_reference(options: Any) -> None:
    assert sorted(set(options.__annotations__) - words("python.md")) == []


@pytest.mark.parametrize(
    "settings", [QueueSettings, WorkloadSettings], ids=lambda kind: kind.__name__
)
def test_every_option_of_a_queue_is_in_the_reference(settings: Any) -> None:
    fields = {field.name.removesuffix("_ms") for field in dataclasses.fields(settings)}
    assert sorted(fields - words("python.md") - {"name", "workloads"}) == []


# --- config.md and environment.md ---------------------------------------------------------------

CONFIG = REFERENCE / "config.md"


def settings() -> Iterator[tuple[str, str, str, str]]:
    """Table, key, variable and default of each row of the page."""
    table = ""
    for line in pages.prose(CONFIG).splitlines():
        heading = re.fullmatch(r"## \[(\w+)\]", line)
        table = heading[1] if heading else table
        row = re.match(r"\| `(\w+)` \| `(\w+)` \| (`[^`]*`|none) \|", line)
        if row:
            yield table, row[1], row[2], row[3].strip("`")


def test_every_setting_is_in_the_reference_with_its_variable() -> None:
    assert {twin: f"{table}.{key}" for table, key, twin, _ in settings()} == config.TWINS


@pytest.mark.parametrize("setting", list(settings()), ids=lambda row: row[2])
def test_the_default_of_a_setting_is_the_one_in_the_reference(
    setting: tuple[str, str, str, str],
) -> None:
    table, key, twin, default = setting
    plain = config.load(env={}, path=None)
    if default == "none":
        assert getattr(getattr(plain, table), f"{key}_ms") is None
        return
    value = {"false": False, "true": True}.get(default)
    given = ast.literal_eval(default) if value is None else value
    assert config.load(None, {}, {table: {key: given}}) == plain
    if given != []:
        assert config.load(None, {twin: str(given)}) == plain


def test_a_documented_default_that_is_wrong_would_be_found() -> None:
    assert config.load(None, {}, {"store": {"busy": "6s"}}) != config.load(None, {})


def source_variables() -> set[str]:
    """Every MILLPOND_ name in the source that is no prefix of others."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        found |= set(re.findall(r"\bMILLPOND_[A-Z]+(?:_[A-Z]+)*\b", path.read_text("utf-8")))
    return found


def test_every_variable_is_in_the_reference_and_no_other() -> None:
    beside = set(pages.column(REFERENCE / "environment.md", "Variable"))
    in_source = source_variables()
    of_commands = set(re.findall(r"\bMILLPOND_\w+", pages.text_of(REFERENCE / "cli.md")))
    assert sorted(in_source - beside - set(config.TWINS) - of_commands) == []
    assert sorted(beside - in_source) == []


# --- errors.md ----------------------------------------------------------------------------------


def test_every_error_has_its_row_and_its_place_in_the_tree() -> None:
    tree = next(
        block.body
        for block in pages.blocks(REFERENCE / "errors.md")
        if block.body.startswith("MillpondError")
    )
    kinds = {
        kind.__name__
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.MillpondError)
    } | {PayloadTooLarge.__name__, WorkerFailed.__name__}
    assert set(re.findall(r"^[│├└─ ]*(\w+)", tree, re.MULTILINE)) == kinds
    assert set(pages.column(REFERENCE / "errors.md", "Error")) == kinds


@pytest.mark.parametrize(
    "child", [PayloadTooLarge, WorkerFailed, *errors.StoreError.__subclasses__()]
)
def test_the_tree_of_errors_shows_who_derives_from_whom(child: type) -> None:
    tree = pages.blocks(REFERENCE / "errors.md")[0].body.splitlines()
    at = next(n for n, line in enumerate(tree) if re.search(rf"\b{child.__name__}\b", line))
    depth = re.search(r"\w", tree[at])
    assert depth
    above = [
        re.search(r"\w+", line)
        for line in tree[:at]
        if (found := re.search(r"\w", line)) and found.start() < depth.start()
    ]
    parent = above[-1]
    assert parent
    assert parent[0] == child.__mro__[1].__name__


# --- attempts-and-outcomes.md -------------------------------------------------------------------

OUTCOMES = REFERENCE / "attempts-and-outcomes.md"


def test_every_answer_is_in_the_reference() -> None:
    assert pages.column(OUTCOMES, "Answer") == ["admitted", "duplicate", "coalesced", "refused"]
    assert set(pages.column(OUTCOMES, "Answer")) == set(typing.get_args(Answer))


def test_every_outcome_is_in_the_reference_with_what_it_costs() -> None:
    said = {pages.names(row[0])[0]: row[1] for row in pages.rows(OUTCOMES, "Outcome")}
    assert said == {each.value: "yes" if is_charged(each) else "no" for each in AttemptOutcome}


def reasons_in_the_code() -> set[str]:
    """Reasons that are one word of ours: constants, and what the store writes by itself."""
    from millpond.policy import retry
    from millpond.worker import attempt

    return {
        retry.BAD_PAYLOAD, retry.PERMANENT_ERROR, attempt.BAD_RESULT,
        "cancelled", "max_age", "unknown_task",
    }  # fmt: skip


def test_every_reason_is_in_the_reference_and_is_in_the_code() -> None:
    said = {word for word in pages.column(OUTCOMES, "Reason") if re.fullmatch(r"\w+", word)}
    assert said == reasons_in_the_code()
    source = "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    assert [reason for reason in sorted(said) if f'"{reason}"' not in source] == []


def test_every_state_is_named() -> None:
    assert {state.value for state in State} <= words("schema.md")


# --- faults.md ----------------------------------------------------------------------------------


def test_every_fault_point_and_action_is_in_the_reference() -> None:
    assert pages.column(REFERENCE / "faults.md", "Point") == list(fault.POINTS)
    actions = [name.partition("=")[0] for name in pages.column(REFERENCE / "faults.md", "Action")]
    assert actions == list(fault.ACTIONS)


# --- logs.md ------------------------------------------------------------------------------------


def logged_names() -> dict[str, set[str]]:
    """The names of all log lines in the source, with their levels."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) == "event"):
                continue
            logger, level, name = map(ast.unparse, node.args[:3])
            if logger.strip("_") == "log":
                shown = Line[name[5:]].value if name.startswith("Line.") else name.strip("'")
                found[shown].add(level.rpartition(".")[2].strip("_").lower())
    return found


def test_every_log_line_is_in_the_reference_with_its_level() -> None:
    said = {pages.names(row[0])[0]: row[1] for row in pages.rows(REFERENCE / "logs.md", "Line")}
    found = logged_names()
    assert set(said) == set(found)
    assert [name for name, level in said.items() if level not in found[name]] == []
    assert {line.value for line in Line} <= set(said)


# --- schema.md ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("schema") / "jobs.db"
    with millpond.Millpond(path):
        return path


def test_every_table_is_in_the_reference_and_no_other(file: Path) -> None:
    connection = sqlite3.connect(file)
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'millpond%'"
    tables = {name for (name,) in connection.execute(query)}
    connection.close()
    # One table of the page says where a job stands, the other what each table holds.
    assert set(pages.column(REFERENCE / "schema.md", "Table")) == tables


def test_every_column_of_the_view_is_in_the_reference_in_order(file: Path) -> None:
    connection = sqlite3.connect(file)
    columns = [row[1] for row in connection.execute("PRAGMA table_info(millpond_jobs_view)")]
    connection.close()
    assert pages.column(REFERENCE / "schema.md", "Column") == columns


def test_the_statements_on_the_page_about_the_schema_run(file: Path) -> None:
    connection = sqlite3.connect(file)
    statements = [
        block.body for block in pages.blocks(REFERENCE / "schema.md") if block.language == "sql"
    ]
    assert len(statements) == 3
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()
