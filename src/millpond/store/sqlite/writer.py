"""The storage thread: the one writer of a process, committing together what waits together.

Callers hand an operation over and get a ticket. The thread takes all that wait (at most
`GROUP`), starts one transaction, runs each operation in a savepoint, commits, and only then
resolves the tickets: 64 callers share one sync to disk instead of paying 64. Nobody lingers
for company; a lone operation commits at once and needs no savepoint.

A caller that waits anyway, while nobody else writes, does its operation in its own thread: two
hand-overs between threads cost more than the statements where a sync is fast.

A failing operation undoes only itself. When an error has ended the whole transaction (a full
disk may), the others are run again, each alone. A COMMIT that fails in an unclear way is
settled by reading back what each operation wrote.

Operations are SQL and policy only: no handler, no log, no callback runs inside one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from millpond import fault
from millpond.errors import CommitUncertain, StoreBusy, StoreClosed
from millpond.model import TransactionFigures
from millpond.store.sqlite.connect import (
    FULL,
    WAIT_MAX_S,
    WAIT_MIN_S,
    busy,
    primary_code,
    translate,
    try_begin,
)
from millpond.store.sqlite.seldom import Seldom
from millpond.store.sqlite.session import Rest, Session, Write
from millpond.store.sqlite.tickets import Ticket

log = logging.getLogger("millpond.store")

T = TypeVar("T")
LONG_WAIT_S = 1.0
IDLE_S = 0.003
"""Nothing to do for so long is a gap; a caller in a loop is back sooner and should not wait."""
COMPANY_S = 0.02
"""Callers that were in one group lately form the next one: nobody runs ahead for so long."""
LOOK_AFTER = 32
"""Transactions in callers' threads after which the storage thread is woken to look at the log."""
GROUP = 256
GROUP_JOBS = 5_000
"""Operations, and jobs in them, in one transaction: bounds how long the write lock is held."""


_TICK = object()
"""In the inbox: somebody has written in a thread of its own, look after the log again."""


class Writer:
    """Owns the write connection and its thread; starts at the first write."""

    def __init__(
        self, session: Session, *, roll: Callable[[], float], inbox: int, busy_s: float
    ) -> None:
        self._session = session
        self._roll = roll
        self._bound = inbox
        self._busy_s = busy_s
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._resting: Rest | None = None
        self._waiting: deque[Write] = deque()
        self._current: list[Write] = []
        self._closing = False
        self._ended = False
        self._since_gap = 0
        self._ticking = False
        self._gap_told = Seldom(60.0, time.monotonic)
        self._company_until = 0.0
        self._turn = threading.RLock()
        self._alone: int | None = None
        self._conn: Any = None
        self._start_lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.dead: BaseException | None = None
        self.held_us: deque[int] = deque(maxlen=4096)
        self.wait_us: deque[int] = deque(maxlen=4096)
        self.transactions = 0
        self.busy_refusals = 0

    # -- callers' side ------------------------------------------------------------------

    def submit(
        self,
        run: Callable[[Any], T],
        *,
        urgent: bool = False,
        budget_s: float | None = None,
        check: Callable[[Any, Any], bool | None] | None = None,
        hint: str | None = None,
    ) -> Ticket[T]:
        """Hand an operation over; it waits for the lock at most `budget_s` from now.

        `hint` is told to the caller if it does so in vain.
        """
        return self._hand_over(
            Write(
                lambda tx, _: (run(tx),), None, Ticket(), self._deadline(budget_s), urgent,
                hint=hint, check=check,
            )
        )  # fmt: skip

    def submit_shared(
        self,
        run: Callable[[Any, Sequence[Any]], Sequence[T]],
        item: Any,
        weight: int,
        check: Callable[[Any, Any], bool | None],
        *,
        hint: str | None = None,
        waits: bool = False,
    ) -> Ticket[T]:
        """Hand over an item of an operation that does many callers' items in one call.

        With `waits` the caller waits for the answer right here: its thread may do the work.
        """
        deadline = self._deadline(None)
        write = Write(run, item, Ticket(), deadline, weight=weight, hint=hint, check=check)
        return self._hand_over(write, waits=waits)

    def _deadline(self, budget_s: float | None) -> float:
        return time.perf_counter() + (self._busy_s if budget_s is None else budget_s)

    def _hand_over(self, write: Write, *, waits: bool = False) -> Ticket[Any]:
        if self._closing or self.dead is not None:
            raise self._closed()
        if waits and self._done_here(write):
            return write.ticket
        if self._alone == threading.get_ident():
            msg = (
                f"{self._session.path}: this thread is in the middle of a write, which a signal "
                "handler or a finalizer has interrupted; nothing was written by it. Write from "
                "another thread, or after the handler."
            )
            raise StoreBusy(msg)
        if not write.urgent and self._inbox.qsize() + len(self._waiting) >= self._bound:
            msg = (
                f"{self._bound} writes wait for the storage thread of this process already; "
                "nothing was written. Slow down, or hand over batches."
            )
            raise StoreBusy(msg)
        if self.thread is None:
            self._start()
        self._inbox.put(write)
        if self._ended:
            # The thread ended between the look at `_closing` and now: nobody else would answer.
            self._reject_rest()
        return write.ticket

    def _done_here(self, write: Write) -> bool:
        """Do a lone write in the caller's thread; False when it has to be handed over."""
        if (
            self._conn is None or self._waiting or not self._inbox.empty()
            or time.perf_counter() < self._company_until or self._alone == threading.get_ident()
            or not self._turn.acquire(blocking=False)
        ):  # fmt: skip
            return False
        try:
            if self._conn is None or self._closing:
                return False
            self._alone = threading.get_ident()
            return self._alone_here(write)
        finally:
            self._alone = None
            self._turn.release()

    def _alone_here(self, write: Write) -> bool:
        try:
            if not try_begin(self._conn, self._session.path):
                return False
            self.wait_us.append(0)
            self._transact([write])
        except BaseException:
            # Not the storage thread's: a KeyboardInterrupt may come between two statements.
            self._undo_all()
            raise
        if not self._ticking and self._since_gap >= LOOK_AFTER:
            self._ticking = True
            self._inbox.put(_TICK)
        return True

    def _start(self) -> None:
        with self._start_lock:
            if self._closing:
                raise self._closed()
            if self.thread is None:
                thread = threading.Thread(target=self._live, name="millpond-storage", daemon=True)
                thread.start()
                self.thread = thread

    def _closed(self) -> StoreClosed:
        if self.dead is not None:
            error = StoreClosed(f"{self._session.path}: the storage thread ended: {self.dead}")
            error.__cause__ = self.dead
            return error
        return StoreClosed(f"{self._session.path}: the store is closed; open it again.")

    def close(self, timeout: float | None = None) -> None:
        """Finish what was handed over, then end the thread and its connection."""
        with self._start_lock:
            self._closing = True
            thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            self._inbox.put(None)
            thread.join(timeout)
        if not self.runs:
            self._reject_rest()

    def figures(self) -> TransactionFigures:
        """Return how long the lock was held and waited for."""
        return TransactionFigures(
            self.transactions, *_percentiles(self.held_us), *_percentiles(self.wait_us),
            self.busy_refusals,
        )  # fmt: skip

    @property
    def runs(self) -> bool:
        """Whether the storage thread was started and lives."""
        return self.thread is not None and self.thread.is_alive()

    def rest(self, timeout: float) -> bool:
        """Bring the thread to rest, without a connection; False when it does not in time."""
        if not self.runs:
            return True
        self._resting = rest = Rest()
        self._inbox.put(rest)
        return rest.reached.wait(timeout)

    def resume(self) -> None:
        """Let the thread go on."""
        rest, self._resting = self._resting, None
        if rest is not None:
            rest.over.set()

    def abandon(self) -> Any:
        """In a forked child: forget a connection without closing it, and return it."""
        conn, self._conn = self._conn, None
        self._closing = True
        self.thread = None
        return conn

    # -- the thread ---------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._conn = self._session.open()
            while self._step():
                pass
        except BaseException as error:  # noqa: BLE001  the process must learn of it
            self.dead = error
        finally:
            self._ended = True
            self._reject_rest()
            with self._turn:
                self._end()

    def _end(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            try:
                conn.close()
            except Exception as error:  # noqa: BLE001  nothing is lost by a failing close
                self.dead = self.dead or error

    def _step(self) -> bool:
        if not self._gather(block=not self._waiting):
            return False
        self._current = batch = self._next_batch()
        if batch:
            with self._turn:
                if self._begin(batch):
                    self._transact(batch)
            self._answered(batch)
        self._current = []
        return True

    def _answered(self, batch: list[Write]) -> None:
        if len(batch) > 1:
            self._company_until = time.perf_counter() + COMPANY_S

    def _gather(self, *, block: bool) -> bool:
        """Move the inbox into the waiting line, urgent ones to its front; False at the end."""
        try:
            write = self._inbox.get_nowait()
        except Empty:
            if not block:
                return True
            write = self._await_next()
        while True:
            if write is None:
                self._closing = True
                return bool(self._waiting)
            if write is _TICK:
                pass
            elif isinstance(write, Rest):
                self._lie_down(write)
            elif write.urgent:
                self._waiting.appendleft(write)
            else:
                self._waiting.append(write)
            try:
                write = self._inbox.get_nowait()
            except Empty:
                return True

    def _lie_down(self, rest: Rest) -> None:
        """Stand outside any transaction and without a connection until the fork is over."""
        if rest.over.is_set():
            return
        with self._turn:
            self._session.lay_down()
            self._conn = None
            rest.reached.set()
            rest.over.wait()
            self._conn = self._session.open()

    def _await_next(self) -> Any:
        if self._closing:
            return None
        while self._ticking:
            with contextlib.suppress(Empty):
                return self._inbox.get(timeout=IDLE_S)
            with self._turn:
                self._ticking = bool(self._since_gap)
                self._gap(idle=not self._ticking)
        return self._inbox.get()

    def _gap(self, *, idle: bool) -> None:
        """Let the session checkpoint; a failing one (a full disk) must not end the thread."""
        fresh, self._since_gap = self._since_gap, 0
        try:
            self._session.gap(self._conn, fresh, idle=idle)
        except Exception as error:  # noqa: BLE001  whatever it was, writes go on
            # As a rule a disk that is full, or fails: it will not pass in the next 3 ms.
            if self._gap_told.now():
                log.warning(
                    "%s: a checkpoint failed (%s); it is tried again in every pause between "
                    "writes, and told once a minute", self._session.path, error,
                )  # fmt: skip
            self._undo_all()
        else:
            self._gap_told.over()

    def _next_batch(self) -> list[Write]:
        if len(self._waiting) == 1:
            return [self._waiting.popleft()]
        urgent = [write for write in self._waiting if write.urgent]
        # Urgent ones were put in front newest first; among themselves order must hold.
        urgent.sort(key=lambda write: write.handed)
        rest = [write for write in self._waiting if not write.urgent]
        line = urgent + rest
        many, weight = 0, 0
        while many < min(len(line), GROUP) and (many == 0 or weight < GROUP_JOBS):
            weight += line[many].weight
            many += 1
        self._waiting = deque(line[many:])
        return line[:many]

    def _begin(self, batch: list[Write]) -> bool:
        """Take the write lock for the batch; those whose budget ends meanwhile are told."""
        started, told = time.perf_counter(), False
        while True:
            try:
                if try_begin(self._conn, self._session.path):
                    break
            except Exception as error:  # noqa: BLE001  each caller gets it
                for write in batch:
                    write.ticket.reject(error)
                return False
            self._gather(block=False)
            self._expire(batch, self._waiting)
            if not batch:
                return False
            if not told and time.perf_counter() - started > LONG_WAIT_S:
                told = True
                self._session.waiting_long()
            time.sleep(WAIT_MIN_S + self._roll() * (WAIT_MAX_S - WAIT_MIN_S))
        self.wait_us.append(int((time.perf_counter() - started) * 1e6))
        return True

    def _expire(self, *lines: Any) -> None:
        now = time.perf_counter()
        for line in lines:
            late = [write for write in line if write.deadline <= now]
            for write in late:
                line.remove(write)
                self.busy_refusals += 1
                waited = now - write.handed
                write.ticket.reject(busy(self._session.path, waited, write.hint or ""))

    def _transact(self, batch: list[Write]) -> None:
        held = time.perf_counter()
        context = None
        try:
            context = self._session.start(self._conn)
            whole = self._run_all(context, batch)
            if whole:
                self._commit(context, batch)
        except Exception as error:  # noqa: BLE001  the transaction failed as a whole
            self._undo_all()
            for write in batch:
                if not write.ticket.done():
                    write.ticket.reject(translate(error, self._session.path))
            return
        self.held_us.append(int((time.perf_counter() - held) * 1e6))
        if not whole:
            self._one_by_one(batch)
            return
        self._answer(context, batch)

    def _run_all(self, context: Any, batch: list[Write]) -> bool:
        """Run each operation in a savepoint; False when the transaction was ended under us."""
        for write in batch:
            write.error = None
        at = 0
        while at < len(batch):
            many = 1
            while at + many < len(batch) and batch[at + many].run == batch[at].run:
                many += 1
            ended = self._run_shared(context, batch[at : at + many], alone=many == len(batch))
            if ended:
                return False
            at += many
        return True

    def _run_shared(self, context: Any, shared: list[Write], *, alone: bool) -> bool:
        """Run one call for all; if it fails, one by one. True when the transaction has ended."""
        execute = self._conn.execute
        # Alone in the transaction, a rollback of all of it is undo enough.
        savepoint = not (alone and len(shared) == 1)
        try:
            if savepoint:
                execute("SAVEPOINT op")
            values = shared[0].run(context, [write.item for write in shared])
            if savepoint:
                execute("RELEASE op")
        except BaseException as error:  # noqa: BLE001  told to the caller
            if len(shared) == 1:
                shared[0].error = error
            if not self._conn.in_transaction:
                return True
            if savepoint:
                execute("ROLLBACK TO op")
                execute("RELEASE op")
            self._session.undone(context)
            return len(shared) > 1 and any(
                self._run_shared(context, [write], alone=False) for write in shared
            )
        for write, value in zip(shared, values, strict=True):
            write.value, write.error = value, None
        return False

    def _commit(self, context: Any, batch: list[Write]) -> None:
        if all(write.error is not None for write in batch):
            self._conn.execute("ROLLBACK")
            return
        fault.point("before-commit")
        try:
            self._conn.execute("COMMIT")
        except Exception as error:  # noqa: BLE001  read back what stands
            self._session.unclear(context)
            self._unclear(batch, error)
            return
        self.transactions += 1
        self._since_gap += 1

    def _unclear(self, batch: list[Write], error: BaseException) -> None:
        """Find out whether a failed COMMIT wrote after all: what one can tell holds for all."""
        self._undo_all()
        open_ones = [write for write in batch if write.error is None]
        verdicts = {self._stands(write) for write in open_ones}
        if True in verdicts:
            return
        for write in open_ones:
            if False in verdicts or primary_code(error) == FULL:
                write.error = translate(error, self._session.path)
            else:
                write.error = CommitUncertain(
                    f"{self._session.path}: COMMIT failed ({error}) and what it wrote could not "
                    "be read back. Look whether it is there before you try again."
                )

    def _stands(self, write: Write) -> bool | None:
        try:
            return None if write.check is None else write.check(self._conn, write.value)
        except Exception:  # noqa: BLE001  the database cannot be read either
            return None

    def _undo_all(self) -> None:
        try:
            if self._conn.in_transaction:
                self._conn.execute("ROLLBACK")
        except Exception as error:  # noqa: BLE001  the connection is beyond use
            self.dead = error

    def _answer(self, context: Any, batch: list[Write]) -> None:
        try:
            fault.point("after-commit")
        except fault.FaultInjected as error:
            for write in batch:
                write.error = write.error or error
        try:
            self._session.committed(context)
        except Exception:  # the commit stands: nobody may be told otherwise
            log.warning("%s: after a commit", self._session.path, exc_info=True)
        for write in batch:
            if write.error is None:
                write.ticket.resolve(write.value)
            else:
                write.ticket.reject(self._told(write.error))
        if self._alone is None:
            self._ticking = True
            self._gap(idle=False)

    def _told(self, error: BaseException) -> BaseException:
        return translate(error, self._session.path) if primary_code(error) else error

    def _one_by_one(self, batch: list[Write]) -> None:
        """The transaction was ended by one operation's error: run each again, alone."""
        for write in batch:
            if write.error is not None:
                write.ticket.reject(self._told(write.error))
            elif len(batch) > 1 and self._begin([write]):
                self._transact([write])

    def _reject_rest(self) -> None:
        while True:
            try:
                write = self._inbox.get_nowait()
            except Empty:
                break
            if isinstance(write, Write):
                self._waiting.append(write)
        for write in self._current:
            if not write.ticket.done():
                write.ticket.reject(self._closed())
        with contextlib.suppress(IndexError):  # another thread took the last one
            while True:
                self._waiting.popleft().ticket.reject(self._closed())


def _percentiles(samples: deque[int]) -> tuple[int, int, int]:
    ordered = sorted(samples)
    if not ordered:
        return 0, 0, 0
    last = len(ordered) - 1
    return ordered[last // 2], ordered[round(last * 0.99)], ordered[last]
