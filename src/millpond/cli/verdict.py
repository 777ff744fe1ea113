"""What a status means: one sentence first, then what somebody should look at."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from millpond.cli.words import length, plural
from millpond.model import LaneCount, StatusSnapshot, WorkerRow

NAMED = 3
"""How many queues or tasks the sentence names before it counts the rest."""


def verdict(now: StatusSnapshot) -> str:
    """Return the one sentence that says whether all is well."""
    found = warnings(now)
    if found:
        more = len(found) - NAMED
        return "; ".join(found[:NAMED]) + (f"; and {more} more" if more > 0 else "")
    return _calm(now)


def warnings(now: StatusSnapshot) -> list[str]:
    """Return what keeps jobs from being done, the gravest first."""
    return [
        *_unserved_queues(now), *_unserved_tasks(now), *_expired(now),
        *silent_workers(now), *_paused(now),
    ]  # fmt: skip


def silence(worker: WorkerRow, now: int) -> str:
    """Return how long a worker that is late was not heard of."""
    return f"has not been heard of for {length(now - worker.beat_at)}"


def live(workers: Iterable[WorkerRow]) -> list[WorkerRow]:
    """Return the workers that beat."""
    return [worker for worker in workers if worker.live]


def serves(worker: WorkerRow, queue: str, workload: str | None = None) -> bool:
    """Tell whether a worker takes jobs of a queue, or of one workload of it."""
    if not worker.queues:
        return True
    for place in worker.queues:
        name, _, part = place.partition("/")
        if name == queue and (not part or workload is None or part == workload):
            return True
    return False


def _unserved_queues(now: StatusSnapshot) -> list[str]:
    workers = live(now.workers)
    served = {place.partition("/")[0] for worker in workers for place in worker.queues}
    lines = []
    for queue, count in now.unserved_queues:
        close = difflib.get_close_matches(queue, served, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        lines.append(f"{queue}: {count:,} ready, 0 workers serve it{hint}")
    return lines


def _unserved_tasks(now: StatusSnapshot) -> list[str]:
    # Without any worker the queues have said it already.
    if not live(now.workers):
        return []
    return [f"no handler for {task}: {count:,}" for task, count in now.unserved_tasks]


def _expired(now: StatusSnapshot) -> list[str]:
    if not now.expired_leases:
        return []
    return [f"{plural(now.expired_leases, 'expired lease')} not recovered yet"]


def silent_workers(now: StatusSnapshot) -> list[str]:
    """Return a line for each worker whose beat is overdue while it holds jobs."""
    lines = []
    for worker in now.workers:
        ends = worker.lease_ends_at
        # What has expired is counted already.
        if not worker.late or ends is None or ends <= now.at:
            continue
        held = f"its {worker.running:,} jobs go" if worker.running > 1 else "its job goes"
        lines.append(
            f"worker {worker.host}:{worker.pid} {silence(worker, now.at)}: {held} to others in "
            f"about {length(ends - now.at)}"
        )
    return lines


def _paused(now: StatusSnapshot) -> list[str]:
    waiting: dict[str, int] = {}
    for lane in now.lanes:
        if lane.paused:
            waiting[lane.queue] = waiting.get(lane.queue, 0) + lane.ready + lane.blocked
    return [f"{queue} is paused: {count:,} ready" for queue, count in waiting.items() if count]


def _calm(now: StatusSnapshot) -> str:
    ready, running = (
        _sum(now.lanes, "ready") + _sum(now.lanes, "blocked"),
        _sum(now.lanes, "running"),
    )
    scheduled = _sum(now.lanes, "scheduled")
    workers = plural(len(live(now.workers)), "live worker")
    if ready or running:
        return f"all is well: {ready:,} ready, {running:,} running, {workers}"
    if scheduled:
        return f"nothing is due: {scheduled:,} scheduled, {workers}"
    if not now.lanes:
        return f"no job was enqueued yet; {workers}"
    return f"all is done: nothing waits, {workers}"


def _sum(lanes: Iterable[LaneCount], name: str) -> int:
    return sum(getattr(lane, name) for lane in lanes)
