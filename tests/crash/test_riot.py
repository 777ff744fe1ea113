"""Processes killed at random on one file: nothing acknowledged is lost or counted twice."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.crash.riot import Riot, complaints

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def riot(tmp_path, roles, seconds, seed=1):
    crowd = Riot(tmp_path, roles, seed, environment())
    outcome = crowd.run(seconds)
    assert complaints(crowd) == []
    return outcome


def test_killed_producers_and_workers_lose_nothing_they_were_told(tmp_path):
    outcome = riot(tmp_path, {"producer": 2, "worker": 2, "janitor": 1}, 8)
    assert len(outcome.accepted) > 100
    assert len(outcome.completed) > 20
    assert outcome.kills > 10


def test_foreign_writers_with_checkpoints_of_their_own_and_a_pinned_reader_do_no_harm(tmp_path):
    roles = {"application": 2, "producer": 1, "worker": 2, "reader": 1, "janitor": 1}
    outcome = riot(tmp_path, roles, 10, seed=2)
    assert len(outcome.accepted) > 100
    assert outcome.kills > 10


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_ten_minutes_of_foreign_writers_pinned_readers_and_kills(tmp_path):
    roles = {"application": 3, "producer": 2, "worker": 3, "reader": 1, "janitor": 1}
    outcome = riot(tmp_path, roles, 600, seed=3)
    sys.stdout.write(
        f"\n{outcome.kills} kills, {len(outcome.accepted)} accepted, "
        f"{len(outcome.completed)} completed, nothing lost\n"
    )
