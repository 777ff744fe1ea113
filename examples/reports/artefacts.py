"""Files that are there as a whole or not at all, and that nobody can change afterwards.

A file is written beside its place under a name that nobody else uses, synced, and then renamed.
Its last name tells what is in it, so a writer that comes too late can only put the very same
bytes there once more, and a file that was damaged is noticed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

DIGITS = 16


class Artefact:
    """A file in the making; `path` is set when it is complete."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.path: Path | None = None

    def write(self, text: str) -> None:
        """Add a text, and let others see how far it is."""
        self.file.write(text.encode())
        self.file.flush()

    @property
    def name(self) -> str:
        """The name of the complete file in its folder."""
        assert self.path is not None
        return self.path.name


@contextmanager
def writing(folder: Path, name: str) -> Iterator[Artefact]:
    """Make the file `name` of a folder, its digest put into its name, unless the block raises."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{name}.", delete=False) as file:
        beside = Path(file.name)
        try:
            artefact = Artefact(file)
            yield artefact
            file.flush()
            os.fsync(file.fileno())
            path = folder / f"{Path(name).stem}-{digest(beside)}{Path(name).suffix}"
            beside.rename(path)
        finally:
            beside.unlink(missing_ok=True)
    # The folder may be new, and its name stands in the one above.
    for above in (folder, *folder.parents)[:3]:
        sync(above)
    artefact.path = path


def sound(path: Path) -> bool:
    """Whether a file is there with the content that its name tells."""
    return path.is_file() and path.stem.endswith(f"-{digest(path)}")


def digest(path: Path) -> str:
    """Return the first digits of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGITS]


def sync(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sweep(root: Path, wanted: Callable[[str], bool]) -> list[str]:
    """Delete the folders of a root that are not wanted, and return their names."""
    found = sorted(path.name for path in root.glob("*") if path.is_dir())
    gone = [name for name in found if not wanted(name)]
    for name in gone:
        shutil.rmtree(root / name)
    return gone
