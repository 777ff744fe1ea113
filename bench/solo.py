"""The application whose handlers run in processes of their own."""

from __future__ import annotations

from bench.stores import QUEUE
from millpond import Millpond

pond = Millpond()
"""At MILLPOND_URL."""


@pond.task(queue=QUEUE, isolation="process")
def noop(report_id: int, fmt: str = "pdf") -> None:
    """Do nothing in a process of its own."""
