"""How long final jobs are kept: prune, archive, and copies of the whole store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from millpond.app.options import Length
from millpond.app.review import Reviewing
from millpond.app.selection import Progress
from millpond.app.told import Backup
from millpond.config.checks import check_text
from millpond.config.units import parse_duration
from millpond.model import Purged, State
from millpond.policy.pacing import Pace, pause_s
from millpond.store.protocol import Store

File = str | os.PathLike[str]


class Keeping(Reviewing):
    """The calls for people who look after the store's file."""

    def prunable(
        self,
        *,
        completed: Length | None = None,
        failed: Length | None = None,
        cancelled: Length | None = None,
    ) -> dict[State, int]:
        """Return how many final jobs of each state are older than their window.

        The windows are lengths of time since the job became final; one left out is that of
        the settings: 7 days, 30 for failed jobs, unless [retention] says otherwise.
        """
        return self.ready().past(_windows(completed, failed, cancelled))

    async def aprunable(
        self,
        *,
        completed: Length | None = None,
        failed: Length | None = None,
        cancelled: Length | None = None,
    ) -> dict[State, int]:
        """Do what `prunable` does, awaited."""
        return await self._aside(
            self.prunable, completed=completed, failed=failed, cancelled=cancelled
        )

    def prune(
        self,
        *,
        completed: Length | None = None,
        failed: Length | None = None,
        cancelled: Length | None = None,
        archive: File | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Delete final jobs older than their window, windows as for `prunable`; return how many.

        In small transactions with pauses, so that claims and enqueues hardly notice it; it can
        be ended at any time and started again. With `archive` each job is moved to that file,
        as by `archive`. Expired keys and results go as well.
        """
        store, windows = self.ready(), _windows(completed, failed, cancelled)
        if archive is not None:
            moved = _move(store, _path(archive), windows, progress)
            _in_batches(lambda limit: store.purge_expired(limit).result(), 0, None)
            return moved
        lengths = {f"{state.value}_ms": length for state, length in windows.items()}
        total = sum(store.past(windows).values())
        return _in_batches(
            lambda limit: store.purge(**lengths, limit=limit).result(), total, progress
        )

    async def aprune(
        self,
        *,
        completed: Length | None = None,
        failed: Length | None = None,
        cancelled: Length | None = None,
        archive: File | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Do what `prune` does, awaited."""
        return await self._aside(
            self.prune, completed=completed, failed=failed, cancelled=cancelled, archive=archive,
            progress=progress,
        )  # fmt: skip

    def archive(
        self, path: File, *, older_than: Length | None = None, progress: Progress | None = None
    ) -> int:
        """Move final jobs with history and results to a file; return how many.

        Those older than `older_than`, or without it than their state's window. The file gets a
        line of JSON for each job; with a name that ends in .db, .sqlite or .sqlite3 it is a
        store of its own to be read with the same commands. An archive of this store is added
        to. Jobs are written and synced before they are deleted: killed at any point and run
        again, nothing is missing and nothing is there twice.

        Raises BadConfig for a file that is something else, StoreBusy while another archives.
        """
        length = older_than
        return _move(self.ready(), _path(path), _windows(length, length, length), progress)

    async def aarchive(
        self, path: File, *, older_than: Length | None = None, progress: Progress | None = None
    ) -> int:
        """Do what `archive` does, awaited."""
        return await self._aside(self.archive, path, older_than=older_than, progress=progress)

    def backup(self, path: File, *, progress: Progress | None = None) -> Backup:
        """Copy the whole store to a new file while others work on, and check the copy.

        It holds everything that was committed before the call. `progress` is called with the
        pages copied and all. Raises BadConfig when the file is there already, StoreFull when
        there is no room, StoreError for a copy that is not sound.
        """
        return Backup.of(self.ready().backup(_path(path), progress=progress))

    async def abackup(self, path: File, *, progress: Progress | None = None) -> Backup:
        """Do what `backup` does, awaited."""
        return await self._aside(self.backup, path, progress=progress)


def _path(path: File) -> str:
    text = os.fspath(path)
    check_text("the file", text)
    return text


def _windows(
    completed: Length | None, failed: Length | None, cancelled: Length | None
) -> dict[State, int]:
    """Return the windows in milliseconds, those that are not given from the settings."""
    from millpond.config.file import load

    kept = load(None, os.environ).worker.retention
    given = (
        (State.COMPLETED, completed, kept.completed_ms),
        (State.FAILED, failed, kept.failed_ms),
        (State.CANCELLED, cancelled, kept.cancelled_ms),
    )
    return {
        state: usual if length is None else parse_duration(length, state.value)
        for state, length, usual in given
    }


def _move(store: Store, path: str, windows: Mapping[State, int], progress: Progress | None) -> int:
    total = sum(store.past(windows).values())
    archive = store.archive(path)
    try:
        return _in_batches(lambda limit: archive.move(windows, limit), total, progress)
    finally:
        archive.close()


def _in_batches(step: Callable[[int], Purged], total: int, progress: Progress | None) -> int:
    """Repeat a step until there is no more, in batches that hold the lock for a few ms each."""
    pace, done = Pace(), 0
    while True:
        answer = step(pace.size)
        done += answer.jobs
        if progress is not None:
            # More may have come past its window since it was counted.
            progress(done, max(total, done))
        if not answer.more:
            return done
        pace = pace.after(answer.jobs, answer.held_us)
        time.sleep(pause_s(answer.held_us))
