"""A runner in a process of its own: `python -m millpond.worker.child --link FD --parent PID APP`.

It lives exactly as long as its link. The keeper alone decides about signals from a terminal
or a supervisor, so this process takes SIGINT and SIGTERM and does nothing about them; they
are handled rather than ignored, since what is ignored would stay so in every program that a
handler starts.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from types import FrameType

from millpond.clock import SystemClock
from millpond.errors import BadConfig
from millpond.log import configure
from millpond.outlet import Outlet
from millpond.store import told_elsewhere
from millpond.worker import importing
from millpond.worker.frames import Broken, Quit
from millpond.worker.host import load_host
from millpond.worker.link import RunnerPipe
from millpond.worker.runner import Runner

_PR_SET_PDEATHSIG = 1
_GONE = 70
"""Exit code of a runner whose keeper is gone."""

_BROKEN = 71
"""Exit code of a runner whose own machinery has failed: silence would be worse."""

_FINISH_S = 5.0

_log = logging.getLogger("millpond.worker")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the link until it ends; the exit code is 1 when the application cannot be imported."""
    parser = argparse.ArgumentParser(prog="millpond.worker.child")
    parser.add_argument("--link", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--solo", action="store_true")
    parser.add_argument("--log-format", default=None)
    parser.add_argument("--log-level", default=None)
    parser.add_argument("app")
    given = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave_it_to_the_keeper)
    die_with(given.parent)
    if given.log_format is not None:
        configure(given.log_format, given.log_level, outlet=Outlet(2))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What a handler prints must be seen while it runs, and survive its being killed.
            stream.reconfigure(line_buffering=True)
    link = socket.socket(fileno=given.link)
    # What a handler starts must not hold the link: its end is how the keeper hears of ours.
    link.set_inheritable(False)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=link.close)
    pipe = RunnerPipe(link, _vanish, prompt=given.solo)
    return serve(given.app, pipe)


def serve(app: str, pipe: RunnerPipe) -> int:
    """Import the application, say hello and run what comes until the keeper says quit."""

    def broke(message: str) -> None:
        _log.error("this runner ends: %s", message)
        pipe.answer(Broken(message))
        pipe.finish(_FINISH_S)
        os._exit(_BROKEN)

    try:
        host = load_host(app)
        told_elsewhere(host.declarations().url)
        runner = Runner(host, pipe.answer, SystemClock(), broke)
        hello = runner.hello()
    except BaseException as error:  # noqa: BLE001  an import may raise anything, SystemExit too
        if not isinstance(error, BadConfig):
            importing.show(error)
        pipe.answer(Broken(importing.told(app, error)))
        pipe.finish(_FINISH_S)
        return 1
    pipe.answer(hello)
    for frame in pipe.frames():
        if isinstance(frame, Quit):
            runner.close(_FINISH_S)
            host.close()
            pipe.finish(_FINISH_S)
            return 0
        runner.receive(frame)
    _vanish()
    return _GONE


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends; noticed late on other systems.

    The reader of the link notices as well, but not while a handler holds the interpreter.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        # It died before the kernel was asked.
        _vanish()


def _vanish() -> None:
    """End at once: without a keeper every lease here lapses, and handlers must not go on."""
    os._exit(_GONE)


def _leave_it_to_the_keeper(number: int, frame: FrameType | None) -> None:
    """Do nothing."""


if __name__ == "__main__":
    sys.exit(main())
