"""Completed jobs that leave history and perhaps a result, as nearly all do.

They hold no key, no limit and no tenant, and had no attempt before. Everything about them but
ids and times is the same, so they are written in few and narrow statements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from millpond.model import AttemptOutcome, Settled, Settlement, State
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context
from millpond.store.sqlite.rows import insert

if TYPE_CHECKING:
    from millpond.store.sqlite.endings import Row

_COMPLETED = Settled(held=True, state=State.COMPLETED)
_encode = msgspec.json.encode


@dataclass(slots=True)
class Lot:
    """The jobs of one lane."""

    ids: list[int] = field(default_factory=list)
    bytes: int = 0


def is_plain(row: Row, said: Settlement) -> bool:
    """Tell whether nothing has to be done but what `Completed` does."""
    return (
        said.outcome is AttemptOutcome.COMPLETED
        and row.attempts == 0
        and row.key is None
        and row.coalesce_key is None
        and row.limit_key is None
        and row.tenant is None
        and said.started_at is not None
        and said.ended_at is not None
        and said.error_type is None
        and said.message is None
        and said.traceback is None
        and said.fingerprint is None
        and said.signal is None
    )


class Completed:
    """Gathers such jobs, then writes them set by set."""

    def __init__(self) -> None:
        self.lots: dict[int, Lot] = {}
        self._attempts: list[tuple[int | None, ...]] = []

    def add(self, row: Row, said: Settlement, number: int | None) -> Settled:
        """Take one job."""
        self._attempts.append(
            (row.id, row.claim, number, row.worker, row.claimed_at, said.started_at, said.ended_at)
        )
        lot = self.lots.get(row.lane)
        if lot is None:
            lot = self.lots[row.lane] = Lot()
        lot.ids.append(row.id)
        lot.bytes += row.size
        return _COMPLETED

    def write(self, tx: Context) -> None:
        """Write histories and final rows."""
        insert(tx.execute, SQL["add_completed"], self._attempts)
        for ident, lot in self.lots.items():
            lane = tx.names.lanes[ident]
            ids = _encode(lot.ids).decode()
            final = {"ids": ids, "now": tx.now, "queue": lane.queue.id, "task": lane.task_id}
            tx.execute(SQL["add_completed_finals"], final)
