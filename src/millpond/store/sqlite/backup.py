"""A copy of the whole store, made by SQLite from a connection of ours while others write."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from millpond.errors import BadConfig, StoreError, StoreFull
from millpond.store.shelf import sync_folder
from millpond.store.sqlite.connect import CORRUPT, NOTADB, primary_code

PAGES = 1_000
"""Pages of one step: what Ctrl-C waits for."""

Progress = Callable[[int, int], object]


def require_room(target: Path, source: str) -> None:
    """Refuse a file that is there already, and a disk that cannot hold the copy.

    Raises BadConfig and StoreFull.
    """
    if target.exists() or target.is_symlink():
        raise BadConfig(f"{target} is there already: a backup overwrites nothing; name a new file")
    if not target.parent.is_dir():
        raise BadConfig(f"there is no folder {target.parent} for the backup: make it first")
    free = shutil.disk_usage(target.parent).free
    size = Path(source).stat().st_size if source != ":memory:" else 0
    if size > free:
        raise StoreFull(
            f"{target.parent} has {free:,} bytes free and the store has {size:,}: no backup was "
            "begun. Make room, or name a file on another disk."
        )


def copy(
    source: Any, connect: Callable[[str], Any], target: Path, pages: int, progress: Progress
) -> None:
    """Copy what one snapshot of `source` holds to a new file, check it, give it its name.

    Only a complete and sound copy ever has the name of `target`.
    """
    part = target.with_name(f"{target.name}.part-{os.getpid()}")
    try:
        _fill(source, connect, part, pages, progress)
        require_sound(connect(f"file:{quote(str(part))}?mode=ro&immutable=1"), part)
        _name(part, target)
    finally:
        for ending in ("", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{part}{ending}").unlink()


def _fill(
    source: Any, connect: Callable[[str], Any], part: Path, pages: int, progress: Progress
) -> None:
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    copied = connect(f"file:{quote(str(part))}")
    try:
        # Synced once at the end, before the file gets its name.
        for pragma in ("journal_mode=OFF", "synchronous=OFF"):
            copied.execute(f"PRAGMA {pragma}").fetchall()
        source.backup(
            copied,
            pages=pages,
            progress=lambda _, left, total: progress(total - left, total),
            sleep=0.005,
        )
    finally:
        copied.close()


def require_sound(copied: Any, part: Path) -> None:
    """Raise StoreError, with what is wrong, unless SQLite finds a file in order; closes it."""
    try:
        rows = copied.execute("PRAGMA integrity_check(5)").fetchall()
        wrong = [row[0] for row in rows if row[0] != "ok"]
    except Exception as error:
        if primary_code(error) not in {CORRUPT, NOTADB}:
            raise
        wrong = [str(error)]
    finally:
        copied.close()
    if wrong:
        raise StoreError(
            f"the copy {part} is not sound and was deleted: {'; '.join(wrong)}. Check the store "
            "with `millpond verify` and the disk."
        )


def _name(part: Path, target: Path) -> None:
    file = os.open(part, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
    try:
        # Unlike a rename, a link never replaces what came there meanwhile.
        os.link(part, target)
    except FileExistsError as error:
        msg = f"{target} came there meanwhile: a backup overwrites nothing; name a new file"
        raise BadConfig(msg) from error
    sync_folder(target)
