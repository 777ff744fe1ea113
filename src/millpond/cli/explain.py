"""`millpond explain`: why a job is not running."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.cli.options import JOB, Place, at_store, json_option
from millpond.cli.screen import print_json, say

if TYPE_CHECKING:
    from millpond.cli.reasons import Scene
    from millpond.model import JobRow
    from millpond.store.protocol import Store

_LOOKED_AT = 1_000
"""Running jobs among which those of the same limit key are sought."""


@click.command()
@click.argument("job_id", metavar="ID", type=JOB)
@json_option
@at_store
def explain(at: Place, /, *, job_id: int, as_json: bool) -> None:
    """Say why a job is not running: paused, not due, nobody serves it, a limit, its turn.

    Of a job that runs it says where and since when, of a final one how it ended.
    """
    from millpond.cli.reasons import reasons

    scene = _scene(at, job_id)
    found = reasons(scene)
    if as_json:
        told = [{"code": reason.code, "text": reason.text} for reason in found]
        print_json({"id": job_id, "state": scene.job.state.value, "reasons": told})
        return
    say(f"job {job_id} ({scene.job.task}) is {scene.job.state}:")
    say(*(f"  {reason.text}" for reason in found))


def _scene(at: Place, job_id: int) -> Scene:
    from millpond.app.operations import not_found
    from millpond.cli.reasons import Scene
    from millpond.model import JobId
    from millpond.store.upkeep import queue_states

    # Before the store is open here: this looks with a connection of its own.
    queues = queue_states(at.checked())
    with at.existing() as pond:
        known = pond.look(job_id, payload=False)
        row = None if known is None else pond.store.get(JobId(job_id), payload=False)
        if row is None:
            raise not_found(job_id)
        return Scene(row, pond.store.status(), queues, _holders(pond.store, row))


def _holders(store: Store, job: JobRow) -> list[JobRow]:
    from millpond.model import JobFilter, State

    if job.blocked_by is None or job.limit_key is None:
        return []
    running = store.find(JobFilter(state=State.RUNNING), limit=_LOOKED_AT)
    return [other for other in running if other.limit_key == job.limit_key]
