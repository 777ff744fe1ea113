from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from millpond.demo.crew import environment
from millpond.demo.load import STREAMS, Load


def test_as_many_jobs_are_made_as_their_rates_say():
    made = Counter(task for task, _ in Load().due(10.0))
    assert made == {stream.task: int(10 * stream.per_s) for stream in STREAMS}


@given(st.lists(st.floats(0, 60), max_size=20))
def test_however_often_it_is_asked_every_job_is_made_once_and_in_order(moments):
    load = Load()
    made = [entry for moment in sorted(moments) for entry in load.due(moment)]
    assert made == sorted(made, key=made.index)
    for stream in STREAMS:
        numbers = [payload[stream.argument] for task, payload in made if task == stream.task]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_worker_of_the_demo_sees_nothing_of_the_users_settings():
    own = {"HOME": "/h", "MILLPOND_SQLITE": "x", "MILLPOND_FAULT": "y", "PYTHONPATH": "src:/lib"}
    seen = environment(own, Path("/demo"), "/demo/demo.db")
    assert seen == {
        "HOME": "/h",
        "PYTHONPATH": f"{Path.cwd() / 'src'}{os.pathsep}/lib",
        "MILLPOND_URL": "/demo/demo.db",
        "MILLPOND_CONFIG": "/demo/millpond.toml",
    }
