"""Limits on running jobs of one limit key or tenant: who is set aside, who comes back.

A ready job whose key runs as many as it may moves to `blocked`, out of the range a claim
reads. Two rules keep wake-ups from being lost. A freed place brings back the head of *each
lane* blocked on that key, since only one of them will get it and the picker must see all of
them. And a job that leaves ready without running, while another of its limits has room, brings
back the next one of that limit in its lane: the place it was woken for is still free.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from millpond.errors import InvariantBroken, refuse_setting
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context

EVERYTHING = 1 << 30

Gate = tuple[str, str]
"""(kind, ref): 'limit' and the limit key, or 'tenant' and 'queue/tenant' by number."""


def gates_of(limit_key: str | None, tenant: int | None, queue: int) -> tuple[Gate, ...]:
    """Return the limits a job counts against."""
    found: tuple[Gate, ...] = ()
    if limit_key is not None:
        found += (("limit", limit_key),)
    if tenant is not None:
        found += (("tenant", f"{queue}/{tenant}"),)
    return found


def named(tx: Context, kind: str, ref: str) -> Gate:
    """Return the limit that people call by this name: a limit key, or 'queue/tenant'.

    Queue and tenant are made when they are new, so that a limit can stand before the first job.
    """
    if kind == "limit":
        return kind, ref
    queue, slash, tenant = ref.partition("/")
    if kind != "tenant" or not slash:
        refuse_setting("the limit", (kind, ref), "('limit', key) or ('tenant', 'queue/tenant')")
    return gates_of(None, tx.tenant(tenant), tx.queue(queue))[0]


def has_room(n: int, limit: int | None) -> bool:
    """Tell whether one more may run."""
    return limit is None or n < limit


def declare(tx: Context, gate: Gate, limit: int | None) -> None:
    """Put a declared limit in force; a raised or removed one brings jobs back at once."""
    key = {"kind": gate[0], "ref": gate[1]}
    row = tx.execute(SQL["find_gate"], key).fetchone()
    if row is None:
        if limit is None:
            return
        n = tx.execute(SQL[f"count_{gate[0]}"], {"ref": gate[1]}).fetchone()[0]
        tx.execute(SQL["add_gate"], {**key, "n": n, "max": limit})
        if not tx.names.gates:
            tx.renew_names()
        return
    if row[1] == limit:
        return
    tx.execute(SQL["declare_gate"], {**key, "max": limit})
    bring_back_fitting(tx, gate)


def keep(tx: Context, gate: Gate, limit: int | None) -> None:
    """Do what `declare` does for people, whose limit stands whether there are jobs or not."""
    declare(tx, gate, limit)
    tx.execute(SQL["keep_gate"], {"kind": gate[0], "ref": gate[1]})


def occupy(tx: Context, gates: Iterable[Gate]) -> None:
    """Count claimed jobs against the limits that exist; a later one counts for itself."""
    for (kind, ref), by in Counter(gates).items():
        tx.execute(SQL["occupy_gate"], {"kind": kind, "ref": ref, "by": by})


def vacate(tx: Context, gates: Iterable[Gate]) -> None:
    """Give places back and bring back the heads that wait for them."""
    for (kind, ref), by in Counter(gates).items():
        row = tx.execute(SQL["vacate_gate"], {"kind": kind, "ref": ref, "by": by}).fetchone()
        if row is not None:
            n, limit = row
            bring_back(tx, (kind, ref), by if limit is None else min(by, limit - n))


def left_ready(tx: Context, lane: int, gates: Iterable[Gate]) -> None:
    """After a job left ready without running: wake the next of each limit that has room."""
    for kind, ref in gates:
        row = tx.execute(SQL["find_gate"], {"kind": kind, "ref": ref}).fetchone()
        if row is None or has_room(*row):
            _return_heads(tx, (kind, ref), lane, 1)


def bring_back_fitting(tx: Context, gate: Gate) -> None:
    """Bring back as many as there is room for now, after the limit or its count has changed."""
    n, limit = tx.execute(SQL["find_gate"], {"kind": gate[0], "ref": gate[1]}).fetchone()
    bring_back(tx, gate, EVERYTHING if limit is None else limit - n)


def bring_back(tx: Context, gate: Gate, places: int) -> None:
    """Return up to `places` heads of each lane that is blocked on the gate."""
    if places <= 0:
        return
    key = {"kind": gate[0], "ref": gate[1]}
    for (lane,) in tx.execute(SQL["blocked_lanes"], key).fetchall():
        _return_heads(tx, gate, lane, places)


def _return_heads(tx: Context, gate: Gate, lane: int, limit: int) -> None:
    key = {"kind": gate[0], "ref": gate[1], "lane": lane, "limit": limit}
    moved = tx.execute(SQL["return_heads"], key).rowcount
    if moved <= 0:
        return
    if tx.execute(SQL["drop_returned"], key).rowcount != moved:
        msg = f"lane {lane} returned {moved} jobs of {gate[0]} {gate[1]!r} and dropped others"
        raise InvariantBroken(msg)
    count = {"lane": lane, "scheduled": 0, "ready": moved, "blocked": -moved}
    tx.execute(SQL["move_counts"], count)
    tx.woken.add(tx.names.lanes[lane].task_id)


def set_aside(tx: Context, gate: Gate, lane: int, ready: Sequence[int]) -> None:
    """Move a ready job, given as (rank, id, due), to blocked."""
    rank, ident, due = ready[:3]
    row = {"lane": lane, "rank": rank, "id": ident}
    if tx.execute(SQL["drop_ready"], row).rowcount != 1:
        msg = f"job {ident} is not ready in lane {lane} any more"
        raise InvariantBroken(msg)
    tx.execute(SQL["add_blocked"], {**row, "kind": gate[0], "ref": gate[1], "due": due})
    tx.execute(SQL["move_counts"], {"lane": lane, "scheduled": 0, "ready": -1, "blocked": 1})
