"""Takes away what limit keys and tenants leave behind: one row each, for as long as nothing looks.

Keys may be as many as users. A limit that a job brought along says nothing once no job of its
key is left; a tenant's count of nothing is made again with its next job. Both are gone through
in small steps, from where the last step stood; where that is, each process knows for itself.
"""

from __future__ import annotations

import msgspec

from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context

_encode = msgspec.json.encode


class Sweep:
    """Where the next step begins."""

    def __init__(self) -> None:
        self._ref = ""
        self._use = (0, 0)

    def step(self, tx: Context, limit: int) -> bool:
        """Look at `limit` rows of each kind, delete the idle ones; tell whether to go on now.

        It goes on while there is something to delete, so that what is in use is looked through
        at leisure.
        """
        gates = self._gates(tx, limit)
        uses = self._uses(tx, limit)
        return gates or uses

    def _gates(self, tx: Context, limit: int) -> bool:
        rows = tx.execute(SQL["look_at_gates"], {"after": self._ref, "limit": limit}).fetchall()
        full = len(rows) >= limit
        self._ref = rows[-1][0] if full else ""
        idle = [ref for ref, is_idle in rows if is_idle]
        if not idle:
            return False
        tx.execute(SQL["drop_gates"], {"refs": _encode(idle).decode()})
        # Others believe by this that no claim needs to ask; who adds the next limit tells them.
        if not tx.execute(SQL["any_gate"]).fetchone()[0]:
            tx.renew_names()
        return full

    def _uses(self, tx: Context, limit: int) -> bool:
        queue, tenant = self._use
        key = {"queue": queue, "tenant": tenant, "limit": limit}
        rows = tx.execute(SQL["look_at_uses"], key).fetchall()
        full = len(rows) >= limit
        self._use = (rows[-1][0], rows[-1][1]) if full else (0, 0)
        idle = [(queue, tenant) for queue, tenant, is_idle in rows if is_idle]
        if idle:
            tx.execute(SQL["drop_uses"], {"uses": _encode(idle).decode()})
        return full and bool(idle)
