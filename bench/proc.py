"""What Linux says of a process: its processor time and its memory."""

from __future__ import annotations

from pathlib import Path

from bench.figures import Skipped

PROC = Path("/proc")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that all threads of a process have used, to the nanosecond."""
    total = 0
    for task in _existing(PROC / str(pid) / "task").iterdir():
        total += int((task / "schedstat").read_text(encoding="ascii").split()[0])
    return total / 1e9


def private_bytes(pid: int) -> int:
    """Return the memory that is a process's own, in bytes: what leaves with it."""
    text = _existing(PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    kilobytes = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_")]
    return sum(kilobytes) * 1024


def _existing(path: Path) -> Path:
    if not path.exists():
        msg = f"{path} is not there: this is measured on Linux only"
        raise Skipped(msg)
    return path
