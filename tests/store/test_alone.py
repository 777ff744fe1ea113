"""A caller that waits writes in its own thread while nobody else does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.store.kit import Bench, spec
from tests.store.test_writer import PATIENCE_S, bench, busy_thread, locked, make, path, writer_of

from millpond.errors import StoreBusy
from millpond.model import State

__all__ = ["bench", "make", "path"]


def quiet(bench: Bench) -> None:
    """Wait until the storage thread has done with what came after the last write."""
    bench.job()
    ends = time.monotonic() + PATIENCE_S
    while writer_of(bench)._ticking:
        assert time.monotonic() < ends
        threading.Event().wait(0.001)


def ran_in(bench: Bench, *, waits: bool = True) -> int:
    """Return the thread in which an enqueue's transaction was committed."""
    threads: list[int] = []
    end = bench.store.listen(lambda: threads.append(threading.get_ident()))
    bench.store.enqueue([spec()], waits=waits).result(PATIENCE_S)
    end()
    return threads[-1]


def test_a_lone_caller_that_waits_writes_in_its_own_thread(bench: Bench):
    quiet(bench)
    assert ran_in(bench) == threading.get_ident()
    assert ran_in(bench, waits=False) != threading.get_ident()


def test_callers_that_meet_are_handed_over_and_share_a_commit(bench: Bench):
    bench.job()
    with busy_thread(bench):
        ticket = bench.store.enqueue([spec()], waits=True)
        assert not ticket.done()
    ticket.result(PATIENCE_S)
    writer_of(bench)._company_until = time.perf_counter() + PATIENCE_S
    assert ran_in(bench) != threading.get_ident()


def test_a_lone_caller_waits_for_a_locked_file_like_all_others(bench: Bench, path: str):
    bench.job()
    with locked(path):
        ticket = bench.store.enqueue([spec()], waits=True)
        assert not ticket.done()
    assert ticket.result(PATIENCE_S)[0].answer == "admitted"


def test_a_write_from_inside_a_write_of_the_same_thread_is_refused(bench: Bench):
    quiet(bench)
    seen: list[BaseException] = []

    def again() -> None:
        try:
            bench.store.enqueue([spec()], waits=True)
        except StoreBusy as error:
            seen.append(error)

    end = bench.store.listen(again)
    ident = bench.store.enqueue([spec()], waits=True).result(PATIENCE_S)[0].job_id
    end()
    assert "middle of a write" in str(seen[0])
    assert bench.row(ident).state is State.READY
    assert bench.store.enqueue([spec()], waits=True).result(PATIENCE_S)[0].job_id == ident + 1


@pytest.mark.parametrize("at", ["start", "before-commit"])
def test_an_interrupt_between_two_statements_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, at: str
):
    quiet(bench)
    last = bench.job()
    quiet(bench)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if at == "start":
            patched.setattr(type(bench.store), "start", interrupt)
        else:
            patched.setattr("millpond.fault.point", interrupt)
        with pytest.raises(KeyboardInterrupt):
            bench.store.enqueue([spec()], waits=True).result(PATIENCE_S)
    (answer,) = bench.store.enqueue([spec()], waits=True).result(PATIENCE_S)
    assert answer.job_id == last + 2


def test_the_log_is_looked_after_when_all_write_in_their_own_threads(make: Callable[..., Bench]):
    bench = make(checkpoint_pages=50)
    bench.job()
    checkpointer = bench.store._checkpointer  # type: ignore[attr-defined]
    ends = time.monotonic() + PATIENCE_S
    while not checkpointer.runs and time.monotonic() < ends:
        assert ran_in(bench)
    assert checkpointer.runs


def test_writes_in_own_threads_and_handed_over_ones_exclude_each_other(bench: Bench):
    def some(at: int) -> list[int]:
        return [
            bench.store.enqueue([spec()], waits=bool((at + i) % 3)).result(PATIENCE_S)[0].job_id
            for i in range(60)
        ]

    with ThreadPoolExecutor(6) as pool:
        idents = [ident for part in pool.map(some, range(6)) for ident in part]
    assert sorted(idents) == list(range(1, 361))
