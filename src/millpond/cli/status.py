"""`millpond status` and `millpond workers`."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from millpond.cli.options import Place, at_store, json_option, option
from millpond.cli.screen import Table, fancy, print_json, print_json_line, say, show
from millpond.cli.words import clean, length

if TYPE_CHECKING:
    from millpond.app import Millpond
    from millpond.model import LaneCount, StatusSnapshot, WorkerRow

WATCH_EVERY_S = 2.0
_CELL = 60
_COUNTS = ("scheduled", "ready", "running", "completed", "failed", "cancelled")
_CLEAR = "\x1b[H\x1b[2J"


@click.command()
@option("--watch", is_flag=True, help="Look again every two seconds, until Ctrl-C.")
@json_option
@at_store
def status(at: Place, /, *, watch: bool, as_json: bool) -> None:
    """Show queues and workers; the first line says whether all is well.

    What is waiting and running is of this moment; completed, failed and cancelled count all
    that ever ended so.
    """
    with at.existing() as pond:
        if not watch:
            _show_once(pond, as_json=as_json)
            return
        while True:
            _show_again(pond, as_json=as_json)
            time.sleep(WATCH_EVERY_S)


def _show_once(pond: Millpond, *, as_json: bool) -> None:
    snapshot = pond.store.status()
    if as_json:
        print_json(_told(snapshot))
    else:
        _show(snapshot)


def _show_again(pond: Millpond, *, as_json: bool) -> None:
    snapshot = pond.store.status()
    if as_json:
        print_json_line(_told(snapshot))
    else:
        if fancy():
            click.echo(_CLEAR, nl=False)
        _show(snapshot)
    sys.stdout.flush()


def _told(snapshot: StatusSnapshot) -> dict[str, Any]:
    from millpond.app import Status
    from millpond.cli.verdict import verdict, warnings

    head = {"verdict": verdict(snapshot), "warnings": warnings(snapshot)}
    return head | Status.of(snapshot).to_json()


def _show(snapshot: StatusSnapshot) -> None:
    from millpond.cli.verdict import NAMED, verdict, warnings

    say(verdict(snapshot))
    say(*(f"warning: {line}" for line in warnings(snapshot)[NAMED:]))
    if snapshot.lanes:
        click.echo()
        show(queue_table(snapshot))
    if snapshot.workers:
        click.echo()
        show(worker_table(snapshot.workers, snapshot.at))


def queue_table(snapshot: StatusSnapshot) -> Table:
    """Return a row for every queue, and for every workload where a queue has several."""
    table = Table(("queue", *_COUNTS, "waits", ""), frozenset(_COUNTS) | {"waits"})
    places: dict[str, list[LaneCount]] = {}
    for lane in snapshot.lanes:
        plain = lane.workload == "default"
        place = lane.queue if plain else f"{lane.queue}/{lane.workload}"
        places.setdefault(place, []).append(lane)
    for place, lanes in places.items():
        counts = [sum(_count(lane, name) for lane in lanes) for name in _COUNTS]
        due = min((lane.oldest_due_at for lane in lanes if lane.oldest_due_at), default=None)
        waits = None if due is None else length(snapshot.at - due)
        remark = "paused" if any(lane.paused for lane in lanes) else ""
        table.add(clean(place, _CELL), *(f"{count:,}" for count in counts), waits, remark)
    return table


def _count(lane: LaneCount, name: str) -> int:
    value: int = getattr(lane, name)
    return value + lane.blocked if name == "ready" else value


def worker_table(workers: list[WorkerRow], now: int) -> Table:
    """Return a row for every registered worker."""
    columns = ("worker", "state", "slots", "holds", "serves", "tasks", "beat", "version")
    table = Table(columns, frozenset({"slots", "holds", "tasks"}))
    for worker in workers:
        serves = ", ".join(worker.queues) or "all queues"
        table.add(
            clean(f"{worker.host}:{worker.pid}", _CELL), _state(worker),
            worker.slots, worker.running, clean(serves, _CELL), len(worker.tasks),
            f"{length(now - worker.beat_at)} ago", clean(worker.version, 20),
        )  # fmt: skip
    return table


def _state(worker: WorkerRow) -> str:
    if not worker.live:
        return "lost"
    return "late" if worker.late else "live"


@click.command()
@json_option
@at_store
def workers(at: Place, /, *, as_json: bool) -> None:
    """List the registered workers, live ones first.

    A worker is late when a beat is overdue, and lost when it has shown no sign of life for
    four of its beats; its jobs go to others when their leases end.
    """
    with at.existing() as pond:
        snapshot = pond.store.status()
    from millpond.cli.verdict import silent_workers

    if as_json:
        from millpond.app import Status

        print_json({"workers": Status.of(snapshot).to_json()["workers"]})
    elif snapshot.workers:
        ordered = sorted(snapshot.workers, key=lambda worker: not worker.live)
        show(worker_table(ordered, snapshot.at))
        say(*(f"warning: {line}" for line in silent_workers(snapshot)))
    else:
        say("no worker is registered: start one with `millpond worker APP`")
