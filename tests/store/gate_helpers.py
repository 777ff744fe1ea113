"""What the tests of the start-up gate share."""

from __future__ import annotations

import os
import subprocess
import sys

from millpond.store.sqlite.gate import Finding, Severity


def run(program: str, *args: object, **environ: str) -> str:
    """Run a program in a process of its own, since what is imported cannot be taken back."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environ},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(f.code, f.severity.value) for f in findings if f.severity is not Severity.OK]


def only(findings: list[Finding]) -> Finding:
    (finding,) = [f for f in findings if f.severity is not Severity.OK]
    return finding
