from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.scenarios.mill import Mill, building


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    with building(tmp_path) as made:
        yield made
