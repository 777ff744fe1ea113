"""A second SQLite library must never be loaded into the test process: only into a child of it.

Two of them in one process drop each other's locks, so stores opened later would be refused.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def need_pysqlite3() -> None:
    """Skip the test when pysqlite3 is not installed, without importing it here."""
    if find_spec("pysqlite3") is None:
        pytest.skip("pysqlite3 is not installed")
