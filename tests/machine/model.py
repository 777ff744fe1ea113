"""The store as a plain dictionary: what every operation must do, said in the simplest way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from millpond.model import Admission, AttemptOutcome, Claim, JobSpec, Settled, State, Token, Want
from millpond.policy.backoff import Backoff, delay_ms

OUT = AttemptOutcome
DAY_MS = 86_400_000
MAX_AGE_MS = 7 * DAY_MS
UNKNOWN_AFTER_MS = DAY_MS
FINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
Gate = tuple[str, str]


@dataclass
class Job:
    """One job; `state` SCHEDULED lasts until a claim has promoted it."""

    id: int
    spec: JobSpec
    state: State
    first_due: int
    due: int
    operation_id: str
    attempts: int = 0
    crashes: int = 0
    payload: bytes = b""
    meta: bytes | None = None
    again: bool = False
    cancel: bool = False
    claim: int = 0
    worker: int = 0
    claimed_mono: int = 0
    finished: int = 0
    most: int = 0
    history: list[tuple[str, int | None]] = field(default_factory=list)

    @property
    def gates(self) -> list[Gate]:
        found = []
        if self.spec.limit_key is not None:
            found.append(("limit", self.spec.limit_key))
        if self.spec.tenant is not None:
            found.append(("tenant", f"{self.spec.queue}/{self.spec.tenant}"))
        return found

    @property
    def size(self) -> int:
        return len(self.payload) + len(self.meta or b"")


@dataclass
class Queue:
    """What is declared of a queue."""

    order: str = "strict"
    ageing_ms: int = 60_000
    running: int | None = None
    paused: bool = False


@dataclass
class Worker:
    """A registered worker."""

    tasks: tuple[str, ...]
    beat_mono: int
    beat_at: int
    interval_ms: int = 15_000


class Model:
    """Everything that was accepted, and what has become of it."""

    def __init__(self) -> None:
        self.now = 0
        self.mono = 0
        self.jobs: dict[int, Job] = {}
        self.queues: dict[str, Queue] = {}
        self.workers: dict[int, Worker] = {}
        self.limits: dict[Gate, int | None] = {}
        self.keys: dict[tuple[str, str, str], tuple[int, int, int | None]] = {}
        self.merging: dict[tuple[str, str, str], int] = {}
        self.memos: dict[tuple[str, str], bytes] = {}
        self.served_at: dict[str, int] = {}
        self.purged: set[int] = set()
        self.next_id = 1
        self.claims = 0

    # Accepting

    def enqueue(self, specs: Sequence[JobSpec], given: Sequence[Admission]) -> list[Admission]:
        first, self.next_id = self.next_id, self.next_id + len(specs)
        return [
            self._admit(spec, first + at, answer.operation_id)
            for at, (spec, answer) in enumerate(zip(specs, given, strict=True))
        ]

    def _admit(self, spec: JobSpec, ident: int, operation: str) -> Admission:
        self.queues.setdefault(spec.queue, Queue())
        scope = (spec.queue, spec.task)
        if spec.key is not None:
            holder = self.keys.get((*scope, spec.key))
            if holder is not None and (holder[2] is None or holder[2] > self.now):
                return self._answer("duplicate", holder[0], operation)
        if spec.coalesce_key is not None and (*scope, spec.coalesce_key) in self.merging:
            job = self.jobs[self.merging[(*scope, spec.coalesce_key)]]
            self._merge(job, spec)
            if spec.key is not None:
                self.keys[(*scope, spec.key)] = (job.id, spec.key_ttl_ms, None)
            return self._answer("coalesced", job.id, operation)
        due = self._due(spec)
        state = State.READY if due <= self.now else State.SCHEDULED
        job = Job(ident, spec, state, due, due, spec.operation_id or operation)
        job.payload, job.meta, job.most = spec.payload, spec.meta, spec.max_attempts
        self.jobs[ident] = job
        if spec.key is not None:
            self.keys[(*scope, spec.key)] = (ident, spec.key_ttl_ms, None)
        if spec.coalesce_key is not None:
            self.merging[(*scope, spec.coalesce_key)] = ident
        if spec.limit_key is not None:
            self.set_limit(("limit", spec.limit_key), spec.limit)
        return Admission("admitted", ident, job.operation_id)  # type: ignore[arg-type]

    def _answer(self, answer: str, ident: int, operation: str) -> Admission:
        known = self.jobs.get(ident)
        return Admission(answer, ident, known.operation_id if known else operation)  # type: ignore[arg-type]

    def _due(self, spec: JobSpec) -> int:
        return spec.due_at if spec.due_at is not None else self.now + spec.delay_ms

    def _merge(self, job: Job, spec: JobSpec) -> None:
        if spec.coalesce == "first":
            return
        job.payload, job.meta = spec.payload, spec.meta
        due = self._due(spec)
        if job.state is State.SCHEDULED and due < job.due:
            job.due = due
            if not job.again:
                job.first_due = due
            job.state = State.READY if due <= self.now else State.SCHEDULED

    # Limits

    def set_limit(self, gate: Gate, limit: int | None) -> None:
        if limit is not None or gate in self.limits:
            self.limits[gate] = limit

    def running(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state is State.RUNNING]

    def room(self, gate: Gate) -> int:
        limit = self.limits.get(gate)
        used = sum(gate in job.gates for job in self.running())
        return 1 << 30 if limit is None else limit - used

    def queue_room(self, queue: str) -> int:
        limit = self.queues[queue].running
        used = sum(job.spec.queue == queue for job in self.running())
        return 1 << 30 if limit is None else limit - used

    def free(self, job: Job) -> bool:
        return self.queue_room(job.spec.queue) > 0 and all(self.room(g) > 0 for g in job.gates)

    # Claiming

    def promote(self, most: int = 500) -> None:
        due = [j for j in self.jobs.values() if j.state is State.SCHEDULED and j.due <= self.now]
        for job in sorted(due, key=lambda job: (job.due, job.id))[:most]:
            job.state = State.READY

    def rank(self, job: Job) -> tuple[int, int]:
        queue = self.queues[job.spec.queue]
        if queue.order == "strict":
            return (job.spec.priority << 47) + job.first_due, job.id
        return job.first_due + job.spec.priority * queue.ageing_ms, job.id

    def open_to(self, worker: int, wants: Sequence[Want]) -> list[Job]:
        tasks = self.workers[worker].tasks
        return [
            job
            for job in self.jobs.values()
            if job.state is State.READY
            and job.spec.task in tasks
            and not self.queues[job.spec.queue].paused
            and any(fits(want, job) for want in wants)
        ]

    def take(self, worker: int, claim: Claim) -> None:
        job = self.jobs[claim.token.job_id]
        assert claim.token.claim > self.claims, "claim numbers only grow"
        self.claims = claim.token.claim
        assert (claim.attempts, claim.crashes) == (job.attempts, job.crashes)
        assert (claim.payload, claim.meta) == (job.payload, job.meta)
        assert (claim.operation_id, claim.due_at) == (job.operation_id, job.due)
        assert claim.remembered == self.memos.get((job.operation_id, job.spec.task))
        job.state, job.worker, job.claim = State.RUNNING, worker, claim.token.claim
        job.claimed_mono = self.mono
        self._leave_merging(job)

    def _leave_merging(self, job: Job) -> None:
        scope = (job.spec.queue, job.spec.task, job.spec.coalesce_key or "")
        if self.merging.get(scope) == job.id:
            del self.merging[scope]

    # Ending

    def expired(self, job: Job) -> bool:
        beat = self.workers[job.worker].beat_mono
        return max(job.claimed_mono, beat) + job.spec.lease_ms <= self.mono

    def held(self, worker: int, token: Token) -> Job | None:
        job = self.jobs.get(token.job_id)
        if job is None or job.state is not State.RUNNING:
            return None
        return job if (job.claim, job.worker) == (token.claim, worker) else None

    def settle(
        self, worker: int, token: Token, outcome: AttemptOutcome, delay: int, *, started: bool
    ) -> Settled:
        job = self.held(worker, token)
        if job is None:
            return Settled(False, None)
        if self.expired(job):
            self.lose(job)
            return Settled(False, None)
        self.end(job, outcome, delay, started=started)
        due = job.due if job.state in {State.READY, State.SCHEDULED} else None
        return Settled(True, job.state, due)

    def lose(self, job: Job) -> None:
        self.end(job, OUT.LEASE_LOST, delay_ms(job.attempts + 1, Backoff(), 0.5), started=True)

    def end(self, job: Job, outcome: AttemptOutcome, delay: int, *, started: bool) -> None:
        if outcome is OUT.SNOOZED and self.now >= job.first_due + MAX_AGE_MS:
            outcome = OUT.FAILED
        charged = outcome not in {OUT.SNOOZED, OUT.RELEASED}
        number = job.attempts + 1 if charged else None
        lossy = outcome in {OUT.LEASE_LOST, OUT.CRASHED}
        if outcome is OUT.COMPLETED:
            written, state = outcome, State.COMPLETED
        elif job.cancel:
            written, state = outcome if lossy else OUT.CANCELLED, State.CANCELLED
        elif outcome in {OUT.FAILED, OUT.CANCELLED}:
            written, state = outcome, State(outcome.value)
        elif not charged or job.attempts + 1 < job.most:
            written, state = outcome, State.SCHEDULED
        else:
            written = OUT.FAILED if outcome is OUT.RETRIED else outcome
            state = State.FAILED
        if written is not OUT.RELEASED or started:
            job.history.append((written.value, number))
        job.attempts += charged
        job.crashes += outcome is OUT.CRASHED
        job.cancel = False
        if state in FINAL:
            self._finish(job, state)
        else:
            self._back(job, outcome, delay)

    def _back(self, job: Job, outcome: AttemptOutcome, delay: int) -> None:
        if outcome is OUT.RELEASED:
            job.state = State.READY
        else:
            job.again, job.due = True, self.now + max(delay, 0)
            job.state = State.READY if job.due <= self.now else State.SCHEDULED
        if job.spec.coalesce_key is not None:
            scope = (job.spec.queue, job.spec.task, job.spec.coalesce_key)
            self.merging.setdefault(scope, job.id)

    def _finish(self, job: Job, state: State) -> None:
        job.state, job.finished = state, self.now
        for scope, (holder, ttl, _) in list(self.keys.items()):
            if holder == job.id and state is State.COMPLETED:
                self.keys[scope] = (holder, ttl, self.now + ttl)
            elif holder == job.id:
                del self.keys[scope]

    def beat(self, worker: int, held: Iterable[Token], known: int | None) -> dict[str, set[Token]]:
        told = set(held)
        answer: dict[str, set[Token]] = {"lost": set(), "released": set(), "cancel": set()}
        mine = [job for job in self.running() if job.worker == worker]
        for job in mine:
            token = Token(job.id, job.claim)  # type: ignore[arg-type]
            if self.expired(job):
                self.lose(job)
                answer["released"].add(token)
            elif token not in told:
                if known is None or job.claim <= known:
                    self.end(job, OUT.RELEASED, 0, started=False)
                    answer["released"].add(token)
            elif job.cancel:
                answer["cancel"].add(token)
        answer["lost"] = {token for token in told if self.held(worker, token) is None}
        self.workers[worker].beat_mono, self.workers[worker].beat_at = self.mono, self.now
        return answer

    def recover(self, limit: int) -> set[Token]:
        late = sorted((job for job in self.running() if self.expired(job)), key=lambda j: j.claim)
        taken = {Token(job.id, job.claim) for job in late[:limit]}  # type: ignore[arg-type]
        for job in late[:limit]:
            self.lose(job)
        return taken

    # By hand, and care

    def cancel(self, ident: int) -> State | None:
        job = self.jobs.get(ident)
        if job is None or job.state in FINAL:
            return job and job.state
        found = job.state
        if found is State.RUNNING:
            job.cancel = True
            return found
        self._leave_merging(job)
        self._finish(job, State.CANCELLED)
        return found

    def requeue(
        self, ident: int, delay: int, attempts: int | None, payload: bytes | None
    ) -> tuple[State | None, bool]:
        job = self.jobs.get(ident)
        if job is None or job.state not in FINAL:
            return (job and job.state), False
        found, job.again, job.cancel = job.state, bool(job.attempts), False
        job.due = job.first_due = self.now + delay
        job.state = State.READY if job.due <= self.now else State.SCHEDULED
        job.most = job.attempts + (attempts or job.spec.max_attempts)
        job.payload = job.payload if payload is None else payload
        self._retake(job)
        if job.spec.coalesce_key is not None:
            scope = (job.spec.queue, job.spec.task, job.spec.coalesce_key)
            self.merging.setdefault(scope, job.id)
        return found, True

    def _retake(self, job: Job) -> None:
        for scope, (holder, ttl, until) in self.keys.items():
            if holder == job.id and (until is None or until > self.now):
                self.keys[scope] = (holder, ttl, None)
        if job.spec.key is None:
            return
        own = (job.spec.queue, job.spec.task, job.spec.key)
        holder, ttl, until = self.keys.get(own, (job.id, DAY_MS, None))
        if holder == job.id:
            self.keys[own] = (job.id, ttl, None)
        elif until is not None and until <= self.now:
            self.keys[own] = (job.id, DAY_MS, None)

    def discard(self, ident: int) -> tuple[State | None, bool]:
        job = self.jobs.get(ident)
        if job is None or job.state not in FINAL:
            return (job and job.state), False
        del self.jobs[ident]
        self.purged.add(ident)
        self.keys = {scope: held for scope, held in self.keys.items() if held[0] != ident}
        if all(other.operation_id != job.operation_id for other in self.jobs.values()):
            self.memos = {k: v for k, v in self.memos.items() if k[0] != job.operation_id}
        return job.state, True

    def expire_unserved(self) -> set[int]:
        for worker in self.workers.values():
            wall = worker.beat_at + 4 * worker.interval_ms >= self.now
            if wall or worker.beat_mono + 4 * worker.interval_ms >= self.mono:
                self.served_at.update(dict.fromkeys(worker.tasks, self.now))
        before = self.now - UNKNOWN_AFTER_MS
        dead = {
            job.id
            for job in self.jobs.values()
            if job.state is State.READY
            and job.due <= before
            and self.served_at.get(job.spec.task, before) <= before
        }
        for ident in dead:
            self._leave_merging(self.jobs[ident])
            self._finish(self.jobs[ident], State.FAILED)
        return dead

    def purge(self, window: int) -> int:
        gone = [
            j for j in self.jobs.values() if j.state in FINAL and j.finished < self.now - window
        ]
        for job in gone:
            del self.jobs[job.id]
            self.purged.add(job.id)
        self.keys = {
            scope: held
            for scope, held in self.keys.items()
            if held[2] is None or held[2] > self.now
        }
        left = {job.operation_id for job in self.jobs.values()}
        ended = {job.operation_id for job in gone}
        self.memos = {
            key: value for key, value in self.memos.items() if key[0] in left or key[0] not in ended
        }
        return len(gone)

    def forget(self) -> set[int]:
        """Return the workers that are given up: silent for a day by both clocks, empty-handed."""
        busy = {job.worker for job in self.running()}
        return {
            number
            for number, worker in self.workers.items()
            if number not in busy
            and worker.beat_at < self.now - DAY_MS
            and worker.beat_mono < self.mono - DAY_MS
        }


def fits(want: Want, job: Job) -> bool:
    return want.queue in {None, job.spec.queue} and want.workload in {None, job.spec.workload}
