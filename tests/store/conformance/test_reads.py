"""Reads: one job, lists by filter and page, history, status; each from one moment."""

from __future__ import annotations

import pytest
from tests.store.kit import LEASE_MS, Bench, Keeper, ids, spec, specs

from millpond.model import AttemptOutcome, JobFilter, JobId, Settlement, State

OUT = AttemptOutcome


@pytest.fixture
def zoo(bench: Bench) -> dict[str, JobId]:
    """One job in every place there is."""
    keeper = bench.keeper()
    names = ("completed", "failed", "cancelled", "running", "retrying", "snoozed", "blocked")
    found = {}
    found["holder"] = bench.job(limit_key="k", limit=1, operation_id="holder")
    for name in names[:-1]:
        found[name] = bench.job(operation_id=name)
    claims = {claim.token.job_id: claim for claim in keeper.claim(9)}
    keeper.complete(claims[found["completed"]], result=b"1")
    keeper.end(claims[found["failed"]], OUT.FAILED, error_type="E", reason="why", fingerprint="f")
    bench.store.cancel(found["cancelled"]).result()
    keeper.end(claims[found["cancelled"]], OUT.CANCELLED)
    keeper.end(claims[found["retrying"]], OUT.RETRIED, delay_ms=5_000)
    keeper.end(claims[found["snoozed"]], OUT.SNOOZED, delay_ms=5_000)
    found["blocked"] = bench.job(limit_key="k", limit=1)
    assert keeper.claim(9) == []
    found["ready"] = bench.job(queue="q2", workload="w2", tenant="t2", key="k2")
    found["scheduled"] = bench.job(delay_ms=9_000)
    return found


PLACES = {
    State.COMPLETED: {"completed"},
    State.FAILED: {"failed"},
    State.CANCELLED: {"cancelled"},
    State.RUNNING: {"running", "holder"},
    State.SCHEDULED: {"retrying", "snoozed", "scheduled"},
    State.READY: {"blocked", "ready"},
}


@pytest.mark.parametrize("state", State)
def test_a_list_by_state_holds_exactly_those(bench: Bench, zoo: dict[str, JobId], state: State):
    rows = bench.store.find(JobFilter(state=state))
    names = {name for name, ident in zoo.items() if ident in {row.id for row in rows}}
    assert names == PLACES[state]
    assert len(rows) == len(names)
    assert all(row.state is state and row.payload is None for row in rows)


def test_get_and_find_say_the_same_of_every_job(bench: Bench, zoo: dict[str, JobId]):
    rows = bench.store.find(JobFilter())
    assert [row.id for row in rows] == sorted(zoo.values(), reverse=True)
    assert rows == [bench.store.get(row.id, payload=False) for row in rows]


@pytest.mark.parametrize(
    ("where", "names"),
    [
        (JobFilter(queue="q2"), {"ready"}),
        (JobFilter(workload="w2"), {"ready"}),
        (JobFilter(tenant="t2"), {"ready"}),
        (JobFilter(key="k2"), {"ready"}),
        (JobFilter(key="k2", state=State.READY, queue="q2", task="mail"), {"ready"}),
        (JobFilter(key="k2", state=State.FAILED), set()),
        (JobFilter(operation_id="failed"), {"failed"}),
        (JobFilter(operation_id="failed", state=State.READY), set()),
        (JobFilter(operation_id="failed", reason="else"), set()),
        (JobFilter(reason="why"), {"failed"}),
        (JobFilter(fingerprint="f"), {"failed"}),
        (JobFilter(queue="nowhere"), set()),
        (JobFilter(task="nowhere"), set()),
        (JobFilter(tenant="nobody"), set()),
        (JobFilter(state=State.RUNNING, task="mail"), {"running", "holder"}),
        (JobFilter(state=State.RUNNING, queue="q2"), set()),
        (JobFilter(state=State.SCHEDULED, task="mail"), {"retrying", "snoozed", "scheduled"}),
    ],
)
def test_every_filter_narrows(
    bench: Bench, zoo: dict[str, JobId], where: JobFilter, names: set[str]
):
    assert {row.id for row in bench.store.find(where)} == {zoo[name] for name in names}


@pytest.mark.parametrize(
    "where",
    [
        JobFilter(),
        JobFilter(state=State.READY),
        JobFilter(state=State.RUNNING),
        JobFilter(state=State.COMPLETED),
        JobFilter(task="mail"),
        JobFilter(task="mail", state=State.COMPLETED, created_after=1),
    ],
)
@pytest.mark.parametrize("page", [1, 3, 100])
def test_pages_join_without_gap_or_overlap(bench: Bench, where: JobFilter, page: int):
    keeper = bench.keeper()
    bench.put(*specs(21))
    for at, claim in enumerate(keeper.claim(14)):
        if at % 2:
            keeper.complete(claim)
    whole = [row.id for row in bench.store.find(where)]
    assert len(whole) in {7, 21}
    found: list[JobId] = []
    before = None
    while rows := bench.store.find(where, before=before, limit=page):
        found += [row.id for row in rows]
        before = rows[-1].id
    assert found == whole == sorted(whole, reverse=True)


def test_what_is_not_there_is_none(bench: Bench):
    assert bench.store.get(JobId(1)) is None
    assert bench.store.attempts(JobId(1)) == []
    assert bench.store.find(JobFilter()) == []
    assert bench.store.next_due() is None


def test_start_and_attempts_tell_of_the_latest_claim(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    assert (bench.row(job).started_at, bench.row(job).attempts) == (None, 0)
    keeper.end(keeper.one(), OUT.RETRIED)
    first = bench.row(job)
    assert (first.started_at, first.attempts) == (bench.clock.now(), 1)
    bench.clock.advance(1)
    claim = keeper.one()
    assert (bench.row(job).started_at, bench.row(job).attempts) == (bench.clock.now(), 2)
    keeper.end(claim, OUT.SNOOZED)
    assert bench.row(job).attempts == 1
    keeper.complete(keeper.one())
    assert bench.row(job).attempts == 2


def test_history_is_oldest_first(bench: Bench):
    keeper, job = bench.keeper(), bench.job()
    for outcome in (OUT.RETRIED, OUT.SNOOZED, OUT.CRASHED, OUT.COMPLETED):
        keeper.end(keeper.one(), outcome)
    assert bench.outcomes(job) == [
        ("retried", 1), ("snoozed", None), ("crashed", 2), ("completed", 3),
    ]  # fmt: skip
    claims = [row.claim for row in bench.store.attempts(job)]
    assert claims == sorted(claims)


def test_status_counts_every_place(bench: Bench, zoo: dict[str, JobId]):
    status = bench.store.status()
    by_queue = {lane.queue: lane for lane in status.lanes}
    lane = by_queue["default"]
    assert (lane.scheduled, lane.ready, lane.blocked, lane.running) == (3, 0, 1, 2)
    assert (lane.completed, lane.failed, lane.cancelled, lane.retried) == (1, 1, 1, 1)
    assert by_queue["q2"].ready == 1
    assert by_queue["q2"].oldest_due_at == bench.clock.now()
    assert status.at == bench.clock.now()
    assert status.workload_jobs["default", "default"][0] == 6
    assert status.workload_jobs["q2", "w2"][0] == 1


def test_status_names_what_nobody_serves(bench: Bench):
    keeper = bench.keeper("mail", queues=("default:2", "reports/routine:1"))
    bench.put(spec(), spec(queue="emials"), spec(queue="emials"), spec(task="typo"))
    status = bench.store.status()
    assert status.unserved_queues == [("emials", 2)]
    assert status.unserved_tasks == [("typo", 1)]
    served = {(lane.queue, lane.task): lane.served for lane in status.lanes}
    assert served["default", "mail"]
    assert not served["default", "typo"]
    bench.clock.advance(61)
    assert bench.store.status().unserved_tasks == [("mail", 3), ("typo", 1)]
    keeper.beat()
    assert bench.store.status().unserved_tasks == [("typo", 1)]


def test_an_empty_store_has_an_empty_status(bench: Bench):
    status = bench.store.status()
    assert (status.lanes, status.workers, status.unserved_tasks) == ([], [], [])
    assert (status.expired_leases, status.next_due_at) == (0, None)


def test_the_lease_that_is_shown_ends_where_it_ends(bench: Bench):
    keeper, job = bench.keeper(), bench.job(lease_ms=5_000)
    claim = keeper.one()
    bench.clock.advance(ms=3_000)
    keeper.beat(claim.token)
    lease = bench.row(job).lease
    assert lease is not None
    assert lease.expires_at == bench.clock.now() + 5_000
    bench.clock.advance(ms=5_000)
    assert bench.store.status().expired_leases == 1
    assert bench.row(job).state is State.RUNNING


def test_lists_find_what_is_old_behind_much_that_is_new(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """A failed or waiting job must be found however many have been completed since."""
    monkeypatch.setattr("millpond.store.sqlite.views.SCAN_ROWS", 100)
    keeper = bench.keeper()
    failed, waiting, later = bench.job(), bench.job(), bench.job(delay_ms=9_000_000)
    keeper.end(keeper.one(), OUT.FAILED)
    bench.store.pause("default", True).result()
    _complete_many(bench, keeper, 300)
    assert [row.id for row in bench.store.find(JobFilter(state=State.FAILED))] == [failed]
    assert [row.id for row in bench.store.find(JobFilter(state=State.READY))] == [waiting]
    assert [row.id for row in bench.store.find(JobFilter(state=State.SCHEDULED))] == [later]


def _complete_many(bench: Bench, keeper: Keeper, count: int) -> None:
    bench.put(*specs(count, queue="busy"))
    claims = keeper.claim(count)
    assert len(claims) == count
    keeper.settle(*[Settlement(c.token, OUT.COMPLETED, started_at=1) for c in claims])


def test_a_stale_worker_shows_nothing_it_does_not_hold(bench: Bench):
    keeper = bench.keeper()
    jobs = bench.put(*specs(3))
    assert ids(keeper.claim(3)) == jobs
    bench.clock.advance(ms=LEASE_MS)
    bench.store.recover(limit=2).result()
    (row,) = bench.store.workers()
    assert row.running == 1
