"""Measuring in a process of its own: started with arguments, answers with JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LIMIT_S = 600.0


def start(module: str, *args: object, env: Mapping[str, str] | None = None) -> Any:
    """Start a module of this package as a process; its standard output is ours to read."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(module: str, *args: object, env: Mapping[str, str] | None = None) -> Any:
    """Run a module of this package and return what it answers."""
    return heard(start(module, *args, env=env))


def heard(child: Any, limit_s: float = LIMIT_S) -> Any:
    """Wait for a process and return what it answers.

    Raises RuntimeError when it failed; its errors have gone to our standard error.
    """
    try:
        out, _ = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
    if child.returncode != 0:
        msg = f"{' '.join(child.args[2:4])} ended with code {child.returncode}"
        raise RuntimeError(msg)
    return json.loads(out.splitlines()[-1])


def answer(value: object) -> None:
    """Give the answer of this process."""
    print(json.dumps(value), flush=True)
