"""A worker decides the modes of the queues in use, tells them and writes them down."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from millpond import BadConfig, Millpond


class Told(logging.Handler):
    """Waits for the line of a mode that is not normal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard = threading.Event()
        self.line = ""

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if "pressure_changed" in line and "mode=elevated" in line:
            self.line = line
            self.heard.set()


def test_a_worker_notices_that_a_queue_fills_up(tmp_path: Path) -> None:
    told, go = Told(), threading.Event()
    pond = Millpond(tmp_path / "jobs.db")
    pond.queue("default", max_jobs=20)

    @pond.task
    def wait() -> None:
        go.wait(60)

    logger = logging.getLogger("millpond")
    logger.addHandler(told)
    try:
        with pond, pond.worker(concurrency=1, poll="20ms"):
            with pond.batch() as batch:
                for _ in range(15):
                    batch.add(wait)
            heard = told.heard.wait(30)
            go.set()
            (event,) = pond.events(what="mode")
    finally:
        go.set()
        logger.removeHandler(told)
    assert heard
    assert (event.who, event.which) == ("millpond", "default")
    assert (event.before, event.after["mode"]) == ({"mode": "normal"}, "elevated")
    assert event.after["utilisation"] == 0.75
    assert "queue=default" in told.line
    assert "signal=utilisation" in told.line


def test_an_option_that_there_is_not_is_refused_by_its_name(pond: Millpond) -> None:
    with pytest.raises(BadConfig, match="elevatd"):
        pond.queue("other", pressure={"elevatd": 0.8})
    with pytest.raises(BadConfig, match="effect"):
        pond.queue("other", workloads={"x": {"effect": "important"}})
