from __future__ import annotations

from typing import Any

import pytest

from millpond.errors import BadConfig
from millpond.policy.pressure import PressureSettings


def test_the_defaults_are_those_that_are_documented() -> None:
    settings = PressureSettings()
    assert (settings.elevated, settings.critical) == (0.70, 0.90)
    assert (settings.elevated_exit, settings.critical_exit) == (0.60, 0.75)
    assert (settings.elevated_dwell_ms, settings.critical_dwell_ms) == (30_000, 60_000)
    assert (settings.elevated_age, settings.critical_age) == (0.5, 1.0)
    assert (settings.hold_ms, settings.settle_ms) == (5_000, 10_000)
    assert not settings.dry_run


@pytest.mark.parametrize(
    "wrong",
    [
        {"elevated": 0}, {"elevated": 1.1}, {"elevated": "70%"}, {"elevated": True},
        {"critical": float("nan")}, {"elevated": 0.95}, {"elevated_exit": 0.7},
        {"critical_exit": 0.9}, {"critical_exit": 0.6}, {"elevated_age": 1.0},
        {"hold_ms": -1}, {"hold_ms": 1.5}, {"settle_ms": 86_400_001}, {"dry_run": 1},
        {"line_free": 0.7}, {"line_goal": 0.9}, {"age_exit": 0},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match=f"pressure.*{next(iter(wrong))}|{next(iter(wrong))}.*must"):
        PressureSettings(**wrong)


def test_settings_come_back_as_they_were_stored() -> None:
    settings = PressureSettings(elevated=0.5, critical=1, elevated_exit=0.3, dry_run=True)
    assert PressureSettings.from_json(settings.to_json()) == settings
    assert PressureSettings.from_json(None) == PressureSettings()


def test_equal_settings_give_equal_text() -> None:
    assert PressureSettings(critical=1).to_json() == PressureSettings(critical=1.0).to_json()


def test_what_a_newer_version_stored_does_not_stop_this_one() -> None:
    assert PressureSettings.from_json('{"later": 1, "elevated": 0.5, "elevated_exit": 0.4}') == (
        PressureSettings(elevated=0.5, elevated_exit=0.4)
    )
    assert PressureSettings.from_json('{"elevated": 7}') == PressureSettings()
