"""The two forms of a runner: a process of its own, or threads of this one."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Protocol

from millpond.clock import Clock
from millpond.config import LogConfig
from millpond.worker.bell import Bell
from millpond.worker.crew import Handle
from millpond.worker.frames import Broken
from millpond.worker.host import Host
from millpond.worker.link import Link, MemoryLink, PipeLink, socket_pair
from millpond.worker.runner import Runner
from millpond.worker.shared import WorkerFailed


class Form(Protocol):
    """How a keeper starts runners."""

    @property
    def processes(self) -> bool:
        """Whether runners are processes: they can be killed, and started again."""
        ...

    def start(self) -> Handle:
        """Start a runner; it says Hello, or Broken, over its link."""
        ...


class ProcessForm:
    """Runners that import `app` in processes of their own; start them from the main thread.

    The kernel ends such a process together with the thread that started it.
    """

    processes = True

    def __init__(self, app: str, log: LogConfig | None = None) -> None:
        self._app = app
        self._log = [] if log is None else ["--log-format", log.format, "--log-level", log.level]

    def start(self) -> ProcessHandle:
        """Start a process with its end of the link and this process's standard streams."""
        ours, theirs = socket_pair()
        with theirs:
            command = [
                sys.executable, "-m", "millpond.worker.child",
                "--link", str(theirs.fileno()), "--parent", str(os.getpid()), *self._log, self._app,
            ]  # fmt: skip
            try:
                process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkerFailed(f"no runner can be started: {error}") from error
        return ProcessHandle(process, PipeLink(ours))


class ProcessHandle:
    """A runner process."""

    def __init__(self, process: subprocess.Popen[bytes], link: PipeLink) -> None:
        self.process = process
        self.link: Link = link

    def poll(self) -> int | None:
        """Reap the process if it has ended."""
        return self.process.poll()

    def kill(self) -> bool:
        """Send SIGKILL, which no handler can hold up."""
        self.process.kill()
        return True

    def finish(self, timeout: float) -> bool:
        """Wait for the process, and kill it when it does not end by itself."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        return True


class ThreadForm:
    """One runner in threads of this process, for the object `host`."""

    processes = False

    def __init__(self, host: Host, clock: Clock, bell: Bell) -> None:
        self._host = host
        self._clock = clock
        self._bell = bell

    def start(self) -> ThreadHandle:
        """Make the runner and connect it."""
        link = MemoryLink(self._bell.ring)

        def broke(message: str) -> None:
            link.answer(Broken(message))

        runner = Runner(self._host, link.answer, self._clock, broke)
        link.connect(runner.receive)
        link.answer(runner.hello())
        return ThreadHandle(runner, link)


class ThreadHandle:
    """A runner in threads: it can only be asked to end."""

    def __init__(self, runner: Runner, link: MemoryLink) -> None:
        self._runner = runner
        self.link: Link = link

    def poll(self) -> int | None:
        """Threads do not end without the process."""
        return None

    def kill(self) -> bool:
        """Return False: a thread cannot be ended from outside."""
        return False

    def finish(self, timeout: float) -> bool:
        """Wait for threads and loop; those whose handler does not return stay behind."""
        return self._runner.close(timeout)
