"""The two forms of a runner: a process of its own, or threads of this one."""

from __future__ import annotations

import contextlib
import os
import signal
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
from millpond.worker.memory import Cgroup, peak_bytes
from millpond.worker.runner import Runner
from millpond.worker.shared import WorkerFailed


class Form(Protocol):
    """How a keeper starts runners."""

    @property
    def processes(self) -> bool:
        """Whether runners are processes: they can be killed, and started again."""
        ...

    def start(self, *, leader: bool = False) -> Handle:
        """Start a runner; it says Hello, or Broken, over its link.

        A `leader` leads a process group, so that what it has started can be ended with it.
        """
        ...


class ProcessForm:
    """Runners that import `app` in processes of their own; start them from the main thread.

    The kernel ends such a process together with the thread that started it.
    """

    processes = True

    def __init__(self, app: str, log: LogConfig | None = None) -> None:
        self._app = app
        self._log = [] if log is None else ["--log-format", log.format, "--log-level", log.level]
        self._cgroup = Cgroup()

    def start(self, *, leader: bool = False) -> ProcessHandle:
        """Start a process with its end of the link and this process's standard streams."""
        ours, theirs = socket_pair()
        with theirs:
            command = [
                sys.executable, "-m", "millpond.worker.child",
                "--link", str(theirs.fileno()), "--parent", str(os.getpid()),
                # What such a runner is about to do may end it: what it has done must be told.
                *(["--solo"] if leader else []), *self._log, self._app,
            ]  # fmt: skip
            try:
                process = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    process_group=0 if leader else None,
                    # A group of its own that read from the terminal would be stopped for it.
                    stdin=subprocess.DEVNULL if leader else None,
                )
            except OSError as error:
                ours.close()
                raise WorkerFailed(f"no runner can be started: {error}") from error
        return ProcessHandle(process, PipeLink(ours), self._cgroup, leader=leader)


class ProcessHandle:
    """A runner process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        link: PipeLink,
        cgroup: Cgroup,
        *,
        leader: bool = False,
    ) -> None:
        self.process = process
        self.link: Link = link
        self._leader = leader
        self._cgroup = cgroup
        self.memory: str | None = None

    def poll(self) -> int | None:
        """Reap the process if it has ended; what a leader has started ends with it."""
        process = self.process
        if process.returncode is None:
            try:
                pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            except ChildProcessError:
                # Somebody else has reaped it, as a handler of process 1 may.
                return process.poll()
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode == -signal.SIGKILL:
                    self.memory = self._cgroup.why(peak_bytes(usage))
                self._end_group()
        return process.returncode

    def kill(self) -> bool:
        """Send SIGKILL, which no handler can hold up."""
        if not self._leader or self.process.returncode is not None:
            self.process.kill()
        else:
            self._end_group()
        return True

    def _end_group(self) -> None:
        if self._leader:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self, timeout: float) -> bool:
        """Wait for the process, and kill it when it does not end by itself."""
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            self.process.wait()
        self._end_group()
        return True


class ThreadForm:
    """One runner in threads of this process, for the object `host`."""

    processes = False

    def __init__(self, host: Host, clock: Clock, bell: Bell) -> None:
        self._host = host
        self._clock = clock
        self._bell = bell

    def start(self, *, leader: bool = False) -> ThreadHandle:  # noqa: ARG002  threads lead nothing
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

    memory: str | None = None

    def poll(self) -> int | None:
        """Threads do not end without the process."""
        return None

    def kill(self) -> bool:
        """Return False: a thread cannot be ended from outside."""
        return False

    def finish(self, timeout: float) -> bool:
        """Wait for threads and loop; those whose handler does not return stay behind."""
        return self._runner.close(timeout)
