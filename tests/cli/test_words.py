from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.cli.screen import Table, plain_lines
from millpond.cli.words import block, clean, length, plural, preview, seconds, size, width


@given(st.text(st.characters(codec=None)))
def test_no_character_of_shown_text_moves_the_cursor(text):
    assert clean(text).isprintable()


def test_what_is_not_printable_is_shown_as_an_escape():
    assert clean("a\x1b[31mb\x9bc\nd\u202ee\udcff") == "a\\x1b[31mb\\x9bc\\nd\\u202ee\\udcff"


def test_long_text_is_cut_and_says_so():
    assert clean("abcdef", 4) == "abc…"
    assert clean("abcd", 4) == "abcd"


def test_a_block_keeps_its_lines_and_nothing_else():
    assert block("a\n\tb\x1b") == "a\n    b\\x1b"


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"),
        (-5, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (9_940, "9.9 s"),
        (61_000, "61 s"),
        (120_000, "2 m"),
        (7_200_000, "2 h"),
        (172_800_000, "2 d"),
    ],
)
def test_lengths_are_said_as_people_say_them(ms, said):
    assert length(ms) == said


def test_a_wait_is_rounded_up_so_that_nobody_comes_back_too_early():
    assert [seconds(number) for number in (0, 0.2, 1, 12.01)] == ["1 s", "1 s", "1 s", "13 s"]


def test_counts_and_sizes_carry_their_unit():
    assert plural(1, "job") == "1 job"
    assert plural(12_000, "job") == "12,000 jobs"
    assert [size(n) for n in (5, 2_048, 3 << 20, 5 << 30)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]


def test_a_preview_is_bounded_and_tells_what_is_missing():
    shown = preview({"body": "x" * 20_000})
    assert len(shown) < 4_200
    assert "more characters" in shown


def test_columns_stand_straight_also_beside_wide_characters():
    table = Table(("name", "n"), frozenset({"n"}))
    table.add("東京", 1)
    table.add("abc", 100)
    ends = [width(line) for line in plain_lines(table)]
    assert len(set(ends)) == 1


def test_a_cell_cannot_forge_a_row():
    table = Table(("name",))
    table.add("a\nb")
    assert plain_lines(table)[1] == "a\\nb"
