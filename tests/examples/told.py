"""Plays an example's story in a folder, and its README as a reader would."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs import pages
from tests.docs.example import Example

EXAMPLES = Path(__file__).parents[2] / "examples"
STORY_S = 100


def story(name: str, folder: Path) -> list[str]:
    """Play a story in the folder and return its sentences; fails when it does not end well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name / "story.py"), str(folder)],
        env={key: value for key, value in os.environ.items() if "MILLPOND" not in key},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=STORY_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), f"{done.stdout}\n{done.stderr}"
    return [line.strip() for line in done.stdout.splitlines() if line]


def by_hand(name: str, folder: Path) -> None:
    """Type every command of a README, in a copy of the example."""
    shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("*.db*"))
    shutil.copy(EXAMPLES / "stage.py", folder)
    readme = EXAMPLES / name / "README.md"
    with Example(f"examples/{name}/README.md", folder / name) as example:
        for block in pages.blocks(readme):
            example.run(block)


def dead_links(name: str) -> list[str]:
    """Links of a README that lead nowhere."""
    readme = EXAMPLES / name / "README.md"
    return [link for link in pages.links(readme) if not (readme.parent / link).exists()]
