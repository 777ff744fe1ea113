from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import QueueSettings, TaskSettings, WorkloadSettings
from millpond.errors import BadConfig
from millpond.policy.backoff import Backoff

names = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], exclude_characters="/:,"),
    min_size=1,
    max_size=200,
).filter(lambda name: name == name.strip())
lengths = st.integers(0, 10**11)

tasks = st.builds(
    TaskSettings,
    name=names,
    queue=names,
    workload=names,
    priority=st.integers(-32_768, 32_767),
    max_attempts=st.integers(1, 10**6),
    retry=st.builds(Backoff, base=st.one_of(st.integers(0, 100), st.floats(0, 100))),
    timeout_ms=st.none() | st.integers(1, 10**11),
    lease_ms=st.integers(100, 10**11),
    lossless=st.booleans(),
    key_ttl_ms=lengths,
    result_ttl_ms=lengths,
    max_age_ms=st.integers(1, 10**11),
    unknown_task_after_ms=lengths,
    resources=st.lists(names, unique=True, max_size=3).map(tuple),
    running=st.none() | st.integers(1, 10**6),
)


@given(tasks)
def test_stored_settings_are_the_settings(task: TaskSettings) -> None:
    assert TaskSettings.from_json(task.to_json()) == task


@given(tasks, tasks)
def test_texts_are_equal_exactly_when_the_settings_are(
    one: TaskSettings, other: TaskSettings
) -> None:
    assert (one.to_json() == other.to_json()) == (one == other)


def test_a_rule_in_integers_is_stored_like_the_same_rule_in_floats() -> None:
    whole = TaskSettings("a", retry=Backoff(base=5, cap=60))
    parts = TaskSettings("a", retry=Backoff(base=5.0, cap=60.0))
    assert whole.to_json() == parts.to_json()


def test_settings_of_a_newer_version_are_read_as_far_as_they_are_known() -> None:
    stored = json.loads(TaskSettings("a", lease_ms=9_000).to_json())
    stored |= {"colour": "red", "isolation": "fiber", "retry": {"base": 7.0, "jitter": "wavy"}}
    assert TaskSettings.from_json(json.dumps(stored)) == TaskSettings("a", lease_ms=9_000)


def test_settings_of_an_older_version_get_the_defaults_of_this_one() -> None:
    assert TaskSettings.from_json('{"name":"a"}') == TaskSettings("a")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("queue", "a/b"),
        ("workload", ""),
        ("priority", 2**63),
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 2.0),
        ("max_attempts", True),
        ("max_attempts", 1 << 63),
        ("lease_ms", 99),
        ("lease_ms", 10**15),
        ("timeout_ms", 0),
        ("timeout_ms", 1.5),
        ("retry", 5),
        ("isolation", "greenlet"),
        ("lossless", 1),
        ("key_ttl_ms", -1),
        ("result_ttl_ms", None),
        ("max_age_ms", 0),
        ("unknown_task_after_ms", "1h"),
        ("resources", ["api"]),
        ("resources", ("api", "api")),
        ("resources", ("a:b",)),
        ("running", 0),
    ],
)
def test_a_task_that_cannot_work_is_refused_with_its_name_and_the_setting(
    setting: str, value: Any
) -> None:
    with pytest.raises(BadConfig, match=rf"^task 'send': {setting} is .*: it must be "):
        TaskSettings("send", **{setting: value})


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "x" * 201, "a/b", "a:b", "a,b", "a\nb", "a\x00", "\ud800", None, 5]
)
def test_a_name_that_a_command_could_not_carry_is_refused(name: Any) -> None:
    for kind in (TaskSettings, QueueSettings, WorkloadSettings):
        with pytest.raises(BadConfig, match=r"^the name of a "):
            kind(name)


@given(names)
def test_any_other_text_is_a_name(name: str) -> None:
    assert TaskSettings(name).name == QueueSettings(name).name == WorkloadSettings(name).name


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: QueueSettings("a", order="fair"), "'fair' is not available yet"),  # type: ignore[arg-type]
        (lambda: QueueSettings("a", full="delay"), "'delay' is not available yet"),  # type: ignore[arg-type]
        (lambda: WorkloadSettings("a", full="shed"), "'shed' is not available yet"),  # type: ignore[arg-type]
    ],
)
def test_what_is_planned_is_refused_as_not_available_yet(make: Any, match: str) -> None:
    with pytest.raises(BadConfig, match=match):
        make()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_jobs", -1),
        ("max_bytes", "1GiB"),
        ("order", "random"),
        ("ageing_ms", 0),
        ("full", "explode"),
        ("running", 0),
    ],
)
def test_a_queue_that_cannot_work_is_refused_with_its_name_and_the_setting(
    setting: str, value: Any
) -> None:
    with pytest.raises(BadConfig, match=rf"^queue 'reports': {setting} is "):
        QueueSettings("reports", **{setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("reserved", -1),
        ("reserved_bytes", 1.0),
        ("max_jobs", -1),
        ("max_bytes", True),
        ("weight", 0),
        ("strict", "yes"),
        ("full", "explode"),
        ("borrow", None),
        ("running", 0),
    ],
)
def test_a_workload_that_cannot_work_is_refused_with_its_name_and_the_setting(
    setting: str, value: Any
) -> None:
    with pytest.raises(BadConfig, match=rf"^workload 'user': {setting} is "):
        WorkloadSettings("user", **{setting: value})


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_reserves_fit_the_limit_of_their_queue_or_are_refused_with_both_numbers(
    one: int, other: int, limit: int
) -> None:
    workloads = (WorkloadSettings("a", reserved=one), WorkloadSettings("b", reserved=other))
    if one + other <= limit:
        QueueSettings("q", max_jobs=limit, workloads=workloads)
        return
    with pytest.raises(BadConfig, match=rf"is {one + other}, more than max_jobs, {limit}:"):
        QueueSettings("q", max_jobs=limit, workloads=workloads)


def test_reserved_bytes_fit_the_limits_too() -> None:
    with pytest.raises(BadConfig, match="reserved_bytes is 9, more than max_bytes, 8"):
        WorkloadSettings("a", reserved_bytes=9, max_bytes=8)
    with pytest.raises(BadConfig, match="reserved_bytes is 9, more than max_bytes, 8"):
        QueueSettings("q", max_bytes=8, workloads=(WorkloadSettings("a", reserved_bytes=9),))


def test_two_workloads_of_one_name_are_refused() -> None:
    with pytest.raises(BadConfig, match="without repetitions"):
        QueueSettings("q", workloads=(WorkloadSettings("a"), WorkloadSettings("a")))


def test_only_a_workload_named_critical_is_strict_by_itself() -> None:
    assert WorkloadSettings("critical").is_strict
    assert not WorkloadSettings("user").is_strict
    assert not WorkloadSettings("critical", strict=False).is_strict
    assert WorkloadSettings("user", strict=True).is_strict


def test_a_queue_is_declared_in_the_words_of_the_public_call() -> None:
    queue = QueueSettings.declared(
        "reports",
        {
            "max_jobs": 50_000,
            "max_bytes": "2GiB",
            "order": "ageing",
            "ageing": "30s",
            "full": "reject",
            "workloads": {
                "critical": {"reserved": 5_000},
                "user": {"reserved": 15_000, "weight": 3, "reserved_bytes": "1MiB"},
                "routine": {"max_jobs": 30_000, "borrow": False},
            },
        },
    )
    assert queue == QueueSettings(
        "reports",
        max_jobs=50_000,
        max_bytes=2 << 30,
        order="ageing",
        ageing_ms=30_000,
        workloads=(
            WorkloadSettings("critical", reserved=5_000),
            WorkloadSettings("user", reserved=15_000, weight=3, reserved_bytes=1 << 20),
            WorkloadSettings("routine", max_jobs=30_000, borrow=False),
        ),
    )
    assert queue.workload("user").weight == 3
    assert queue.workload("other") == WorkloadSettings("other")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_job": 5}, "^queue 'q': there is no option 'max_job': did you mean 'max_jobs'"),
        ({"zzz": 5}, "there are ageing, full, max_bytes"),
        ({"workloads": {"a": {"weigth": 2}}}, "workload 'a': .*did you mean 'weight'"),
        ({"workloads": ["a"]}, "workloads is .*a mapping from names"),
        ({"workloads": {"a": 5}}, r"workloads\['a'\] is 5"),
        ({"max_bytes": "many"}, "^queue 'q': max_bytes is 'many'"),
    ],
)
def test_an_option_there_is_not_is_refused_with_the_closest_one(
    options: dict[str, Any], match: str
) -> None:
    with pytest.raises(BadConfig, match=match):
        QueueSettings.declared("q", options)


def test_thresholds_and_classes_are_options_of_a_queue() -> None:
    given = {
        "pressure": {"elevated": 0.8, "critical_dwell": "2m", "dry_run": True},
        "workloads": {"nightly": {"effect": "sheddable", "deadline": "8h"}, "user": {}},
    }
    queue = QueueSettings.declared("reports", given)
    assert queue.pressure.elevated == 0.8
    assert queue.pressure.critical_dwell_ms == 120_000
    assert queue.pressure.dry_run
    nightly, user = queue.workload("nightly"), queue.workload("user")
    assert (nightly.has_effect.value, nightly.has_deadline_ms) == ("sheddable", 28_800_000)
    assert (user.has_effect.value, user.has_deadline_ms) == ("user", 300_000)
    assert WorkloadSettings("user", deadline_ms=0).has_deadline_ms is None
