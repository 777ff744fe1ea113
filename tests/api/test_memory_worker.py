"""A worker on a store in memory is told of new jobs by the store itself."""

from __future__ import annotations

import time

from millpond import Millpond


def test_a_job_on_a_store_in_memory_does_not_wait_for_the_next_poll() -> None:
    pond = Millpond(":memory:")

    @pond.task
    def echo(n: int) -> int:
        return n

    with pond.worker(poll="60s"):
        started = time.monotonic()
        assert echo.enqueue(7).wait(30) == 7
        assert time.monotonic() - started < 20
    pond.close()
