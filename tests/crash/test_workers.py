"""Rounds of producers and real workers that die at random and at each fault point.

Every acknowledged job comes to its end, none ends twice, and every run of a handler has its
line in the history.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from tests.crash.mayhem import FAULTS, Figures, Mayhem
from tests.scenarios.mill import building


def one_round(folder: Path, seed: int, faults: list[str], seconds: float) -> Figures:
    folder.mkdir()
    with building(folder) as mill:
        mayhem = Mayhem(mill, seed, faults)
        mayhem.run(seconds)
        assert mayhem.settle() == []
        return mayhem.figures


@pytest.mark.parametrize("part", range(2))
def test_workers_that_die_at_every_step_lose_nothing(tmp_path: Path, part: int) -> None:
    faults = random.Random(7).sample(FAULTS, len(FAULTS))[part::4]
    figures = one_round(tmp_path / "round", part, faults, 4)
    assert figures.accepted > 50
    assert figures.runs > 50
    assert sum(figures.deaths.values()) > 10


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_two_hundred_rounds_of_deaths(tmp_path_factory: pytest.TempPathFactory) -> None:
    total, roll = Figures(), random.Random(200)
    deck: list[str] = []
    for number in range(200):
        if len(deck) < 8:
            deck += roll.sample(FAULTS, len(FAULTS))
        dealt, deck = deck[:8], deck[8:]
        folder = tmp_path_factory.mktemp(f"mayhem{number}-") / "round"
        total.add(one_round(folder, 100 + number, dealt, 8))
    sys.stdout.write(f"\n200 rounds: {total}\nnever met: {set(FAULTS) - set(total.fired)}\n")
    assert set(total.armed) == set(FAULTS)
