"""Eager mode: what was enqueued is run before the enqueue returns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from millpond.model import Admission, State
from millpond.task.refs import WAIT_DEFAULT, Looker, looks


class Drainer(Looker, Protocol):
    """What eager mode asks of the pond."""

    def drain(self) -> object:
        """Work until nothing is ready and nothing runs."""
        ...


def run_now(pond: Drainer, admissions: Sequence[Admission]) -> None:
    """Work until nothing is ready, and until no other thread still runs one of these jobs.

    Threads that enqueue at one time drain at one time, and each may take the other's jobs.
    """
    pond.drain()
    for admission in admissions:
        for pause in looks(WAIT_DEFAULT):
            job = pond.look(admission.job_id, payload=False)
            if job is None or job.state is not State.RUNNING:
                break
            time.sleep(pause)
