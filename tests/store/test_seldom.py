from __future__ import annotations

from millpond.store.sqlite.seldom import Seldom


def test_the_first_passes_and_then_one_in_a_period() -> None:
    moments = iter([0.0, 1.0, 59.9, 60.0, 60.1, 120.0])
    seldom = Seldom(60.0, lambda: next(moments))
    assert [seldom.now() for _ in range(6)] == [True, False, False, True, False, True]


def test_what_had_ended_is_told_at_once_when_it_comes_back() -> None:
    seldom = Seldom(60.0, lambda: 1.0)
    assert seldom.now()
    assert not seldom.now()
    seldom.over()
    assert seldom.now()
