"""The SQLite store: puts connection, storage thread, reads and maintenance together."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from millpond.clock import Clock, SystemClock
from millpond.config import QueueSettings, StoreConfig, TaskSettings
from millpond.errors import StoreClosed
from millpond.model import (
    Admission,
    AttemptRow,
    Connection,
    Drift,
    JobFilter,
    JobId,
    JobRow,
    JobSpec,
    State,
    StatusSnapshot,
    TransactionFigures,
    WorkerBeat,
    WorkerId,
    WorkerRow,
)
from millpond.store import forking, migrate
from millpond.store.sqlite import admit, care, declare, gates, views
from millpond.store.sqlite.checkpoint import Checkpointer, Election
from millpond.store.sqlite.connect import (
    begin,
    ensure_wal,
    open_connection,
    patiently,
    primary_code,
    translate,
)
from millpond.store.sqlite.copies import CopiesPart
from millpond.store.sqlite.duty import DutyPart
from millpond.store.sqlite.foreign import Foreign
from millpond.store.sqlite.gate import Finding, check, enforce, moved
from millpond.store.sqlite.named import SQL
from millpond.store.sqlite.names import Context, Names
from millpond.store.sqlite.plans import forget_statistics, plan_findings
from millpond.store.sqlite.probes import FileIdentity, SystemProbes, library
from millpond.store.sqlite.retention import RetentionPart
from millpond.store.sqlite.review import ReviewPart
from millpond.store.sqlite.session import Session
from millpond.store.sqlite.tickets import Ticket
from millpond.store.sqlite.wake import Waker
from millpond.store.sqlite.writer import Writer

log = logging.getLogger("millpond.store")

T = TypeVar("T")
MEMORY = ":memory:"
LOOK_EVERY_S = 1.0
"""How often the file is compared with what was opened."""

_abandoned: list[Any] = []
"""Connections inherited through fork: closing one would drop the parent's locks."""


class SqliteStore(DutyPart, ReviewPart, RetentionPart, CopiesPart, Session):
    """A store on one SQLite file; see `millpond.store.protocol` for what each method promises."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        config: StoreConfig | None = None,
        roll: Callable[[], float] | None = None,
        migrations: Sequence[migrate.Migration] | None = None,
    ) -> None:
        self.path = path if path == MEMORY else os.path.realpath(path)
        self.clock: Clock = clock or SystemClock()
        self.config = config or StoreConfig(url=path)
        self.roll = roll or random.random
        self._module = library(self.config.sqlite)
        self._migrations = migrations or migrate.load(migrate.packaged("millpond.store.sqlite"))
        self._pid = os.getpid()
        self._turns = itertools.count()
        self._names: Names | None = None
        self._waker = Waker()
        self._listeners: list[Callable[[], None]] = []
        self._election = Election(self.path, "checkpoint")
        self._housekeeping = Election(self.path, "house")
        self._foreign = Foreign(self.path, self._visible)
        self._read_lock = threading.Lock()
        self._aside_lock = threading.Lock()
        self._reader: Any = None
        self._closed = False
        self._data_version = 0
        self._looked = time.monotonic()
        self._gone: Finding | None = None
        busy_s = self.config.busy_ms / 1000
        self._writer = Writer(self, roll=self.roll, inbox=self.config.inbox, busy_s=busy_s)
        self._checkpointer = Checkpointer(
            self.path, self._election, self._connect, self.config.checkpoint_pages
        )
        self._first: Any = None
        self._identity: FileIdentity | None = None
        with forking.guard:
            self._open_all()
            forking.stores.add(self)

    # -- opening and closing ------------------------------------------------------------

    def _connect(self) -> Any:
        return open_connection(
            self._module,
            self.path,
            synchronous=self.config.synchronous,
            create=self._identity is None,
        )

    def findings(self) -> list[Finding]:
        """Return what the start-up gate says of this file."""
        return check(
            self.path,
            SystemProbes(self._module),
            strict=self.config.strict_safety,
            allow_network_fs=self.config.allow_network_fs,
            own_open=any(store.path == self.path for store in forking.stores),
        )

    def _open_all(self) -> None:
        forking.refuse_inherited(self.path)
        enforce(self.findings())
        try:
            self._first = self._connect()
            if self.path != MEMORY:
                budget = self.config.busy_ms / 1000
                ensure_wal(self._first, self.path, budget_s=budget, roll=self.roll)
            self._migrate_new()
            forget_statistics(self._first)
        except BaseException as error:
            if self._first is not None:
                self._first.close()
            if primary_code(error):
                raise translate(error, self.path) from error
            raise
        self._identity = None if self.path == MEMORY else FileIdentity.of(self.path)

    def _migrate_new(self) -> None:
        """Create the schema in a file that has none; refuse one that does not fit."""
        applied, complete = patiently(
            self._schema, budget_s=self.config.busy_ms / 1000, roll=self.roll, path=self.path
        )
        if applied:
            migrate.require_current(applied, self._migrations, where=self.path)
        if not complete:
            self._apply()

    def _schema(self) -> tuple[dict[int, migrate.Applied], bool]:
        """Return the migrations, and whether the last step of making a store is done too.

        Who makes the store may have died, or be about to come to it.
        """
        applied = migrate.read_sqlite(self._first)
        return applied, bool(applied) and self._first.execute(
            SQL["read_meta"]
        ).fetchone() is not None

    def _apply(self) -> list[int]:
        budget = self.config.busy_ms / 1000
        done = migrate.apply_sqlite(
            self._first,
            lambda: begin(self._first, budget_s=budget, roll=self.roll, path=self.path),
            self._migrations,
            where=self.path,
        )
        begin(self._first, budget_s=budget, roll=self.roll, path=self.path)
        row = {"store_id": str(uuid.uuid4()), "now": self.clock.now()}
        self._first.execute(SQL["make_meta"], row)
        self._first.execute("COMMIT")
        return done

    def open(self) -> Any:
        """Hand the connection to the storage thread, opened anew after a rest."""
        if self._first is None:
            self._first = self._connect()
        return self._first

    def lay_down(self) -> None:
        """Close what the storage thread uses; a store in memory is its connection, and stays."""
        if self.path == MEMORY:
            return
        self._checkpointer.close()
        first, self._first = self._first, None
        if first is not None:
            first.close()

    def rest(self) -> bool:
        """Before a fork: close every connection and hold all threads off."""
        rested = self._writer.rest(forking.REST_S)
        self._aside_lock.acquire()
        self._read_lock.acquire()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        if rested and not self._writer.runs:
            self.lay_down()
        return rested

    def resume(self) -> None:
        """After a fork, in the parent: go on."""
        self._read_lock.release()
        self._aside_lock.release()
        self._writer.resume()

    def close(self) -> None:
        """Finish the writes handed over, then refuse more."""
        if self._pid != os.getpid():
            return
        self._writer.close()
        with forking.guard:
            forking.stores.discard(self)
            self._close_all()

    def _close_all(self) -> None:
        with self._read_lock:
            self._closed = True
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        self._checkpointer.close()
        if self._first is not None:
            self._first.close()
        self._waker.close()
        self._election.leave()
        self._housekeeping.leave()

    def abandon(self) -> None:
        """In a forked child: drop what was inherited; an open connection is never closed here."""
        _abandoned.extend([self._writer.abandon(), self._first, self._checkpointer])
        self._read_lock = threading.Lock()
        self._aside_lock = threading.Lock()
        self._waker.close()
        self._election.leave()
        self._housekeeping.leave()

    def _check_mine(self) -> None:
        if self._pid != os.getpid():
            msg = f"{self.path} was opened before this process was forked: open it again here."
            raise StoreClosed(msg)
        if self._closed:
            raise self._is_closed()

    def _is_closed(self) -> StoreClosed:
        return StoreClosed(f"{self.path}: the store is closed; open it again.")

    # -- the storage thread's side -------------------------------------------------------

    def start(self, conn: Any) -> Context:
        """Read the clocks once, now that the lock is held."""
        self._look()
        return self._context(conn)

    def _context(self, conn: Any) -> Context:
        clock = self.clock
        return Context(
            conn, self._names, now=clock.now(), mono=clock.mono(), domain=clock.domain,
            roll=self.roll,
        )  # fmt: skip

    def undone(self, context: Context) -> None:
        """Forget what an undone operation may have made."""
        context.forget()

    def unclear(self, context: Context) -> None:
        """Keep no names of a transaction that may not have been written."""
        context.cacheable = False

    def committed(self, context: Context) -> None:
        """Keep the names, nudge the keepers."""
        if context.cacheable:
            self._names = context.names
        if context.woken:
            for listener in list(self._listeners):
                listener()
            self._waker.nudge(context.names, context.woken)
        if context.called:
            self._waker.call(context.called)

    def gap(self, conn: Any, transactions: int, *, idle: bool) -> None:
        """Checkpoint when it is due."""
        if self.path != MEMORY:
            self._checkpointer.gap(conn, transactions, idle=idle)

    def _look(self) -> None:
        """Compare the file at the path with the one that was opened, once a second."""
        now = time.monotonic()
        if self._identity is not None and now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            self._gone = moved(self._identity, self.path)
        if self._gone is not None:
            raise StoreClosed(str(self._gone))

    def _visible(self, job: int) -> bool:
        return bool(self._read(lambda run: run(SQL["job_exists"], {"id": job}).fetchone()))

    def waiting_long(self) -> None:
        """Name the callers' transactions that keep the lock from us."""
        for site in self._foreign.holders():
            log.warning(
                "a transaction holds the write lock for over a second; it enqueued at %s", site
            )

    def _write(self, run: Callable[[Context], T], **options: Any) -> Ticket[T]:
        self._check_mine()
        return self._writer.submit(run, hint=self._foreign.hint(), **options)

    # -- reading -------------------------------------------------------------------------

    def _new_reader(self) -> Any:
        if self._closed:
            raise self._is_closed()
        return open_connection(self._module, self.path)

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[Any]:
        with self._read_lock:
            if self._reader is None:
                self._reader = self._new_reader()
            self._reader.execute("BEGIN")
            try:
                yield self._reader.execute
            finally:
                self._reader.execute("ROLLBACK")

    @contextlib.contextmanager
    def _aside(self) -> Iterator[Any]:
        """A snapshot on a connection of its own, for what takes long: no beat waits for it."""
        with self._aside_lock:
            reader = self._new_reader()
            try:
                reader.execute("BEGIN")
                yield reader.execute
            finally:
                reader.close()

    def _read(self, look: Callable[[Any], T], *, long: bool = False) -> T:
        """Run `look(execute)` in one snapshot."""
        self._check_mine()
        if self.path == MEMORY:
            return self._writer.submit(lambda tx: look(tx.execute)).result()
        deadline = time.monotonic() + self.config.busy_ms / 1000
        while True:
            try:
                with self._aside() if long else self._snapshot() as execute:
                    return look(execute)
            except Exception as error:
                if primary_code(error) not in {5, 6} or time.monotonic() > deadline:
                    raise translate(error, self.path) if primary_code(error) else error from error
            time.sleep(0.001)

    def get(self, job_id: JobId, *, payload: bool = True) -> JobRow | None:
        """Return one job."""
        return self._read(lambda run: views.get(run, self.clock, job_id, payload=payload))

    def find(
        self, where: JobFilter, *, before: JobId | None = None, limit: int = 100
    ) -> list[JobRow]:
        """Return jobs, newest first."""
        return self._read(lambda run: views.find(run, self.clock, where, before, limit), long=True)

    def attempts(self, job_id: JobId) -> list[AttemptRow]:
        """Return a job's history."""
        return self._read(lambda run: views.attempts(run, job_id))

    def status(self) -> StatusSnapshot:
        """Return counts, workers and warnings."""
        return self._read(lambda run: views.status(run, self.clock))

    def workers(self) -> list[WorkerRow]:
        """Return the registered keepers."""
        return self._read(lambda run: views.workers(run, self.clock.now()))

    def result_of(self, operation_id: str, task: str | None = None) -> bytes | None:
        """Return the newest stored result of an operation."""
        key = {"operation_id": operation_id, "task": task, "now": self.clock.now()}
        row = self._read(lambda run: run(SQL["result_of"], key).fetchone())
        return None if row is None else bytes(row[0])

    def tasks(self) -> dict[str, TaskSettings]:
        """Return the settings of the tasks that were declared."""
        return self._read(views.tasks)

    def next_due(self) -> int | None:
        """Return when the earliest scheduled job falls due."""
        row = self._read(lambda run: run(SQL["first_due"]).fetchone())
        return None if row is None else int(row[0])

    def claimable(self, tasks: Collection[str]) -> bool:
        """Tell whether a claim for these tasks may find something."""
        now = self.clock.now()

        def look(run: Any) -> bool:
            first = run(SQL["first_due"]).fetchone()
            if first is not None and first[0] <= now:
                return True
            return any(task in tasks for (task,) in run(SQL["claimable_tasks"]))

        return self._read(look)

    def expired(self) -> bool:
        """Tell whether a lease of this clock domain has expired."""
        key = {"domain": self.clock.domain, "mono": self.clock.mono()}
        return bool(self._read(lambda run: run(SQL["any_expired"], key).fetchone()[0]))

    def beats(self) -> dict[WorkerId, WorkerBeat]:
        """Return what is known of every worker that holds running jobs."""
        return self._read(views.beats)

    def changed(self) -> bool:
        """Tell whether another connection committed since the last call."""
        self._check_mine()
        if self.path == MEMORY:
            return False
        with self._read_lock:
            if self._reader is None:
                self._reader = self._new_reader()
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
        before, self._data_version = self._data_version, version
        return bool(before != version)

    def shared(self) -> bool:
        """Tell whether foreign connections enqueue into this file."""
        return bool(self._read(lambda run: run(SQL["read_shared"]).fetchone()[0]))

    def verify(self) -> list[str]:
        """Check the file, every job's place and every counter."""
        return self._read(care.verify, long=True)

    def drift(self) -> list[Drift]:
        """Recount all counters in one snapshot."""
        return self._read(care.drift, long=True)

    def figures(self) -> TransactionFigures:
        """Return how long this process held the write lock and waited for it."""
        return self._writer.figures()

    def doctor(self) -> list[Finding]:
        """Return the gate's findings and those of the hot statements' plans."""
        return self.findings() + self._read(plan_findings, long=True)

    # -- writing -------------------------------------------------------------------------

    def enqueue(self, specs: Sequence[JobSpec], *, waits: bool = False) -> Ticket[list[Admission]]:
        """Decide about all specs and insert what is admitted: all of them or none."""
        self._check_mine()
        return self._writer.submit_shared(
            admit.enqueue_all, specs, len(specs), _enqueue_stands, hint=self._foreign.hint(),
            waits=waits,
        )  # fmt: skip

    def enqueue_in(self, tx: Connection, specs: Sequence[JobSpec]) -> list[Admission]:
        """Do the same in the caller's transaction."""
        self._check_mine()
        return self._foreign.enqueue(tx, specs, self._foreign_context)

    def _foreign_context(self, cursor: Any) -> Context:
        context = self._context(cursor)
        context.cacheable = False
        return context

    def cancel(
        self, job_id: JobId, *, by: str | None = None, note: str | None = None
    ) -> Ticket[State | None]:
        """Cancel a waiting job, ask for it when running."""
        return self._write(lambda tx: care.cancel(tx, job_id, by, note))

    def put_queue(self, settings: QueueSettings) -> Ticket[None]:
        """Declare a queue and its workloads."""
        return self._write(lambda tx: declare.put_queue(tx, settings))

    def put_tasks(self, settings: Sequence[TaskSettings]) -> Ticket[None]:
        """Declare tasks."""
        return self._write(lambda tx: declare.put_tasks(tx, settings))

    def pause(self, queue: str, paused: bool, *, by: str | None = None) -> Ticket[bool]:  # noqa: FBT001
        """Stop or resume the starting of a queue's jobs."""
        return self._write(lambda tx: declare.pause(tx, queue, by, paused=paused))

    def set_gate(self, kind: str, ref: str, limit: int | None) -> Ticket[None]:
        """Set how many jobs of one limit key or tenant may run at once."""
        return self._write(lambda tx: gates.keep(tx, gates.named(tx, kind, ref), limit))

    def reconcile(self, *, repair: bool = False) -> Ticket[list[Drift]]:
        """Recount under the write lock, mend when asked."""

        def run(tx: Context) -> list[Drift]:
            found = care.drift(tx.execute)
            if found and repair:
                care.mend(tx)
            return found

        return self._write(run)

    def wake(self, tasks: Collection[str]) -> None:
        """Nudge the keepers that serve these tasks."""
        names = self._names
        if names is not None:
            known = [names.task_ids[task] for task in tasks if task in names.task_ids]
            self._waker.nudge(names, known)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after commits of this process that made jobs ready."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def elected(self) -> bool:
        """Tell whether this process does the elected maintenance."""
        return self.path == MEMORY or self._housekeeping.won()

    def tick(self) -> None:
        """Check that the file is still ours."""
        if self._identity is not None:
            self._gone = self._gone or moved(self._identity, self.path)
        if self._gone is not None:
            raise StoreClosed(str(self._gone))


def _enqueue_stands(conn: Any, answers: list[Admission]) -> bool | None:
    return admit.stands(conn.execute, answers)
