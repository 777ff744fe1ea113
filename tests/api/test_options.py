from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from tests.api.hand import Hand, steady

from millpond import (
    AttemptOutcome,
    BadConfig,
    BadPayload,
    ManualClock,
    Millpond,
    MillpondError,
    Task,
)


@pytest.fixture
def report(pond: Millpond) -> Task[[int], None, None]:
    @pond.task(queue="reports")
    def report(number: int) -> None: ...

    return report


def test_options_are_the_jobs_own(pond: Millpond, report: Task[[int], None, None]) -> None:
    ref = report.using(
        priority=10,
        queue="urgent",
        workload="critical",
        max_attempts=2,
        operation_id="payment-812",
        key="report:812",
        meta={"by": "ann"},
    ).enqueue(812)

    job = ref.job()
    assert (job.priority, job.queue, job.workload, job.max_attempts) == (
        10,
        "urgent",
        "critical",
        2,
    )
    assert job.operation_id == ref.operation_id == "payment-812"
    assert job.key == "report:812"
    assert job.meta == {"by": "ann"}


def test_timeout_and_lease_reach_the_worker(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    report.using(timeout="2s", lease=timedelta(seconds=3)).enqueue(1)

    claim = Hand(pond).claim()
    assert (claim.timeout_ms, claim.lease_ms) == (2_000, 3_000)


def test_no_timeout_can_be_asked_for(pond: Millpond) -> None:
    @pond.task(timeout=5)
    def slow() -> None: ...

    slow.using(timeout=None).enqueue()

    assert Hand(pond).claim().timeout_ms is None


def test_options_add_up_and_the_later_one_wins(report: Task[[int], None, None]) -> None:
    urgent = report.using(priority=10, key="a")

    job = urgent.using(key="b", delay=None).enqueue(1).job()

    assert (job.priority, job.key) == (10, "b")
    assert urgent.enqueue(1).job().key == "a"
    assert repr(urgent) == "report.using(priority=10, key='a')"


@pytest.mark.parametrize("delay", [30, 30.0, "30s", timedelta(seconds=30)])
def test_a_delayed_job_waits_to_the_millisecond(
    clock: ManualClock, report: Task[[int], None, None], delay: Any
) -> None:
    job = report.using(delay=delay).enqueue(1).job()

    assert job.state == "scheduled"
    assert job.due_at - job.created_at == timedelta(seconds=30)
    assert (job.lease, job.attempts) == (None, 0)


ZONES = [
    ZoneInfo("Asia/Kolkata"),
    ZoneInfo("America/St_Johns"),
    timezone(timedelta(hours=-9, minutes=-30)),
]


@pytest.mark.parametrize("zone", ZONES, ids=str)
def test_an_aware_moment_is_the_same_in_every_zone(
    report: Task[[int], None, None], zone: Any
) -> None:
    at = datetime(2024, 10, 27, 1, 30, 15, 123_000, tzinfo=UTC)

    job = report.using(at=at.astimezone(zone)).enqueue(1).job()

    assert job.due_at == at


def test_a_moment_between_two_milliseconds_is_never_early(report: Task[[int], None, None]) -> None:
    at = datetime(2024, 1, 1, 0, 0, 0, 123_001, tzinfo=UTC)

    assert report.using(at=at).enqueue(1).job().due_at.microsecond == 124_000


def test_the_hour_that_comes_twice_keeps_its_fold(report: Task[[int], None, None]) -> None:
    twice = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))

    first = report.using(at=twice).enqueue(1).job().due_at
    second = report.using(at=twice.replace(fold=1)).enqueue(1).job().due_at

    assert second - first == timedelta(hours=1)


def test_a_naive_moment_is_refused_with_what_to_write(report: Task[[int], None, None]) -> None:
    naive = datetime(2024, 10, 27, 1, 30)  # noqa: DTZ001  the case here

    with pytest.raises(BadConfig, match="no time zone") as refused:
        report.using(at=naive)
    assert "tzinfo=ZoneInfo(" in str(refused.value)


HOPELESS = [
    ({"priority": 2**63}, "priority"),
    ({"priority": 32_768}, "priority"),
    ({"priority": -32_769}, "priority"),
    ({"priority": "10"}, "priority"),
    ({"priority": True}, "priority"),
    ({"delay": 1e30}, "delay"),
    ({"delay": float("nan")}, "delay"),
    ({"delay": float("inf")}, "delay"),
    ({"delay": -1}, "delay"),
    ({"delay": timedelta.max}, "delay"),
    ({"delay": "soon"}, "delay"),
    ({"at": 1_700_000_000}, "at"),
    ({"at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))}, "at"),
    ({"at": datetime.max.replace(tzinfo=UTC)}, "at"),
    ({"max_attempts": 0}, "max_attempts"),
    ({"max_attempts": 2**64}, "max_attempts"),
    ({"timeout": 0}, "timeout"),
    ({"lease": 0.05}, "lease"),
    ({"queue": ""}, "queue"),
    ({"queue": "a/b"}, "queue"),
    ({"workload": 5}, "workload"),
    ({"key": ""}, "key"),
    ({"key": "x" * 513}, "key"),
    ({"key": "\ud800"}, "key"),
    ({"key": 5}, "key"),
    ({"key_ttl": 5}, "key_ttl"),
    ({"key": "k", "key_ttl": "never"}, "key_ttl"),
    ({"operation_id": ""}, "operation_id"),
    ({"coalesce": 7}, "coalesce"),
    ({"coalesce": "c", "coalesce_mode": "last"}, "coalesce_mode"),
    ({"coalesce_mode": "first"}, "coalesce"),
    ({"limit_key": "k"}, "limit"),
    ({"limit": 2}, "limit_key"),
    ({"limit_key": "k", "limit": 0}, "limit"),
    ({"serial_key": "k", "limit_key": "k", "limit": 1}, "serial_key"),
    ({"serial_key": "k", "limit": 1}, "serial_key"),
    ({"delay": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}, "exclude"),
    ({"meta": "text"}, "meta"),
    ({"meta": {"a": object()}}, r"meta\.a"),
    ({"meta": {"a": "x" * 20_000}}, "meta"),
    ({"tenant": "t7"}, "not available yet"),
    ({"reservation": object()}, "not available yet"),
    ({"dealy": 5}, r"did you mean delay=\?"),
    ({"wait": 5}, "no option"),
]


@pytest.mark.parametrize(
    ("options", "named"), HOPELESS, ids=[steady(case[0])[:60] for case in HOPELESS]
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    pond: Millpond, report: Task[[int], None, None], options: dict[str, Any], named: str
) -> None:
    with pytest.raises((BadConfig, BadPayload), match=named) as by_task:
        report.using(**options)
    with pytest.raises(type(by_task.value), match=re.escape(str(by_task.value))):
        pond.enqueue("report", {"number": 1}, **options)
    with pytest.raises(MillpondError), pond.batch() as batch:
        batch.add_by_name("report", {"number": 1}, **options)
    assert pond.jobs() == []


@pytest.mark.parametrize("priority", [-32_768, 32_767])
def test_the_widest_priorities_are_accepted(report: Task[[int], None, None], priority: int) -> None:
    assert report.using(priority=priority).enqueue(1).job().priority == priority


def test_the_longest_delay_is_accepted(report: Task[[int], None, None]) -> None:
    job = report.using(delay=timedelta(days=3650)).enqueue(1).job()
    assert job.due_at - job.created_at == timedelta(days=3650)


def test_a_moment_that_has_passed_is_due_at_once(report: Task[[int], None, None]) -> None:
    assert report.using(at=datetime(2, 1, 2, tzinfo=UTC)).enqueue(1).job().state == "ready"


def test_the_same_key_gives_the_same_job(report: Task[[int], None, None]) -> None:
    once = report.using(key="inv-77")

    first, second = once.enqueue(1), once.enqueue(2)

    assert (first.answer, second.answer) == ("admitted", "duplicate")
    assert second == first
    assert second.job().payload == {"number": 1}


def test_a_key_is_free_again_in_another_queue_and_after_a_failure(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    once = report.using(key="sync-shop-9")
    first = once.enqueue(1)
    hand = Hand(pond)

    assert once.using(queue="other").enqueue(1).answer == "admitted"
    claim = hand.claim()
    assert once.enqueue(1).answer == "duplicate"
    hand.settle(claim, AttemptOutcome.FAILED, reason="broken")
    again = once.enqueue(1)
    assert again.answer == "admitted"
    assert again.id != first.id


def test_a_key_holds_after_completion_for_its_time(
    pond: Millpond, clock: ManualClock, report: Task[[int], None, None]
) -> None:
    once = report.using(key="k", key_ttl="1h")
    first = once.enqueue(1)
    Hand(pond).complete()

    clock.advance(3_599)
    assert once.enqueue(1) == first
    clock.advance(1)
    assert once.enqueue(1).answer == "admitted"


@pytest.mark.parametrize(("mode", "kept"), [("latest", 2), ("first", 1)])
def test_requests_that_coalesce_become_one_job(
    pond: Millpond, report: Task[[int], None, None], mode: Any, kept: int
) -> None:
    dashboard = report.using(coalesce="dash:7", coalesce_mode=mode)

    first, second = dashboard.enqueue(1), dashboard.enqueue(2)

    assert second.answer == "coalesced"
    assert second == first
    assert first.job().payload == {"number": kept}
    Hand(pond).complete()
    assert dashboard.enqueue(3).answer == "admitted"


def test_coalescing_keeps_the_latest_unless_told_otherwise(
    report: Task[[int], None, None],
) -> None:
    refs = [report.using(coalesce="c").enqueue(number) for number in range(3)]
    assert refs[0].job().payload == {"number": 2}


def test_a_serial_key_runs_one_job_at_a_time(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    serial = report.using(serial_key="shop-9")
    refs = [serial.enqueue(1), serial.enqueue(2)]
    hand = Hand(pond)

    held = hand.claim()
    with pytest.raises(ValueError, match="unpack"):
        hand.claim()
    hand.settle(held, AttemptOutcome.COMPLETED)
    assert hand.claim().token.job_id == refs[1].id


def test_none_means_not_given(report: Task[[int], None, None]) -> None:
    nothing = dict.fromkeys(
        ["delay", "at", "priority", "queue", "key", "coalesce", "serial_key", "limit_key", "limit",
         "meta", "tx", "operation_id", "lease", "max_attempts"]
    )  # fmt: skip
    given, plain = report.using(**nothing), report.using()  # type: ignore[arg-type]
    assert given.template == plain.template


def test_a_limit_can_be_lifted(pond: Millpond, report: Task[[int], None, None]) -> None:
    hand = Hand(pond)
    report.using(limit_key="k", limit=1).enqueue(1)
    report.using(limit_key="k", limit=1).enqueue(2)
    hand.claim()

    report.using(limit_key="k", limit=None).enqueue(3)

    hand.claim()
    hand.claim()


def test_an_option_given_as_an_argument_is_told_where_it_goes(pond: Millpond) -> None:
    @pond.task
    def report(day: str) -> None: ...

    with pytest.raises(BadPayload, match=r"Options go apart: report\.using\(key=\.\.\.\)"):
        report.enqueue("monday", key="k")  # type: ignore[call-arg]
    assert pond.jobs() == []
