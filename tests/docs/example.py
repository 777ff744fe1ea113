"""Runs the examples of one page, as its reader would: in order, in one folder, for real.

`python` blocks share one interpreter; with `file=NAME` a block of any language is written to
that file instead. `sh` blocks run with the installed command on PATH and must succeed, or end
with `exit=N`; with `background` they run until the page ends, are then told to stop, and must
end well. An `output` block is what the block before it printed, `…` standing for anything.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.pages import Block

BLOCK_S = 60
STOP_S = 40

SHOWN_ONLY = frozenset(
    {"console", "text", "mermaid", "toml", "ini", "json", "sql", "dockerfile", "yaml"}
)

INTERPRETER = """
import contextlib, io, json, sys, traceback
sys.path.insert(0, "")
namespace = {"__name__": "__page__"}
for line in sys.stdin:
    block = json.loads(line)
    out, error = io.StringIO(), None
    try:
        code = compile("\\n" * block["skip"] + block["code"], block["name"], "exec")
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps({"out": out.getvalue(), "error": error}), file=sys.__stdout__, flush=True)
"""


class Example:
    """A folder in which the blocks of a page are run one after the other."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.printed: str | None = None
        self._stack = ExitStack()
        self._python: subprocess.Popen[str] | None = None
        self._background: list[tuple[Block, subprocess.Popen[str]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            if self._python is not None:
                self._python.communicate(timeout=STOP_S)
            for block, process in self._background:
                process.send_signal(signal.SIGTERM)
                said, _ = process.communicate(timeout=STOP_S)
                if kind is None:
                    assert process.returncode == 0, f"{self._at(block)}: {said}"

    def run(self, block: Block) -> None:
        """Do what a block says; raises AssertionError when it does not come out as written."""
        file = block.option("file")
        if file is not None:
            (self.folder / file).write_text(block.body, encoding="utf-8")
        elif block.language == "python":
            self._run_python(block)
        elif block.language == "sh" and "background" in block.words:
            self._start(block)
        elif block.language == "sh":
            self._run_shell(block)
        elif block.language == "output":
            self._compare(block)
        else:
            assert block.language in SHOWN_ONLY, f"{self._at(block)}: say what kind of block it is"

    def _at(self, block: Block) -> str:
        return f"{self.name}:{block.line}"

    def _run_python(self, block: Block) -> None:
        if self._python is None:
            self._python = self._popen([sys.executable, "-c", INTERPRETER], stdin=subprocess.PIPE)
        asked = {"code": block.body, "name": self.name, "skip": block.line - 1}
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(asked) + "\n")
        self._python.stdin.flush()
        line = self._python.stdout.readline()
        assert line, f"{self._at(block)}: the interpreter has ended"
        answer = json.loads(line)
        assert answer["error"] is None, f"{self._at(block)}:\n{answer['error']}"
        self.printed = answer["out"]

    def _run_shell(self, block: Block) -> None:
        wanted = int(block.option("exit") or 0)
        done = subprocess.run(
            ["/bin/sh", "-euc", block.body],
            cwd=self.folder,
            env=self._env(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=BLOCK_S,
            check=False,
        )
        assert done.returncode == wanted, (
            f"{self._at(block)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        )
        assert "Traceback" not in done.stderr, f"{self._at(block)}: {done.stderr}"
        self.printed = done.stdout

    def _start(self, block: Block) -> None:
        command = ["/bin/sh", "-euc", f"exec {block.body.strip()}"]
        process = self._popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self._background.append((block, process))

    def _popen(
        self, command: list[str], *, stdin: int, stderr: int | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._env(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        self._stack.callback(_end, process)
        return process

    def _compare(self, block: Block) -> None:
        assert self.printed is not None, f"{self._at(block)}: nothing was run before this output"
        wanted, found = block.body.strip(), self.printed.strip()
        pattern = ".*".join(map(re.escape, wanted.split("…")))
        assert re.fullmatch(pattern, found, re.DOTALL), (
            f"{self._at(block)}: printed was\n{found}\nand not\n{wanted}"
        )

    def _env(self) -> Mapping[str, str]:
        mine = {key: value for key, value in os.environ.items() if not key.startswith("MILLPOND_")}
        scripts = sysconfig.get_path("scripts")
        return mine | {
            "HOME": str(self.folder),
            "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
        }


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
