"""The engine's methods that make other files: archives and backups."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from millpond.errors import BadConfig, StoreError
from millpond.model import BackedUp
from millpond.store.shelf import Shelf
from millpond.store.sqlite import backup
from millpond.store.sqlite.archiver import Archiver
from millpond.store.sqlite.checkpoint import Election
from millpond.store.sqlite.connect import open_connection, primary_code, translate
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.part import Part
from millpond.store.sqlite.shelf import Lines, StoreFile

STORE_ENDINGS = (".db", ".sqlite", ".sqlite3")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_MEMORY = ":memory:"


class _NoLock(Election):
    """A store in memory belongs to its process, and so do the runs that archive it."""

    def won(self) -> bool:
        """Tell that there is nobody else."""
        return True


class CopiesPart(Part):
    """Archives and backups; see `millpond.store.protocol` for what each method promises."""

    def archive(self, path: str) -> Archiver:
        """Open an archive."""
        target = self._target(path)
        kind = _NoLock if self.path == _MEMORY else Election
        return Archiver(self, target, kind(self.path, "archive"), self._shelf)

    def _target(self, path: str) -> Path:
        """Return the real path of a file that others may be written to, unlike our own."""
        target = Path(os.path.realpath(path))
        own = [f"{self.path}{ending}" for ending in ("", "-wal", "-shm")]
        # Compared by what they are: even to open and close one of them would drop our locks.
        aside = str(target).startswith(f"{self.path}-millpond-")
        if aside or any(_same(target, mine) for mine in own):
            raise BadConfig(f"{target} belongs to the store itself: name another file")
        if target.suffix in _COMPRESSED:
            raise BadConfig(f"{target}: it is written plain; compress it when it is complete")
        return target

    def _shelf(self, path: Path) -> Shelf:
        store_id = str(self._read(lambda run: run(SQL["store_id"]).fetchone()[0]))
        if path.suffix not in STORE_ENDINGS:
            return Lines(path, store_id, self._read)
        if self.path == _MEMORY:
            raise BadConfig(
                f"{path}: a store in memory is archived as lines only; name a file with another "
                "ending, for example .jsonl"
            )
        return StoreFile(path, store_id, self.path, self._make, self._plain)

    def _make(self, path: str) -> None:
        engine: Any = type(self)
        engine(path, clock=self.clock, config=replace(self.config, url=path)).close()

    def _plain(self, path: str) -> Any:
        return open_connection(self._module, path)

    def backup(
        self, path: str, *, progress: Callable[[int, int], object] | None = None
    ) -> BackedUp:
        """Copy the store to a new file, and check the copy."""
        target = self._target(path)
        backup.require_room(target, self.path)
        at = self.clock.now()

        def copy(source: Any) -> None:
            # A store in memory has one connection, and is copied in one step between two writes.
            pages = -1 if source is self._first else backup.PAGES
            told = progress or (lambda *_: None)
            backup.copy(source, self._connect_uri, target, pages, told)

        try:
            if self.path == _MEMORY:
                copy(self._first)
            else:
                self._copy_snapshot(copy)
        except OSError as error:
            raise StoreError(f"{target}: {error.strerror}; there is no backup.") from error
        except Exception as error:
            if primary_code(error):
                raise translate(error, str(target)) from error
            raise
        return BackedUp(str(target), target.stat().st_size, at)

    def _copy_snapshot(self, copy: Callable[[Any], None]) -> None:
        """Copy from one snapshot: otherwise every commit of others would begin it anew."""
        source = open_connection(self._module, self.path)
        try:
            source.execute("BEGIN")
            source.execute(SQL["read_meta"]).fetchone()
            copy(source)
        finally:
            source.close()

    def _connect_uri(self, uri: str) -> Any:
        return self._module.connect(uri, uri=True, isolation_level=None)


def _same(one: Path, other: str) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return str(one) == other
