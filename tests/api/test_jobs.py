from __future__ import annotations

import json
import sqlite3
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta

import pytest
from tests.api.hand import Hand

from millpond import (
    AttemptOutcome,
    BadConfig,
    BadPayload,
    JobNotFound,
    Lease,
    ManualClock,
    Millpond,
    Progress,
    State,
    Task,
)


@pytest.fixture
def report(pond: Millpond) -> Task[[int], None, None]:
    @pond.task(queue="reports")
    def report(number: int) -> None: ...

    return report


def test_a_snapshot_is_frozen_and_its_times_are_aware(
    clock: ManualClock, report: Task[[int], None, None]
) -> None:
    clock.jump(0.123)
    job = report.enqueue(1).job()

    assert job.created_at == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert job.created_at.tzinfo is UTC
    with pytest.raises(FrozenInstanceError):
        job.state = State.FAILED  # type: ignore[misc]


def test_a_running_job_shows_its_lease_and_no_other_does(
    pond: Millpond, clock: ManualClock, report: Task[[int], None, None]
) -> None:
    ref = report.enqueue(1)
    hand = Hand(pond)
    claim = hand.claim()

    job = ref.job()
    assert job.state == "running"
    assert isinstance(job.lease, Lease)
    assert job.lease.claim == claim.token.claim
    assert job.lease.expires_at == job.created_at + timedelta(milliseconds=claim.lease_ms)
    assert job.attempts == 1
    hand.settle(claim, AttemptOutcome.COMPLETED)
    assert ref.job().lease is None
    assert ref.job().final
    assert ref.job().finished_at == job.created_at


def test_json_has_rfc_3339_times_with_milliseconds(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    ref = report.using(meta={"by": "ann"}, key="k").enqueue(7)
    hand = Hand(pond)
    claim = hand.claim()
    hand.progress(claim.token, b'{"done":1,"total":4,"text":"quarter"}')

    shown = ref.job().to_json()

    assert json.loads(json.dumps(shown)) == shown
    assert shown["created_at"] == "2023-11-14T22:13:20.000Z"
    assert shown["finished_at"] is None
    assert (shown["state"], shown["payload"]) == ("running", {"number": 7})
    assert (shown["meta"], shown["key"]) == ({"by": "ann"}, "k")
    assert shown["lease"]["expires_at"] == "2023-11-14T22:14:20.000Z"
    assert shown["progress"] == {"done": 1, "total": 4, "text": "quarter"}
    hand.settle(claim, AttemptOutcome.COMPLETED, result=b"[1,2]")
    assert ref.job().to_json()["result"] == [1, 2]


def test_json_has_every_field_of_the_contract(report: Task[[int], None, None]) -> None:
    contract = {
        *("id", "task", "queue", "workload", "tenant", "state", "priority", "payload", "meta"),
        *("created_at", "due_at", "started_at", "finished_at", "attempts", "max_attempts"),
        *("lease", "last_error", "operation_id", "key", "result", "progress"),
    }
    job = report.enqueue(1).job()
    assert contract <= set(job.to_json())
    assert all(hasattr(job, name) for name in contract)


def test_progress_is_the_latest_that_the_handler_told(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    ref = report.enqueue(1)
    assert ref.job().progress is None
    hand = Hand(pond)
    context, _ = hand.context(hand.claim())

    context.progress(10, 100, "loading")
    context.progress(20, 100)

    assert ref.job().progress == Progress(20, 100, None)


def test_a_list_is_newest_first_and_leaves_bodies_out(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    refs = [report.enqueue(number) for number in range(5)]

    jobs = pond.jobs()

    assert [job.id for job in jobs] == [ref.id for ref in reversed(refs)]
    assert {job.payload for job in jobs} == {None}
    assert jobs[0].payload_bytes == len('{"number":4}')


def test_a_list_is_paged_by_the_last_id_seen(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    refs = [report.enqueue(number) for number in range(5)]

    first = pond.jobs(limit=3)
    rest = pond.jobs(limit=3, before=first[-1].id)

    assert [job.id for job in [*first, *rest]] == [ref.id for ref in reversed(refs)]


def test_lists_narrow_by_what_is_asked(pond: Millpond, report: Task[[int], None, None]) -> None:
    @pond.task
    def other() -> None: ...

    late = report.using(delay=5).enqueue(1)
    now = report.using(key="k", workload="user").enqueue(2)
    else_ = other.enqueue()

    def found(**where: object) -> set[int]:
        return {job.id for job in pond.jobs(**where)}  # type: ignore[arg-type]

    assert found(state="scheduled") == found(state=State.SCHEDULED) == {late.id}
    assert found(queue="reports") == {late.id, now.id}
    assert found(task="other") == {else_.id}
    assert found(key="k") == found(workload="user") == {now.id}
    assert found(operation_id=late.operation_id) == {late.id}
    assert found(queue="reports", state="ready") == {now.id}


@pytest.mark.parametrize(
    "where", [{"state": "pending"}, {"limit": 0}, {"limit": 10**9}, {"state": 5}], ids=str
)
def test_a_list_that_cannot_be_is_refused(pond: Millpond, where: dict[str, object]) -> None:
    with pytest.raises(BadConfig, match=next(iter(where))):
        pond.jobs(**where)  # type: ignore[arg-type]


@pytest.mark.parametrize("absent", [5, 0, -1, 2**63, 2**70, 10**5000], ids=lambda n: n.bit_length())
def test_an_id_without_a_job_is_an_error_and_never_pending(pond: Millpond, absent: int) -> None:
    for call in (pond.get, pond.attempts, pond.cancel):
        with pytest.raises(JobNotFound, match="there is no job"):
            call(absent)


def test_an_id_that_is_no_integer_is_a_mistake(pond: Millpond) -> None:
    for wrong in ("12", True, None, 1.0):
        with pytest.raises(TypeError, match="a job id is an integer"):
            pond.get(wrong)  # type: ignore[arg-type]


def test_the_history_has_one_entry_an_attempt(
    pond: Millpond, clock: ManualClock, report: Task[[int], None, None]
) -> None:
    ref = report.enqueue(1)
    hand = Hand(pond)
    claim = hand.claim()
    clock.advance(2)
    hand.settle(claim, AttemptOutcome.RETRIED, error_type="OSError", message="gone", delay_ms=5_000)
    clock.advance(5)
    hand.complete()

    first, second = pond.attempts(ref.id)

    assert (first.number, first.outcome, first.message) == (1, "retried", "gone")
    assert (second.number, second.outcome, second.error_type) == (2, "completed", None)
    assert second.claimed_at - first.claimed_at == timedelta(seconds=7)
    shown = first.to_json()
    assert shown["outcome"] == "retried"
    assert shown["ended_at"] == "2023-11-14T22:13:22.000Z"
    assert json.loads(json.dumps(shown)) == shown


def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_is_asked(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    waiting, running = report.enqueue(1), report.using(priority=1).enqueue(2)
    hand = Hand(pond)
    claim = hand.claim()

    assert pond.cancel(waiting.id, by="ann", note="not needed") == "ready"
    assert pond.cancel(running.id) == "running"

    assert waiting.job().state == "cancelled"
    assert running.job().state == "running"
    assert running.job().cancel_requested
    hand.settle(claim, AttemptOutcome.COMPLETED)
    assert pond.cancel(running.id) == "completed"


def test_a_paused_queue_accepts_and_does_not_start(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    ref = report.enqueue(1)
    pond.pause("reports", by="ann")
    report.enqueue(2)
    hand = Hand(pond)
    batch = pond.store.claim(hand.number, [], ("report",), 1).result()
    assert batch.claims == []

    pond.resume("reports")

    assert hand.claim().token.job_id == ref.id


def test_a_queue_is_paused_before_its_first_job(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    pond.queue("mail")
    pond.pause("reports")
    pond.pause("mail")
    report.enqueue(1)
    batch = pond.store.claim(Hand(pond).number, [], ("report",), 1).result()
    assert batch.claims == []
    pond.resume("mail")


def test_an_unknown_queue_cannot_be_paused(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="there is no queue 'emials'"):
        pond.pause("emials")


def test_status_counts_by_queue_and_state(
    pond: Millpond, clock: ManualClock, report: Task[[int], None, None]
) -> None:
    for number in range(3):
        report.enqueue(number)
    report.using(delay=60).enqueue(4)
    hand = Hand(pond)
    hand.complete()
    hand.claim()

    status = pond.status()

    assert status.queues["reports"] == {
        "scheduled": 1, "ready": 1, "running": 1, "completed": 1, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    assert status.counts == status.queues["reports"]
    assert status.outstanding == 3
    assert status.at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert status.next_due_at == status.at + timedelta(seconds=60)
    shown = status.to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert shown["queues"]["reports"]["ready"] == 1
    assert shown["next_due_at"] == "2023-11-14T22:14:20.000Z"


def test_what_cannot_be_decoded_is_still_shown(file_pond: Millpond) -> None:
    @file_pond.task
    def report() -> None: ...

    ref = report.enqueue()
    with sqlite3.connect(file_pond.url) as conn:
        conn.execute("UPDATE millpond_job SET payload = x'7b22ff'")
    conn.close()

    job = ref.job()
    assert job.to_json()["payload"] == '{"\\xff'
    with pytest.raises(BadPayload, match="payload"):
        _ = job.payload


def test_reconcile_and_verify_find_nothing_wrong(
    pond: Millpond, report: Task[[int], None, None]
) -> None:
    report.enqueue(1)
    assert pond.reconcile() == []
    assert pond.reconcile(repair=True) == []
    assert pond.verify() == []
