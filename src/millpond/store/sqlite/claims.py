"""Claiming: promote what is due, look at the head of every lane, pick, move, hand out tokens.

Reads what it takes and one row a non-empty lane, whatever else the queue holds. Cost: O(lanes
+ jobs · log ready). Rows of tasks that nobody here serves stand in lanes of their own and are
not touched.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from millpond.errors import InvariantBroken
from millpond.model import Claim, ClaimBatch, JobId, Token, Want, WorkerId
from millpond.policy.picking import Lane, Meter, Picker, Row
from millpond.store.sqlite import gates
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context, LaneName
from millpond.store.sqlite.rows import insert

MOVES = 500
"""Due jobs promoted, and blocked jobs moved, by one claim at most."""
FEW = 4
"""Up to this many lanes a range is deleted from each."""

_encode = msgspec.json.encode
_heads = msgspec.json.Decoder(list[tuple[int, int, int, int, int]]).decode
_chunks = msgspec.json.Decoder(list[list[tuple[int, int, int]]]).decode


def claim(
    tx: Context,
    worker: WorkerId,
    wants: Sequence[Want],
    tasks: Collection[str],
    limit: int,
    *,
    turn: int = 0,
) -> ClaimBatch:
    """Take up to `limit` jobs for the worker, in order, each with a fresh token.

    `turn` says which of the queues that have work comes first; it should grow by one a claim.
    A worker without a row gets nothing: what it took could never be taken back.
    """
    tx.require_open()
    more, next_due = promote(tx)
    lanes = _lanes(tx, wants, tasks)
    if not lanes or limit <= 0 or not _registered(tx, worker):
        return ClaimBatch([], more, next_due)
    guard = _Limits(tx) if tx.names.gates else None
    picker = Picker(lanes, limit, turn=turn, may_run=guard.may_run if guard else None)
    if guard is not None:
        guard.stop = picker.stop
    while hungry := picker.run():
        _feed(tx, picker, hungry)
    if guard is not None:
        more = more or guard.moves > 0
    if not picker.picked:
        return ClaimBatch([], more, next_due)
    return ClaimBatch(_take(tx, worker, picker.picked, whole=guard is None), more, next_due)


def _registered(tx: Context, worker: WorkerId) -> bool:
    return tx.execute(SQL["worker_exists"], {"worker": worker}).fetchone() is not None


def promote(tx: Context) -> tuple[bool, int | None]:
    """Make due jobs ready, at most MOVES; tell whether more are due, and when the next is."""
    first = tx.execute(SQL["first_due"]).fetchone()
    if first is None or first[0] > tx.now:
        return False, first and first[0]
    rows = tx.execute(SQL["due_jobs"], {"now": tx.now, "limit": MOVES}).fetchall()
    dropped = tx.executemany(SQL["drop_due"], [row[:2] for row in rows]).rowcount
    insert(tx.execute, SQL["add_ready"], [(lane, rank, job, due) for due, job, lane, rank in rows])
    if dropped != len(rows):
        msg = f"{len(rows)} jobs were due and {dropped} were scheduled"
        raise InvariantBroken(msg)
    for lane, n in Counter(row[2] for row in rows).items():
        tx.execute(SQL["move_counts"], {"lane": lane, "scheduled": -n, "ready": n, "blocked": 0})
    first = tx.execute(SQL["first_due"]).fetchone()
    next_due = first and first[0]
    return next_due is not None and next_due <= tx.now, next_due


Open = tuple[LaneName, int, bool, tuple[int, ...]]
"""A lane, its queue, whether it is strict, and the wants it may use, the most specific first."""


def served(names: Any, wants: Sequence[Want], tasks: Collection[str]) -> dict[int, Open]:
    """Return the lanes that a claim may take from; kept with the names they follow from."""
    key = ("served", tuple((w.queue, w.workload, w.tasks) for w in wants), frozenset(tasks))
    found = names.derived.get(key)
    if found is None:
        found = {
            lane.id: (lane, lane.queue.id, lane.workload.strict, seats)
            for lane in names.lanes.values()
            if lane.task in tasks
            and not lane.queue.paused
            and not lane.workload.paused
            and (seats := _seats(wants, lane))
        }
        names.derived[key] = found
    return found  # type: ignore[no-any-return]


def _seats(wants: Sequence[Want], lane: LaneName) -> tuple[int, ...]:
    fitting = [
        at
        for at, want in enumerate(wants)
        if want.queue in {None, lane.queue.name}
        and want.workload in {None, lane.workload.name}
        and (want.tasks is None or lane.task in want.tasks)
    ]
    fitting.sort(key=lambda at: (wants[at].workload is None, wants[at].queue is None))
    return tuple(fitting)


def _lanes(tx: Context, wants: Sequence[Want], tasks: Collection[str]) -> list[Lane]:
    names = tx.names
    open_to = served(names, wants, tasks)
    slots = [Meter(want.slots) for want in wants]
    meters = _meters(tx) if names.limits else None
    seats: dict[tuple[int, ...], tuple[Meter, ...]] = {}
    found = []
    for row in _heads(tx.execute(SQL["heads"]).fetchone()[0]):
        mine = open_to.get(row[0])
        if mine is None:
            continue
        name, queue, strict, at = mine
        if at not in seats:
            seats[at] = tuple(slots[want] for want in at)
        own = () if meters is None else meters(name)
        found.append(Lane(row[0], queue, strict, row[2:], row[1], seats[at], own))
    return found


def _meters(tx: Context) -> Any:
    """Return a function lane → the meters of its queue, workload and task, by lanes' counts."""
    used: Counter[tuple[str, int]] = Counter()
    for queue, workload, task, n in tx.execute(SQL["running_counts"]).fetchall():
        used["queue", queue] += n
        used["workload", workload] += n
        used["task", task] += n
    meters: dict[tuple[str, int], Meter] = {}

    def of(lane: LaneName) -> tuple[Meter, ...]:
        pairs = (
            (("queue", lane.queue.id), lane.queue.max_running),
            (("workload", lane.workload.id), lane.workload.max_running),
            (("task", lane.task_id), tx.names.task_running.get(lane.task_id)),
        )
        return tuple(
            meters.setdefault(key, Meter(most - used[key]))
            for key, most in pairs
            if most is not None
        )

    return of


def _feed(tx: Context, picker: Picker, hungry: list[Lane]) -> None:
    """Read the next rows of the lanes that ran out: all that is wanted, spread over them."""
    if len(hungry) == 1:
        lane = hungry[0]
        limit = min(picker.missing + 1, lane.left) if picker.missing > 1 else 1
        if lane.last is None and limit == 1:
            rows = [lane.head]
        elif lane.last is None:
            rows = tx.execute(SQL["chunk_first"], {"lane": lane.id, "limit": limit}).fetchall()
        else:
            key = {"lane": lane.id, "rank": lane.last[0], "id": lane.last[1], "limit": limit}
            rows = tx.execute(SQL["chunk"], key).fetchall()
        picker.feed(lane, rows)
        return
    limit = picker.missing // len(hungry) + 2
    asked: list[Any]
    if all(lane.last is None for lane in hungry):
        statement, asked = SQL["chunks_first"], [lane.id for lane in hungry]
    else:
        start = -(1 << 63)
        statement = SQL["chunks"]
        asked = [[lane.id, *(lane.last or (start, 0))] for lane in hungry]
    found = tx.execute(statement, {"lanes": _encode(asked).decode(), "limit": limit}).fetchone()
    for lane, rows in zip(hungry, _chunks(found[0]), strict=True):
        picker.feed(lane, rows)


class _Limits:
    """Checks limit keys and tenants while picking, and sets aside what may not run."""

    def __init__(self, tx: Context) -> None:
        self._tx = tx
        self._room: dict[gates.Gate, int] = {}
        self.moves = 0
        self.stop: Callable[[], None] = lambda: None

    def may_run(self, lane: Lane, row: Row) -> bool:
        tx, ident = self._tx, row[1]
        limit_key, tenant = tx.execute(SQL["limits_of"], {"id": ident}).fetchone()
        if limit_key is None and tenant is None:
            return True
        mine = gates.gates_of(limit_key, tenant, lane.queue)
        full = next((gate for gate in mine if self._left(gate) <= 0), None)
        if full is None:
            for gate in mine:
                self._room[gate] -= 1
            return True
        gates.set_aside(tx, full, lane.id, row)
        self.moves += 1
        # Places this claim has given out already are not in the gate's count yet.
        open_others = [gate for gate in mine if gate != full and self._left(gate) > 0]
        gates.left_ready(tx, lane.id, open_others)
        if self.moves >= MOVES:
            self.stop()
        return False

    def _left(self, gate: gates.Gate) -> int:
        left = self._room.get(gate)
        if left is None:
            key = {"kind": gate[0], "ref": gate[1]}
            row = self._tx.execute(SQL["find_gate"], key).fetchone()
            n, limit = row or (0, None)
            left = (1 << 30) if limit is None else limit - n
            self._room[gate] = left
        return left


def _take(
    tx: Context, worker: WorkerId, picked: list[tuple[int, Row]], *, whole: bool
) -> list[Claim]:
    """Move what was picked from ready to running; `whole` if each lane gave its first rows."""
    rows = [(lane, row[0], row[1], row[2]) for lane, row in picked]
    counts = Counter(row[0] for row in rows)
    first = tx.take("claim", len(rows))
    gone = _drop_ready(tx, rows, whole=whole and len(counts) <= FEW)
    start = {"rows": _encode(rows).decode(), "claim": first, "worker": worker, "now": tx.now,
             "mono": tx.mono}  # fmt: skip
    running = tx.execute(SQL["claim_running"], start).rowcount
    if gone != len(rows) or running != len(rows):
        msg = f"{len(rows)} jobs were picked, {gone} were ready and {running} started running"
        raise InvariantBroken(msg)
    alike = defaultdict(list)
    for lane, n in counts.items():
        alike[n].append(lane)
    for n, lanes in alike.items():
        tx.execute(SQL["count_claimed"], {"lanes": _encode(lanes).decode(), "n": n})
    return _claims(tx, rows, first)


def _drop_ready(tx: Context, rows: list[tuple[int, int, int, int]], *, whole: bool) -> int:
    """Delete the rows from ready and return how many were there."""
    if whole:
        # Picking goes through a lane in order: all up to the last one are those picked.
        last = {row[0]: row[:3] for row in rows}
        return sum(tx.execute(SQL["claim_ready_to"], key).rowcount for key in last.values())
    return int(tx.executemany(SQL["claim_ready"], [row[:3] for row in rows]).rowcount)


def _claims(tx: Context, rows: list[tuple[int, int, int, int]], first: int) -> list[Claim]:
    lanes, now, mono = tx.names.lanes, tx.now, tx.mono
    memos = bool(tx.execute(SQL["any_memo"]).fetchone()[0])
    occupied: list[gates.Gate] = []
    claims = []
    ids = {"ids": _encode([row[2] for row in rows]).decode()}
    found = tx.execute(SQL["claimed"], ids).fetchall()
    for at, (row, job) in enumerate(zip(rows, found, strict=True)):
        lane = lanes[row[0]]
        if job[12] is not None:
            scope = {"queue": lane.queue.id, "task": lane.task_id, "key": job[12], "job": job[0]}
            tx.execute(SQL["drop_coalesce"], scope)
        if job[13] is not None or job[14] is not None:
            occupied += gates.gates_of(job[13], job[14], lane.queue.id)
        claims.append(
            Claim(
                Token(JobId(job[0]), first + at), lane.task, lane.queue.name, lane.workload.name,
                job[1], job[2], job[3], job[4], job[5], job[6], job[7], job[8], job[9], row[3],
                now, mono, job[10], job[11], _memo(tx, job[7], lane.task_id) if memos else None,
            )
        )  # fmt: skip
    gates.occupy(tx, occupied)
    return claims


def _memo(tx: Context, operation_id: str, task: int) -> bytes | None:
    key = {"operation_id": operation_id, "task": task}
    row = tx.execute(SQL["memo_of"], key).fetchone()
    return None if row is None else bytes(row[0])


def stands(execute: Any, worker: WorkerId, batch: ClaimBatch) -> bool | None:
    """Read back whether a claim was committed; None when it took nothing."""
    if not batch.claims:
        return None
    numbers = [taken.token.claim for taken in batch.claims]
    key = {"worker": worker, "first": min(numbers), "last": max(numbers)}
    return bool(execute(SQL["claim_stands"], key).fetchone()[0] == len(numbers))
