"""Settings of queues and tasks, pausing, and a change of order with jobs in the line."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, ids, spec, specs

from millpond.config import QueueSettings, TaskSettings, WorkloadSettings
from millpond.model import AttemptOutcome, State
from millpond.policy.backoff import Backoff

OUT = AttemptOutcome


def test_a_paused_queue_accepts_and_starts_nothing(bench: Bench):
    keeper = bench.keeper()
    before = bench.job()
    assert bench.store.pause("default", True, by="ann").result()
    after, later = bench.put(spec(), spec(delay_ms=1))
    other = bench.job(queue="other")
    bench.clock.advance(ms=1)
    assert ids(keeper.claim(9)) == [other]
    assert all(bench.state(job) is State.READY for job in (before, after, later))
    assert [lane.paused for lane in bench.store.status().lanes] == [True, False]
    assert bench.store.pause("default", False).result()
    assert ids(keeper.claim(9)) == [before, after, later]


def test_a_queue_that_a_task_names_can_be_paused_before_its_first_job(bench: Bench):
    bench.store.put_tasks([TaskSettings("mail", queue="letters")]).result()
    assert bench.store.pause("letters", True).result()
    job = bench.job(queue="letters")
    keeper = bench.keeper()
    assert keeper.claim(9) == []
    assert bench.store.pause("letters", False).result()
    assert ids(keeper.claim(9)) == [job]


def test_a_task_that_names_a_queue_leaves_its_settings_alone(bench: Bench):
    bench.store.put_queue(QueueSettings("letters", running=1)).result()
    bench.store.pause("letters", True).result()
    bench.store.put_tasks([TaskSettings("mail", queue="letters")]).result()
    job, _ = bench.put(*specs(2, queue="letters"))
    keeper = bench.keeper()
    assert keeper.claim(9) == []
    bench.store.pause("letters", False).result()
    assert ids(keeper.claim(9)) == [job]


def test_what_runs_in_a_paused_queue_can_end(bench: Bench):
    keeper = bench.keeper()
    bench.put(*specs(3))
    one, two, three = keeper.claim(3)
    bench.store.pause("default", True).result()
    assert keeper.complete(one).held
    assert keeper.end(two, OUT.RETRIED).state is State.READY
    bench.clock.advance(ms=LEASE_MS)
    assert bench.store.recover(limit=5).result().tokens == (three.token,)
    assert keeper.claim(9) == []


def test_pausing_twice_changes_nothing_and_an_unknown_queue_is_told(bench: Bench):
    bench.job()
    assert bench.store.pause("default", True).result()
    assert bench.store.pause("default", True).result()
    assert not bench.store.pause("nowhere", True).result()
    assert bench.store.pause("default", False).result()
    assert len(bench.keeper().claim(5)) == 1


def test_declaring_a_queue_again_leaves_counters_and_pause_alone(bench: Bench):
    bench.put(*specs(3, payload=b"12"))
    bench.store.pause("default", True).result()
    for limit in (10, 20):
        settings = QueueSettings(
            "default", max_jobs=limit, workloads=(WorkloadSettings("default", reserved=limit // 2),)
        )
        bench.store.put_queue(settings).result()
        bench.store.put_queue(settings).result()
    assert (bench.held(), bench.bytes()) == (3, 6)
    assert bench.keeper().claim(5) == []
    assert bench.store.drift() == []


def test_a_queue_can_be_declared_before_its_first_job(bench: Bench):
    bench.store.put_queue(QueueSettings("early", order="ageing", running=1)).result()
    bench.put(*specs(2, queue="early"))
    assert len(bench.keeper().claim(5)) == 1


@pytest.mark.parametrize("running", ["start", "raise", "lift"])
def test_running_limits_of_a_queue_take_effect_with_the_next_claim(bench: Bench, running: str):
    keeper = bench.keeper()
    bench.store.put_queue(QueueSettings("default", running=None if running == "start" else 1))
    bench.put(*specs(9))
    first = len(keeper.claim(3 if running == "start" else 9))
    limit = {"start": 4, "raise": 5, "lift": None}[running]
    bench.store.put_queue(QueueSettings("default", running=limit)).result()
    second = len(keeper.claim(9))
    assert (first, second) == {"start": (3, 1), "raise": (1, 4), "lift": (1, 8)}[running]


def test_tasks_come_back_as_they_were_declared(bench: Bench):
    first = TaskSettings("a", queue="q", priority=7, retry=Backoff(base=1, jitter="none"))
    bench.store.put_tasks([first, TaskSettings("b")]).result()
    assert bench.store.tasks() == {"a": first, "b": TaskSettings("b")}
    again = TaskSettings("a", lease_ms=5_000)
    bench.store.put_tasks([again]).result()
    assert bench.store.tasks()["a"] == again


def test_any_keeper_recovers_a_task_by_the_settings_the_store_holds(bench: Bench):
    retry = Backoff(base=100, jitter="none", cap=1_000)
    bench.store.put_tasks([TaskSettings("mail", retry=retry)]).result()
    keeper, job = bench.keeper(), bench.job()
    for wait in (100, 200, 400, 800):
        keeper.one()
        bench.clock.advance(ms=LEASE_MS)
        bench.store.recover(limit=5).result()
        assert bench.row(job).due_at - bench.clock.now() == wait * 1_000
        bench.clock.advance(wait)


def test_a_task_known_by_name_only_has_no_settings_yet(bench: Bench):
    bench.job(task="stranger")
    assert bench.store.tasks() == {}


ORDERS = [
    QueueSettings("default", order="ageing", ageing_ms=1_000),
    QueueSettings("default", order="ageing", ageing_ms=60_000),
    QueueSettings("default", order="strict"),
]


@pytest.mark.parametrize("first", ORDERS, ids=lambda q: f"{q.order}-{q.ageing_ms}")
@pytest.mark.parametrize("then", ORDERS, ids=lambda q: f"{q.order}-{q.ageing_ms}")
def test_a_change_of_order_re_ranks_every_job_wherever_it_stands(
    bench: Bench, first: QueueSettings, then: QueueSettings
):
    bench.store.put_queue(first).result()
    keeper = bench.keeper()
    start = bench.clock.now()
    jobs = {}
    for at in range(40):
        priority, delay = 100 + (at * 7) % 9, (at * 37) % 50 * 500
        limit = {"limit_key": "k", "limit": 1} if at % 5 == 0 else {}
        ident = bench.job(priority=priority, delay_ms=delay, **limit)
        jobs[ident] = (priority, start + delay, ident)
    bench.clock.advance(30)
    for outcome in (OUT.RETRIED, OUT.SNOOZED, OUT.RELEASED):
        for claim in keeper.claim(3):
            keeper.end(claim, outcome)
    held = keeper.claim(4)
    bench.store.put_queue(then).result()
    assert bench.store.verify() == []
    for claim in held:
        keeper.end(claim, OUT.RELEASED)

    def rank(ident: int) -> tuple[int, int]:
        priority, due, _ = jobs[ident]
        aged = due + priority * then.ageing_ms
        return ((priority << 47) + due if then.order == "strict" else aged, ident)

    bench.store.set_gate("limit", "k", None).result()
    assert ids(keeper.claim(99)) == sorted(jobs, key=rank)


def test_a_change_of_order_leaves_other_queues_and_final_jobs_alone(bench: Bench):
    keeper = bench.keeper()
    done = bench.job()
    keeper.complete(keeper.one())
    bench.put(*[spec(queue="other", priority=p) for p in (3, 1, 2)])
    bench.store.put_queue(QueueSettings("default", order="ageing")).result()
    assert [c.priority for c in keeper.claim(9)] == [1, 2, 3]
    assert bench.state(done) is State.COMPLETED


def test_jobs_accepted_after_a_change_of_order_stand_in_the_same_line(bench: Bench):
    keeper = bench.keeper()
    low = bench.job(priority=101)
    bench.store.put_queue(QueueSettings("default", order="ageing", ageing_ms=1_000)).result()
    bench.clock.advance(ms=999)
    high = bench.job(priority=100)
    bench.clock.advance(ms=2)
    late = bench.job(priority=100)
    assert ids(keeper.claim(3)) == [high, low, late]
