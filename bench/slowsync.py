"""A slower disk than this machine has: a small library that lingers in every sync."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from bench.figures import Skipped

SOURCE = Path(__file__).with_name("slowsync.c")


def built(folder: Path) -> Path:
    """Compile the library into the folder; raises Skipped where that cannot be done."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        msg = "a slow sync is emulated on Linux with a C compiler (cc); there is none here"
        raise Skipped(msg)
    target = folder / "slowsync.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(target), str(SOURCE), "-ldl"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if made.returncode != 0:
        msg = f"the slow sync could not be compiled: {made.stderr.strip()[-300:]}"
        raise Skipped(msg)
    return target


def environment(library: Path, sync_ms: float) -> dict[str, str]:
    """Return the environment of a process whose syncs take that much longer."""
    return {"LD_PRELOAD": str(library), "MILLPOND_BENCH_SYNC_US": str(int(sync_ms * 1000))}
