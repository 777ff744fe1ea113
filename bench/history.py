"""What the commands that look take in a store with years of ended jobs, as a person waits for them.

Measured is the whole command, from its start to its end: the interpreter, the imports, the file
and the table on the screen. Bytecode is kept, as after an installation.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.big import Shape, built
from bench.children import ROOT
from bench.figures import Figure, at_most, number
from bench.sizes import Sizes
from bench.stores import bare, remove

LIMIT_MS = 300
EVERY = 50
"""One job in so many has failed: they lie far apart among the completed ones."""

KINDS = 300
"""Kinds of errors among the failed ones."""

COMMANDS = {
    "jobs": ("jobs",),
    "jobs_failed": ("jobs", "state:failed"),
    "jobs_of_a_task": ("jobs", "task:task1"),
    "failures": ("failures",),
    "status": ("status",),
    "job": ("job",),
}


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield a figure for each command, in milliseconds of waiting."""
    path = built(folder / "history.db", Shape(lanes=2, ready=100, final=sizes.history_rows))
    try:
        _let_some_fail(path)
        for name, words in COMMANDS.items():
            asked = (*words, str(sizes.history_rows // 2)) if name == "job" else words
            yield _figure(name, _runs(folder, path, asked, sizes.history_runs))
    finally:
        remove(path)


def _figure(name: str, found: list[tuple[float, float]]) -> Figure:
    busy = number(min(processor for _, processor in found))
    walls = tuple(wall for wall, _ in found)
    note = f"{busy} ms of processor time"
    return Figure(f"history.{name}", walls, at_most(LIMIT_MS), unit="ms", note=note)


def _runs(
    folder: Path, path: Path, words: tuple[str, ...], times: int
) -> list[tuple[float, float]]:
    """Return what passed and what the processor worked, in milliseconds; the first is left out."""
    command = [sys.executable, "-m", "millpond", *words, "--url", str(path)]
    return [_timed(command, folder) for _ in range(times + 1)][1:]


def _timed(command: list[str], folder: Path) -> tuple[float, float]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env = kept | {"PYTHONPATH": str(ROOT / "src"), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, timeout=60, env=env, cwd=folder, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1e3, processor * 1e3


def _let_some_fail(path: Path) -> None:
    with bare(path) as conn:
        conn.execute("PRAGMA synchronous=OFF").fetchall()
        conn.execute("BEGIN IMMEDIATE")
        given = {"every": EVERY, "kinds": KINDS}
        for statement in (_FAIL, _FAIL_ATTEMPTS):
            conn.execute(statement, given)
        conn.execute("COMMIT")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


_FAIL = """
UPDATE millpond_final SET state = 'failed', reason = 'attempts used up (5 of 5)',
  fingerprint = printf('%016x', id / :every % :kinds) WHERE id % :every = 0
"""
_FAIL_ATTEMPTS = """
UPDATE millpond_attempt SET outcome = 'failed', error_type = 'ValueError',
  message = 'order ' || job || ' not found',
  fingerprint = printf('%016x', job / :every % :kinds) WHERE job % :every = 0
"""
