"""The store: one protocol, an engine per database; `open_store` is the only one that names it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.clock import Clock
    from millpond.config import StoreConfig
    from millpond.store.protocol import Store


def told_elsewhere(url: str) -> None:
    """Log no warning about a store's place in this process: the one that started it does."""
    from millpond.config import parse_url
    from millpond.store.sqlite.gate import told_elsewhere

    told_elsewhere(parse_url(url).path)


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    config: StoreConfig | None = None,
    roll: Callable[[], float] | None = None,
) -> Store:
    """Open the store at a path, `sqlite:` address or `:memory:`; makes the schema if there is none.

    Raises UnsafeStorage, SchemaTooOld, SchemaTooNew, StoreBusy, or BadConfig for an address
    that no engine of this version serves.
    """
    from millpond.config import StoreConfig, parse_url
    from millpond.store.sqlite.engine import SqliteStore

    place = parse_url(url)
    return SqliteStore(place.path, clock=clock, config=config or StoreConfig(url=url), roll=roll)
