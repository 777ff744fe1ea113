"""Inserting rows, many in one statement.

The driver gives the interpreter up at every statement, and in a busy process waits to get it
back; it also looks for an adapter for each None and each bytes it binds, which takes longer
than to store them. So the statements for ordinary rows leave out what is NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

SIZES = (64, 8, 1)
"""Rows in one statement: as many texts are prepared and kept, and no more."""


def insert(execute: Callable[..., Any], sql: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows in their order by a statement that ends with `VALUES (…)` for one of them."""
    at = 0
    for size in SIZES:
        while len(rows) - at >= size:
            part = rows[at : at + size]
            execute(_repeated(sql, size), [value for row in part for value in row])
            at += size


@cache
def _repeated(sql: str, size: int) -> str:
    head, values, row = sql.rpartition("VALUES ")
    return head + values + ", ".join([row] * size)
