"""Where a store is and how it is opened."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from millpond.config.checks import check_choice, check_flag, check_int, check_length
from millpond.errors import refuse_setting

DEFAULT_URL = "./millpond.db"
MEMORY = ":memory:"

MIB = 1 << 20

_LARGEST_VALUE = 512 * MIB
"""Bytes; SQLite refuses values of a billion bytes, and a row holds more than its payload."""

# One letter before the colon is a drive of Windows and no scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:", re.ASCII)


@dataclass(frozen=True, slots=True)
class SqliteAddress:
    """A store in one SQLite file, or in memory for the life of its process."""

    path: str

    @property
    def memory(self) -> bool:
        """Whether the store has no file."""
        return self.path == MEMORY


def default_url(env: Mapping[str, str]) -> str:
    """Return the address to use when none is given: `MILLPOND_URL`, else a file in this folder."""
    return env.get("MILLPOND_URL") or DEFAULT_URL


def parse_url(url: str) -> SqliteAddress:
    """Return where a store is, from a path, an sqlite address or `:memory:`.

    `sqlite:///x.db` is relative to the working folder and `sqlite:////x.db` is not; `~` at
    the start of a path is the home folder. Raises BadConfig for PostgreSQL, which this version
    cannot use, and for any other kind of address; never shows a password.
    """
    text = url.strip()
    if not text or any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
        _refuse_url(text, "a path or sqlite:///path, valid UTF-8 without control characters")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return SqliteAddress(_path(text))
    kind = scheme[0].rstrip(":").lower()
    if kind != "sqlite":
        _refuse_engine(text, kind)
    return _sqlite(text)


def _refuse_engine(text: str, kind: str) -> NoReturn:
    if kind.partition("+")[0] in {"postgresql", "postgres"}:
        _refuse_url(text, "a path or sqlite:///path: this version has no PostgreSQL engine yet")
    _refuse_url(text, "a path or sqlite:///path (write ./ before a path that holds a colon)")


def shown_url(url: str) -> str:
    """Return an address without its password and its options, fit for messages and logs."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        return url
    # The last @ ends the user's part, since a password may hold one of its own.
    place = url[scheme.end() :].lstrip("/").partition("?")[0]
    return f"{scheme[0]}//{place.rpartition('@')[2]}" if "@" in place else url.partition("?")[0]


def _sqlite(url: str) -> SqliteAddress:
    rest = url.partition(":")[2]
    if "?" in rest or "#" in rest:
        _refuse_url(url, "an address without options, which are settings of their own")
    if rest in {"//", f"///{MEMORY}"}:
        return SqliteAddress(MEMORY)
    if not rest.startswith("///") or rest == "///":
        _refuse_url(url, "sqlite:///relative, sqlite:////absolute or sqlite:///:memory:")
    return SqliteAddress(_path(rest.removeprefix("///")))


def _refuse_url(url: str, allowed: str) -> NoReturn:
    refuse_setting("the store's address", shown_url(url), allowed)


def _path(text: str) -> str:
    if text == MEMORY or not text.startswith("~"):
        return text
    try:
        return str(Path(text).expanduser())
    except RuntimeError:
        _refuse_url(text, "a path whose home folder is known")


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """How a process opens the store; `sqlite` must be the same in all processes that share it.

    `busy_ms` is how long a write waits for other processes before StoreBusy. "full" sync
    keeps what was accepted through a power loss, "normal" may lose the last commits.
    `max_payload` and `max_result` are bytes of one job, `inbox` is how many writes may wait
    in this process, `checkpoint_pages` how long the write-ahead log may grow before a
    checkpoint.

    Raises BadConfig for values that cannot work.
    """

    url: str = DEFAULT_URL
    busy_ms: int = 5_000
    synchronous: Literal["full", "normal"] = "full"
    sqlite: Literal["stdlib", "pysqlite3"] = "stdlib"
    strict_safety: bool = False
    allow_network_fs: bool = False
    max_payload: int = MIB
    max_result: int = MIB
    inbox: int = 10_000
    checkpoint_pages: int = 4_000

    def __post_init__(self) -> None:
        if not isinstance(self.url, str):
            refuse_setting("store.url", self.url, "a text: a path or sqlite:///path")
        parse_url(self.url)
        check_length("store.busy_ms", self.busy_ms)
        check_choice("store.synchronous", self.synchronous, ("full", "normal"))
        check_choice("store.sqlite", self.sqlite, ("stdlib", "pysqlite3"))
        check_flag("store.strict_safety", self.strict_safety)
        check_flag("store.allow_network_fs", self.allow_network_fs)
        check_int("store.max_payload", self.max_payload, 1, _LARGEST_VALUE)
        check_int("store.max_result", self.max_result, 1, _LARGEST_VALUE)
        check_int("store.inbox", self.inbox, 1, 10_000_000)
        check_int("store.checkpoint_pages", self.checkpoint_pages, 1, 1_000_000)

    @property
    def address(self) -> SqliteAddress:
        """The parsed `url`."""
        return parse_url(self.url)
