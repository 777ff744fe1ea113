"""The statements of this engine, by name."""

from __future__ import annotations

from millpond.store.statements import load

SQL = load("millpond.store.sqlite")
