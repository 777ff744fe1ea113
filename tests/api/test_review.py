"""Review through the pond: one job, many jobs, failures and events (R20, B25)."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from datetime import UTC, datetime, timedelta

import pytest
from tests.api.hand import Hand

from millpond import (
    AttemptOutcome,
    BadConfig,
    BadPayload,
    JobNotFinal,
    JobNotFound,
    ManualClock,
    Millpond,
    Overloaded,
    State,
    Task,
)
from millpond.policy import admission

OUT = AttemptOutcome


@pytest.fixture
def report(pond: Millpond) -> Task[..., None, str]:
    @pond.task(queue="reports", max_attempts=3)
    def report(number: int, fmt: str = "pdf") -> str:
        return fmt

    return report


def dead(pond: Millpond, report: Task[..., None, str], many: int = 1) -> list[int]:
    refs = [report.enqueue(number) for number in range(many)]
    hand = Hand(pond)
    for _ in refs:
        hand.fail()
    return [ref.id for ref in refs]


# --- one job ------------------------------------------------------------------------------------


def test_a_job_that_is_put_back_runs_and_its_history_goes_on(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    """B25 through the API."""
    ref = report.enqueue(1)
    hand = Hand(pond)
    for number in range(3):
        hand.settle(hand.claim(), OUT.RETRIED, error_type="E", message=f"no {number}")
    assert ref.job().state == "failed"

    again = pond.requeue(ref.id, by="ann", note="the printer is back")

    assert (again.id, again.operation_id) == (ref.id, ref.operation_id)
    assert pond.drain().finished == 1
    assert again.wait(timeout=1) == "pdf"
    assert (ref.job().last_error, ref.job().attempts) == (None, 4)
    assert [a.number for a in pond.attempts(ref.id)] == [1, 2, 3, 4]
    (event,) = pond.events(ref.id)
    assert (event.who, event.what, event.note) == ("ann", "requeue", "the printer is back")
    assert event.at == ref.job().created_at
    assert event.before["attempts"] == 3
    assert json.loads(json.dumps(event.to_json()))["which"] == str(ref.id)


def test_only_final_jobs_are_put_back_or_discarded(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    ref = report.enqueue(1)
    for act in (pond.requeue, pond.discard):
        with pytest.raises(JobNotFinal, match=f"job {ref.id} is ready") as caught:
            act(ref.id, by="ann")
        assert caught.value.state == "ready"
        assert pickle.loads(pickle.dumps(caught.value)).state == "ready"
    Hand(pond).claim()
    with pytest.raises(JobNotFinal, match="is running"):
        pond.requeue(ref.id)
    assert pond.events() == []


@pytest.mark.parametrize("ident", [999, 2**70, -1])
def test_a_job_that_is_not_there_is_not_found(pond: Millpond, ident: int) -> None:
    for act in (pond.requeue, pond.discard):
        with pytest.raises(JobNotFound):
            act(ident)
    with pytest.raises(JobNotFound):
        pond.requeue(ident, payload={})


def test_a_corrected_payload_must_fit_the_function(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    (job,) = dead(pond, report)
    wrong: list[dict[str, object]] = [{"number": "x"}, {}, {"number": 1, "colour": "red"}]
    for payload in wrong:
        with pytest.raises(BadPayload):
            pond.requeue(job, payload=payload)
    assert pond.get(job).state is State.FAILED
    pond.requeue(job, payload={"number": 2, "fmt": "csv"})
    assert pond.get(job).payload == {"number": 2, "fmt": "csv"}
    pond.drain()
    assert pond.get(job).result == "csv"


def test_where_the_code_is_not_known_any_json_object_will_do(pond: Millpond) -> None:
    ref = pond.enqueue("elsewhere", {"a": 1}, queue="q")
    pond.cancel(ref.id)
    with pytest.raises(BadPayload):
        pond.requeue(ref.id, payload={"a": float("nan")})
    with pytest.raises(BadPayload):
        pond.requeue(ref.id, payload={"a": "x" * (1 << 20)})
    pond.requeue(ref.id, payload={"b": [2]})
    assert pond.get(ref.id).payload == {"b": [2]}


def test_when_it_is_due_and_what_it_gets_is_checked_like_an_enqueue(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    (job,) = dead(pond, report)
    now = pond.get(job).created_at
    for wrong in (
        {"attempts": 0}, {"attempts": True}, {"delay": -1}, {"at": datetime(2030, 1, 1)},  # noqa: DTZ001
        {"delay": 1, "at": now}, {"operation_id": ""},
    ):  # fmt: skip
        with pytest.raises(BadConfig):
            pond.requeue(job, **wrong)  # type: ignore[arg-type]
    pond.requeue(job, delay="10m", attempts=7, operation_id="other")
    found = pond.get(job)
    assert found.due_at == now + timedelta(minutes=10)
    assert (found.max_attempts, found.operation_id, found.state) == (8, "other", State.SCHEDULED)
    pond.cancel(job)
    pond.requeue(job, at=now + timedelta(hours=1))
    assert pond.get(job).due_at == now + timedelta(hours=1)


def test_a_ref_of_before_does_not_show_a_job_of_another_operation(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    ref = report.enqueue(1)
    Hand(pond).fail()
    new = pond.requeue(ref.id, operation_id="other")
    assert new.job().operation_id == "other"
    with pytest.raises(JobNotFound):
        ref.job()


def test_a_refusal_of_admission_leaves_the_job_where_it_is(
    pond: Millpond, report: Task[..., None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = dead(pond, report, 2)
    limit(monkeypatch, 1)
    pond.requeue(jobs[0])
    with pytest.raises(Overloaded) as caught:
        pond.requeue(jobs[1], payload={"number": 7})
    assert caught.value.reason == "queue_full"
    assert pond.get(jobs[1]).state is State.FAILED
    assert pond.get(jobs[1]).payload == {"number": 1}
    assert [event.which for event in pond.events()] == [str(jobs[0])]
    assert pond.reconcile() == []


def limit(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Have admission refuse what would make more jobs than that outstanding."""

    def decide(wanted: admission.Wanted, capacity: admission.Capacity) -> admission.Admitted:
        if capacity.n_jobs + wanted.jobs > most:
            raise Overloaded("full", reason="queue_full", queue="q", workload="w")
        return admission.Admitted(wanted.jobs, wanted.bytes)

    monkeypatch.setattr(admission, "decide", decide)


def test_in_eager_mode_it_has_run_when_the_call_returns() -> None:
    with Millpond(":memory:", eager=True) as pond:
        calls: list[int] = []

        @pond.task(max_attempts=1)
        def once(n: int) -> None:
            calls.append(n)
            if len(calls) == 1:
                raise ValueError(n)

        ref = once.enqueue(7)
        assert ref.job().state is State.FAILED
        assert pond.requeue(ref.id).job().state is State.COMPLETED
        assert calls == [7, 7]


def test_a_discarded_job_is_gone_with_all_that_belongs_to_it(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    ref = report.using(key="k").enqueue(1)
    Hand(pond).complete(b'"x"')
    pond.discard(ref.id, by="ann", note="asked for")
    with pytest.raises(JobNotFound):
        pond.get(ref.id)
    assert pond.result(ref.operation_id) is None
    assert report.using(key="k").enqueue(1).answer == "admitted"
    (event,) = pond.events(what="discard")
    assert (event.which, event.note, event.before["task"]) == (str(ref.id), "asked for", "report")


# --- failures -----------------------------------------------------------------------------------


def test_failures_are_grouped_and_told_with_datetimes(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    first, second = dead(pond, report, 2)
    found = pond.failures()
    (group,) = found.groups
    assert (group.task, group.count, group.queues) == ("report", 2, ("reports",))
    assert group.first_at == group.last_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    assert set(group.samples) == {first, second}
    assert (group.error_type, group.message) == ("ValueError", "broken")
    assert (found.counted, found.complete, found.more) == (2, True, 0)
    shown = json.loads(json.dumps(found.to_json()))
    assert shown["groups"][0]["first_at"] == "2023-11-14T22:13:20.000Z"
    for wrong in (0, -1, 1.5):
        with pytest.raises(BadConfig):
            pond.failures(limit=wrong)  # type: ignore[arg-type]


# --- many jobs ----------------------------------------------------------------------------------


def test_what_is_selected_is_counted_exactly_and_shown(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    jobs = dead(pond, report, 30)
    report.enqueue(99)
    selection = pond.select(queue="reports", error="BROKEN")
    assert (selection.count, len(selection)) == (30, 30)
    assert list(selection.ids) == jobs
    assert [job.id for job in selection.sample] == jobs[:-11:-1]
    assert "30 jobs" in repr(selection)


@pytest.mark.parametrize("act", ["requeue", "discard"])
def test_jobs_that_fail_later_are_never_touched(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str], act: str
) -> None:
    before = dead(pond, report, 5)
    selection = pond.select()
    clock.advance(ms=1)
    after = dead(pond, report, 5)
    done = getattr(selection, act)(by="ann")
    assert (done.count, done.done, done.left) == (5, 5, {})
    assert {job.id for job in pond.jobs(state="failed")} == set(after)
    assert not set(before) & set(after)


def test_an_act_that_is_repeated_does_nothing_twice(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    dead(pond, report, 4)
    selection = pond.select()
    clock.advance(ms=1)
    assert selection.requeue(by="ann").done == 4
    again = selection.requeue(by="ann")
    assert (again.done, again.left) == (0, {"ready": 4})
    hand = Hand(pond)
    hand.fail()
    clock.advance(ms=1)
    # One has failed again, after the selection was made.
    once_more = selection.requeue(by="ann")
    assert (once_more.done, once_more.left) == (0, {"failed": 1, "ready": 3})
    pinned = pond.select(pinned=selection.pinned)
    assert pinned.count == 0
    assert pond.select().count == 1


def test_a_pinned_selection_made_anew_finds_what_is_left_of_the_first(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    jobs = dead(pond, report, 4)
    pinned = pond.select().pinned
    clock.advance(ms=1)
    dead(pond, report, 2)
    pond.requeue(jobs[0])
    assert list(pond.select(pinned=pinned).ids) == jobs[1:]
    for wrong in ("", "7", "a@b", "1@2@3", "9" * 30 + "@1"):
        with pytest.raises(BadConfig, match="no pin"):
            pond.select(pinned=wrong)


def test_a_spread_sets_due_times_evenly_so_that_the_retry_is_no_storm(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    jobs = dead(pond, report, 60)
    start = pond.get(jobs[0]).created_at
    pond.select().requeue(spread="10m")
    offsets = [(pond.get(job).due_at - start).total_seconds() for job in jobs]
    for at, offset in enumerate(offsets):
        assert at * 10 <= offset <= (at + 1) * 10
    assert len({round(offset % 10, 3) for offset in offsets}) > 10, "no jitter"


def test_acting_goes_on_in_batches_and_tells_how_far_it_is(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    with pond.batch() as batch:
        for number in range(1_500):
            batch.add(report, number)
    told: list[tuple[int, int]] = []
    waiting = pond.select(("ready",), queue="reports")
    done = waiting.cancel(by="ann", progress=lambda *now: told.append(now))
    assert (done.count, done.done) == (1_500, 1_500)
    assert told[-1] == (1_500, 1_500)
    assert told == sorted(told)
    assert len(told) >= 3
    assert pond.select("cancelled").discard(by="ann").done == 1_500
    assert pond.jobs() == []
    assert pond.reconcile() == []


def test_an_act_that_was_interrupted_goes_on_where_it_was(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    with pond.batch() as batch:
        for number in range(300):
            batch.add(report, number)
    pond.select("ready").cancel()
    selection = pond.select("cancelled")

    def interrupt(done: int, _: int) -> None:
        if done >= 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selection.requeue(progress=interrupt)
    put_back = pond.status().counts[State.READY]
    assert 100 <= put_back < 300
    done = selection.requeue()
    assert (done.done, done.left) == (300 - put_back, {"ready": put_back})


def test_what_fits_is_put_back_before_admission_refuses(
    pond: Millpond, report: Task[..., None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead(pond, report, 40)
    limit(monkeypatch, 23)
    selection = pond.select()
    with pytest.raises(Overloaded):
        selection.requeue(by="ann")
    assert pond.status().counts[State.READY] == 23
    limit(monkeypatch, 100)
    assert selection.requeue(by="ann").done == 17
    assert len(pond.events(what="requeue")) == 40


def test_each_act_is_for_jobs_in_states_that_allow_it(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    report.enqueue(1)
    waiting = pond.select(("ready", "running"))
    for act in (waiting.requeue, waiting.discard):
        with pytest.raises(BadConfig, match="final jobs"):
            act()
    with pytest.raises(BadConfig, match="wait or run"):
        pond.select("failed").cancel()
    with pytest.raises(BadConfig, match="state"):
        pond.select("lost")
    with pytest.raises(TypeError, match="colour"):
        pond.select(colour="red")  # type: ignore[call-arg]
    with pytest.raises(BadConfig):
        pond.select().requeue(attempts=0)
    with pytest.raises(BadConfig):
        pond.select().requeue(spread=-1)


def test_lists_narrow_by_error_and_by_moments(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    (first,) = dead(pond, report)
    at = pond.get(first).finished_at
    assert at is not None
    clock.advance(10)
    (second,) = dead(pond, report)
    later = at + timedelta(seconds=5)
    assert [job.id for job in pond.jobs(finished_after=later)] == [second]
    assert [job.id for job in pond.jobs(finished_before=later, state="failed")] == [first]
    assert [job.id for job in pond.jobs(created_after=later, error="valueerror")] == [second]
    assert pond.jobs(error="nothing like it") == []
    with pytest.raises(BadConfig, match="time zone"):
        pond.jobs(created_after=datetime(2023, 1, 1))  # noqa: DTZ001
    with pytest.raises(TypeError, match="narrow by"):
        pond.jobs(colour="red")  # type: ignore[call-arg]


# --- twins and threads --------------------------------------------------------------------------


def test_every_call_has_its_awaited_twin(
    pond: Millpond, clock: ManualClock, report: Task[..., None, str]
) -> None:
    first, second, third = dead(pond, report, 3)

    async def all_of_it() -> None:
        assert (await pond.afailures()).counted == 3
        ref = await pond.arequeue(first, by="ann", payload={"number": 9}, delay=5)
        assert (await ref.ajob()).state is State.SCHEDULED
        with pytest.raises(JobNotFinal):
            await pond.arequeue(first)
        await pond.adiscard(second, by="ann")
        with pytest.raises(JobNotFound):
            await pond.adiscard(second)
        with pytest.raises(BadPayload):
            await pond.arequeue(third, payload={"number": "x"})
        selection = await pond.aselect(queue="reports")
        assert (await selection.arequeue(by="ann")).done == 1
        assert (await (await pond.aselect(("ready", "scheduled"))).acancel()).done == 2
        assert (await (await pond.aselect("cancelled")).adiscard()).done == 2
        assert len(await pond.aevents(what="discard")) == 3

    asyncio.run(all_of_it())


def test_two_operators_at_once_put_a_job_back_once(
    pond: Millpond, report: Task[..., None, str]
) -> None:
    jobs = dead(pond, report, 50)
    selection = pond.select()
    barrier = threading.Barrier(4)
    done: list[int] = []

    def act() -> None:
        barrier.wait(timeout=30)
        done.append(selection.requeue(by="ann").done)

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sum(done) == len(jobs)
    assert len(pond.events(what="requeue")) == 50
    assert pond.reconcile() == []
