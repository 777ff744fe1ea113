from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.admission import Admitted, Capacity, Wanted, decide

amounts = st.integers(0, 1 << 40)
limits = st.none() | amounts


@given(st.builds(Wanted, amounts, amounts), st.builds(Capacity, amounts, amounts, limits, limits))
def test_what_is_wanted_is_admitted_whole_whatever_the_capacity(
    wanted: Wanted, capacity: Capacity
) -> None:
    assert decide(wanted, capacity) == Admitted(wanted.jobs, wanted.bytes)
