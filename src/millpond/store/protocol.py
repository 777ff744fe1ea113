"""What a store promises, whatever the engine.

Every write is one transaction with one meaning and returns a `Ticket`: wait for it with
`.result()`, or await it. A ticket is resolved only after COMMIT has returned. The store reads
its clock once a transaction, after it holds the lock; callers pass lengths of time.

Reads are plain calls; each answers from one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from millpond.clock import Clock
from millpond.config import QueueSettings, TaskSettings
from millpond.model import (
    ActedBatch,
    Admission,
    AttemptRow,
    BackedUp,
    BeatAnswer,
    ClaimBatch,
    Connection,
    Drift,
    EventRow,
    FailureGroups,
    Found,
    JobFilter,
    JobId,
    JobRow,
    JobSpec,
    Observation,
    Pin,
    Purged,
    Recovered,
    Requeue,
    Settled,
    Settlement,
    State,
    StatusSnapshot,
    Token,
    TransactionFigures,
    Want,
    WorkerBeat,
    WorkerId,
    WorkerInfo,
    WorkerRow,
)
from millpond.policy.steering import PressureChange, QueuePressure

T_co = TypeVar("T_co", covariant=True)


class Ticket(Protocol[T_co]):
    """The promise of a write: resolved after its COMMIT, by the storage thread."""

    def result(self, timeout: float | None = None) -> T_co:
        """Wait and return the answer, or raise what went wrong (TimeoutError after `timeout` s)."""
        ...

    def done(self) -> bool:
        """Tell whether the answer is there."""
        ...

    def then(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the storage thread, when the answer is there; keep it short."""
        ...

    def __await__(self) -> Generator[Any, None, T_co]:
        """Await the answer; no thread is held meanwhile."""
        ...


class Archiver(Protocol):
    """An archive that is open, and the jobs on their way into it."""

    def move(self, windows: Mapping[State, int], limit: int) -> Purged:
        """Move at most `limit` jobs older than their state's window.

        They are written, on disk, and only then deleted; a process that is killed in between
        has lost nothing, and the next run takes back what it had written.
        """
        ...

    def close(self) -> None:
        """Close the file; what was moved is in it."""
        ...


class Reader(Protocol):
    """What only looks: command line, dashboard and metrics need no more."""

    def get(self, job_id: JobId, *, payload: bool = True) -> JobRow | None:
        """Return one job, None when there is none."""
        ...

    def find(
        self, where: JobFilter, *, before: JobId | None = None, limit: int = 100
    ) -> list[JobRow]:
        """Return jobs, newest first, payloads left out; page on with `before` the last id."""
        ...

    def attempts(self, job_id: JobId) -> list[AttemptRow]:
        """Return the job's history, oldest first."""
        ...

    def status(self) -> StatusSnapshot:
        """Return counts, workers and warnings from counters, cheap at any size."""
        ...

    def workers(self) -> list[WorkerRow]:
        """Return the registered keepers, live ones first."""
        ...

    def result_of(self, operation_id: str, task: str | None = None) -> bytes | None:
        """Return the newest stored result of an operation."""
        ...

    def tasks(self) -> dict[str, TaskSettings]:
        """Return the settings of every task the store knows."""
        ...

    def pin(self) -> Pin:
        """Return a pin for what is accepted and final now; waits for writes under way."""
        ...

    def search(
        self,
        where: JobFilter,
        states: Collection[State],
        pin: Pin,
        after: tuple[int | str, ...] | None = None,
    ) -> Found:
        """Return the next jobs of a pinned set, by a short look; go on with `after` its own.

        All of the set is found, whatever its size, final ones in the order in which they ended.
        """
        ...

    def failures(self, *, limit: int = 100) -> FailureGroups:
        """Return the newest 100,000 failed jobs by kind of error, the largest group first."""
        ...

    def events(
        self,
        which: str | None = None,
        *,
        what: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[EventRow]:
        """Return what people did, newest first; `which` names a job, by its id, or a queue."""
        ...

    def past(self, windows: Mapping[State, int]) -> dict[State, int]:
        """Return how many final jobs are older than their state's window, in milliseconds."""
        ...

    def next_due(self) -> int | None:
        """Return when the earliest scheduled job falls due."""
        ...

    def claimable(self, tasks: Collection[str]) -> bool:
        """Tell, without a write lock, whether a claim for these tasks may find something."""
        ...

    def expired(self) -> bool:
        """Tell, without a write lock, whether recovery may find something in this domain."""
        ...

    def pressure(self) -> list[QueuePressure]:
        """Return how every queue that was ever looked at stands, by the last look."""
        ...

    def pressed(self) -> bool:
        """Tell, without a write lock, whether `steer` could lead to anything."""
        ...

    def beats(self) -> Mapping[WorkerId, WorkerBeat]:
        """Return what is known of every worker that holds running jobs."""
        ...

    def changed(self) -> bool:
        """Tell whether another connection committed since the last call (data_version)."""
        ...

    def shared(self) -> bool:
        """Tell whether foreign connections enqueue into this file (`tx=`)."""
        ...

    def verify(self) -> list[str]:
        """Check the file, every job's state and every counter; return what is wrong."""
        ...

    def drift(self) -> list[Drift]:
        """Recount all counters in one snapshot; return those that differ."""
        ...

    def figures(self) -> TransactionFigures:
        """Return how long this process held the write lock and waited for it."""
        ...

    def doctor(self) -> list[Any]:
        """Return the gate's findings, the plans' findings and the settings of this store."""
        ...


class Store(Reader, Protocol):
    """What changes something; each method is one transaction."""

    clock: Clock
    path: str
    """Where the data is, as people should read it."""

    def enqueue(self, specs: Sequence[JobSpec], *, waits: bool = False) -> Ticket[list[Admission]]:
        """Decide about all specs and insert what is admitted: all of them or none.

        With `waits` the caller waits for the ticket right here, so its thread may do the work.
        """
        ...

    def enqueue_in(self, tx: Connection, specs: Sequence[JobSpec]) -> list[Admission]:
        """Do the same inside the caller's own transaction, which the caller commits."""
        ...

    def register(self, info: WorkerInfo) -> Ticket[WorkerId]:
        """Make a keeper known, under a number never used before."""
        ...

    def unregister(self, worker: WorkerId) -> Ticket[None]:
        """Forget a keeper that holds nothing any more."""
        ...

    def claim(
        self, worker: WorkerId, wants: Sequence[Want], tasks: Collection[str], limit: int
    ) -> Ticket[ClaimBatch]:
        """Promote what is due, take at most `limit` jobs of `tasks`, give each a fresh token."""
        ...

    def settle(
        self,
        worker: WorkerId,
        settlements: Sequence[Settlement],
        *,
        budget_ms: int = 60_000,
    ) -> Ticket[list[Settled]]:
        """Record how attempts ended, each fenced by its token and unexpired lease.

        One answer per settlement, in order. Goes ahead of other writes and waits for a busy
        database up to `budget_ms`, which should be what is left of the leases.
        """
        ...

    def beat(
        self,
        worker: WorkerId,
        held: Collection[Token],
        known_claim: int | None,
        interval_ms: int,
        budget_ms: int,
    ) -> Ticket[BeatAnswer]:
        """Take back this worker's expired leases, then renew all the others with one row.

        Rows of this worker that it does not hold are released, unless their claim is newer
        than `known_claim` (None: every row's claim has been delivered).
        """
        ...

    def recover(
        self,
        *,
        limit: int,
        observed: Sequence[Observation] = (),
        unstarted: Collection[Token] = (),
        rolls: Callable[[], float] | None = None,
    ) -> Ticket[Recovered]:
        """Take back expired leases: retry, fail or cancel; those in `unstarted` are released."""
        ...

    def cancel(
        self, job_id: JobId, *, by: str | None = None, note: str | None = None
    ) -> Ticket[State | None]:
        """Cancel a waiting job now, ask a running one; the state found, None when absent."""
        ...

    def put_queue(self, settings: QueueSettings) -> Ticket[None]:
        """Declare a queue and its workloads; counters are never touched."""
        ...

    def put_tasks(self, settings: Sequence[TaskSettings]) -> Ticket[None]:
        """Declare tasks, so that any keeper knows how to recover them."""
        ...

    def pause(self, queue: str, paused: bool, *, by: str | None = None) -> Ticket[bool]:  # noqa: FBT001
        """Stop or resume the starting of a queue's jobs; False when there is no such queue."""
        ...

    def set_gate(self, kind: str, ref: str, limit: int | None) -> Ticket[None]:
        """Set how many jobs of one limit key or tenant may run at once; None removes the limit.

        `kind` is "limit" with a key, or "tenant" with "queue/tenant".
        """
        ...

    def remember(self, worker: WorkerId, token: Token, value: bytes) -> Ticket[bool]:
        """Keep a small value for later attempts of the operation; False when the lease is gone."""
        ...

    def progress(self, worker: WorkerId, items: Sequence[tuple[Token, bytes]]) -> Ticket[None]:
        """Keep the latest progress of running jobs."""
        ...

    def expire_unserved(self, limit: int, *, watched_ms: int | None = None) -> Ticket[int]:
        """Fail waiting jobs whose task no live worker has served for its `unknown_task_after`."""
        ...

    def steer(self) -> Ticket[list[PressureChange]]:
        """Look at the queues in use, decide their modes and causes; return what changed.

        To be called once a second by one process. What it decides holds for fifteen seconds.
        """
        ...

    def cancel_many(
        self, ids: Sequence[JobId], *, by: str | None = None, note: str | None = None
    ) -> Ticket[ActedBatch]:
        """Do what `cancel` does to at most 500 jobs, in one transaction."""
        ...

    def requeue(
        self,
        wishes: Sequence[Requeue],
        *,
        by: str | None = None,
        note: str | None = None,
        pin: Pin | None = None,
    ) -> Ticket[ActedBatch]:
        """Put at most 500 final jobs back, each with an event: one transaction, one admission.

        Attempt numbers go on, history and the operation stay. With `pin`, a job that became
        final after it is left alone. Raises what admission refuses with; then none is put back.
        """
        ...

    def discard(
        self,
        ids: Sequence[JobId],
        *,
        by: str | None = None,
        note: str | None = None,
        pin: Pin | None = None,
    ) -> Ticket[ActedBatch]:
        """Delete at most 500 final jobs with history, result, keys and memos; an event stays."""
        ...

    def purge(
        self, *, completed_ms: int, failed_ms: int, cancelled_ms: int, limit: int
    ) -> Ticket[Purged]:
        """Delete final jobs older than their state's window, and expired keys and results."""
        ...

    def purge_expired(self, limit: int) -> Ticket[Purged]:
        """Delete expired keys and results and events of more than a year, but no job."""
        ...

    def archive(self, path: str) -> Archiver:
        """Open the file that final jobs are moved to, by one process at a time.

        `path` gets a line of JSON for each job; a name that ends in .db, .sqlite or .sqlite3
        makes it a store of its own, which takes no new jobs. Takes back what a run that was
        killed has written without deleting it. Raises BadConfig for a file that is none of
        this store's archives, StoreBusy while another process archives.
        """
        ...

    def backup(
        self, path: str, *, progress: Callable[[int, int], object] | None = None
    ) -> BackedUp:
        """Copy the store as it is now to a new file while others write, and check the copy.

        `progress` is called with the pages copied and all. Raises BadConfig when the file is
        there already, StoreFull without room for it, StoreError for a copy that is not sound.
        """
        ...

    def reconcile(self, *, repair: bool = False) -> Ticket[list[Drift]]:
        """Recount under the write lock, return the differences, mend them when asked."""
        ...

    def wake(self, tasks: Collection[str]) -> None:
        """Nudge the keepers that serve these tasks; a lost nudge costs one poll."""
        ...

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, in the storage thread, after a commit of this process made jobs ready.

        Returns what ends it. Other processes are told through their wake-up sockets.
        """
        ...

    def elected(self) -> bool:
        """Tell whether this process does the elected maintenance now (an OS lock)."""
        ...

    def tick(self) -> None:
        """Do what is due between writes: checkpoints, the check that the file is still ours."""
        ...

    def close(self) -> None:
        """Finish the writes handed over, then refuse more."""
        ...
