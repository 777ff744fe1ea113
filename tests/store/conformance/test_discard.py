"""Discard: an operator deletes final jobs with all that belongs to them (R20)."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from tests.store.kit import Bench, Dice, specs

from millpond.clock import ManualClock
from millpond.model import AttemptOutcome, JobId, Requeue, State
from millpond.store import open_store

OUT = AttemptOutcome


@pytest.mark.parametrize("end", [OUT.COMPLETED, OUT.FAILED, OUT.CANCELLED])
def test_a_final_job_is_gone_and_no_capacity_changes(bench: Bench, end: AttemptOutcome):
    keeper = bench.keeper()
    job, other = bench.put(*specs(2, payload=b"12"))
    keeper.end(keeper.one(), end)
    held = (bench.held(), bench.bytes())
    (acted,) = bench.store.discard([job], by="ann").result().jobs
    assert acted.done
    assert bench.store.get(job) is None
    assert bench.store.attempts(job) == []
    assert (bench.held(), bench.bytes()) == held == (1, 2)
    assert bench.state(other) is State.READY


@pytest.mark.parametrize("where", ["scheduled", "ready", "running"])
def test_a_job_that_is_not_final_stays_and_its_state_is_told(bench: Bench, where: str):
    job = bench.job(delay_ms=5 if where == "scheduled" else 0)
    if where == "running":
        bench.keeper().one()
    (acted,) = bench.store.discard([job], by="ann").result().jobs
    assert (acted.done, acted.found) == (False, State(where))
    assert bench.state(job) is State(where)
    assert bench.store.events() == []


def test_what_is_not_there_is_told_so(bench: Bench):
    (acted,) = bench.store.discard([JobId(9)]).result().jobs
    assert (acted.done, acted.found) == (False, None)


def test_a_job_named_twice_is_discarded_once(bench: Bench):
    job = bench.job()
    bench.store.cancel(job).result()
    acted = bench.store.discard([job, job]).result().jobs
    assert [(a.done, a.found) for a in acted] == [(True, State.CANCELLED), (False, None)]


def test_its_result_and_its_key_go_with_it(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k", operation_id="op")
    keeper.complete(keeper.one(), result=b"1")
    bench.store.discard([first.job_id]).result()
    assert bench.store.result_of("op") is None
    assert bench.answer(key="k").answer == "admitted"


def test_a_key_that_another_job_has_is_left(bench: Bench):
    keeper = bench.keeper()
    first = bench.answer(key="k").job_id
    keeper.end(keeper.one(), OUT.FAILED)
    second = bench.answer(key="k").job_id
    bench.store.discard([first]).result()
    assert bench.answer(key="k").job_id == second


@pytest.mark.parametrize("shared", [False, True])
def test_what_was_remembered_goes_with_the_last_job_of_its_operation(bench: Bench, shared: bool):
    keeper = bench.keeper()
    job = bench.job(operation_id="op", max_attempts=1)
    claim = keeper.one()
    bench.store.remember(keeper.id, claim.token, b"7").result()
    keeper.end(claim, OUT.FAILED)
    if shared:
        bench.job(operation_id="op")
    bench.store.discard([job]).result()
    if not shared:
        bench.job(operation_id="op")
    assert keeper.one().remembered == (b"7" if shared else None)


def test_no_row_of_the_job_is_left_in_the_file(tmp_path: Path):
    clock, dice = ManualClock(), Dice()
    path = str(tmp_path / "jobs.db")
    store = open_store(path, clock=clock, roll=dice)
    bench = Bench(store, clock, dice)
    keeper = bench.keeper()
    job = bench.job(key="k", max_attempts=2, tenant="t", payload=b'"secret-payload"')
    keeper.end(keeper.one(), OUT.RETRIED, traceback="tb", error_type="E")
    keeper.end(keeper.one(), OUT.FAILED, traceback="tb", error_type="E")
    store.requeue([Requeue(job, payload=b'"corrected"')], by="ann").result()
    keeper.complete(keeper.one(), result=b'"secret-result"')
    store.discard([job], by="bob", note="asked for").result()
    events = store.events()
    store.close()
    conn = sqlite3.connect(path)
    for table, column in (
        ("job", "id"), ("final", "id"), ("again", "id"), ("attempt", "job"), ("traceback", "job"),
        ("result", "job"), ("dedup", "job"), ("progress", "job"),
    ):  # fmt: skip
        query = f"SELECT count(*) FROM millpond_{table} WHERE {column} = ?"
        assert conn.execute(query, (job,)).fetchone() == (0,), table
    conn.close()
    # The requeue's event held the payload, so it went as well.
    assert [(e.what, e.who) for e in events] == [("discard", "bob")]


def test_the_event_tells_who_why_and_what_is_gone(bench: Bench):
    keeper = bench.keeper()
    job = bench.job(payload=b"123", operation_id="op", key="k", queue="q", max_attempts=1)
    keeper.end(keeper.one(), OUT.RETRIED)
    bench.store.discard([job], by="ann", note="poison").result()
    (event,) = bench.store.events(str(job))
    assert (event.who, event.what, event.note, event.after) == ("ann", "discard", "poison", None)
    assert json.loads(event.before or "") == {
        "task": "mail", "queue": "q", "workload": "default", "state": "failed",
        "finished_at": bench.clock.now(), "reason": "attempts used up (1 of 1)", "attempts": 1,
        "payload_bytes": 3, "operation_id": "op", "key": "k",
    }  # fmt: skip


def test_a_pinned_batch_leaves_what_became_final_later(bench: Bench):
    first, second = bench.put(*specs(2))
    bench.store.cancel(first).result()
    pin = bench.store.pin()
    bench.clock.advance(ms=1)
    bench.store.cancel(second).result()
    acted = bench.store.discard([first, second], pin=pin).result().jobs
    assert [a.done for a in acted] == [True, False]


def test_many_at_once(bench: Bench):
    jobs = bench.put(*specs(500))
    bench.store.cancel_many(jobs).result()
    acted = bench.store.discard(jobs, by="ann").result()
    assert all(a.done for a in acted.jobs)
    assert acted.held_us > 0
    assert len(bench.store.events(what="discard", limit=1_000)) == 500


def test_events_of_a_job_go_with_it_and_the_discard_stays_for_a_year(bench: Bench):
    kept, gone = bench.put(*specs(2))
    for job in (kept, gone):
        bench.store.cancel(job, by="ann").result()
    bench.store.discard([kept], by="ann").result()
    bench.clock.advance(86_400)
    windows = {"completed_ms": 0, "failed_ms": 0, "cancelled_ms": 0, "limit": 100}
    bench.store.purge(**windows).result()
    assert [(e.what, e.which) for e in bench.store.events()] == [("discard", str(kept))]
    bench.clock.advance(366 * 86_400)
    bench.store.purge(**windows).result()
    assert bench.store.events() == []


def test_cancelling_many_tells_of_each(bench: Bench):
    keeper = bench.keeper()
    running, waiting, done = bench.put(*specs(3))
    claim, *_ = keeper.claim(1)
    bench.store.cancel(done).result()
    acted = bench.store.cancel_many([running, waiting, done, JobId(99)], by="a").result().jobs
    assert [(a.found, a.done) for a in acted] == [
        (State.RUNNING, True), (State.READY, True), (State.CANCELLED, False), (None, False)
    ]  # fmt: skip
    assert bench.row(running).cancel_requested
    keeper.complete(claim)
