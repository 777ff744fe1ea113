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
    """Give millpond's logger back as it was: commands run in a test set it up for themselves."""
    logger = logging.getLogger("millpond")
    before = logger.propagate, logger.level, list(logger.handlers)
    yield
    logger.propagate, logger.handlers = before[0], before[2]
    logger.setLevel(before[1])
