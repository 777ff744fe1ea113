"""What waits and would wait for ever: told by a worker, where a newcomer looks first."""

from __future__ import annotations

from millpond.errors import StoreError
from millpond.model import StatusSnapshot
from millpond.store.protocol import Store
from millpond.worker import journal


def tell(store: Store) -> None:
    """Log the tasks and queues that have jobs waiting and no live worker, if there are any."""
    try:
        now = store.status()
    except StoreError as error:
        journal.read_refused(error)
        return
    # A task that nobody has is told once, as such, and not by its queue too.
    queues = [(name, count) for name, count in now.unserved_queues if _for_known(now, name)]
    if now.unserved_tasks or queues:
        journal.nobody_serves(dict(now.unserved_tasks), dict(queues))


def _for_known(now: StatusSnapshot, queue: str) -> bool:
    """Whether some of a queue's waiting jobs are of tasks that live workers have."""
    return any(
        lane.queue == queue and lane.served and lane.ready + lane.blocked for lane in now.lanes
    )
