"""Where a keeper's socket and marks lie: a directory of its own rights beside the database."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SOCKET_MAX = 107
"""Bytes of a socket's path that the kernel takes."""

_OLD_S = 7 * 86_400
"""Marks that nobody needed for a week: the jobs they tell of were recovered long ago."""


def run_directory(database: Path | None) -> Path:
    """Return a directory that only this user can enter, made when needed.

    Beside the database when that is possible, so that a keeper in another container of the
    host finds the marks; else in the user's runtime or temporary directory.
    Raises OSError when none of them can be used.
    """
    problems = []
    for candidate in _candidates(database):
        try:
            candidate.mkdir(mode=0o700, exist_ok=True)
            found = candidate.lstat()
        except OSError as error:
            problems.append(f"{candidate}: {error.strerror}")
            continue
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            if stat.S_IMODE(found.st_mode) & 0o077:
                candidate.chmod(0o700)
            if os.access(candidate, os.W_OK | os.X_OK):
                return candidate
        problems.append(f"{candidate}: belongs to somebody else")
    raise OSError(f"no place for the worker's socket and marks ({'; '.join(problems)})")


def socket_path(directory: Path, name: str) -> Path:
    """Return where the wake-up socket goes: `directory` if its path is short enough."""
    path = directory / f"{name}.sock"
    if len(os.fsencode(path)) <= SOCKET_MAX:
        return path
    return run_directory(None) / f"{name}.sock"


def new_name() -> str:
    """Return a name that no other keeper has, dead ones included."""
    return f"keeper-{os.getpid()}-{secrets.token_hex(4)}"


def sweep(directory: Path) -> None:
    """Delete what dead keepers left: sockets nobody listens to, marks nobody needed for long."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.suffix == ".sock" and _deserted(path):
                path.unlink(missing_ok=True)
            elif path.suffix == ".marks" and time.time() - path.stat().st_mtime > _OLD_S:
                _remove_unlocked(path)


def _candidates(database: Path | None) -> Iterator[Path]:
    if database is not None:
        yield database.with_name(f"{database.name}-run")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        yield Path(runtime) / "millpond"
    yield Path(tempfile.gettempdir()) / f"millpond-{os.getuid()}"


def _deserted(path: Path) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _remove_unlocked(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    finally:
        os.close(fd)
