"""Why a job is not running: decided from snapshots, without looking at anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from millpond.cli.verdict import live, serves, silence
from millpond.cli.words import length, plural
from millpond.model import JobRow, State, StatusSnapshot, WorkerRow
from millpond.store.upkeep import QueueState
from millpond.task.jobs import moment, rfc3339

_SHOWN = 5
"""How many jobs or workers a reason names."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason; `code` is for programs."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Scene:
    """A job and what is around it, seen at one moment.

    `holders` are the running jobs of the limit key that it waits for.
    """

    job: JobRow
    now: StatusSnapshot
    queues: Mapping[str, QueueState]
    holders: Sequence[JobRow] = ()


def reasons(scene: Scene) -> list[Reason]:
    """Return why the job is not running, what decides first; or where it runs, or how it ended."""
    job = scene.job
    match job.state:
        case State.COMPLETED | State.FAILED | State.CANCELLED:
            return [_final(job)]
        case State.RUNNING:
            return _running(scene)
        case State.SCHEDULED:
            return [_not_due(scene), *_obstacles(scene, "then")]
        case State.READY:
            found = _obstacles(scene, "now")
            return found or [_in_line(scene)]
        case _:
            assert_never(job.state)


def _final(job: JobRow) -> Reason:
    at = rfc3339(moment(job.finished_at)) if job.finished_at is not None else "some time ago"
    why = job.last_error or job.reason
    because = f" ({why})" if why and job.state is not State.COMPLETED else ""
    text = f"it {_ended(job.state)} at {at}, attempts used {job.attempts} of {job.max_attempts}"
    again = f"it will not run again, unless somebody puts it back: millpond retry {job.id}"
    return Reason(job.state.value, f"{text}{because}: {again}")


def _ended(state: State) -> str:
    return "was cancelled" if state is State.CANCELLED else state.value


def _running(scene: Scene) -> list[Reason]:
    job, now = scene.job, scene.now.at
    since = length(now - job.started_at) if job.started_at is not None else "an unknown time"
    owner = job.lease.owner if job.lease else "an unknown worker"
    attempt = f"attempt {job.attempts} of {job.max_attempts}"
    found = [Reason("running", f"it is running for {since} on {owner} ({attempt})")]
    if job.cancel_requested:
        found.append(Reason("cancel_requested", "its cancellation was asked for"))
    expires = job.lease.expires_at if job.lease else None
    if expires is not None and expires <= now:
        text = f"its lease ended {length(now - expires)} ago: the next recovery takes it back"
        found.append(Reason("lease_expired", text))
    elif (quiet := silent(job, scene.now)) is not None:
        found.append(Reason("worker_silent", quiet))
    return found


def silent(job: JobRow, now: StatusSnapshot) -> str | None:
    """Return what becomes of a running job whose worker's beat is overdue, None for others."""
    lease = job.lease
    worker = next((one for one in now.workers if lease and one.id == lease.worker), None)
    if lease is None or worker is None or not worker.late:
        return None
    text = f"its worker {silence(worker, now.at)} (it beats every {length(worker.interval_ms)})"
    if lease.expires_at is None:
        return f"{text}: the job is taken from it when its lease has ended"
    then = "the job goes to another" if job.attempts < job.max_attempts else "its last attempt ends"
    return f"{text}: {then} in about {length(lease.expires_at - now.at)}"


def _not_due(scene: Scene) -> Reason:
    job = scene.job
    wait = length(job.due_at - scene.now.at)
    text = f"it is not due until {rfc3339(moment(job.due_at))}, in {wait}"
    if job.attempts:
        error = f" ({job.last_error})" if job.last_error else ""
        text += f": attempt {job.attempts} of {job.max_attempts} did not succeed{error}"
    return Reason("not_due", text)


def _obstacles(scene: Scene, when: str) -> list[Reason]:
    """Return everything that keeps it from being claimed, apart from its turn."""
    found = [_paused(scene), *_nobody(scene), _blocked(scene)]
    if when == "now":
        found.append(_full_queue(scene))
    return [reason for reason in found if reason is not None]


def _paused(scene: Scene) -> Reason | None:
    queue = scene.queues.get(scene.job.queue)
    if queue is None or not queue.paused:
        return None
    name = scene.job.queue
    return Reason(
        "paused", f"queue {name} is paused: resume it with `millpond queues resume {name}`"
    )


def _nobody(scene: Scene) -> list[Reason]:
    job, workers = scene.job, live(scene.now.workers)
    if not workers:
        last = max((worker.beat_at for worker in scene.now.workers), default=None)
        ago = "" if last is None else f"; the last one was seen {length(scene.now.at - last)} ago"
        return [
            Reason("no_worker", f"no worker is live: start one with `millpond worker APP`{ago}")
        ]
    by_task = [worker for worker in workers if job.task in worker.tasks]
    if not by_task:
        text = f"none of {plural(len(workers), 'live worker')} knows task {job.task}"
        return [Reason("no_handler", text + ": start one whose application has it")]
    if not any(serves(worker, job.queue, job.workload) for worker in by_task):
        text = f"no live worker that knows task {job.task} serves {_place(job)}"
        return [Reason("queue_not_served", f"{text}: they serve {_served(by_task)}")]
    return []


def _blocked(scene: Scene) -> Reason | None:
    if scene.job.blocked_by is None:
        return None
    kind, _, ref = scene.job.blocked_by.partition(" ")
    holders = scene.holders
    ids = ", ".join(str(job.id) for job in holders[:_SHOWN])
    use = f": {plural(len(holders), 'job')} of it running ({ids})" if holders else ""
    return Reason("limit", f"its {kind} key {ref} has as many running as it may{use}")


def _full_queue(scene: Scene) -> Reason | None:
    queue = scene.queues.get(scene.job.queue)
    if queue is None or queue.max_running is None:
        return None
    running = sum(lane.running for lane in scene.now.lanes if lane.queue == queue.name)
    if running < queue.max_running:
        return None
    text = f"queue {queue.name} runs {running} of at most {queue.max_running} jobs at once"
    return Reason("queue_running", text)


def _in_line(scene: Scene) -> Reason:
    job = scene.job
    able = [
        worker
        for worker in live(scene.now.workers)
        if job.task in worker.tasks and serves(worker, job.queue, job.workload)
    ]
    slots, busy = sum(worker.slots for worker in able), sum(worker.running for worker in able)
    others = sum(lane.ready for lane in scene.now.lanes if lane.queue == job.queue) - 1
    waited = length(scene.now.at - job.due_at)
    line = f"it waits in line for {waited} (priority {job.priority})"
    if others > 0:
        line += f", beside {plural(others, 'other ready job')} of queue {job.queue}"
    if busy >= slots:
        return Reason("slots_busy", f"{line}: the workers hold {busy} jobs in {slots} slots")
    return Reason(
        "in_line", f"{line}: {slots - busy} of {slots} slots are free, it is next or soon"
    )


def _place(job: JobRow) -> str:
    plain = job.workload == "default"
    return f"queue {job.queue}" if plain else f"workload {job.workload} of queue {job.queue}"


def _served(workers: Sequence[WorkerRow]) -> str:
    places = sorted({place for worker in workers for place in worker.queues})
    more = f" and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    return ", ".join(places[:_SHOWN]) + more
