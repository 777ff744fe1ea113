"""How claimed jobs leave `running`: settle, beat and recover, all through one door.

Every ending proves the lease (job, claim, unexpired) or takes an expired one; the running row
is deleted by that proof and its count checked, and history, final row, capacity, limits and
keys move in the same transaction. What is not held changes nothing but `late_at`.

Cost: O(settled · log n), in a fixed number of statements when many end at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from millpond import fault
from millpond.config import TaskSettings
from millpond.errors import InvariantBroken
from millpond.model import (
    AttemptOutcome,
    BeatAnswer,
    JobId,
    Observation,
    Recovered,
    Settled,
    Settlement,
    State,
    Token,
    WorkerId,
)
from millpond.policy.backoff import delay_ms
from millpond.policy.ending import Ending, Held, ending, failure_reason
from millpond.policy.fingerprint import fingerprint
from millpond.store.sqlite import gates
from millpond.store.sqlite.completed import Completed, is_plain
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context

FEW = 8
"""Up to this many rows single statements are as fast as set-based ones."""

_encode = msgspec.json.encode


class Row(NamedTuple):
    """A running job as `held_jobs` reads it."""

    at: int
    id: int
    claim: int
    lane: int
    due: int
    claimed_at: int
    cancel: int
    size: int
    worker: int
    expires: int
    max_attempts: int
    key: str | None
    limit_key: str | None
    tenant: int | None
    coalesce_key: str | None
    rank: int
    attempts: int
    crashes: int
    first_due: int
    operation_id: str


class _Endings:
    """Gathers what ends in one transaction, then writes it set by set."""

    def __init__(self, tx: Context) -> None:
        self.tx = tx
        self.gone: list[tuple[int, int]] = []
        self.attempts: list[tuple[Any, ...]] = []
        self.tracebacks: list[tuple[int, int, str]] = []
        self.finals: list[tuple[Any, ...]] = []
        self.results: list[tuple[Any, ...]] = []
        self.stale: list[tuple[int]] = []
        self.again: list[tuple[int, ...]] = []
        self.ready: list[tuple[int, int, int, int]] = []
        self.scheduled: list[tuple[int, int]] = []
        self.counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self.freed: Counter[int] = Counter()
        self.freed_bytes: Counter[int] = Counter()
        self.vacated: list[gates.Gate] = []
        self.plain = Completed()

    def end(self, row: Row, said: Settlement, *, delay: int, late_at: int | None = None) -> Settled:
        """Take one running job to where its attempt's end leads."""
        outcome = said.outcome
        too_old = outcome is AttemptOutcome.SNOOZED and self._too_old(row)
        held, fate = _decided(
            AttemptOutcome.FAILED if too_old else outcome,
            row.attempts, row.crashes, row.max_attempts, row.cancel,
        )  # fmt: skip
        self.gone.append((row.id, row.claim))
        if is_plain(row, said):
            self._keep_result(row, said)
            return self.plain.add(row, said, fate.number)
        count = self.counts[row.lane]
        count["running"] += 1
        self._write_attempt(row, said, fate, late_at)
        if row.limit_key is not None or row.tenant is not None:
            queue = self.tx.names.lanes[row.lane].queue.id
            self.vacated += gates.gates_of(row.limit_key, row.tenant, queue)
        if outcome in _LOSSES:
            count["lost"] += 1
        if fate.state is State.SCHEDULED:
            return self._back(row, fate, delay)
        reason = None
        if fate.state is State.FAILED:
            reason = "max_age" if too_old else failure_reason(outcome, held, said.reason)
        elif fate.state is State.CANCELLED:
            reason = said.reason or "cancelled"
        return self._final(row, said, fate, reason)

    def _write_attempt(self, row: Row, said: Settlement, fate: Ending, late_at: int | None) -> None:
        if fate.outcome is AttemptOutcome.RELEASED and said.started_at is None:
            return
        ended = said.ended_at if said.ended_at is not None else self.tx.now
        self.attempts.append(
            (row.id, row.claim, fate.number, row.worker, row.claimed_at, said.started_at, ended,
             fate.outcome, _clean(said.error_type), _clean(said.message),
             _clean(said.fingerprint), said.signal, late_at)
        )  # fmt: skip
        if said.traceback:
            self.tracebacks.append((row.id, row.claim, _clean(said.traceback) or ""))

    def _final(self, row: Row, said: Settlement, fate: Ending, reason: str | None) -> Settled:
        lane = self.tx.names.lanes[row.lane]
        self.finals.append(
            (row.id, fate.state, self.tx.now, lane.queue.id, lane.task_id, _clean(reason),
             _kind(lane.task, fate, said, reason))
        )  # fmt: skip
        if fate.crashes != row.crashes:
            # The last crash is kept like the others; nothing else of a final job is read there.
            self.again.append((row.id, row.lane, row.due, row.rank, fate.number or 0, fate.crashes))
        self.counts[row.lane][fate.state] += 1
        self.freed[lane.workload.id] += 1
        self.freed_bytes[lane.workload.id] += row.size
        tx = self.tx
        if row.tenant is not None:
            use = {"queue": lane.queue.id, "tenant": row.tenant, "jobs": 1, "bytes": row.size}
            tx.execute(SQL["give_tenant"], use)
        if row.key is not None or row.coalesce_key is not None:
            name = "keep_dedup" if fate.state is State.COMPLETED else "free_dedup"
            tx.execute(SQL[name], {"job": row.id, "now": tx.now})
        if fate.state is State.COMPLETED:
            self._keep_result(row, said)
        return Settled(held=True, state=fate.state)

    def _keep_result(self, row: Row, said: Settlement) -> None:
        if said.result is not None:
            task = self.tx.names.lanes[row.lane].task_id
            expires = self.tx.now + said.result_ttl_ms
            self.results.append((row.id, row.operation_id, task, said.result, expires))
        elif row.attempts:
            # What an earlier run returned, before a requeue, is not what this one did.
            self.stale.append((row.id,))

    def _back(self, row: Row, fate: Ending, delay: int) -> Settled:
        """Put the job where the next claim finds it, now or when it is due."""
        tx = self.tx
        released = fate.outcome is AttemptOutcome.RELEASED
        due = row.due if released else tx.now + max(delay, 0)
        lane = row.lane
        if fate.number is not None:
            name = tx.names.lanes[row.lane]
            again = tx.lane(name.queue.name, name.workload.name, name.task, again=True)
            lane = again.id
        attempts = row.attempts if fate.number is None else fate.number
        if not released:
            self.again.append((row.id, lane, due, row.rank, attempts, fate.crashes))
        # What was due once stays so, even when the wall clock was set back meanwhile.
        ready = released or due <= tx.now
        if ready:
            self.ready.append((lane, row.rank, row.id, due))
        else:
            self.scheduled.append((due, row.id))
        self.counts[lane]["ready" if ready else "scheduled"] += 1
        self.counts[row.lane][_BACK[fate.outcome]] += 1
        if row.coalesce_key is not None:
            name = tx.names.lanes[row.lane]
            tx.execute(
                SQL["rejoin_coalesce"],
                {"queue": name.queue.id, "task": name.task_id, "key": row.coalesce_key,
                 "job": row.id},
            )  # fmt: skip
        return Settled(True, State.READY if ready else State.SCHEDULED, due)

    def _too_old(self, row: Row) -> bool:
        task = self.tx.names.lanes[row.lane].task_id
        return self.tx.now >= row.first_due + settings_of(self.tx, task).max_age_ms

    def write(self) -> None:
        """Write all that was gathered."""
        if not self.gone:
            return
        self._drop_running()
        self.plain.write(self.tx)
        self._insert("add_attempt", self.attempts)
        self._insert("add_final", self.finals)
        execute, many = self.tx.execute, self.tx.executemany
        for name, rows in (
            ("add_traceback", self.tracebacks),
            ("drop_result", self.stale),
            ("add_result", self.results),
            ("put_again", self.again),
            ("add_ready", self.ready),
            ("add_scheduled", self.scheduled),
        ):
            if rows:
                many(SQL[name], rows)
        if execute(SQL["any_progress"]).fetchone()[0]:
            execute(SQL["drop_progress"], {"ids": _encode([i for i, _ in self.gone]).decode()})
        self._count()
        gates.vacate(self.tx, self.vacated)

    def _drop_running(self) -> None:
        if len(self.gone) <= FEW:
            dropped = sum(self.tx.execute(SQL["drop_running"], k).rowcount for k in self.gone)
        else:
            ids = _encode([ident for ident, _ in self.gone]).decode()
            dropped = self.tx.execute(SQL["drop_running_many"], {"ids": ids}).rowcount
        if dropped != len(self.gone):
            msg = f"{len(self.gone)} running jobs ended and {dropped} were running"
            raise InvariantBroken(msg)

    def _insert(self, name: str, rows: list[tuple[Any, ...]]) -> None:
        if len(rows) <= FEW:
            for row in rows:
                self.tx.execute(SQL[name], row)
        else:
            self.tx.execute(SQL[name + "_many"], {"rows": _encode(rows).decode()})

    def _count(self) -> None:
        for lane, lot in self.plain.lots.items():
            self.counts[lane].update(running=len(lot.ids), completed=len(lot.ids))
            workload = self.tx.names.lanes[lane].workload.id
            self.freed[workload] += len(lot.ids)
            self.freed_bytes[workload] += lot.bytes
        first = self._falls_due_first()
        for lane, count in self.counts.items():
            self.tx.execute(SQL["count_ended"], {"lane": lane, **_NO_COUNTS, **count})
            if count["ready"] or (first and count["scheduled"]):
                self.tx.woken.add(self.tx.names.lanes[lane].task_id)
        for workload, jobs in self.freed.items():
            use = {"workload": workload, "jobs": jobs, "bytes": self.freed_bytes[workload]}
            self.tx.execute(SQL["give_capacity"], use)

    def _falls_due_first(self) -> bool:
        """Tell whether one of these is due before all that keepers know: they sleep too long."""
        if not self.scheduled:
            return False
        first = self.tx.execute(SQL["first_due"]).fetchone()[0]
        return bool(min(self.scheduled)[0] <= first)


@lru_cache(maxsize=4096)
def _decided(
    outcome: AttemptOutcome, attempts: int, crashes: int, max_attempts: int, cancel: int
) -> tuple[Held, Ending]:
    """Ask the policy once for all jobs that are alike."""
    held = Held(attempts, crashes, max_attempts, bool(cancel))
    return held, ending(outcome, held)


_LOSSES = frozenset({AttemptOutcome.LEASE_LOST, AttemptOutcome.CRASHED})
_NO_COUNTS = dict.fromkeys(
    ("running", "ready", "scheduled", "completed", "failed", "cancelled", "retried", "snoozed",
     "released", "lost"), 0
)  # fmt: skip
_BACK = {
    AttemptOutcome.SNOOZED: "snoozed",
    AttemptOutcome.RELEASED: "released",
    AttemptOutcome.RETRIED: "retried",
    AttemptOutcome.TIMED_OUT: "retried",
    AttemptOutcome.LEASE_LOST: "retried",
    AttemptOutcome.CRASHED: "retried",
}


def _kind(task: str, fate: Ending, said: Settlement, reason: str | None) -> str | None:
    """Return the kind of error: every failed job has one, also where no handler raised."""
    if said.fingerprint is not None or fate.state is not State.FAILED:
        return _clean(said.fingerprint)
    return fingerprint(task, said.error_type or "", said.message or reason or "", "")


def _clean(value: str | None) -> str | None:
    """Return text that JSON and SQLite can carry: no lone surrogates, no NUL."""
    if value is None or (value.isascii() and "\0" not in value):
        return value
    return value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def settings_of(tx: Context, task: int) -> TaskSettings:
    """Return a task's settings, the defaults while no process has declared it."""
    key = ("settings", task)
    found = tx.names.derived.get(key)
    if found is None:
        text = tx.names.settings.get(task)
        # A producer may have named the task as no declaration could: only the values matter.
        found = TaskSettings.from_json(text) if text else TaskSettings(name="undeclared")
        tx.names.derived[key] = found
    return found


def _held(tx: Context, tokens: Sequence[tuple[int, int]]) -> dict[int, Row]:
    ids = _encode([job for job, _ in tokens]).decode()
    found = map(Row._make, tx.execute(SQL["held_jobs"], {"ids": ids}).fetchall())
    return {row.at: row for row in found if row.claim == tokens[row.at][1]}


def settle(tx: Context, worker: WorkerId, settlements: Sequence[Settlement]) -> list[Settled]:
    """Record how attempts ended, each only under its token and unexpired lease."""
    held = _held(tx, [said.token for said in settlements])
    ends, answers, seen = _Endings(tx), [], set()
    for at, said in enumerate(settlements):
        row = held.get(at)
        if row is None or row.worker != worker or row.id in seen:
            key = {"now": tx.now, "job": said.token.job_id, "claim": said.token.claim}
            tx.execute(SQL["mark_late"], {**key, "worker": worker})
            answers.append(Settled(held=False, state=None))
            continue
        seen.add(row.id)
        if row.expires <= tx.mono:
            lost = _lost(row, "lease expired before the outcome was recorded")
            ends.end(row, lost, delay=_backoff(tx, row, tx.roll), late_at=tx.now)
            answers.append(Settled(held=False, state=None))
        else:
            answers.append(ends.end(row, said, delay=said.delay_ms))
    ends.write()
    return answers


def _lost(row: Row, why: str) -> Settlement:
    return Settlement(
        token=Token(JobId(row.id), row.claim),
        outcome=AttemptOutcome.LEASE_LOST,
        started_at=row.claimed_at,
        error_type="LeaseLost",
        message=why,
        reason=why,
    )


def _backoff(tx: Context, row: Row, roll: Callable[[], float]) -> int:
    task = tx.names.lanes[row.lane].task_id
    return delay_ms(row.attempts + 1, settings_of(tx, task).retry, roll())


def beat(
    tx: Context,
    worker: WorkerId,
    held: Collection[Token],
    known_claim: int | None,
    interval_ms: int,
) -> BeatAnswer:
    """Take back this worker's expired leases, then renew all the others with one row.

    A worker that was forgotten meanwhile holds nothing: the answer says so, and it must
    register anew.
    """
    key = {"worker": worker, "mono": tx.mono}
    expired = tx.execute(SQL["expired_of_worker"], key).fetchall()
    taken = take_back(tx, expired, frozenset(), "lease expired before it was renewed", tx.roll)
    mine, cancel, orphans = set(), [], []
    for ident, claim, wanted in tx.execute(SQL["worker_running"], {"worker": worker}).fetchall():
        token = Token(JobId(ident), claim)
        mine.add(token)
        if token not in held:
            if known_claim is None or claim <= known_claim:
                orphans.append(token)
        elif wanted:
            cancel.append(token)
    released = take_back(tx, orphans, frozenset(orphans), "not held by its worker", tx.roll)
    row = {"worker": worker, "now": tx.now, "mono": tx.mono, "interval_ms": interval_ms}
    if tx.execute(SQL["write_beat"], row).rowcount != 1:
        return BeatAnswer(tx.mono, lost=tuple(held), registered=False)
    lost = tuple(token for token in held if token not in mine)
    return BeatAnswer(
        tx.mono, lost, tuple(cancel), released.tokens + taken.tokens, tx.names.generation
    )


def recover(
    tx: Context,
    limit: int,
    observed: Sequence[Observation],
    unstarted: Collection[Token],
    roll: Callable[[], float],
) -> Recovered:
    """Take back the expired leases of all workers, at most `limit`, oldest claim first.

    Those of this clock domain go before those of others.
    """
    key = {"domain": tx.domain, "mono": tx.mono, "limit": limit}
    expired = tx.execute(SQL["expired"], key).fetchall()
    if observed and len(expired) < limit:
        seen = [[o.worker, o.beat, o.claim, o.unchanged_ms] for o in observed]
        left = limit - len(expired)
        far = {"observed": _encode(seen).decode(), "domain": tx.domain, "limit": left}
        expired += tx.execute(SQL["expired_elsewhere"], far).fetchall()
    fault.point("recover-read")
    why = "lease expired; worker lost"
    taken = take_back(tx, expired, frozenset(unstarted), why, roll)
    return replace(taken, more=len(expired) >= limit)


def take_back(
    tx: Context,
    tokens: Sequence[tuple[int, int]],
    unstarted: Collection[Token],
    why: str,
    roll: Callable[[], float],
) -> Recovered:
    """End attempts without their worker: what never started is released, the rest is charged."""
    if not tokens:
        return Recovered()
    ends, tally, done = _Endings(tx), Counter[str](), []
    for row in _held(tx, tokens).values():
        token = Token(JobId(row.id), row.claim)
        if token in unstarted:
            said, delay = Settlement(token=token, outcome=AttemptOutcome.RELEASED), 0
        else:
            said, delay = _lost(row, why), _backoff(tx, row, roll)
        settled = ends.end(row, said, delay=delay)
        done.append(token)
        tally[_KIND.get(settled.state, "released" if token in unstarted else "retried")] += 1
    ends.write()
    return Recovered(
        tally["retried"], tally["failed"], tally["cancelled"], tally["released"], tuple(done)
    )


_KIND: dict[State | None, str] = {State.FAILED: "failed", State.CANCELLED: "cancelled"}


def stands(
    execute: Any, settlements: Sequence[Settlement], answers: Sequence[Settled]
) -> bool | None:
    """Read back whether a settle was committed: its running rows are gone. None: it ended none."""
    ended = [said.token for said, answer in zip(settlements, answers, strict=True) if answer.held]
    if not ended:
        return None
    return not any(
        execute(SQL["still_running"], {"job": token.job_id, "claim": token.claim}).fetchone()
        for token in ended
    )
