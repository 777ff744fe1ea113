from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.scenarios.mill import Mill, building


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    with building(tmp_path) as made:
        yield made


@pytest.fixture(autouse=True)
def signals_are_heard() -> Iterator[None]:
    """What a shell ignores for its background jobs would stay ignored in every worker."""
    ignored = [
        number
        for number in (signal.SIGINT, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_IGN
    ]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
