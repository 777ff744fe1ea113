from __future__ import annotations

from dataclasses import replace

import pytest

from millpond.cli.reasons import Scene, reasons
from millpond.cli.verdict import serves, verdict, warnings
from millpond.model import (
    JobId,
    JobRow,
    LaneCount,
    LeaseInfo,
    State,
    StatusSnapshot,
    WorkerId,
    WorkerRow,
)
from millpond.store.upkeep import QueueState

NOW = 1_700_000_000_000

LANE = LaneCount(
    queue="mail", workload="default", task="send", scheduled=0, ready=0, blocked=0, running=0,
    completed=0, failed=0, cancelled=0, retried=0, oldest_due_at=None, paused=False, served=True,
)  # fmt: skip
WORKER = WorkerRow(
    id=WorkerId(1), host="h", pid=7, version="1", slots=4, running=0, beat_at=NOW - 1_000,
    started_at=NOW, interval_ms=1_000, live=True, tasks=("send",), queues=(),
)  # fmt: skip
JOB = JobRow(
    id=JobId(5), task="send", queue="mail", workload="default", tenant=None, state=State.READY,
    priority=100, payload=None, meta=None, created_at=NOW - 5_000, due_at=NOW - 3_000,
    started_at=None, finished_at=None, attempts=0, crashes=0, max_attempts=5, lease=None,
    last_error=None, reason=None, operation_id="o", key=None, coalesce_key=None, limit_key=None,
    blocked_by=None, cancel_requested=False, result=None, progress=None, payload_bytes=2,
)  # fmt: skip


def snapshot(**more):
    plain = StatusSnapshot(
        at=NOW, lanes=[replace(LANE, ready=1)], workers=[WORKER], expired_leases=0,
        next_due_at=None, unserved_tasks=[], unserved_queues=[], workload_jobs={},
    )  # fmt: skip
    return replace(plain, **more)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (snapshot(), "all is well: 1 ready, 0 running, 1 live worker"),
        (snapshot(lanes=[LANE]), "all is done: nothing waits, 1 live worker"),
        (
            snapshot(lanes=[replace(LANE, scheduled=2)]),
            "nothing is due: 2 scheduled, 1 live worker",
        ),
        (snapshot(lanes=[], workers=[]), "no job was enqueued yet; 0 live workers"),
        (snapshot(expired_leases=2), "2 expired leases not recovered yet"),
        (snapshot(lanes=[replace(LANE, ready=3, paused=True)]), "mail is paused: 3 ready"),
        (snapshot(unserved_tasks=[("v2.export", 1)]), "no handler for v2.export: 1"),
    ],
)
def test_the_first_sentence_says_whether_all_is_well(now, said):
    assert verdict(now) == said


def test_a_misspelt_queue_is_named_with_the_one_that_was_meant_b36():
    worker = replace(WORKER, queues=("emails",))
    now = snapshot(workers=[worker], unserved_queues=[("emials", 1)])
    assert verdict(now) == "emials: 1 ready, 0 workers serve it (did you mean emails?)"


def test_without_any_worker_queues_are_named_and_not_every_task_of_them():
    dead = replace(WORKER, live=False)
    now = snapshot(workers=[dead], unserved_queues=[("mail", 3)], unserved_tasks=[("send", 3)])
    assert warnings(now) == ["mail: 3 ready, 0 workers serve it"]


def test_many_troubles_are_counted_rather_than_listed():
    now = snapshot(unserved_tasks=[(f"t{n}", 1) for n in range(7)])
    assert verdict(now).endswith("; and 4 more")


@pytest.mark.parametrize(
    ("queues", "queue", "workload", "does"),
    [
        ((), "mail", None, True),
        (("mail",), "mail", "user", True),
        (("reports",), "mail", None, False),
        (("mail/user",), "mail", "user", True),
        (("mail/user",), "mail", "routine", False),
        (("mail/user",), "mail", None, True),
    ],
)
def test_a_worker_serves_what_it_was_told_to(queues, queue, workload, does):
    assert serves(replace(WORKER, queues=queues), queue, workload) is does


def why(job=JOB, queues=None, holders=(), **more):
    known = {"mail": QueueState("mail", False, None)} if queues is None else queues
    return reasons(Scene(job, snapshot(**more), known, holders))


def codes(found):
    return [reason.code for reason in found]


def test_a_ready_job_that_nothing_hinders_waits_for_its_turn():
    assert codes(why()) == ["in_line"]


def test_a_ready_job_waits_for_a_slot_when_all_are_busy():
    (reason,) = why(workers=[replace(WORKER, running=4)], lanes=[replace(LANE, ready=9)])
    assert reason.code == "slots_busy"
    assert "8 other ready jobs" in reason.text
    assert "4 jobs in 4 slots" in reason.text


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({"workers": []}, "no_worker", "no worker is live"),
        ({"workers": [replace(WORKER, live=False, beat_at=NOW - 60_000)]}, "no_worker", "60 s ago"),
        ({"workers": [replace(WORKER, tasks=("x",))]}, "no_handler", "knows task send"),
        ({"workers": [replace(WORKER, queues=("x",))]}, "queue_not_served", "they serve x"),
    ],
)
def test_a_job_that_nobody_takes_says_who_is_missing(more, code, said):
    (reason,) = why(**more)
    assert reason.code == code
    assert said in reason.text


def test_a_paused_queue_comes_before_all_other_reasons():
    found = why(queues={"mail": QueueState("mail", True, None)}, workers=[])
    assert codes(found) == ["paused", "no_worker"]


def test_a_limit_key_names_the_jobs_that_hold_it():
    holder = replace(JOB, id=JobId(9), state=State.RUNNING, limit_key="api")
    job = replace(JOB, limit_key="api", blocked_by="limit api")
    (reason,) = why(job, holders=[holder])
    assert reason.code == "limit"
    assert "limit key api" in reason.text
    assert "1 job of it running (9)" in reason.text


def test_a_full_queue_says_how_many_it_runs():
    limited = {"mail": QueueState("mail", False, 2)}
    (reason,) = why(queues=limited, lanes=[replace(LANE, ready=1, running=2)])
    assert reason.code == "queue_running"
    assert "2 of at most 2" in reason.text


def test_a_job_that_is_not_due_says_until_when_and_what_would_hinder_it_then():
    job = replace(JOB, state=State.SCHEDULED, due_at=NOW + 5_000, attempts=1, last_error="E: x")
    found = why(job, workers=[])
    assert codes(found) == ["not_due", "no_worker"]
    assert "2023-11-14T22:13:25.000Z, in 5.0 s" in found[0].text
    assert "attempt 1 of 5 did not succeed (E: x)" in found[0].text


def test_a_running_job_says_where_and_whether_its_lease_still_holds():
    lease = LeaseInfo(WorkerId(1), "h:7", 3, NOW - 2_000)
    job = replace(JOB, state=State.RUNNING, started_at=NOW - 9_000, attempts=2, lease=lease)
    found = why(replace(job, cancel_requested=True))
    assert codes(found) == ["running", "cancel_requested", "lease_expired"]
    assert "9.0 s on h:7 (attempt 2 of 5)" in found[0].text


LATE = replace(
    WORKER, beat_at=NOW - 46_000, interval_ms=15_000, running=1, late=True,
    lease_ends_at=NOW + 14_000,
)  # fmt: skip
LEASE = LeaseInfo(WorkerId(1), "h:7", 3, NOW + 14_000)
RUNNING = replace(JOB, state=State.RUNNING, started_at=NOW - 9_000, attempts=2, lease=LEASE)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (RUNNING, "the job goes to another in about 14 s"),
        (replace(RUNNING, attempts=5), "its last attempt ends in about 14 s"),
        (
            replace(RUNNING, lease=replace(LEASE, expires_at=None)),
            "the job is taken from it when its lease has ended",
        ),
    ],
)
def test_a_job_whose_worker_is_late_says_when_another_takes_it(job, said):
    found = why(job, workers=[LATE])
    assert codes(found) == ["running", "worker_silent"]
    start = "its worker has not been heard of for 46 s (it beats every 15 s): "
    assert found[1].text == start + said


def test_a_job_of_another_worker_says_nothing_of_the_late_one():
    other = replace(LEASE, worker=WorkerId(2), owner="h:8")
    assert codes(why(replace(RUNNING, lease=other), workers=[LATE])) == ["running"]


@pytest.mark.parametrize(("held", "said"), [(1, "its job goes"), (3, "its 3 jobs go")])
def test_all_is_not_well_while_a_worker_with_jobs_is_late(held, said):
    now = snapshot(workers=[replace(LATE, running=held)])
    assert verdict(now) == (
        f"worker h:7 has not been heard of for 46 s: {said} to others in about 14 s"
    )


@pytest.mark.parametrize(
    "worker",
    [
        WORKER,
        replace(LATE, running=0, lease_ends_at=None),
        replace(LATE, lease_ends_at=NOW),
    ],
)
def test_a_worker_that_holds_nothing_or_whose_leases_have_ended_is_no_news_by_itself(worker):
    assert warnings(snapshot(workers=[worker])) == []


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED])
def test_a_final_job_says_how_it_ended(state):
    job = replace(JOB, state=state, finished_at=NOW, attempts=1, last_error="E: x")
    (reason,) = why(job)
    assert reason.code == state.value
    assert "will not run again" in reason.text
    assert ("E: x" in reason.text) is (state is not State.COMPLETED)
