"""Signals and the duties of process 1, in the keeper's main thread."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from subprocess import Popen
from types import FrameType, TracebackType
from typing import Any, Self

from millpond.worker.bell import Bell

_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Counts requests to stop while it is entered; each of them rings.

    With `children` the end of a child process rings as well.

    A signal that was ignored when the process started (`nohup`, a background job) stays
    ignored. Enter it in the main thread only.
    """

    def __init__(self, bell: Bell, *, children: bool = False) -> None:
        self._bell = bell
        self._children = children
        self._before: dict[int, Any] = {}
        self._wakeup = -1
        self.stops = 0
        self.last: str | None = None

    def __enter__(self) -> Self:
        for number in _STOPS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._stop)
        if self._children:
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, self._child)
        self._wakeup = signal.set_wakeup_fd(self._bell.signal_fd, warn_on_full_buffer=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._before.items():
            # None stands for a handler that was not set from Python and cannot be set again.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.stops += 1
        self.last = signal.Signals(number).name
        self._bell.ring()

    def _child(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._bell.ring()


def reap_orphans(own: Collection[Popen[bytes]]) -> int:
    """Reap every ended child, those that process 1 inherits included; return how many.

    Looks before it takes: the end of a child that was started here belongs to its Popen.
    """
    known = {process.pid: process for process in own}
    reaped = 0
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            process = known.get(ended.si_pid)
            if process is None:
                os.waitpid(ended.si_pid, 0)
                reaped += 1
            elif process.poll() is None:
                break
    return reaped
