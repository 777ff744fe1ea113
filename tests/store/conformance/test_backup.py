"""Backups: a copy made by SQLite while others write, checked, never over another file."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.kit import Bench, Dice, sound, spec, specs

from millpond.clock import ManualClock
from millpond.errors import BadConfig, StoreError, StoreFull
from millpond.model import JobFilter
from millpond.store import open_store
from millpond.store.sqlite import backup


@pytest.fixture
def filed(tmp_path: Path, clock: ManualClock, dice: Dice) -> Iterator[Bench]:
    store = open_store(str(tmp_path / "jobs.db"), clock=clock, roll=dice)
    yield Bench(store, clock, dice)
    sound(store)
    store.close()


def copied(path: Path) -> int:
    """Return how many jobs a sound copy holds."""
    store = open_store(str(path))
    try:
        sound(store)
        return len(store.find(JobFilter(), limit=100_000))
    finally:
        store.close()


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "part" in path.name)


def test_the_copy_is_a_whole_store(bench: Bench, tmp_path: Path):
    bench.put(*specs(1_000, payload=b"x" * 500))
    steps: list[tuple[int, int]] = []
    made = bench.store.backup(
        str(tmp_path / "copy.db"), progress=lambda done, total: steps.append((done, total))
    )
    assert made.path == str(tmp_path / "copy.db")
    assert (made.size, made.at) == ((tmp_path / "copy.db").stat().st_size, bench.clock.now())
    assert steps[-1][0] == steps[-1][1] > 0
    assert copied(tmp_path / "copy.db") == 1_000
    assert leftovers(tmp_path) == []


def test_commits_that_are_still_in_the_log_are_in_the_copy(filed: Bench, tmp_path: Path):
    filed.put(*specs(50))
    assert (tmp_path / "jobs.db-wal").stat().st_size > 0
    filed.store.backup(str(tmp_path / "copy.db"))
    assert copied(tmp_path / "copy.db") == 50


def test_others_write_on_and_the_copy_is_of_one_moment(
    filed: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each step of the copy is followed by a commit of another process's connection."""
    monkeypatch.setattr(backup, "PAGES", 5)
    filed.put(*specs(500, payload=b"x" * 2_000))
    other = open_store(str(tmp_path / "jobs.db"), clock=filed.clock)
    wrote = []

    def write(done: int, total: int) -> None:
        if len(wrote) < 20:
            wrote.append(other.enqueue([spec()]).result()[0].job_id)

    try:
        filed.store.backup(str(tmp_path / "copy.db"), progress=write)
    finally:
        other.close()
    assert len(wrote) == 20
    assert copied(tmp_path / "copy.db") == 500
    assert len(filed.store.find(JobFilter(), limit=1_000)) == 520


def test_threads_of_this_process_write_on_meanwhile(
    filed: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backup, "PAGES", 5)
    filed.put(*specs(300, payload=b"x" * 2_000))
    stop, wrote = threading.Event(), []

    def write() -> None:
        while not stop.is_set():
            wrote.append(filed.store.enqueue([spec()]).result())

    thread = threading.Thread(target=write)
    thread.start()
    try:
        filed.store.backup(str(tmp_path / "copy.db"))
    finally:
        stop.set()
        thread.join(timeout=30)
    assert wrote
    assert 300 <= copied(tmp_path / "copy.db") <= 300 + len(wrote)


@pytest.mark.parametrize("there", ["file", "link", "dangling"])
def test_a_file_that_is_there_is_never_overwritten(bench: Bench, tmp_path: Path, there: str):
    bench.job()
    (tmp_path / "precious").write_text("data")
    target = tmp_path / "precious"
    if there != "file":
        target = tmp_path / "link.db"
        target.symlink_to(tmp_path / ("precious" if there == "link" else "nowhere"))
    if there == "dangling":
        assert not target.exists()
        bench.store.backup(str(target))
        assert (tmp_path / "nowhere").exists()
        return
    with pytest.raises(BadConfig, match="there already"):
        bench.store.backup(str(target))
    assert (tmp_path / "precious").read_text() == "data"
    assert leftovers(tmp_path) == []


def test_a_file_that_comes_meanwhile_is_not_overwritten_either(bench: Bench, tmp_path: Path):
    bench.job()
    target = tmp_path / "copy.db"
    with pytest.raises(BadConfig, match="came there meanwhile"):
        bench.store.backup(str(target), progress=lambda *_: target.write_text("data") and None)
    assert target.read_text() == "data"
    assert leftovers(tmp_path) == []


def test_only_the_owner_may_read_the_copy(bench: Bench, tmp_path: Path):
    bench.store.backup(str(tmp_path / "copy.db"))
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600


def test_an_interrupted_backup_leaves_nothing(bench: Bench, tmp_path: Path):
    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.store.backup(str(tmp_path / "copy.db"), progress=interrupt)
    assert not (tmp_path / "copy.db").exists()
    assert leftovers(tmp_path) == []
    bench.store.backup(str(tmp_path / "copy.db"))


def test_a_copy_that_is_not_sound_is_deleted_and_told(bench: Bench, tmp_path: Path):
    bench.put(*specs(200, payload=b"x" * 500))

    def damage(done: int, total: int) -> None:
        (part,) = tmp_path.glob("copy.db.part-*")
        if done == total:
            with part.open("r+b") as file:
                file.seek(5 * 4096)
                file.write(b"\x77" * 4096)

    with pytest.raises(StoreError, match="not sound"):
        bench.store.backup(str(tmp_path / "copy.db"), progress=damage)
    assert not (tmp_path / "copy.db").exists()
    assert leftovers(tmp_path) == []


def test_a_folder_that_is_not_there_is_refused(bench: Bench, tmp_path: Path):
    with pytest.raises(BadConfig, match="no folder"):
        bench.store.backup(str(tmp_path / "nowhere" / "copy.db"))


def test_a_disk_without_room_is_refused_before_anything_is_written(
    filed: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    filed.job()
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(backup.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StoreFull, match="no backup was begun"):
        filed.store.backup(str(tmp_path / "copy.db"))
    assert not (tmp_path / "copy.db").exists()


def test_the_live_file_is_never_opened_by_hand(
    filed: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """To open and close it would drop SQLite's locks on it."""
    opened = []
    real = os.open

    def spy(path: str, *rest: int, **more: int) -> int:
        opened.append(str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", spy)
    filed.store.backup(str(tmp_path / "copy.db"))
    assert opened
    assert not [path for path in opened if path.startswith(str(tmp_path / "jobs.db"))]


def test_nothing_here_ever_vacuums(filed: Bench, tmp_path: Path):
    """B18: compaction rewrites the whole file, so only people start one."""
    package = Path(backup.__file__).parents[2]
    found = [
        path.name
        for kind in ("*.py", "*.sql")
        for path in package.rglob(kind)
        if "vacuum" in path.read_text("utf-8").lower()
    ]
    # The one that refuses it in a migration.
    assert found == ["migrate.py"]
    conn = sqlite3.connect(tmp_path / "jobs.db")
    assert conn.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    conn.close()
