"""A store in a folder of its own, and commands run in this process or in real ones."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from millpond import Millpond
from millpond.cli.root import root

APP = """\
import os, signal
from pathlib import Path
from millpond import Backoff, Millpond

pond = Millpond()
pond.queue("mail")
pond.queue("reports")

@pond.task(queue="mail")
def send(to: str, copies: int = 1) -> str:
    return f"sent {copies} to {to}"

@pond.task(queue="mail", max_attempts=1)
def refuse(password: str = ""):
    raise ValueError("the server said \\x1b[31mno\\x07")

@pond.task(queue="reports")
def build(number: int) -> int:
    return number
"""


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    logger = logging.getLogger("millpond")
    handlers, level, propagate = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with an application in it and no settings from outside."""
    for name in list(os.environ):
        if name.startswith("MILLPOND_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Callable[..., Result]:
    """Run a command in this process; its exit code and output are in the result."""

    def call(*arguments: str, **more: Any) -> Result:
        sys.modules.pop("app", None)  # a command imports it anew, as its own process would
        return CliRunner().invoke(root, arguments, prog_name="millpond", **more)

    return call


@pytest.fixture
def ask(run: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command that must succeed and return the JSON that it prints."""

    def call(*arguments: str) -> Any:
        result = run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return call


@pytest.fixture
def pond(folder: Path) -> Iterator[Millpond]:
    """The store of the working folder, as an application has it open."""
    with Millpond(folder / "millpond.db") as opened:
        yield opened


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
    return kept | more


@pytest.fixture
def process(folder: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command as a process of its own."""

    def call(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "millpond", *arguments],
            cwd=folder,
            env=environment(**env),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command as a process that is gone when the test ends."""
    started: list[subprocess.Popen[str]] = []

    def call(*arguments: str, **env: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-m", "millpond", *arguments],
            cwd=folder,
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        return child

    yield call
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()
