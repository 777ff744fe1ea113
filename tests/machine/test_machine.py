"""The store against a dictionary: whatever is done to it in whatever order, both say the same."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.machine.model import FINAL, Job, Model, Queue, Worker, fits
from tests.store.kit import info

from millpond.clock import ManualClock
from millpond.config import QueueSettings, StoreConfig
from millpond.errors import StoreError
from millpond.model import (
    AttemptOutcome,
    ClaimBatch,
    JobFilter,
    JobId,
    JobSpec,
    Requeue,
    Settlement,
    State,
    Token,
    Want,
)
from millpond.store import open_store

OUT = AttemptOutcome
TASKS = ("a", "b", "lost")
QUEUES = ("default", "bulk")
WORKLOADS = ("default", "critical")
SERVED = (("a", "b"), ("a",), ("b",))
VIEW = """
SELECT v.id, v.state, v.attempts, v.due_at, v.priority, j.payload, j.meta, j.charged_bytes
  FROM millpond_jobs_view v JOIN millpond_job j ON j.id = v.id
"""

specs = st.builds(
    JobSpec,
    task=st.sampled_from(("a", "a", "a", "b", "lost")),
    queue=st.sampled_from(("default", "default", "bulk")),
    workload=st.sampled_from(("default", "default", "critical")),
    payload=st.sampled_from((b"", b"1", b"12345")),
    meta=st.sampled_from((None, None, b"m")),
    priority=st.sampled_from((100, 100, 50, 101)),
    max_attempts=st.integers(1, 3),
    lease_ms=st.sampled_from((60_000, 60_000, 2_000)),
    delay_ms=st.sampled_from((0, 0, 0, 1, 1_000, 90_000)),
    operation_id=st.sampled_from((None, None, None, "op")),
    key=st.sampled_from((None, None, None, "k1", "k2")),
    key_ttl_ms=st.sampled_from((5_000, 86_400_000)),
    coalesce_key=st.sampled_from((None, None, None, "c")),
    coalesce=st.sampled_from(("first", "latest")),
    tenant=st.sampled_from((None, None, "t1", "t2")),
)
limited = st.tuples(specs, st.sampled_from(("x", "y")), st.sampled_from((1, 1, 2, None))).map(
    lambda given: _with_limit(*given)
)
any_spec = st.one_of(specs, limited)
indexes = st.integers(0, 1 << 20)
delays = st.sampled_from((0, 0, 1, 5_000))
gates = st.sampled_from(
    (("limit", "x"), ("limit", "y"), ("tenant", "default/t1"), ("tenant", "default/t2"),
     ("tenant", "bulk/t1"))
)  # fmt: skip
lengths = st.sampled_from((1, 50, 1_000, 2_000, 30_000, 60_000))


def _said(token: Token, outcome: AttemptOutcome, delay: int, moment: int | None) -> Settlement:
    return Settlement(token, outcome, started_at=moment, ended_at=moment, delay_ms=delay)


def _with_limit(spec: JobSpec, key: str, limit: int | None) -> JobSpec:
    given = {name: getattr(spec, name) for name in JobSpec.__struct_fields__}
    return JobSpec(**given | {"limit_key": key, "limit": limit})


def _undone(spec: JobSpec) -> JobSpec:
    given = {name: getattr(spec, name) for name in JobSpec.__struct_fields__}
    return JobSpec(**given | {"queue": "ghost", "task": "ghost"})


@st.composite
def wants(draw: st.DrawFn) -> list[Want]:
    """Slots of which no job could use two kinds, so that it is known which one it uses."""
    slots = st.integers(0, 4)
    kind = draw(st.sampled_from(("any", "any", "queue", "queues", "workload")))
    if kind == "any":
        return [Want(draw(slots))]
    if kind == "queue":
        return [Want(draw(slots), draw(st.sampled_from(QUEUES)))]
    if kind == "queues":
        return [Want(draw(slots), queue) for queue in QUEUES]
    return [Want(draw(slots), "default", workload) for workload in WORKLOADS]


class StoreMachine(RuleBasedStateMachine):
    """Workers, producers and an operator on one file and one manual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="machine-"))
        self.path = str(self.folder / "jobs.db")
        self.clock = ManualClock()
        self.model = Model()
        self.given: list[tuple[int, Token]] = []
        self.store = self._open()
        self.own = sqlite3.connect(self.path, isolation_level=None)
        self.own.execute("PRAGMA synchronous=OFF")

    def _open(self) -> Any:
        config = StoreConfig(self.path, synchronous="normal")
        return open_store(self.path, clock=self.clock, config=config, roll=lambda: 0.5)

    def teardown(self) -> None:
        try:
            self._compare_histories()
        finally:
            self.own.close()
            self.store.close()
            shutil.rmtree(self.folder)

    def _tick(self) -> Model:
        self.model.now, self.model.mono = self.clock.now(), self.clock.mono()
        return self.model

    @initialize(many=st.lists(any_spec, min_size=2, max_size=8))
    def begin(self, many: list[JobSpec]) -> None:
        for tasks in SERVED:
            self._register(tasks)
        self._enqueue(many, lambda given: self.store.enqueue(given).result())

    def _register(self, tasks: tuple[str, ...]) -> int:
        number = int(self.store.register(info(*tasks)).result())
        self._tick().workers[number] = Worker(tasks, self.clock.mono(), self.clock.now())
        return number

    def _worker(self, at: int) -> int:
        return sorted(self.model.workers)[at % len(self.model.workers)]

    # Producers

    @rule(spec=any_spec)
    def enqueue(self, spec: JobSpec) -> None:
        self._enqueue([spec], lambda given: self.store.enqueue(given).result())

    @rule(many=st.lists(any_spec, min_size=2, max_size=6))
    def enqueue_batch(self, many: list[JobSpec]) -> None:
        self._enqueue(many, lambda given: self.store.enqueue(given).result())

    @rule(spec=any_spec, copies=st.integers(17, 24))
    def enqueue_many_alike(self, spec: JobSpec, copies: int) -> None:
        self._enqueue([spec] * copies, lambda given: self.store.enqueue(given).result())

    def _enqueue(self, given: list[JobSpec], accept: Any) -> None:
        answers = accept(given)
        assert answers == self._tick().enqueue(given, answers)

    @rule(
        many=st.lists(any_spec, min_size=1, max_size=3), opened=st.booleans(),
        how=st.sampled_from(("commit", "commit", "roll back", "roll back new names")),
    )  # fmt: skip
    def enqueue_in_a_transaction(self, many: list[JobSpec], opened: bool, how: str) -> None:
        """Names made in one that rolls back must not be kept: their numbers go to others."""
        if opened:
            self.own.execute("BEGIN IMMEDIATE")
        if how == "commit":
            self._enqueue(many, lambda given: self.store.enqueue_in(self.own, given))
            self.own.execute("COMMIT")
            return
        self.store.enqueue_in(self.own, [_undone(s) for s in many] if "names" in how else many)
        self.own.execute("ROLLBACK")

    @rule(spec=any_spec)
    def enqueue_what_is_refused(self, spec: JobSpec) -> None:
        broken = JobSpec(task="ghost", queue="ghost", workload="default", priority=40_000)
        with pytest.raises(StoreError):
            self.store.enqueue([_undone(spec), broken]).result()

    # Workers

    @rule(at=st.integers(0, 2), wanted=wants(), limit=st.integers(0, 6))
    def claim(self, at: int, wanted: list[Want], limit: int) -> None:
        model, worker = self._tick(), self._worker(at)
        model.promote()
        batch = self.store.claim(worker, wanted, model.workers[worker].tasks, limit).result()
        open_before = {job.id for job in model.open_to(worker, wanted)}
        left = {want: want.slots for want in wanted}
        for claim in batch.claims:
            job = model.jobs[claim.token.job_id]
            assert job.id in open_before, f"job {job.id} was not to be had"
            assert model.free(job), f"job {job.id} is over a limit"
            left[next(want for want in wanted if fits(want, job))] -= 1
            model.take(worker, claim)
        assert min(left.values()) >= 0
        assert len(batch.claims) <= max(limit, 0)
        self._check_order(worker, wanted, batch)
        self._check_nothing_left(worker, left, batch, limit)
        self.given += [(worker, claim.token) for claim in batch.claims]

    @rule(limit=st.integers(1, 6))
    def claim_for_all_tasks(self, limit: int) -> None:
        self.claim(0, [Want(limit)], limit)

    @rule(at=st.integers(0, 2), rounds=st.integers(1, 3))
    def claim_until_nothing_is_left(self, at: int, rounds: int) -> None:
        for _ in range(rounds):
            self.claim(at, [Want(50)], 50)

    def _token(self, at: int, *, live: bool) -> tuple[int, Token]:
        """Return a token that was given once, one that is still running when `live`."""
        running = [(j.worker, Token(j.id, j.claim)) for j in self.model.running()]
        choice = running if live and running else self.given
        return choice[at % len(choice)]

    def _check_order(self, worker: int, wanted: list[Want], batch: ClaimBatch) -> None:
        """Every queue gave its jobs by rank, strict workloads of all queues before the others."""
        model = self.model
        taken = [model.jobs[claim.token.job_id] for claim in batch.claims]
        strict = [job.spec.workload == "critical" for job in taken]
        assert strict == sorted(strict, reverse=True)
        ranks: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        for job in taken:
            kind = job.spec.workload if job.spec.workload == "critical" else ""
            ranks[job.spec.queue, kind].append(model.rank(job))
        for line in ranks.values():
            assert line == sorted(line)
        if batch.more:
            return
        for job in model.open_to(worker, wanted):
            if not model.free(job):
                continue
            kind = job.spec.workload if job.spec.workload == "critical" else ""
            rivals = [
                other
                for other in taken
                if (other.spec.queue, other.spec.workload) == (job.spec.queue, job.spec.workload)
            ]
            assert all(model.rank(other) < model.rank(job) for other in rivals), (job, kind)

    def _check_nothing_left(
        self, worker: int, left: dict[Want, int], batch: ClaimBatch, limit: int
    ) -> None:
        """A claim that took less than it asked for, and does not say why, left nothing free."""
        if batch.more or len(batch.claims) >= limit:
            return
        with_room = [want for want, slots in left.items() if slots > 0]
        free = [job for job in self.model.open_to(worker, with_room) if self.model.free(job)]
        assert free == [], "a free job beside a free slot"

    @precondition(lambda self: self.given)
    @rule(at=indexes, outcome=st.sampled_from(OUT), delay=delays, started=st.booleans())
    def settle(self, at: int, outcome: AttemptOutcome, delay: int, started: bool) -> None:
        worker, token = self._token(at, live=True)
        self._settle(worker, [(token, outcome, delay, started)])

    @precondition(lambda self: self.given)
    @rule(at=indexes, outcome=st.sampled_from(OUT), delay=delays, thief=st.integers(0, 3))
    def settle_what_may_be_stale(
        self, at: int, outcome: AttemptOutcome, delay: int, thief: int
    ) -> None:
        """The token may be settled already, lost long ago, or another worker's."""
        worker, token = self._token(at, live=False)
        who = self._worker(worker) if thief == 0 else worker
        self._settle(who, [(token, outcome, delay, True)])

    @precondition(lambda self: self.given)
    @rule(
        given=st.lists(
            st.tuples(indexes, st.booleans(), st.sampled_from(OUT), delays),
            min_size=2, max_size=20,
        )
    )  # fmt: skip
    def settle_many(self, given: list[tuple[int, bool, AttemptOutcome, int]]) -> None:
        """Several at once, the same one among them twice now and then."""
        chosen = [(self._token(at, live=live), *how) for at, live, *how in given]
        worker = chosen[0][0][0]
        self._settle(worker, [(one[1], outcome, delay, True) for one, outcome, delay in chosen])

    @rule(outcome=st.sampled_from(OUT), delay=delays)
    def settle_all(self, outcome: AttemptOutcome, delay: int) -> None:
        for worker in self.model.workers:
            mine = [job for job in self.model.running() if job.worker == worker]
            self._settle(worker, [(Token(j.id, j.claim), outcome, delay, True) for j in mine])

    def _settle(self, worker: int, given: list[tuple[Token, AttemptOutcome, int, bool]]) -> None:
        model = self._tick()
        ends = [
            _said(token, outcome, delay, self.clock.now() if started else None)
            for token, outcome, delay, started in given
        ]
        answers = self.store.settle(worker, ends).result()
        wanted = [
            model.settle(worker, token, outcome, delay, started=started)
            for token, outcome, delay, started in given
        ]
        assert answers == wanted

    @rule(
        at=st.integers(0, 2), keep=st.integers(0, 3), behind=st.sampled_from((None, 0, 1, 3)),
        more=st.lists(indexes, max_size=3),
    )  # fmt: skip
    def beat(self, at: int, keep: int, behind: int | None, more: list[int]) -> None:
        """The keeper may have forgotten some of what it holds, or hold what it lost long ago."""
        model, worker = self._tick(), self._worker(at)
        mine = [Token(job.id, job.claim) for job in model.running() if job.worker == worker]
        held = {token for at, token in enumerate(mine) if (at + keep) % 4}
        others = [self._token(at, live=False) for at in more] if self.given else []
        held |= {token for owner, token in others if owner == worker}
        newest = None if behind is None else model.claims - behind
        answer = self.store.beat(worker, held, newest, 15_000, 1_000).result()
        wanted = model.beat(worker, held, newest)
        told = {name: set(getattr(answer, name)) for name in wanted}
        assert told == wanted
        assert (answer.registered, answer.beat_mono) == (True, model.mono)

    @rule(limit=st.integers(1, 4))
    def recover(self, limit: int) -> None:
        model = self._tick()
        got = self.store.recover(limit=limit).result()
        assert set(got.tokens) == model.recover(limit)
        assert got.total == len(got.tokens)

    @precondition(lambda self: self.given)
    @rule(at=indexes, live=st.booleans(), value=st.sampled_from((b"", b"half")))
    def remember(self, at: int, live: bool, value: bytes) -> None:
        worker, token = self._token(at, live=live)
        self.store.progress(worker, [(token, value)]).result()
        job = self._tick().held(worker, token)
        fits_still = job is not None and not self.model.expired(job)
        assert self.store.remember(worker, token, value).result() is fits_still
        if job is not None and fits_still:
            self.model.memos[job.operation_id, job.spec.task] = value

    # Time

    @rule(ms=st.one_of(lengths, lengths, st.sampled_from((86_400_000, 8 * 86_400_000))))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms=ms)

    @rule(seconds=st.sampled_from((-3_600, -5, 5, 3_600)))
    def jump(self, seconds: int) -> None:
        self.clock.jump(seconds)

    # Operators and maintenance

    @precondition(lambda self: self.model.jobs)
    @rule(at=st.integers(0, 1 << 20))
    def cancel(self, at: int) -> None:
        model = self._tick()
        ident = sorted(model.jobs)[at % len(model.jobs)]
        assert self.store.cancel(ident).result() is model.cancel(ident)

    @precondition(lambda self: self.model.jobs)
    @rule(
        at=indexes, delay=delays, attempts=st.sampled_from((None, None, 1, 2)),
        payload=st.sampled_from((None, None, b"corrected")),
    )  # fmt: skip
    def requeue(self, at: int, delay: int, attempts: int | None, payload: bytes | None) -> None:
        model = self._tick()
        ident = sorted(model.jobs)[at % len(model.jobs)]
        wish = Requeue(JobId(ident), payload=payload, attempts=attempts, delay_ms=delay)
        (acted,) = self.store.requeue([wish], by="ann").result().jobs
        assert (acted.found, acted.done) == model.requeue(ident, delay, attempts, payload)

    @rule(delay=delays)
    def requeue_all_that_failed(self, delay: int) -> None:
        model, pin = self._tick(), self.store.pin()
        found = self.store.search(JobFilter(), [State.FAILED], pin)
        # After the clock was set back, what ended later than now is left for then.
        ended = [j for j in model.jobs.values() if j.finished <= model.now]
        assert sorted(found.ids) == [j.id for j in ended if j.state is State.FAILED]
        wishes = [Requeue(ident, delay_ms=delay) for ident in found.ids]
        acted = self.store.requeue(wishes, pin=pin).result().jobs if wishes else ()
        for one in acted:
            assert (one.found, one.done) == model.requeue(one.job_id, delay, None, None)

    @precondition(lambda self: self.model.jobs)
    @rule(at=indexes)
    def discard(self, at: int) -> None:
        model = self._tick()
        ident = sorted(model.jobs)[at % len(model.jobs)]
        (acted,) = self.store.discard([JobId(ident)], by="ann").result().jobs
        assert (acted.found, acted.done) == model.discard(ident)

    @rule(
        op=st.one_of(
            st.tuples(st.just("pause"), st.sampled_from(QUEUES), st.booleans()),
            st.tuples(
                st.just("declare"), st.sampled_from(QUEUES), st.sampled_from(("strict", "ageing")),
                st.sampled_from((1, 1_000, 60_000)), st.sampled_from((None, None, 1, 3)),
            ),
            st.tuples(st.just("gate"), gates, st.sampled_from((None, 0, 1, 1, 2, 3))),
            st.tuples(st.just("gate"), gates, st.sampled_from((None, 1, 2))),
        )
    )  # fmt: skip
    def operate(self, op: tuple[Any, ...]) -> None:
        getattr(self, f"_{op[0]}")(*op[1:])

    def _pause(self, queue: str, paused: bool) -> None:
        known = queue in self.model.queues
        assert self.store.pause(queue, paused).result() is known
        if known:
            self.model.queues[queue].paused = paused

    def _declare(self, queue: str, order: Any, ageing_ms: int, running: int | None) -> None:
        self.store.put_queue(
            QueueSettings(queue, order=order, ageing_ms=ageing_ms, running=running)
        ).result()
        paused = self.model.queues.get(queue, Queue()).paused
        self.model.queues[queue] = Queue(order, ageing_ms, running, paused)

    def _gate(self, gate: tuple[str, str], limit: int | None) -> None:
        self.store.set_gate(*gate, limit).result()
        self.model.set_limit(gate, limit)
        if gate[0] == "tenant":
            self.model.queues.setdefault(gate[1].partition("/")[0], Queue())

    @rule(what=st.sampled_from(("expire_unserved", "purge", "reopen", "repair")))
    def take_care(self, what: str) -> None:
        getattr(self, f"_{what}")()

    def _expire_unserved(self) -> None:
        model = self._tick()
        assert self.store.expire_unserved(1_000).result() == len(model.expire_unserved())

    def _purge(self, window: int = 2_000) -> None:
        self._compare_histories()
        model = self._tick()
        purged = self.store.purge(
            completed_ms=window, failed_ms=window, cancelled_ms=window, limit=1_000
        ).result()
        assert purged.jobs == model.purge(window)
        for number in model.forget():
            assert self.store.claim(number, [Want(9)], TASKS, 9).result().claims == []
            model.promote()
            assert not self.store.beat(number, (), None, 15_000, 1_000).result().registered
            self._register(model.workers.pop(number).tasks)

    def _reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def _repair(self) -> None:
        assert self.store.reconcile(repair=True).result() == []

    # What must hold after every step

    @invariant()
    def both_say_the_same(self) -> None:
        stored = {row[0]: row[1:] for row in self.own.execute(VIEW)}
        wanted = {job.id: _seen(job) for job in self.model.jobs.values()}
        assert stored == wanted

    @invariant()
    def the_file_is_sound(self) -> None:
        assert self.store.verify() == []

    @invariant()
    def one_live_lease_a_job_and_no_limit_is_exceeded_by_a_claim(self) -> None:
        claims = [row[0] for row in self.own.execute("SELECT claim FROM millpond_running")]
        assert sorted(claims) == sorted(job.claim for job in self.model.running())

    def _compare_histories(self) -> None:
        for job in self.model.jobs.values():
            rows = self.store.attempts(job.id)
            assert [(row.outcome.value, row.number) for row in rows] == job.history
            numbers = [row.number for row in rows if row.number is not None]
            assert numbers == list(range(1, job.attempts + 1))


def _seen(job: Job) -> tuple[Any, ...]:
    """Return what the view must show of a job."""
    attempts = job.attempts + (job.state is State.RUNNING)
    fixed = (job.spec.priority, job.payload, job.meta, job.size)
    return (job.state.value, attempts, job.due, *fixed)


def test_the_store_does_what_the_dictionary_says():
    run_state_machine_as_test(StoreMachine, settings=settings(stateful_step_count=40))


@pytest.mark.soak
@pytest.mark.timeout(6 * 3_600)
def test_the_store_does_what_the_dictionary_says_for_long():
    soak = settings(settings.get_profile("soak"), stateful_step_count=50)
    run_state_machine_as_test(StoreMachine, settings=soak)


def test_final_states_are_the_three():
    assert {state.value for state in FINAL} == {"completed", "failed", "cancelled"}
