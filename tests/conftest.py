"""What all tests share: how hard Hypothesis tries."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# Cores are shared with other work, so neither a slow example nor a slow strategy proves a fault.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", _PATIENT, max_examples=50)
# Fixed examples: a change is judged by what it changed, and exploring is done at home.
settings.register_profile("ci", _PATIENT, max_examples=200, derandomize=True, print_blob=True)
settings.register_profile("soak", _PATIENT, max_examples=5_000)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """Start and end with millpond's logger as a library leaves it: commands set it up anew.

    Before the test too: what a fixture of a whole module has set up is there before this one.
    """
    _leave_alone()
    yield
    _leave_alone()


def _leave_alone() -> None:
    known = logging.root.manager.loggerDict
    for name in [each for each in known if each.partition(".")[0] == "millpond"]:
        logger = logging.getLogger(name)
        logger.propagate, logger.disabled = True, False
        kept = [each for each in logger.handlers if isinstance(each, logging.NullHandler)]
        logger.handlers = kept
        logger.setLevel(logging.NOTSET)
