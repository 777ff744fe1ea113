from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.ids import uuid7, uuid7_many

moments = st.integers(0, (1 << 48) - 1)
entropies = st.binary(min_size=10, max_size=10)


@given(moments, entropies)
def test_an_id_is_a_uuid_of_version_7_that_carries_its_moment(moment: int, noise: bytes) -> None:
    text = uuid7(moment, noise)
    parsed = uuid.UUID(text)
    assert str(parsed) == text
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == moment


@given(moments, moments, entropies, entropies)
def test_ids_sort_by_the_moment_they_were_made(
    one: int, other: int, noise: bytes, more: bytes
) -> None:
    if one < other:
        assert uuid7(one, noise) < uuid7(other, more)


@given(st.integers(-(1 << 60), 1 << 60), entropies)
def test_a_clock_that_is_far_off_still_makes_a_well_formed_id(moment: int, noise: bytes) -> None:
    assert uuid.UUID(uuid7(moment, noise)).version == 7


@given(entropies, entropies)
def test_every_bit_of_an_id_beside_version_and_moment_comes_from_the_entropy(
    noise: bytes, more: bytes
) -> None:
    # Six of the eighty bits are not used.
    used = ~(0x3F << 62)
    same = int.from_bytes(noise, "big") & used == int.from_bytes(more, "big") & used
    assert (uuid7(0, noise) == uuid7(0, more)) == same


@given(moments, st.integers(0, 50))
def test_many_ids_of_one_moment_are_that_many_different_ones(moment: int, count: int) -> None:
    ids = uuid7_many(moment, count)
    assert len(set(ids)) == count
    assert all(uuid.UUID(text).int >> 80 == moment for text in ids)


def test_ids_of_one_moment_differ() -> None:
    assert len({uuid7(1) for _ in range(1_000)}) == 1_000


@pytest.mark.parametrize("noise", [b"", b"123456789", b"12345678901"])
def test_entropy_of_another_length_is_refused(noise: bytes) -> None:
    with pytest.raises(ValueError, match="it must have 10"):
        uuid7(0, noise)
