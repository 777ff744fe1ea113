"""Failures by kind of error, and searches of a set that does not grow (R20)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from tests.store.kit import LEASE_MS, Bench, specs

from millpond.model import AttemptOutcome, JobFilter, JobId, Pin, State
from millpond.policy.fingerprint import fingerprint
from millpond.store.sqlite import review, search

OUT = AttemptOutcome
FINAL = (State.COMPLETED, State.FAILED, State.CANCELLED)
WAITING = (State.SCHEDULED, State.READY, State.RUNNING)


def fail(bench: Bench, message: str, task: str = "mail", queue: str = "default") -> JobId:
    """Return a job that failed for good."""
    job = bench.job(task=task, queue=queue, max_attempts=1)
    keeper = bench.keeper(task)
    kind = fingerprint(task, "ValueError", message, "handler")
    keeper.end(keeper.one(), OUT.FAILED, error_type="ValueError", message=message, fingerprint=kind)
    return job


def test_failures_of_one_kind_are_one_group_whatever_varies_in_their_messages(bench: Bench):
    jobs = [fail(bench, f"order {n} not found") for n in range(3)]
    start = bench.clock.now()
    bench.clock.advance(60)
    jobs.append(fail(bench, "order 9 not found", queue="bulk"))
    other = fail(bench, "no such host")
    third = fail(bench, "order 3 not found", task="bill")
    found = bench.store.failures()
    assert (found.counted, found.complete, found.more) == (6, True, 0)
    first, *rest = found.groups
    assert (first.task, first.count, first.queues) == ("mail", 4, ("bulk", "default"))
    assert (first.first_at, first.last_at) == (start, bench.clock.now())
    assert (first.error_type, first.message) == ("ValueError", "order 9 not found")
    assert first.samples[0] == jobs[-1]
    assert set(first.samples) <= set(jobs)
    assert {group.samples for group in rest} == {(other,), (third,)}


def test_only_failed_jobs_are_failures(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3))
    claims = keeper.claim(3)
    for claim, end in zip(claims, (OUT.COMPLETED, OUT.CANCELLED, OUT.RETRIED), strict=True):
        keeper.end(claim, end, delay_ms=1)
    assert bench.store.failures().groups == ()


def test_a_requeued_job_is_no_failure_any_more(bench: Bench):
    job = fail(bench, "x")
    bench.store.requeue([review.Requeue(job)]).result()
    assert bench.store.failures().counted == 0


@pytest.mark.parametrize("end", ["lease", "crash", "unserved", "handler"])
def test_every_failed_job_has_a_kind_also_where_no_handler_raised(bench: Bench, end: str):
    keeper = bench.keeper()
    for job in bench.put(*specs(2, max_attempts=1)):
        assert job
        if end == "unserved":
            continue
        claim = keeper.one()
        if end == "lease":
            bench.clock.advance(ms=LEASE_MS)
            bench.store.recover(limit=5).result()
        elif end == "crash":
            keeper.end(claim, OUT.CRASHED, signal=9, reason="worker died (signal 9)")
        else:
            keeper.end(claim, OUT.FAILED, reason="bad_payload")
    if end == "unserved":
        bench.store.unregister(keeper.id).result()
        bench.clock.advance(2 * 86_400)
        bench.store.expire_unserved(10).result()
    (group,) = bench.store.failures().groups
    assert group.count == 2
    assert group.fingerprint
    assert group.message or group.reason
    found = bench.store.find(JobFilter(state=State.FAILED, fingerprint=group.fingerprint))
    assert len(found) == 2


def test_the_smallest_groups_are_counted_when_they_are_left_out(bench: Bench):
    for size, message in ((1, "aa"), (3, "bb"), (2, "cc")):
        for _ in range(size):
            fail(bench, message)
    found = bench.store.failures(limit=2)
    assert [group.count for group in found.groups] == [3, 2]
    assert (found.counted, found.more) == (6, 1)


def test_it_says_when_it_stopped_before_the_oldest(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(review, "FAILURES_SCANNED", 2)
    for at, message in enumerate(("oldest", "middle", "newest")):
        fail(bench, message)
        bench.clock.advance(1)
        if at == 1:
            assert bench.store.failures().complete
    found = bench.store.failures()
    assert not found.complete
    assert {group.message for group in found.groups} == {"middle", "newest"}


# --- searches -----------------------------------------------------------------------------------


def every(
    bench: Bench, states: Collection[State], pin: Pin | None = None, **where: Any
) -> list[JobId]:
    """Walk a whole search."""
    pin = pin or bench.store.pin()
    found: list[JobId] = []
    after = None
    for _ in range(1_000):
        step = bench.store.search(JobFilter(**where), states, pin, after)
        found += step.ids
        after = step.after
        if after is None:
            return found
    raise AssertionError("a search without an end")


@pytest.fixture(params=[1, 2, 3, 1_000])
def scan(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(search, "SCAN", request.param)
    return int(request.param)


@pytest.fixture
def zoo(bench: Bench, scan: int) -> dict[str, list[JobId]]:
    """Jobs in every place, some of them of other names."""
    keeper, found = bench.keeper("mail", "bill"), {}
    found["failed"] = [fail(bench, f"timeout {n}", queue="ab"[n % 2]) for n in range(4)]
    found["odd"] = [fail(bench, "Refused", task="bill", queue="a")]
    found["cancelled"] = bench.put(*specs(2, tenant="t"))
    bench.store.cancel_many(found["cancelled"]).result()
    found["completed"] = bench.put(*specs(3, workload="critical"))
    for claim in keeper.claim(3):
        keeper.complete(claim)
    found["running"] = bench.put(*specs(2, limit_key="l", limit=2))
    found["blocked"] = bench.put(*specs(2, limit_key="l", limit=2))
    keeper.claim(9)
    found["ready"] = bench.put(*specs(3, key=None, operation_id="op"))
    found["scheduled"] = bench.put(*specs(2, delay_ms=5), *specs(1, delay_ms=9))
    return found


def test_every_state_is_found_whole_and_nothing_twice(bench: Bench, zoo: dict[str, list[JobId]]):
    for state in ("cancelled", "completed", "running", "scheduled"):
        assert sorted(every(bench, [State(state)])) == zoo[state], state
    assert sorted(every(bench, [State.READY])) == sorted(zoo["ready"] + zoo["blocked"])
    assert sorted(every(bench, [State.FAILED])) == sorted(zoo["failed"] + zoo["odd"])
    whole = every(bench, list(State))
    assert sorted(whole) == sorted(job for jobs in zoo.values() for job in jobs)


def test_a_state_in_the_query_narrows_the_states_that_may_be_acted_on(
    bench: Bench, zoo: dict[str, list[JobId]]
):
    assert sorted(every(bench, FINAL, state=State.CANCELLED)) == zoo["cancelled"]
    assert every(bench, WAITING, state=State.CANCELLED) == []


def test_everything_narrows(bench: Bench, zoo: dict[str, list[JobId]]):
    cases: list[tuple[Collection[State], dict[str, Any], list[JobId]]] = [
        (FINAL, {"queue": "a"}, [*zoo["failed"][::2], *zoo["odd"]]),
        (FINAL, {"queue": "nowhere"}, []),
        (FINAL, {"task": "bill"}, zoo["odd"]),
        (FINAL, {"task": "bill", "queue": "b"}, []),
        (FINAL, {"workload": "critical"}, zoo["completed"]),
        (FINAL, {"tenant": "t"}, zoo["cancelled"]),
        (FINAL, {"tenant": "nobody"}, []),
        (FINAL, {"reason": "cancelled"}, zoo["cancelled"]),
        (FINAL, {"error": "TIMEOUT"}, zoo["failed"]),
        (FINAL, {"error": "valueerror: refused"}, zoo["odd"]),
        (FINAL, {"error": "cancelled"}, zoo["cancelled"]),
        (WAITING, {"operation_id": "op"}, zoo["ready"]),
        (WAITING, {"reason": "cancelled"}, []),
        (WAITING, {"queue": "default", "state": State.RUNNING}, zoo["running"]),
        (WAITING, {"queue": "a"}, []),
        (WAITING, {"error": "x"}, []),
    ]
    for states, where, expected in cases:
        assert sorted(every(bench, states, **where)) == sorted(expected), where


def test_a_kind_of_error_is_found_whole(bench: Bench, zoo: dict[str, list[JobId]]):
    first = bench.store.failures().groups[0]
    assert sorted(every(bench, FINAL, fingerprint=first.fingerprint)) == zoo["failed"]


def test_ages_narrow_to_the_millisecond(bench: Bench, scan: int):
    start = bench.clock.now()
    jobs = []
    for _ in range(4):
        jobs.append(bench.job())
        bench.clock.advance(ms=10)
        bench.store.cancel(jobs[-1]).result()
    assert every(bench, FINAL, created_after=start + 10, created_before=start + 20) == jobs[1:3]
    assert every(bench, FINAL, finished_after=start + 20, finished_before=start + 30) == jobs[1:3]
    assert every(bench, FINAL, finished_after=start + 21, finished_before=start + 29) == []
    assert every(bench, WAITING, finished_after=0) == []


def test_final_jobs_come_in_the_order_in_which_they_ended(bench: Bench, scan: int):
    first, second, third = bench.put(*specs(3))
    for job in (second, third, first):
        bench.store.cancel(job).result()
        bench.clock.advance(1)
    assert every(bench, [State.CANCELLED]) == [second, third, first]


def test_what_comes_or_ends_after_the_pin_is_never_found(bench: Bench, scan: int):
    keeper = bench.keeper()
    before = bench.put(*specs(3))
    bench.store.cancel(before[0]).result()
    pin = bench.store.pin()
    bench.clock.advance(ms=1)
    bench.store.cancel_many(before[1:2]).result()
    bench.put(*specs(4))
    assert every(bench, [State.CANCELLED], pin) == before[:1]
    assert every(bench, [State.READY], pin) == before[2:]
    keeper.claim(9)
    assert every(bench, [State.RUNNING], pin) == before[2:]


def test_jobs_that_leave_between_two_steps_do_not_hide_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(search, "SCAN", 3)
    jobs = bench.put(*specs(10))
    bench.store.cancel_many(jobs).result()
    pin, after, found = bench.store.pin(), None, []
    while True:
        step = bench.store.search(JobFilter(), [State.CANCELLED], pin, after)
        found += step.ids
        bench.store.discard(step.ids).result()
        after = step.after
        if after is None:
            break
    assert found == jobs
