"""The application that the benchmarks' workers run: handlers that do nothing."""

from __future__ import annotations

import time

from bench.stores import QUEUE
from millpond import Millpond

pond = Millpond()
"""At MILLPOND_URL."""


@pond.task(queue=QUEUE)
def noop(report_id: int, fmt: str = "pdf") -> None:
    """Do nothing in a thread."""


@pond.task(queue=QUEUE)
async def anoop(report_id: int, fmt: str = "pdf") -> None:
    """Do nothing on the event loop."""


@pond.task(queue=QUEUE)
def stamp(sent: float) -> float:
    """Return how long ago the job was handed over, in seconds of the system's own clock."""
    return time.monotonic() - sent
