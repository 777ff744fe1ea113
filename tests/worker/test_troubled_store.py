"""When the store refuses, fails or vanishes: nothing is lost, nothing hangs, all is said."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.worker.conftest import QUICK, Jobs, Lab, wait_for
from tests.worker.fakes import WAIT_S

from millpond.app import Millpond
from millpond.config import WorkerConfig
from millpond.errors import CommitUncertain, StoreBusy, StoreClosed, StoreError, StoreFull
from millpond.model import Settlement, State, WorkerId
from millpond.policy.backoff import Backoff
from millpond.worker import EmbeddedWorker, WorkerFailed

# SQLite of this machine may be one that the start-up gate warns about, which is not the point.
pytestmark = pytest.mark.filterwarnings("ignore")


class Refused:
    """A write that has failed."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002
        raise self._error

    def then(self, callback: Callable[[], None]) -> None:
        callback()


class Touchy:
    """A real store of which some writes fail first."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.failing: dict[str, list[Exception]] = {}
        self.refuses: Callable[[Settlement], Exception | None] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _or_fail(self, name: str, make: Callable[[], Any]) -> Any:
        errors = self.failing.get(name)
        return Refused(errors.pop(0)) if errors else make()

    def claim(self, *args: Any) -> Any:
        return self._or_fail("claim", lambda: self._store.claim(*args))

    def beat(self, *args: Any) -> Any:
        return self._or_fail("beat", lambda: self._store.beat(*args))

    def recover(self, **kwargs: Any) -> Any:
        return self._or_fail("recover", lambda: self._store.recover(**kwargs))

    def settle(self, worker: WorkerId, settlements: Sequence[Settlement]) -> Any:
        refused = [error for each in settlements if (error := self.refuses(each))]
        if refused:
            return Refused(refused[0])
        return self._or_fail("settle", lambda: self._store.settle(worker, settlements))


class Host:
    """A pond whose store is touchy."""

    def __init__(self, pond: Millpond) -> None:
        self.pond = pond
        self.store: Any = Touchy(pond.store)

    @property
    def registry(self) -> Any:
        return self.pond.registry

    def declarations(self) -> Any:
        return self.pond.declarations()

    def close(self) -> None:
        self.pond.close()

    def worker(self, **options: Any) -> EmbeddedWorker:
        return EmbeddedWorker(self, WorkerConfig(**{**QUICK, **options}))


@pytest.mark.parametrize("error", [StoreBusy("busy"), StoreFull("full"), CommitUncertain("?")])
@pytest.mark.parametrize("write", ["claim", "settle"])
def test_a_refused_write_is_tried_again_and_nothing_is_lost(
    lab: Lab, write: str, error: StoreError
) -> None:
    pond = lab.pond()

    @pond.task
    def work(n: int) -> int:
        return n

    refs = [work.enqueue(n) for n in range(20)]
    host = Host(pond)
    host.store.failing = {write: [error, error]}
    report = host.worker().drain()
    assert (report.finished, report.lost) == (20, 0)
    assert {tuple(Jobs(pond).outcomes(ref.id)) for ref in refs} == {("completed",)}


def test_one_end_that_cannot_be_recorded_costs_the_others_nothing(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def work(n: int) -> int:
        return n

    refs = [work.enqueue(n) for n in range(40)]
    odd = refs[7].id
    host = Host(pond)

    def cannot(said: Settlement) -> Exception | None:
        mine = said.token.job_id == odd and said.outcome == "completed"
        return ValueError("cannot bind") if mine else None

    host.store.refuses = cannot
    report = host.worker().drain()
    assert (report.finished, report.failed) == (39, 1)
    job = refs[7].job()
    assert job.state is State.FAILED
    assert job.reason == "the end of the attempt cannot be recorded"
    assert "cannot bind" in (job.last_error or "")
    Jobs(pond).sound()


def test_an_end_that_cannot_be_recorded_in_any_form_ends_the_worker(lab: Lab) -> None:
    pond = lab.pond()

    @pond.task
    def work() -> None: ...

    ref = work.enqueue()
    host = Host(pond)
    host.store.refuses = lambda _: ValueError("never")
    with pytest.raises(WorkerFailed, match=rf"job {ref.id} cannot be recorded.*never"):
        host.worker().drain()


def test_a_missed_beat_does_not_lose_the_lease(lab: Lab) -> None:
    pond, begun, go = lab.pond(), threading.Event(), threading.Event()

    @pond.task(lease=1.0)
    def work() -> None:
        begun.set()
        assert go.wait(WAIT_S)

    ref = work.enqueue()
    host = Host(pond)
    host.store.failing = {"beat": [StoreBusy("busy")]}
    worker = host.worker()
    with worker:
        assert begun.wait(WAIT_S)
        assert not threading.Event().wait(1.5)
        go.set()
        Jobs(pond).wait_final(ref.id)
    assert host.store.failing == {"beat": []}
    assert Jobs(pond).outcomes(ref.id) == ["completed"]


def test_beats_that_all_fail_stop_the_handler_in_time(lab: Lab) -> None:
    pond, told = lab.pond(), threading.Event()

    @pond.task(lease=0.8, max_attempts=1)
    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            told.set()

    work.enqueue()
    host = Host(pond)
    host.store.failing = {"beat": [StoreBusy("busy")] * 1000}
    with host.worker(drain_ms=0):
        assert told.wait(WAIT_S)


def test_recovery_that_fails_is_tried_again(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    from millpond.model import Want, WorkerInfo

    pond = lab.pond()

    @pond.task(lease=0.3, retry=Backoff(base=0))
    def work() -> None: ...

    ref = work.enqueue()
    dead = pond.store.register(WorkerInfo("gone", 1, None, "0", 75, ("work",))).result()
    assert pond.store.claim(dead, [Want(1)], ["work"], 1).result().claims
    host = Host(pond)
    host.store.failing = {"recover": [StoreBusy("busy"), StoreError("odd")]}
    with caplog.at_level(logging.INFO, "millpond"), host.worker(recover_ms=100):
        Jobs(pond).wait_final(ref.id)
    assert Jobs(pond).outcomes(ref.id) == ["lease_lost", "completed"]
    said = [record.getMessage() for record in caplog.records]
    assert any("maintenance_postponed" in each for each in said)
    assert any("maintenance_failed" in each for each in said)


@pytest.mark.parametrize("write", ["claim", "settle", "beat"])
def test_a_dead_storage_thread_ends_the_worker_with_a_message(lab: Lab, write: str) -> None:
    pond = lab.pond()

    @pond.task(lease=0.4)
    def work() -> None:
        threading.Event().wait(0.3)

    work.enqueue()
    host = Host(pond)
    host.store.failing = {write: [StoreClosed("the storage thread ended: disk gone")]}
    worker = host.worker()
    with pytest.raises(WorkerFailed, match="disk gone"):
        # It may die before `start` has returned, or after.
        run_to_its_end(worker)
    assert not worker.alive


def run_to_its_end(worker: EmbeddedWorker) -> None:
    worker.start()
    wait_for(lambda: not worker.alive, "the end of the worker")
    worker.stop()


def test_a_worker_whose_file_is_moved_away_ends_with_a_message(lab: Lab) -> None:
    worker = lab.start(lab.app("@pond.task\ndef work(): pass\n"))
    wait_for(lambda: worker.said("worker_started"))
    Path(lab.url).rename(lab.url + ".moved")
    assert worker.wait() == 1
    assert worker.said("error: "), worker.log()
    assert worker.said("jobs.db"), worker.log()
