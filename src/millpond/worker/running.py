"""`millpond worker APP`: a keeper process and its runners."""

from __future__ import annotations

import os
import sys
from subprocess import Popen

from millpond.config import LogConfig, WorkerConfig
from millpond.errors import BadConfig
from millpond.log import configure
from millpond.outlet import Outlet, last_word
from millpond.worker import importing, unserved
from millpond.worker.bell import Bell
from millpond.worker.embedded import EmbeddedWorker
from millpond.worker.forms import ProcessForm, ProcessHandle
from millpond.worker.host import Host, load_host
from millpond.worker.keeper import Keeper, Until
from millpond.worker.opening import open_for
from millpond.worker.report import DrainReport
from millpond.worker.shared import WorkerFailed
from millpond.worker.signals import Signals, reap_orphans

SWITCH_S = 0.0005
"""The loop and the storage thread hand the interpreter to and fro at every commit; the usual
five milliseconds would be longer than the commit itself."""


def run_worker(
    app: str,
    config: WorkerConfig | None = None,
    *,
    once: bool = False,
    drain: bool = False,
    adopt: bool | None = None,
    log: LogConfig | None = None,
) -> int:
    """Work for `module:attribute` until a signal, or until the work asked for is done.

    Call it in the main thread. `once` runs at most one job a slot, `drain` everything that is
    ready. `adopt` reaps ended processes that are not its own children, which only process 1
    has to do (None: when it is that). `log` sets up the lines of this process and its runners.

    Returns the exit code: 1 when the application cannot be imported or the worker cannot go
    on, which it says on standard error; 0 otherwise, with a last line that sums up.

    Raises BadConfig for settings that cannot work, StoreError for a store that cannot be used.
    """
    settings = config or WorkerConfig()
    if log is not None:
        configure(log.format, log.level, outlet=Outlet(2))
    until = Until.ONCE if once else Until.IDLE if drain else Until.STOPPED
    try:
        report = _work(
            app, settings, until, adopt=os.getpid() == 1 if adopt is None else adopt, log=log
        )
    except WorkerFailed as error:
        last_word(f"error: {error}")
        return 1
    last_word(f"worker stopped: {report}")
    return 0


def _work(
    app: str, settings: WorkerConfig, until: Until, *, adopt: bool, log: LogConfig | None
) -> DrainReport:
    if settings.processes == 0:
        host = _load(app)
        report = EmbeddedWorker(host, settings).run(until)
        if until is Until.IDLE:
            unserved.tell(host.store)
        return report
    bell = Bell()
    sys.setswitchinterval(SWITCH_S)
    with Signals(bell, children=True) as signals:
        keeper = Keeper(
            ProcessForm(app, log),
            settings,
            open_for(settings),
            bell=bell,
            stops=lambda: signals.stops,
            until=until,
            signal=lambda: signals.last,
        )
        if adopt:
            keeper.reap = lambda: reap_orphans(_processes(keeper))
        try:
            return keeper.run()
        finally:
            bell.close()


def _load(app: str) -> Host:
    try:
        return load_host(app)
    except Exception as error:
        if not isinstance(error, BadConfig):
            importing.show(error)
        raise WorkerFailed(importing.told(app, error)) from error


def _processes(keeper: Keeper) -> list[Popen[bytes]]:
    handles = [member.handle for member in keeper.staff.members]
    return [handle.process for handle in handles if isinstance(handle, ProcessHandle)]
