from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.log import (
    HIDDEN,
    LEFT_OUT,
    NOT_LOGGED,
    JsonFormatter,
    Line,
    TextFormatter,
    configure,
    event,
    redact,
)

SECRET = "hunter2"
SECRET_NAMES = ["password", "Passwd", "TOKEN", "access_token", "clientSecret", "Authorization"]
SECRET_NAMES += ["api_key", "X-Api-Key", "apikey", "private-key", "credentials", "Set-Cookie"]

anything = st.text(st.characters(exclude_categories=()))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), anything, st.binary(), st.datetimes()
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(anything, inner), st.tuples(anything, inner)
    ),
    max_leaves=20,
)


def own_logger() -> tuple[logging.Logger, Kept]:
    logger, kept = logging.Logger("millpond.worker"), Kept()  # noqa: LOG001  outside the tree
    logger.addHandler(kept)
    return logger, kept


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def record_of(name: str, /, **fields: Any) -> logging.LogRecord:
    logger, kept = own_logger()
    event(logger, logging.INFO, name, **fields)
    (record,) = kept.records
    return record


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    line.encode()
    loaded: dict[str, Any] = json.loads(line)
    return loaded


@given(st.dictionaries(st.text(max_size=20), values))
def test_any_fields_make_one_line_of_json_and_one_of_text(fields: dict[str, Any]) -> None:
    record = record_of("claimed", **fields)
    assert as_json(record)["event"] == "claimed"
    text = TextFormatter().format(record)
    assert text.isprintable()
    assert text.encode()


@given(values)
def test_a_line_is_bounded_whatever_a_field_holds(value: object) -> None:
    wide = {f"key {index}": [value] * 50 for index in range(50)}
    assert len(json.dumps(redact([wide] * 50))) < 200_000


def test_a_plain_sentence_is_shown_to_its_end_and_bounded_too() -> None:
    def shown(text: str) -> str:
        record = logging.makeLogRecord({"msg": text, "levelname": "WARNING", "name": "millpond"})
        return str(as_json(record)["message"])

    assert shown("x" * 1_900 + " do this.").endswith(" do this.")
    assert shown("x" * 2_100) == "x" * 2_000 + "... (100 more characters)"


@given(st.sampled_from(SECRET_NAMES), st.integers(0, 3))
def test_what_a_secret_name_stands_for_is_hidden_at_any_depth(name: str, depth: int) -> None:
    value: Any = {name: SECRET, "user": "ann"}
    for _ in range(depth):
        value = {"inner": value} if depth % 2 else [value, 1, 2]
    shown = json.dumps(redact(value))
    assert SECRET not in shown
    assert HIDDEN in shown
    assert "ann" in shown
    assert redact(SECRET, name) == HIDDEN


@pytest.mark.parametrize("value", [[SECRET], {"a": SECRET}, SECRET, b"x", 3])
def test_a_secret_is_hidden_whatever_its_type(value: object) -> None:
    assert redact({"token": value}) == {"token": HIDDEN}


def test_a_secret_header_in_a_pair_is_hidden() -> None:
    headers = [("Authorization", f"Bearer {SECRET}"), ("Accept", "text/html")]
    assert redact({"headers": headers}) == {
        "headers": [["Authorization", HIDDEN], ["Accept", "text/html"]]
    }


def test_a_password_in_an_address_is_hidden_and_the_place_is_shown() -> None:
    shown = redact(f"cannot reach postgresql://ann:{SECRET}@db/app and https://x/y?z=a@b")
    assert shown == f"cannot reach postgresql://{HIDDEN}@db/app and https://x/y?z=a@b"


@pytest.mark.parametrize("name", ["payload", "args", "kwargs", "result", "body"])
def test_what_a_job_carries_is_never_logged(name: str) -> None:
    assert as_json(record_of("claimed", **{name: {"card": SECRET}}))[name] == NOT_LOGGED
    assert redact({"job": {name: SECRET}}) == {"job": {name: NOT_LOGGED}}


class Colour(Enum):
    RED = "red"


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError

    __str__ = __repr__


class HostileDict(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"12345", "<5 bytes>"),
        (2**70, "<an integer beyond 64 bits>"),
        (float("nan"), "nan"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000Z"),
        (timedelta(seconds=5), "0:00:05"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
        (Line.CLAIMED, "claimed"),
        (ValueError("no"), "ValueError: no"),
        (Hostile(), "<Hostile>"),
        (ValueError(Hostile()), "<ValueError that cannot be shown: RuntimeError>"),
        (HostileDict(a=1), "<HostileDict that cannot be shown: RuntimeError>"),
        ({1, 2}, [1, 2]),
        ((1, "a", None), [1, "a", None]),
        ("a\x00b\ud800", "a\ufffdb\ufffd"),
        ("x" * 600, "x" * 500 + "... (100 more characters)"),
        (list(range(30)), [*range(20), "<10 more>"]),
        ([[[[[1]]]]], [[[["<1 items>"]]]]),
        ({"a": {"b": {"c": {"d": {"e": 1}}}}}, {"a": {"b": {"c": {"d": "<1 entries>"}}}}),
    ],
)
def test_a_value_is_shown_as_bounded_json_data(value: object, shown: object) -> None:
    assert redact(value) == shown


def test_a_wide_and_deep_value_is_left_out_after_a_number_of_parts() -> None:
    shown = json.dumps(redact([[[1] * 20] * 20] * 20))
    assert shown.count("1") <= 64
    assert LEFT_OUT in shown


def test_a_list_that_holds_itself_ends() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert "items" in json.dumps(redact(loop))


def test_a_json_line_has_moment_level_logger_event_and_fields() -> None:
    record = record_of(Line.RETRIED, job=12, attempt=2, max_attempts=5, wait_ms=40, run_ms=7)
    record.created = 1_700_000_000.1239
    assert as_json(record) == {
        "at": "2023-11-14T22:13:20.123Z",
        "level": "info",
        "logger": "millpond.worker",
        "event": "retried",
        "job": 12,
        "attempt": 2,
        "max_attempts": 5,
        "wait_ms": 40,
        "run_ms": 7,
    }


def test_a_text_line_is_read_by_people_and_split_by_programs() -> None:
    record = record_of("retried", job=12, error="ValueError: no", queue="a/b", tags=["x", "y"])
    record.created = 1_700_000_000.0
    assert TextFormatter().format(record) == (
        "2023-11-14T22:13:20.000Z info    "
        'retried job=12 error="ValueError: no" queue=a/b tags=["x","y"]'
    )


def test_a_field_that_is_none_is_left_out() -> None:
    assert "reason" not in as_json(record_of("failed", job=1, reason=None))


def test_a_field_named_like_a_part_of_the_line_hides_nothing() -> None:
    line = as_json(record_of("failed", level="loud", event="x", logger="y", name="z", at=5))
    assert (line["level"], line["event"], line["logger"]) == ("info", "failed", "millpond.worker")
    assert (line["level_"], line["event_"], line["name"], line["at_"]) == ("loud", "x", "z", 5)


@given(anything)
def test_no_field_can_forge_another_line_or_move_the_cursor(text: str) -> None:
    line = TextFormatter().format(record_of("failed", error=f"{text}\n\x1b[2J\x9b\u2028"))
    assert line.isprintable()


def test_any_handler_of_the_standard_library_shows_a_line_as_text() -> None:
    assert record_of("claimed", job=3, queue="q").getMessage() == "claimed job=3 queue=q"


def test_a_level_that_nobody_wants_costs_no_look_at_the_fields() -> None:
    looks: list[str] = []

    class Watched(dict[str, Any]):
        def items(self) -> Any:
            looks.append("items")
            return super().items()

    logger, kept = own_logger()
    logger.setLevel(logging.WARNING)
    event(logger, logging.INFO, "claimed", job=Watched())
    assert (kept.records, looks) == ([], [])
    event(logger, logging.WARNING, "claimed", job=Watched())
    assert looks == ["items"]


def test_a_line_names_the_place_that_logged_it() -> None:
    logger, kept = own_logger()
    event(logger, logging.INFO, "claimed")
    assert kept.records[0].funcName == "test_a_line_names_the_place_that_logged_it"


def fail(message: str) -> None:
    raise ValueError(message)


def raised(message: str) -> BaseException:
    try:
        fail(message)
    except ValueError as error:
        return error
    raise AssertionError


def test_an_exception_adds_a_bounded_traceback_to_both_forms() -> None:
    record = record_of("failed", exc_info=raised("boom\x1b[2J"))
    assert "ValueError: boom" in as_json(record)["traceback"]
    text = TextFormatter().format(record)
    assert text.startswith(text.splitlines()[0] + "\nTraceback")
    assert all(line.isprintable() for line in text.split("\n"))
    long = as_json(record_of("failed", exc_info=raised("x" * 50_000)))["traceback"]
    assert len(long) < 8_200
    assert re.search(r"\d+ characters left out", long)


def test_records_of_others_show_their_message_and_what_they_carry() -> None:
    logger, kept = own_logger()
    logger.warning("sent %d of\n%s", 3, "5", extra={"job": 7, "api_key": SECRET, "task": "send"})
    logger.warning("wrong %d", "x")
    line = as_json(kept.records[0])
    assert (line["message"], line["job"], line["api_key"]) == ("sent 3 of\n5", 7, HIDDEN)
    text = TextFormatter().format(kept.records[0])
    assert text.endswith(f'sent 3 of\\n5 job=7 api_key="{HIDDEN}" task=send')
    assert "could not be formatted" in as_json(kept.records[1])["message"]


@pytest.fixture
def restored() -> Iterator[logging.Logger]:
    logger = logging.getLogger("millpond")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


def test_configure_sends_lines_to_a_stream_and_leaves_the_root_alone(
    restored: logging.Logger,
) -> None:
    root, rooted = logging.getLogger(), Kept()
    root.addHandler(rooted)
    before = (list(root.handlers), root.level)
    stream = io.StringIO()
    configure("json", "info", stream)
    event(logging.getLogger("millpond.worker"), logging.INFO, "claimed", job=1)
    event(logging.getLogger("millpond.worker"), logging.DEBUG, "beat")
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "claimed"
    assert (list(root.handlers), root.level) == before
    root.removeHandler(rooted)
    assert rooted.records == []


def test_configure_again_replaces_only_its_own_handler(restored: logging.Logger) -> None:
    theirs, first, second = Kept(), io.StringIO(), io.StringIO()
    restored.addHandler(theirs)
    configure("text", "debug", first)
    configure("text", "debug", second)
    event(restored, logging.DEBUG, "beat")
    assert first.getvalue() == ""
    assert second.getvalue().endswith("debug   beat\n")
    assert theirs in restored.handlers


def test_configure_writes_to_standard_error_by_default(
    restored: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    configure()
    event(restored, logging.WARNING, "lease_lost", job=1)
    assert "warning lease_lost job=1" in capsys.readouterr().err


def test_importing_the_module_configures_nothing() -> None:
    assert "millpond.log" in sys.modules
    assert logging.getLogger("millpond").propagate
