"""Workers: known by a number of their own, live while they beat, forgotten in the end."""

from __future__ import annotations

from tests.store.kit import LEASE_MS, Bench, ids, spec, specs

from millpond.config import TaskSettings
from millpond.model import AttemptOutcome, State

OUT = AttemptOutcome
DAY_MS = 86_400_000
KEEP = {"completed_ms": DAY_MS, "failed_ms": DAY_MS, "cancelled_ms": DAY_MS, "limit": 100}


def test_a_worker_is_listed_with_what_it_said(bench: Bench):
    keeper = bench.keeper("a", "b", host="box", pid=7, version="1.2", slots=4, queues=("x:2", "y"))
    bench.job(task="a")
    keeper.one()
    (row,) = bench.store.workers()
    assert (row.id, row.host, row.pid, row.version) == (keeper.id, "box", 7, "1.2")
    assert (row.slots, row.tasks, row.queues) == (4, ("a", "b"), ("x:2", "y"))
    assert (row.running, row.live, row.interval_ms) == (1, True, 15_000)
    assert row.beat_at == row.started_at == bench.clock.now()


def test_numbers_of_workers_are_never_given_again(bench: Bench):
    seen = []
    for _ in range(3):
        keeper = bench.keeper()
        seen.append(keeper.id)
        bench.store.unregister(keeper.id).result()
    assert len(set(seen)) == 3
    assert bench.store.workers() == []


def test_a_worker_is_live_for_four_intervals_after_its_beat(bench: Bench):
    keeper = bench.keeper(interval_ms=1_000)
    bench.clock.advance(ms=4_000)
    assert bench.store.workers()[0].live
    bench.clock.advance(ms=1)
    assert not bench.store.workers()[0].live
    keeper.beat(interval_ms=1_000)
    assert bench.store.workers()[0].live


def test_a_worker_is_late_after_one_and_a_half_of_its_intervals(bench: Bench):
    keeper = bench.keeper(interval_ms=1_000)
    bench.clock.advance(ms=1_500)
    assert not bench.store.workers()[0].late
    bench.clock.advance(ms=1)
    assert bench.store.workers()[0].late
    keeper.beat(interval_ms=1_000)
    assert not bench.store.workers()[0].late


def test_the_first_lease_of_a_worker_to_end_is_told(bench: Bench):
    keeper = bench.keeper(interval_ms=1_000)
    assert bench.store.workers()[0].lease_ends_at is None
    bench.job(lease_ms=LEASE_MS * 3)
    bench.job(lease_ms=LEASE_MS)
    held = [claim.token for claim in keeper.claim(2)]
    assert bench.store.workers()[0].lease_ends_at == bench.clock.now() + LEASE_MS
    bench.clock.advance(ms=1_000)
    keeper.beat(*held, interval_ms=1_000)
    assert bench.store.workers()[0].lease_ends_at == bench.clock.now() + LEASE_MS


def test_live_workers_come_first(bench: Bench):
    old = bench.keeper()
    bench.clock.advance(ms=200_000)
    young = bench.keeper()
    assert [row.id for row in bench.store.workers()] == [young.id, old.id]


def test_a_worker_that_leaves_while_it_holds_jobs_loses_them_at_the_end_of_their_leases(
    bench: Bench,
):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.store.unregister(keeper.id).result()
    assert bench.store.workers() == []
    bench.clock.advance(ms=LEASE_MS - 1)
    assert bench.store.recover(limit=5).result().total == 0
    bench.clock.advance(ms=1)
    assert bench.store.recover(limit=5).result().tokens == (claim.token,)
    assert bench.state(job) is State.SCHEDULED


def test_a_worker_may_settle_what_it_holds_after_it_has_left(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    claim = keeper.one()
    bench.store.unregister(keeper.id).result()
    assert keeper.complete(claim).held
    assert bench.state(job) is State.COMPLETED


def test_history_names_a_worker_that_has_left(bench: Bench):
    keeper, job = bench.keeper(host="box"), bench.job()
    keeper.complete(keeper.one())
    bench.store.unregister(keeper.id).result()
    bench.clock.advance(ms=5 * DAY_MS)
    bench.store.purge(completed_ms=6 * DAY_MS, failed_ms=0, cancelled_ms=0, limit=9).result()
    (row,) = bench.store.attempts(job)
    assert (row.worker, row.owner) == (keeper.id, "box:1")


def test_a_silent_worker_is_forgotten_in_the_end_unless_it_holds_something(bench: Bench):
    idle, busy = bench.keeper(), bench.keeper()
    bench.job(lease_ms=100 * DAY_MS)
    claim = busy.one()
    bench.clock.advance(ms=30 * DAY_MS)
    bench.store.purge(**KEEP).result()
    assert bench.store.workers() == []
    assert not idle.beat().registered
    answer = busy.beat(claim.token)
    assert (answer.registered, answer.lost) == (True, ())


def test_a_worker_stopped_for_a_day_registers_anew_before_it_is_thought_to_serve(bench: Bench):
    """Its tasks are nobody's from then on, and a beat alone must not hide that."""
    keeper = bench.keeper()
    bench.clock.advance(ms=DAY_MS + 1)
    bench.store.purge(**KEEP).result()
    bench.job()
    assert not keeper.beat().registered
    assert keeper.claim() == []
    assert bench.store.status().unserved_tasks == [("mail", 1)]


def test_a_step_of_the_wall_clock_does_not_make_a_live_worker_useless(bench: Bench):
    """A device boots in 1970, works, and is told the time: its worker has not beaten since."""
    keeper, job = bench.keeper(), bench.job()
    bench.clock.jump(20 * 365 * 86_400)
    assert bench.store.expire_unserved(10).result() == 0
    bench.store.purge(**KEEP).result()
    assert keeper.beat().registered
    bench.clock.advance(1)
    assert bench.store.workers()[0].tasks == ("mail",)
    assert bench.store.expire_unserved(10).result() == 0
    assert keeper.one().token.job_id == job


def test_beats_tell_what_a_watcher_needs(bench: Bench):
    keeper = bench.keeper(host="box", pid=7, marks="/m")
    bench.keeper()
    assert bench.store.beats() == {}
    bench.put(*specs(2))
    keeper.one()
    bench.clock.advance(1)
    second = keeper.one()
    (seen,) = bench.store.beats().values()
    assert (seen.domain, seen.claim) == (bench.clock.domain, second.token.claim)
    assert (seen.host, seen.pid, seen.marks) == ("box", 7, "/m")
    keeper.beat(second.token, known=0)
    assert bench.store.beats()[keeper.id].beat == bench.clock.mono()


# Tasks nobody serves


def served_for(bench: Bench, ms: int, *names: str) -> None:
    bench.store.put_tasks([TaskSettings(name, unknown_task_after_ms=ms) for name in names]).result()


def test_a_job_nobody_serves_waits_uncharged_and_is_reported(bench: Bench):
    keeper = bench.keeper("known")
    jobs = bench.put(*specs(2, task="typo"), spec(task="known"))
    bench.clock.advance(ms=10_000)
    keeper.beat()
    assert bench.store.expire_unserved(10).result() == 0
    assert bench.store.status().unserved_tasks == [("typo", 2)]
    assert ids(keeper.claim(9)) == jobs[2:]
    assert (bench.state(jobs[0]), bench.row(jobs[0]).attempts) == (State.READY, 0)


def test_after_its_time_it_fails_with_the_reason_and_frees_its_capacity(bench: Bench):
    served_for(bench, 5_000, "typo")
    job = bench.job(task="typo", key="k", payload=b"12", tenant="t", coalesce_key="c")
    bench.clock.advance(ms=4_999)
    assert bench.store.expire_unserved(10).result() == 0
    bench.clock.advance(ms=1)
    assert bench.store.expire_unserved(10).result() == 1
    row = bench.row(job)
    assert (row.state, row.reason, row.attempts) == (State.FAILED, "unknown_task", 0)
    assert (bench.held(), bench.bytes()) == (0, 0)
    assert bench.answer(task="typo", key="k", coalesce_key="c").answer == "admitted"


def test_the_default_patience_is_a_day(bench: Bench):
    bench.job(task="typo")
    bench.clock.advance(ms=DAY_MS - 1)
    assert bench.store.expire_unserved(10).result() == 0
    bench.clock.advance(ms=1)
    assert bench.store.expire_unserved(10).result() == 1


def test_no_patience_at_all_fails_it_at_once(bench: Bench):
    served_for(bench, 0, "typo")
    bench.job(task="typo")
    assert bench.store.expire_unserved(10).result() == 1


def test_a_task_that_was_served_lately_is_given_its_time_again(bench: Bench):
    served_for(bench, 5_000, "mail")
    keeper = bench.keeper(interval_ms=1_000)
    job = bench.job()
    bench.clock.advance(ms=60_000)
    keeper.beat(interval_ms=1_000)
    bench.store.expire_unserved(10).result()
    bench.clock.advance(ms=5_000)
    assert bench.store.expire_unserved(10).result() == 1
    assert bench.state(job) is State.FAILED


def test_a_silent_worker_serves_nothing(bench: Bench):
    served_for(bench, 1_000, "mail")
    bench.keeper(interval_ms=100)
    job = bench.job()
    bench.clock.advance(ms=400)
    assert bench.store.expire_unserved(10).result() == 0
    bench.clock.advance(ms=1_000)
    assert bench.store.expire_unserved(10).result() == 1
    assert bench.state(job) is State.FAILED


def test_scheduled_jobs_count_from_their_due_time(bench: Bench):
    served_for(bench, 1_000, "typo")
    job = bench.job(task="typo", delay_ms=60_000)
    bench.clock.advance(ms=60_999)
    assert bench.store.expire_unserved(10).result() == 0
    bench.keeper("other").claim()
    bench.clock.advance(ms=1)
    assert bench.store.expire_unserved(10).result() == 1
    assert bench.state(job) is State.FAILED


def test_blocked_jobs_nobody_serves_fail_too(bench: Bench):
    served_for(bench, 1_000, "mail")
    keeper = bench.keeper(interval_ms=100)
    bench.put(*specs(3, limit_key="k", limit=1))
    keeper.one()
    assert keeper.claim(9) == []
    bench.store.unregister(keeper.id).result()
    bench.clock.advance(ms=2_000)
    assert bench.store.expire_unserved(10).result() == 2


def test_expiry_is_bounded_and_goes_on(bench: Bench):
    served_for(bench, 0, "a", "b")
    bench.put(*specs(7, task="a"), *specs(7, task="b"))
    counts = [bench.store.expire_unserved(5).result() for _ in range(4)]
    assert counts == [5, 5, 4, 0]


def test_a_job_that_waits_for_its_retry_fails_as_unserved_with_its_history(bench: Bench):
    served_for(bench, 1_000, "mail")
    keeper = bench.keeper(interval_ms=100)
    job = bench.job()
    keeper.end(keeper.one(), OUT.RETRIED, error_type="E", message="m")
    bench.store.unregister(keeper.id).result()
    bench.clock.advance(ms=2_000)
    assert bench.store.expire_unserved(10).result() == 1
    row = bench.row(job)
    assert (row.reason, row.attempts, row.last_error) == ("unknown_task", 1, "E: m")
