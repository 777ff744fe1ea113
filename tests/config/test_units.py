from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import parse_bytes, parse_duration
from millpond.errors import BadConfig

TEN_YEARS_MS = 10 * 365 * 86_400_000

lengths = st.integers(0, TEN_YEARS_MS)
anything = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.timedeltas()
)


@given(anything)
def test_any_value_is_a_length_within_ten_years_or_refused(value: object) -> None:
    try:
        length = parse_duration(value)
    except BadConfig:
        return
    assert isinstance(length, int)
    assert 0 <= length <= TEN_YEARS_MS


@given(lengths)
def test_seconds_a_timedelta_and_both_kinds_of_text_mean_the_same(length: int) -> None:
    assert parse_duration(timedelta(milliseconds=length)) == length
    assert parse_duration(f"{length}ms") == length
    assert parse_duration(f"{length // 1000}s {length % 1000}ms") == length
    assert parse_duration(f"{length // 1000}.{length % 1000:03}") == length
    assert parse_duration(length // 1000) == length // 1000 * 1000


@given(st.floats(0, 1e6))
def test_a_float_of_seconds_is_rounded_to_the_nearest_millisecond(seconds: float) -> None:
    assert abs(Fraction(parse_duration(seconds)) - Fraction(seconds) * 1000) <= Fraction(501, 1000)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("30", 30_000),
        ("0.5", 500),
        ("250ms", 250),
        ("30s", 30_000),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        (" 1 H 30 M ", 5_400_000),
        ("1.5h", 5_400_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
        ("0", 0),
    ],
)
def test_a_text_names_its_units(text: str, length: int) -> None:
    assert parse_duration(text) == length


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "ten",
        "10x",
        "10 m s",
        "m",
        "-5s",
        "1e3",
        "٣s",
        "5s5",
        -1,
        float("nan"),
        float("inf"),
        True,
        None,
        b"5s",
        "11 000d",
        "3651d",
        timedelta(microseconds=-1),
        10**400,
    ],
)
def test_what_is_no_length_of_time_is_refused_by_name_with_examples(value: Any) -> None:
    with pytest.raises(BadConfig, match=r"^worker\.poll is .*'1h30m'"):
        parse_duration(value, "worker.poll")


@given(anything)
def test_any_value_is_a_size_that_a_column_holds_or_refused(value: object) -> None:
    try:
        size = parse_bytes(value)
    except BadConfig:
        return
    assert isinstance(size, int)
    assert 0 <= size < 1 << 63


@given(st.integers(0, 1 << 20), st.integers(1, 4))
def test_units_with_an_i_count_by_1024_and_those_without_by_1000(count: int, power: int) -> None:
    letter = "kmgt"[power - 1]
    assert parse_bytes(f"{count}{letter}iB") == count * 1024**power
    assert parse_bytes(f"{count} {letter.upper()}B") == count * 1000**power
    assert parse_bytes(count) == parse_bytes(f"{count}") == parse_bytes(f"{count}B") == count


@pytest.mark.parametrize(
    "value", ["", "64k", "2G", "1.5", "0.3B", "GiB", "-1", "1e3", "2 Gi", 1.0, True, None, 1 << 63]
)
def test_what_is_no_size_is_refused_by_name_with_examples(value: Any) -> None:
    with pytest.raises(BadConfig, match=r"^queue 'a': max_bytes is .*'2GiB'"):
        parse_bytes(value, "queue 'a': max_bytes")


def test_parts_of_a_unit_are_whole_bytes_or_refused() -> None:
    assert parse_bytes("1.5KiB") == 1_536
    with pytest.raises(BadConfig):
        parse_bytes("0.0001KiB")
