"""What importing millpond costs a fresh interpreter."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.figures import Figure, at_most, number
from bench.rounds import pairs
from bench.sizes import Sizes

APPLICATION = "from millpond import Millpond"
"""What every application does; the names of the package are loaded when they are asked for."""

UNWANTED = ("click", "cronsim", "rich", "asyncio", "http.server", "urllib.request", "millpond.cli")
"""What belongs to the command line, to the worker or to a web page."""


def run(folder: Path, sizes: Sizes) -> Iterator[Figure]:
    """Yield the time beyond that of a bare interpreter, and what came along unasked."""
    del folder
    for name, code in (("millpond", "import millpond"), ("Millpond", APPLICATION)):
        _seconds(code)
        found = pairs(sizes.imports, partial(_seconds, code), partial(_seconds, "pass"))
        beyond = tuple((whole - bare) * 1e3 for whole, bare in found)
        note = f"{code}; the bare interpreter {number(min(bare for _, bare in found) * 1e3)} ms"
        yield Figure(f"importing.{name}", beyond, at_most(120), unit="ms", note=note)
    loaded = _unwanted()
    yield Figure("importing.unwanted_modules", (float(len(loaded)),), at_most(0), unit="",
                 note=", ".join(loaded) or number(len(UNWANTED)) + " looked for")  # fmt: skip


def _seconds(code: str) -> float:
    """Return the processor time of a fresh interpreter, which a busy machine does not lengthen."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=_env())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _unwanted() -> list[str]:
    code = f"{APPLICATION}; import sys, json; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, check=True, timeout=60, env=_env(), capture_output=True, text=True
    )
    return [name for name in UNWANTED if name in json.loads(done.stdout)]


def _env() -> dict[str, str]:
    """Return an environment in which nothing but millpond imports anything."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
