from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.policy.causes import Cause
from millpond.policy.effects import (
    Effect,
    Gate,
    Verdict,
    above,
    deadline_ms,
    effect_of,
    restricted,
    verdict,
)
from millpond.policy.modes import Mode

HARDNESS = list(Verdict)


@pytest.mark.parametrize(
    ("effect", "normal", "elevated", "critical"),
    [
        ("critical", "open", "open", "open"),
        ("user", "open", "open", "line"),
        ("routine", "open", "line", "closed"),
        ("sheddable", "open", "closed", "closed"),
    ],
)
def test_every_class_has_its_answer_in_every_mode(
    effect: str, normal: str, elevated: str, critical: str
) -> None:
    for mode, answer in zip(Mode, (normal, elevated, critical), strict=True):
        assert verdict(Effect(effect), mode, Cause.SPIKE) is Verdict(answer)


@pytest.mark.parametrize("cause", Cause)
def test_only_overload_that_lasts_slows_in_normal_mode_what_can_wait(cause: Cause) -> None:
    lasts = cause is Cause.SUSTAINED
    for effect in (Effect.ROUTINE, Effect.SHEDDABLE):
        says = verdict(effect, Mode.NORMAL, cause)
        assert says is (Verdict.LINE if lasts else Verdict.OPEN)
    for effect in (Effect.CRITICAL, Effect.USER):
        assert verdict(effect, Mode.NORMAL, cause) is Verdict.OPEN


def test_a_higher_mode_is_never_kinder_nor_to_a_lower_class() -> None:
    for cause, mode, effect in itertools.product(Cause, Mode, Effect):
        mine = HARDNESS.index(verdict(effect, mode, cause))
        for other in Mode:
            if other.level > mode.level:
                assert HARDNESS.index(verdict(effect, other, cause)) >= mine
        for higher in Effect:
            if above(higher, effect):
                assert HARDNESS.index(verdict(higher, mode, cause)) <= mine


@given(st.text(max_size=20))
def test_a_name_says_the_class_and_any_other_is_routine(name: str) -> None:
    assert effect_of(name) is (Effect(name) if name in set(Effect) else Effect.ROUTINE)


def test_the_deadlines_are_those_that_are_documented() -> None:
    assert [deadline_ms(each) for each in Effect] == [30_000, 300_000, 3_600_000, None]


def test_a_refusal_names_the_mode() -> None:
    assert Gate(Verdict.CLOSED, mode=Mode.CRITICAL).reason == "mode_critical"
    assert Gate(Verdict.LINE, mode=Mode.ELEVATED).reason == "mode_elevated"
    assert Gate(Verdict.LINE, mode=Mode.NORMAL, cause=Cause.SUSTAINED).reason == "mode_elevated"


def test_modes_keep_room_only_where_other_work_matters_more() -> None:
    effects = {name: effect_of(name) for name in ("critical", "user", "default", "sheddable")}
    assert restricted(effects, ()) == {"user", "default", "sheddable"}
    assert restricted({"default": Effect.ROUTINE}, ()) == frozenset()
    assert restricted({"default": Effect.ROUTINE, "other": Effect.ROUTINE}, ()) == frozenset()
    assert restricted({"default": Effect.ROUTINE}, {"default"}) == {"default"}


def test_a_gate_lets_in_by_its_verdict() -> None:
    assert Gate(Verdict.OPEN).lets_in(10**6)
    assert not Gate(Verdict.CLOSED, grants=5).lets_in(1)
    assert Gate(Verdict.LINE, grants=5).lets_in(5)
    assert not Gate(Verdict.LINE, grants=5).lets_in(6)
    assert Gate(Verdict.LINE, grants=5, full=True).lets_in(500)
