"""Archives: final jobs leave the store only after they stand safely in a file (R22)."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import Bench, Dice, sound, spec, specs

from millpond import fault
from millpond.clock import ManualClock
from millpond.errors import BadConfig, StoreBusy, StoreError
from millpond.fault import FaultInjected
from millpond.model import AttemptOutcome, JobFilter, JobId, Requeue, State
from millpond.store import open_store
from millpond.store.protocol import Store
from millpond.store.sqlite import archiver

OUT = AttemptOutcome
NOW: Mapping[State, int] = {State.COMPLETED: 0, State.FAILED: 0, State.CANCELLED: 0}
DAY_MS = 86_400_000
STEPS = ("archive-written", "archive-synced", "archive-deleted")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    fault.arm("")


@pytest.fixture(params=["lines", "store"])
def kind(request: pytest.FixtureRequest, store: Store) -> str:
    if request.param == "store" and store.path == ":memory:":  # type: ignore[attr-defined]
        pytest.skip("a store in memory is archived as lines only")
    return str(request.param)


@pytest.fixture
def file(kind: str, tmp_path: Path) -> Path:
    return tmp_path / ("old.jsonl" if kind == "lines" else "old.db")


def held(file: Path) -> list[int]:
    """Return the ids that an archive holds, those it holds twice twice."""
    if not file.exists():
        return []
    if file.suffix == ".jsonl":
        return [json.loads(line)["id"] for line in file.read_text().splitlines()]
    conn = sqlite3.connect(file)
    found = [row[0] for row in conn.execute("SELECT id FROM millpond_final ORDER BY 1")]
    assert found == [row[0] for row in conn.execute("SELECT id FROM millpond_job ORDER BY 1")]
    conn.close()
    return found


def run(bench: Bench, file: Path, windows: Mapping[State, int] = NOW, limit: int = 3) -> int:
    """Archive until nothing is left to do."""
    archive = bench.store.archive(str(file))
    total = 0
    try:
        while (moved := archive.move(windows, limit)).more:
            total += moved.jobs
    finally:
        archive.close()
    return total


def ended(bench: Bench, many: int = 8) -> list[JobId]:
    """Return jobs that are final for a second, in the order in which they are moved."""
    jobs = bench.put(*specs(many, max_attempts=1))
    keeper = bench.keeper()
    for at, claim in enumerate(keeper.claim(many)):
        end = OUT.COMPLETED if at < many // 2 else OUT.FAILED
        keeper.end(claim, end, error_type="E", message="m")
    bench.clock.advance(1)
    return jobs


def test_what_is_moved_stands_in_the_file_and_not_in_the_store(bench: Bench, file: Path):
    jobs = ended(bench)
    waiting = bench.job()
    assert run(bench, file) == 8
    assert held(file) == jobs
    assert [job.id for job in bench.store.find(JobFilter())] == [waiting]
    sound(bench.store)


def test_only_jobs_past_the_window_of_their_state_are_moved(bench: Bench, file: Path):
    keeper = bench.keeper()
    old = bench.put(*specs(2))
    for claim, end in zip(keeper.claim(2), (OUT.COMPLETED, OUT.FAILED), strict=True):
        keeper.end(claim, end)
    bench.clock.advance(ms=DAY_MS)
    bench.store.cancel(bench.job()).result()
    windows = {State.COMPLETED: DAY_MS, State.FAILED: DAY_MS - 1, State.CANCELLED: 0}
    assert run(bench, file, windows) == 1
    assert held(file) == [old[1]]
    assert bench.store.past(NOW) == {State.COMPLETED: 1, State.FAILED: 0, State.CANCELLED: 0}


def test_a_second_run_goes_on_in_the_same_file(bench: Bench, file: Path):
    first = ended(bench, 4)
    run(bench, file)
    second = ended(bench, 4)
    run(bench, file)
    assert held(file) == first + second


def test_a_run_without_anything_to_move_leaves_an_empty_archive(bench: Bench, file: Path):
    bench.job()
    assert run(bench, file) == 0
    assert held(file) == []


def test_keys_and_results_live_on_until_they_expire(bench: Bench, file: Path):
    keeper = bench.keeper()
    bench.answer(key="k", operation_id="op")
    keeper.complete(keeper.one(), result=b"1")
    bench.clock.advance(1)
    run(bench, file)
    assert bench.store.result_of("op") == b"1"
    assert bench.answer(key="k").answer == "duplicate"


def test_a_line_tells_all_of_a_job(bench: Bench, tmp_path: Path):
    keeper = bench.keeper()
    job = bench.job(
        payload=b'{"n":1}', meta=b'{"m":2}', tenant="t", key="k", limit_key="l", limit=1,
        coalesce_key="c", operation_id="op", max_attempts=1, queue="q", workload="w", priority=7,
    )  # fmt: skip
    bench.clock.advance(1)
    keeper.end(
        keeper.one(), OUT.FAILED, error_type="E", message="m", traceback="tb", fingerprint="f"
    )
    bench.store.requeue([Requeue(job)], by="ann", note="again").result()
    bench.clock.advance(1)
    keeper.complete(keeper.one(), result=b"[3]")
    bench.clock.advance(1)
    run(bench, tmp_path / "a.jsonl")
    (line,) = map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines())
    history, events = line.pop("history"), line.pop("events")
    assert line.pop("store")
    assert line == {
        "id": job, "task": "mail", "queue": "q", "workload": "w", "tenant": "t",
        "state": "completed", "priority": 7, "created_at": "2023-11-14T22:13:20.000Z",
        "due_at": "2023-11-14T22:13:21.000Z", "started_at": "2023-11-14T22:13:22.000Z",
        "finished_at": "2023-11-14T22:13:22.000Z", "attempts": 2, "max_attempts": 2, "crashes": 0,
        "last_error": None, "reason": None, "fingerprint": None, "operation_id": "op", "key": "k",
        "coalesce_key": "c", "limit_key": "l", "origin": None, "parent": None, "batch": None,
        "traceparent": None, "payload_bytes": 14, "payload": {"n": 1}, "meta": {"m": 2},
        "result": [3],
    }  # fmt: skip
    assert [(a["number"], a["outcome"], a["error_type"]) for a in history] == [
        (1, "failed", "E"), (2, "completed", None)
    ]  # fmt: skip
    assert (history[0]["traceback"], history[0]["worker"]) == ("tb", "host:1")
    assert history[0]["ended_at"] == "2023-11-14T22:13:21.000Z"
    (event,) = events
    assert (event["who"], event["what"], event["note"]) == ("ann", "requeue", "again")
    assert event["before"]["state"] == "failed"


def test_data_that_is_no_json_stands_as_text(bench: Bench, tmp_path: Path):
    bench.store.cancel(bench.job(payload=b"\xff not json")).result()
    bench.clock.advance(1)
    run(bench, tmp_path / "a.jsonl")
    assert json.loads((tmp_path / "a.jsonl").read_text())["payload"] == "\\xff not json"


@pytest.fixture
def filed(tmp_path: Path, clock: ManualClock, dice: Dice) -> Iterator[Bench]:
    """A bench on a file."""
    store = open_store(str(tmp_path / "jobs.db"), clock=clock, roll=dice)
    yield Bench(store, clock, dice)
    sound(store)
    store.close()


def test_an_archive_that_is_a_store_is_read_like_any_other(filed: Bench, tmp_path: Path):
    keeper = filed.keeper()
    job = filed.job(tenant="t", limit_key="l", limit=1, max_attempts=1, workload="w")
    keeper.end(keeper.one(), OUT.FAILED, error_type="E", message="m", traceback="tb")
    filed.store.requeue([Requeue(job)], by="ann").result()
    keeper.complete(keeper.one(), result=b"1")
    filed.put(*specs(3))
    row, history = filed.row(job), filed.store.attempts(job)
    events = filed.store.events(str(job))
    filed.clock.advance(1)
    assert run(filed, tmp_path / "old.db") == 1
    old = open_store(str(tmp_path / "old.db"), clock=filed.clock)
    try:
        assert old.get(job) == row
        assert old.attempts(job) == history
        assert old.events(str(job)) == events
        assert old.verify() == []
        assert old.workers() == []
        assert [lane.ready for lane in old.status().lanes if lane.ready] == []
        with pytest.raises(StoreError, match="archive of"):
            old.enqueue([spec()]).result()
        with pytest.raises(StoreError, match="archive of"):
            old.requeue([Requeue(job)]).result()
    finally:
        old.close()


# --- what must not be written to ----------------------------------------------------------------


def test_a_file_that_holds_something_else_is_refused_untouched(bench: Bench, tmp_path: Path):
    ended(bench)
    for text in ('{"id":1}\n', "hello", '{"store":"other","id":1}\n', "\n"):
        file = tmp_path / "notes.txt"
        file.write_text(text)
        with pytest.raises(BadConfig, match="something else"):
            bench.store.archive(str(file))
        assert file.read_text() == text
    assert bench.store.past(NOW)[State.COMPLETED] == 4


def test_another_databases_file_is_refused_untouched(filed: Bench, tmp_path: Path):
    ended(filed)
    other = tmp_path / "app.db"
    conn = sqlite3.connect(other)
    conn.execute("CREATE TABLE orders (id INTEGER)")
    conn.commit()
    conn.close()
    before = other.read_bytes()
    with pytest.raises(BadConfig, match="something else"):
        filed.store.archive(str(other))
    assert other.read_bytes() == before
    live = tmp_path / "live.db"
    store = open_store(str(live))
    store.enqueue([spec()]).result()
    store.close()
    with pytest.raises(BadConfig, match="takes jobs"):
        filed.store.archive(str(live))


def test_an_archive_of_another_store_is_refused(filed: Bench, tmp_path: Path):
    ended(filed)
    for name in ("a.jsonl", "a.db"):
        run(filed, tmp_path / name, limit=2)
        ended(filed)
    other = open_store(str(tmp_path / "other.db"), clock=filed.clock)
    try:
        for name in ("a.jsonl", "a.db"):
            with pytest.raises(BadConfig, match="nothing was written"):
                other.archive(str(tmp_path / name))
    finally:
        other.close()


@pytest.mark.parametrize("ending", ["", "-wal", "-shm"])
def test_the_stores_own_files_are_refused(filed: Bench, tmp_path: Path, ending: str):
    own = f"{tmp_path / 'jobs.db'}{ending}"
    link = tmp_path / "innocent.jsonl"
    link.symlink_to(own)
    hard = tmp_path / "hard.jsonl"
    os.link(own, hard)
    for name in (own, str(link), str(hard)):
        with pytest.raises(BadConfig, match="belongs to the store"):
            filed.store.archive(name)
        with pytest.raises(BadConfig, match="belongs to the store"):
            filed.store.backup(name)


def test_names_that_promise_compression_are_refused(bench: Bench, tmp_path: Path):
    with pytest.raises(BadConfig, match="compress it"):
        bench.store.archive(str(tmp_path / "a.jsonl.gz"))


def test_a_folder_that_is_not_there_is_an_error_that_says_so(bench: Bench, tmp_path: Path):
    with pytest.raises(StoreError, match="nowhere"):
        bench.store.archive(str(tmp_path / "nowhere" / "a.jsonl"))
    with pytest.raises(StoreError):
        bench.store.archive(str(tmp_path))


def test_two_runs_at_once_are_not_possible(filed: Bench, tmp_path: Path):
    archive = filed.store.archive(str(tmp_path / "a.jsonl"))
    with pytest.raises(StoreBusy, match="another process archives"):
        filed.store.archive(str(tmp_path / "b.jsonl"))
    archive.close()
    filed.store.archive(str(tmp_path / "b.jsonl")).close()


# --- changes under way, and deaths --------------------------------------------------------------


def test_a_job_that_is_put_back_meanwhile_is_not_moved(
    bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch
):
    """The job changes after it was written and before it is deleted."""
    jobs = ended(bench)
    waiting = iter([jobs[0], jobs[3]])

    def meddle(name: str) -> None:
        if name == "archive-synced" and (job := next(waiting, None)):
            bench.store.requeue([Requeue(job)]).result()

    monkeypatch.setattr(fault, "point", meddle)
    assert run(bench, file, limit=4) == 6
    assert held(file) == [job for job in jobs if job not in {jobs[0], jobs[3]}]
    assert {bench.state(jobs[0]), bench.state(jobs[3])} == {State.READY}


def test_jobs_that_are_changed_all_the_time_end_the_run_with_an_error(
    bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch
):
    waiting = iter(ended(bench))

    def meddle(name: str) -> None:
        if name == "archive-written":
            job = next(waiting)
            bench.store.requeue([Requeue(job)]).result()
            bench.store.cancel(job).result()

    monkeypatch.setattr(archiver, "_TRIES", 3)
    monkeypatch.setattr(fault, "point", meddle)
    with pytest.raises(StoreBusy, match="being changed"):
        run(bench, file, limit=100)
    monkeypatch.undo()
    assert held(file) == []
    bench.clock.advance(1)
    assert run(bench, file) == 8


@pytest.mark.parametrize("step", [*STEPS, "before-commit", "after-commit"])
def test_an_error_at_any_step_loses_and_doubles_nothing(bench: Bench, file: Path, step: str):
    jobs = ended(bench)
    archive = bench.store.archive(str(file))
    archive.move(NOW, 3)
    fault.arm(f"{step}:raise")
    with pytest.raises((FaultInjected, StoreError)):
        archive.move(NOW, 3)
    fault.arm("")
    left = [job.id for job in reversed(bench.store.find(JobFilter()))]
    assert left == jobs[3:] or left == jobs[6:]
    while archive.move(NOW, 3).more:
        pass
    archive.close()
    assert held(file) == jobs


@pytest.mark.parametrize("step", [*STEPS, "before-commit", "after-commit"])
def test_a_run_that_ends_in_an_error_leaves_an_archive_of_what_it_deleted(
    bench: Bench, file: Path, step: str
):
    jobs = ended(bench)
    fault.arm(f"{step}:raise@1" if step in STEPS else "")
    archive = bench.store.archive(str(file))
    archive.move(NOW, 3)
    if step not in STEPS:
        fault.arm(f"{step}:raise")
    with pytest.raises((FaultInjected, StoreError)):
        archive.move(NOW, 3)
    fault.arm("")
    archive.close()
    left = [job.id for job in reversed(bench.store.find(JobFilter()))]
    assert held(file) + left == jobs
    run(bench, file)
    assert held(file) == jobs


CHILD = """
import sys
from millpond.clock import ManualClock
from millpond.model import State
from millpond.store import open_store
store = open_store(sys.argv[1], clock=ManualClock(now=int(sys.argv[3])))
archive = store.archive(sys.argv[2])
while archive.move(dict.fromkeys((State.COMPLETED, State.FAILED, State.CANCELLED), 0), 3).more:
    pass
archive.close()
store.close()
"""


def killed(bench: Bench, file: Path, armed: str) -> None:
    """Run an archiving process until it kills itself."""
    database = bench.store.path  # type: ignore[attr-defined]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, database, str(file), str(bench.clock.now())],
        env={**os.environ, "MILLPOND_FAULT": armed},
        check=False,
        timeout=60,
        capture_output=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr


# The first commit of a run only writes down that it has begun.
@pytest.mark.parametrize(
    "armed",
    [f"{step}:kill@{skip}" for step in STEPS for skip in range(3)]
    + [f"{step}-commit:kill@{skip}" for step in ("before", "after") for skip in range(1, 4)],
)
@pytest.mark.parametrize("name", ["old.jsonl", "old.db"])
@pytest.mark.parametrize("then", ["same", "other"])
def test_killed_at_any_step_nothing_is_missing_or_archived_twice(
    filed: Bench, tmp_path: Path, name: str, armed: str, then: str
):
    """Also when the next run writes to another file: it first settles what the dead one left."""
    jobs = ended(filed)
    first = tmp_path / name
    second = first if then == "same" else tmp_path / "next.jsonl"
    killed(filed, first, armed)
    left = [job.id for job in filed.store.find(JobFilter())]
    assert set(held(first)) | set(left) == set(jobs)
    run(filed, second)
    files = {first, second}
    assert sorted(job for file in files for job in held(file)) == jobs
    assert filed.store.find(JobFilter()) == []


@pytest.mark.parametrize("name", ["old.jsonl", "old.db"])
def test_what_a_worker_pruned_after_the_kill_stays_archived(
    filed: Bench, tmp_path: Path, name: str
):
    """The dead run had written a batch that somebody else has deleted in part since."""
    jobs = ended(filed)
    file = tmp_path / name
    killed(filed, file, "archive-synced:kill")
    filed.store.discard(jobs[:2]).result()
    run(filed, file)
    assert held(file) == jobs


def test_a_job_that_lives_again_after_the_kill_is_archived_with_its_last_life(
    filed: Bench, tmp_path: Path
):
    jobs = ended(filed)
    file = tmp_path / "old.jsonl"
    killed(filed, file, "archive-synced:kill")
    filed.store.requeue([Requeue(jobs[0])]).result()
    run(filed, file)
    assert held(file) == jobs[1:]
    assert filed.state(jobs[0]) is State.READY


def test_half_a_line_of_a_killed_process_is_cut_off(bench: Bench, tmp_path: Path):
    file = tmp_path / "old.jsonl"
    jobs = ended(bench)
    archive = bench.store.archive(str(file))
    archive.move(NOW, 3)
    archive.close()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: whole.index(b"\n") // 2])
    run(bench, file)
    assert held(file) == jobs


@pytest.mark.parametrize("length", [0, 1, 9, 20, 100_000])
def test_half_of_the_very_first_line_is_no_foreign_file(bench: Bench, tmp_path: Path, length: int):
    file = tmp_path / "old.jsonl"
    bench.put(*specs(2, payload=b'"' + b"x" * 200_000 + b'"'))
    bench.store.cancel_many([JobId(1), JobId(2)]).result()
    bench.clock.advance(1)
    run(bench, tmp_path / "model.jsonl", limit=1)
    begun = (tmp_path / "model.jsonl").read_bytes()[:length]
    file.write_bytes(begun)
    jobs = ended(bench)
    run(bench, file)
    assert held(file) == jobs


def test_a_moved_file_of_a_dead_run_does_not_stop_the_next(filed: Bench, tmp_path: Path):
    jobs = ended(filed)
    killed(filed, tmp_path / "old.jsonl", "archive-synced:kill@1")
    (tmp_path / "old.jsonl").rename(tmp_path / "elsewhere.jsonl")
    run(filed, tmp_path / "new.jsonl")
    assert held(tmp_path / "new.jsonl") == jobs[3:]
    (tmp_path / "old.jsonl").write_text("something else")
    ended(filed)
    assert run(filed, tmp_path / "new.jsonl") == 8


def test_an_older_backup_never_shortens_an_archive(filed: Bench, tmp_path: Path):
    """Lines of jobs that the store does not have are left, whatever the store believes."""
    file = tmp_path / "old.jsonl"
    ended(filed)
    killed(filed, file, "archive-deleted:kill")
    backup = filed.store.backup(str(tmp_path / "backup.db")).path
    later = ended(filed)
    run(filed, file)
    before = file.read_bytes()
    restored = open_store(backup, clock=filed.clock)
    try:
        run(Bench(restored, filed.clock, filed.dice), file)
    finally:
        restored.close()
    assert file.read_bytes().startswith(before)
    assert set(later) <= set(held(file))


def test_a_batch_is_bounded_by_its_bytes_as_well(
    bench: Bench, file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("millpond.store.sqlite.archiver.BATCH_BYTES", 1_000)
    jobs = bench.put(*specs(5, payload=b'"' + b"x" * 398 + b'"'))
    bench.store.cancel_many(jobs).result()
    bench.clock.advance(1)
    archive = bench.store.archive(str(file))
    sizes = []
    while (moved := archive.move(NOW, 100)).more:
        sizes.append(moved.jobs)
    archive.close()
    assert sizes == [2, 2, 1]
    assert held(file) == jobs


def test_a_disk_without_room_moves_nothing_and_says_so(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    jobs = ended(bench)
    file = tmp_path / "old.jsonl"
    archive = bench.store.archive(str(file))
    archive.move(NOW, 3)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match="still in the store"):
            archive.move(NOW, 3)
    archive.close()
    assert held(file) == jobs[:3]
    assert run(bench, file) == 5
    assert held(file) == jobs
