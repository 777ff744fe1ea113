"""How much memory a process had and may have, for whoever asks why it ended."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_MIB = 1 << 20
_UNLIMITED = 1 << 60
"""Limits above this are ways to say that there is none."""

CGROUPS = Path("/sys/fs/cgroup")
SELF = Path("/proc/self/cgroup")


def peak_bytes(usage: resource.struct_rusage) -> int:
    """Return the most memory that a process had at any time."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def own_peak() -> str:
    """Say how much memory this process has had at most, and how much it may have."""
    return _figures(peak_bytes(resource.getrusage(resource.RUSAGE_SELF)), Cgroup().limit())


class Cgroup:
    """The control group of this process, on systems that have them (version 2)."""

    def __init__(self, root: Path = CGROUPS, own: Path = SELF) -> None:
        self._folders = _folders(root, own)
        self._kills = self._counted()

    def limit(self) -> int | None:
        """Return how many bytes a process here may have, None when nothing limits it."""
        limits = [resource.getrlimit(resource.RLIMIT_AS)[0], *map(_limit, self._folders)]
        known = [each for each in limits if each is not None and 0 <= each < _UNLIMITED]
        return min(known, default=None)

    def killed(self) -> bool:
        """Tell whether the kernel has ended a process here for memory since the last look."""
        before, self._kills = self._kills, self._counted()
        return self._kills > before

    def why(self, peak: int) -> str:
        """Say what memory has to do with a SIGKILL that nobody here has sent."""
        figures = f"it had {_figures(peak, self.limit())}"
        if self.killed():
            return f"out of memory: {figures}, and the kernel has ended a process for it"
        return f"{figures}: out of memory, unless somebody killed it"

    def _counted(self) -> int:
        return sum(_oom_kills(folder) for folder in self._folders[:1])


def _figures(peak: int, limit: int | None) -> str:
    most = "" if limit is None else f" of {limit / _MIB:,.0f} MiB"
    return f"up to {peak / _MIB:,.0f} MiB{most}"


def _folders(root: Path, own: Path) -> list[Path]:
    """Return the group's folder and those around it, innermost first."""
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None:
        return []
    folder = root / path.lstrip("/")
    # In a container the path may be the host's; its own group stands at the root then.
    if not folder.is_dir():
        folder = root
    around = [each for each in folder.parents if each.is_relative_to(root)]
    return [folder, *around]


def _limit(folder: Path) -> int | None:
    try:
        return int((folder / "memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _oom_kills(folder: Path) -> int:
    try:
        lines = (folder / "memory.events").read_text(encoding="ascii").splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, ValueError, IndexError):
        return 0
