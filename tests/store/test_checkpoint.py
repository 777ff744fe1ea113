"""Checkpoints: the log stays bounded, one process sees to it, and none touches the file itself."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import Bench, Dice, sound, spec, specs

from millpond import fault
from millpond.clock import ManualClock
from millpond.config import StoreConfig
from millpond.store import open_store
from millpond.store.sqlite import checkpoint

FRAME = checkpoint.FRAME_BYTES
PAGES = 200
PATIENCE_S = 30.0


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def make(path: str, clock: ManualClock, dice: Dice) -> Iterator[Callable[..., Bench]]:
    made: list[Any] = []

    def make(pages: int = PAGES) -> Bench:
        config = StoreConfig(path, synchronous="normal", checkpoint_pages=pages)
        made.append(open_store(path, clock=clock, config=config, roll=dice))
        return Bench(made[-1], clock, dice)

    yield make
    for store in made:
        store.close()
    with closing(open_store(path)) as store:
        sound(store)


@pytest.fixture
def bench(make: Callable[..., Bench]) -> Bench:
    return make()


def log_pages(path: str) -> int:
    return Path(f"{path}-wal").stat().st_size // FRAME


def checkpointer(bench: Bench) -> Any:
    return bench.store._checkpointer  # type: ignore[attr-defined]


def write(bench: Bench, many: int, size: int = 100) -> int:
    """Write in so many transactions; return the longest that the log was, in pages."""
    longest = 0
    for _ in range(many):
        bench.job(payload=b"x" * size)
        longest = max(longest, log_pages(bench.store.path))  # type: ignore[attr-defined]
    return longest


def test_the_log_is_bounded_under_continuous_writes(bench: Bench):
    assert write(bench, 600) <= 2 * PAGES
    assert checkpointer(bench).runs >= 5


def test_the_log_is_bounded_when_large_writes_follow_small_ones(bench: Bench):
    """What a transaction writes is an estimate: hundreds of small ones must not hide large ones."""
    write(bench, 600)
    pages = 40
    assert write(bench, 120, pages * 4096) <= 4 * PAGES + pages


def test_the_log_is_bounded_when_small_and_large_writes_alternate(bench: Bench):
    longest = 0
    for _ in range(4):
        write(bench, 150)
        longest = max(longest, write(bench, 12, 60 * 4096))
    assert longest <= 6 * PAGES


def test_one_large_batch_is_copied_back_soon(bench: Bench, path: str):
    bench.put(*specs(3_000, payload=b"x" * 500))
    bench.job()
    runs = checkpointer(bench).runs
    assert runs >= 1
    after = log_pages(path)
    assert write(bench, 50) <= after, "the log is used again from its start"


def test_nothing_is_copied_while_little_is_written(bench: Bench):
    write(bench, 3)
    assert checkpointer(bench).runs == 0


def test_an_idle_process_copies_what_is_worth_it(make: Callable[..., Bench]):
    bench = make(100_000)
    bench.put(*specs(3_000, payload=b"x" * 1_000))
    deadline = threading.Event()
    for _ in range(200):
        if checkpointer(bench).runs:
            break
        bench.job()
        deadline.wait(0.01)
    assert checkpointer(bench).runs == 1


def test_a_long_log_is_cut_off_when_idle(
    make: Callable[..., Bench], path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint, "WAL_LIMIT_BYTES", 500 * FRAME)
    bench = make(100_000)
    bench.put(*specs(4_000, payload=b"x" * 1_000))
    for _ in range(300):
        if log_pages(path) < 500:
            break
        threading.Event().wait(0.01)
        bench.job()
    assert log_pages(path) < 500


def test_a_pinned_reader_lets_the_log_grow_and_it_recovers_after(bench: Bench, path: str):
    bench.job()
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM millpond_job").fetchone()
        grown = write(bench, 400)
        assert grown > 3 * PAGES
        assert reader.execute("SELECT count(*) FROM millpond_job").fetchone() == (1,)
        reader.execute("ROLLBACK")
    write(bench, 60)
    highest = log_pages(path)
    assert write(bench, 400) <= highest, "the log is used again from its start"


def test_a_failing_checkpoint_is_logged_and_tried_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    fault.arm("checkpoint:raise")
    try:
        write(bench, 100)
    finally:
        fault.arm("")
    told = [line for line in caplog.messages if "a checkpoint failed" in line]
    assert len(told) == 1, "once, however often it fails"
    assert "fault point checkpoint" in told[0]
    assert checkpointer(bench).runs == 0
    write(bench, 100)
    assert checkpointer(bench).runs >= 1


def test_no_other_writer_meets_a_checkpoint(bench: Bench, path: str):
    """It is run while the write lock is held: that excludes the race of old versions."""
    seen: list[str] = []
    run = checkpointer(bench)._run

    def probe(mode: str) -> tuple[int, int, int]:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
                seen.append("free")
            except sqlite3.OperationalError:
                seen.append("locked")
        return run(mode)  # type: ignore[no-any-return]

    checkpointer(bench)._run = probe
    write(bench, 300)
    assert seen
    assert set(seen) == {"locked"}


# Several processes

WRITE = """
import sys
from millpond.config import StoreConfig
from millpond.model import JobSpec
from millpond.store import open_store
path, many, pages = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = open_store(path, config=StoreConfig(path, synchronous="normal", checkpoint_pages=pages))
for _ in range(many):
    store.enqueue([JobSpec("mail", "default", "default", payload=b"x" * 100)]).result()
print(store._checkpointer.runs)
store.close()
"""

HOLD = """
import sys
from millpond.store import open_store
store = open_store(sys.argv[1])
assert store.elected() and store._election.won()
print("elected", flush=True)
sys.stdin.read()
"""


def start(program: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, args)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_log_is_bounded_while_another_process_writes(bench: Bench, path: str):
    """The elected one is idle: whoever finds the log twice as long copies it back."""
    bench.job()
    assert bench.store._election.won()  # type: ignore[attr-defined]
    with start(WRITE, path, 900, PAGES) as other:
        longest = 0
        while other.poll() is None:
            longest = max(longest, log_pages(path))
            threading.Event().wait(0.005)
        assert other.stdout is not None
        runs = int(other.stdout.read())
    assert other.returncode == 0
    assert longest <= 3 * PAGES
    assert runs >= 1


def test_the_log_is_bounded_while_two_processes_write(bench: Bench, path: str):
    with start(WRITE, path, 500, PAGES) as other:
        longest = write(bench, 500)
        other.wait(PATIENCE_S)
    assert other.returncode == 0
    assert longest <= 3 * PAGES
    assert bench.held() == 1_000


def test_the_duties_pass_on_when_their_holder_dies(make: Callable[..., Bench], path: str):
    make(PAGES).job()
    with start(HOLD, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "elected\n"
        bench = make(PAGES)
        assert not bench.store.elected()
        assert not bench.store._election.won()  # type: ignore[attr-defined]
        holder.kill()
        holder.wait(PATIENCE_S)
    assert bench.store.elected()
    assert bench.store._election.won()  # type: ignore[attr-defined]


def test_one_store_of_a_process_is_elected_and_the_next_when_it_closes(make: Callable[..., Bench]):
    first, second = make(), make()
    assert first.store.elected()
    assert not second.store.elected()
    assert first.store.elected(), "asking again changes nothing"
    first.store.close()
    assert second.store.elected()


def test_a_store_in_memory_is_always_elected(clock: ManualClock):
    with closing(open_store(":memory:", clock=clock)) as store:
        assert store.elected()


WATCHED = """
import sys
from pathlib import Path
opened = []
def hook(event, args):
    if event == "open" and isinstance(args[0], (str, bytes)):
        opened.append(args[0] if isinstance(args[0], str) else args[0].decode())
from millpond.config import StoreConfig
from millpond.model import JobFilter, JobSpec, Want, WorkerInfo
from millpond.store import open_store
path = sys.argv[1]
config = StoreConfig(path, synchronous="normal", checkpoint_pages=50)
store = open_store(path, config=config)
store.enqueue([JobSpec("mail", "default", "default")]).result()
sys.addaudithook(hook)
worker = store.register(WorkerInfo("h", 1, None, "0", 1000, ("mail",))).result()
for _ in range(200):
    store.enqueue([JobSpec("mail", "default", "default", payload=b"x" * 500)]).result()
    store.claim(worker, [Want(1)], ["mail"], 1).result()
assert store._checkpointer.runs > 0
second = open_store(path, config=config)
second.enqueue([JobSpec("mail", "default", "default")]).result()
for one in (store, second):
    one.status(), one.find(JobFilter()), one.changed(), one.elected(), one.tick()
    one.verify(), one.drift(), one.doctor(), one.recover(limit=5).result()
second.close()
store.tick()
store.enqueue([JobSpec("mail", "default", "default")]).result()
files = {path, path + "-wal", path + "-shm"}
print([name for name in opened if str(Path(name).resolve()) in files])
"""


def test_the_live_files_are_never_opened_but_by_the_database_library(path: str):
    """Closing any descriptor of the file would drop the locks of the whole process."""
    with start(WATCHED, os.path.realpath(path)) as program:
        out, _ = program.communicate(timeout=PATIENCE_S)
    assert program.returncode == 0
    assert out.strip() == "[]"


def test_the_locks_of_a_process_outlive_a_second_store_on_the_same_file(
    make: Callable[..., Bench], path: str
):
    """Opening and closing another store beside it leaves a write transaction its lock."""
    bench = make()
    bench.job()
    inside, leave = threading.Event(), threading.Event()

    def stand(_: Any) -> None:
        inside.set()
        assert leave.wait(PATIENCE_S)

    ticket = bench.store._writer.submit(stand)  # type: ignore[attr-defined]
    assert inside.wait(PATIENCE_S)
    try:
        other = open_store(path)
        other.status()
        other.close()
        probe = (
            "import sqlite3, sys\n"
            "conn = sqlite3.connect(sys.argv[1], timeout=0, isolation_level=None)\n"
            "try: conn.execute('BEGIN IMMEDIATE')\n"
            "except sqlite3.OperationalError: print('locked')\n"
        )
        with start(probe, path) as program:
            out, _ = program.communicate(timeout=PATIENCE_S)
        assert out.strip() == "locked"
    finally:
        leave.set()
        ticket.result(PATIENCE_S)
    assert bench.put(spec())
