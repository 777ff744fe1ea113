from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.fingerprint import (
    bounded_traceback,
    fingerprint,
    normalised,
    safe_message,
    storable,
)

# Every code point there is, lone surrogates and NUL included.
anything = st.text(st.characters(exclude_categories=()))


def mark(message: str, *, task: str = "send", kind: str = "Boom", frame: str = "app:send") -> str:
    return fingerprint(task, kind, message, frame)


@given(anything, anything, anything, anything)
def test_a_fingerprint_is_sixteen_hex_digits_of_any_text(
    task: str, kind: str, message: str, frame: str
) -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint(task, kind, message, frame))


@given(anything)
def test_normalising_twice_changes_nothing_more(message: str) -> None:
    once = normalised(message)
    assert normalised(once) == once


occurrences = st.builds(
    lambda n, order, moment: f"order {n} of {order} was late at {moment}, took {abs(n)}ms",
    st.integers(),
    st.uuids(),
    st.datetimes(),
)


@given(occurrences, occurrences)
def test_failures_that_differ_in_numbers_ids_and_moments_are_of_one_kind(
    one: str, other: str
) -> None:
    assert mark(one) == mark(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("no such user 'ann'", "no such user 'bo b'"),
        ('key "a" missing', 'key "bcd" missing'),
        ("<Job object at 0x7f3a10>", "<Job object at 0x55AA>"),
        ("commit 1a2b3c4d5e6f7a8b gone", "commit 9f8e7d6c5b4a39281706 gone"),
        ("commit 12345678 gone", "commit 1234567a gone"),
        ("cannot open /tmp/a/b.txt: gone", "cannot open ~/notes: gone"),
        (r"cannot open C:\a\b.txt: gone", r"cannot open D:\x: gone"),
        ("GET https://a.example/x?y=1 timed out", "GET http://b.example timed out"),
        ("at 2026-01-02T03:04:05.678Z", "at 2025-12-31 23:59:59+01:00"),
        ("took 1.5e-3 s", "took -12 s"),
        ("worker12 died", "worker7 died"),
        ("10.0.0.1:5432 refused", "192.168.1.20:80 refused"),
    ],
)
def test_what_varies_between_occurrences_starts_no_new_group(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    "other",
    [
        mark("connection reset"),
        mark("connection refused", task="other"),
        mark("connection refused", kind="Bang"),
        mark("connection refused", frame="app:other"),
    ],
)
def test_another_message_task_type_or_place_is_another_kind(other: str) -> None:
    assert mark("connection refused") != other


def test_parts_that_join_to_the_same_text_are_still_apart() -> None:
    assert fingerprint("ab", "c", "", "") != fingerprint("a", "bc", "", "")


def test_an_apostrophe_is_no_quote() -> None:
    assert normalised("can't open, don't know") == "can't open, don't know"


def test_a_fingerprint_does_not_change_between_releases() -> None:
    # Groups of stored failures would fall apart.
    assert mark("order 7 of 'ann' failed") == "97439911329eaebd"


@given(anything)
def test_stored_text_survives_utf8_and_has_no_nul(text: str) -> None:
    kept = storable(text)
    assert kept.encode().decode() == kept
    assert "\x00" not in kept
    assert len(kept) == len(text)


@given(anything, st.integers(0, 300))
def test_a_message_never_exceeds_its_limit(text: str, limit: int) -> None:
    assert len(safe_message(text, limit)) <= limit
    assert len(safe_message(text * 40, limit)) <= limit


@given(st.text(max_size=200))
def test_a_short_message_is_kept_as_it_is(text: str) -> None:
    assert safe_message(text, 200) == storable(text)


def test_a_long_message_keeps_its_head_and_its_tail_and_says_how_much_is_missing() -> None:
    text = "HEAD" + "x" * 5_000 + "TAIL"
    kept = safe_message(text)
    missing = re.search(r" \.\.\. (\d+) characters left out \.\.\. ", kept)
    assert kept.startswith("HEADx")
    assert kept.endswith("xTAIL")
    assert missing is not None
    assert len(kept) - len(missing[0]) + int(missing[1]) == len(text)


@given(st.lists(anything).map("\n".join), st.integers(0, 400))
def test_a_traceback_never_exceeds_its_limit(text: str, limit: int) -> None:
    assert len(bounded_traceback(text, limit)) <= limit


def test_a_long_traceback_loses_whole_lines_from_its_middle() -> None:
    lines = [f"line {number}" for number in range(3_000)]
    kept = bounded_traceback("\n".join(lines)).split("\n")
    at = next(index for index, line in enumerate(kept) if "left out" in line)
    missing = re.search(r"(\d+) lines", kept[at])
    assert missing is not None
    assert kept[:at] == lines[:at]
    assert kept[at + 1 :] == lines[-(len(kept) - at - 1) :]
    assert len(kept) - 1 + int(missing[1]) == len(lines)


def test_a_traceback_of_one_endless_line_is_cut_inside_it() -> None:
    kept = bounded_traceback("Traceback\n" + "x" * 20_000)
    assert len(kept) <= 8_000
    assert kept.startswith("Traceback\nx")
    assert kept.endswith("x")
