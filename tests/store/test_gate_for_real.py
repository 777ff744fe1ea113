"""The start-up gate on the real machine: rights, mounts, descriptors and locks as they are."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.libraries import need_pysqlite3
from tests.store.gate_helpers import bad, only, run

from millpond.store.sqlite.gate import FileIdentity, check, moved
from millpond.store.sqlite.probes import SystemProbes

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_path_longer_than_sqlite_takes_is_refused_and_the_longest_is_not(tmp_path: Path) -> None:
    folder = tmp_path
    while len(str(folder)) < 400:
        folder /= "x" * 60
    folder.mkdir(parents=True)
    room = 504 - len(str(folder)) - 1
    longest, longer = folder / ("a" * room), folder / ("a" * (room + 1))
    probes = SystemProbes(sqlite3)
    assert "path" not in dict(bad(check(longest, probes)))
    with closing(sqlite3.connect(longest)) as conn:
        conn.execute("PRAGMA journal_mode = wal")
    assert only([f for f in check(longer, probes) if f.code == "path"]).severity == "refuse"
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(longer)


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    findings = check(tmp_path / "file" / "jobs.db", SystemProbes(sqlite3))
    assert ("directory", "refuse") in bad(findings)


def test_a_directory_at_the_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").mkdir()
    findings = check(tmp_path / "jobs.db", SystemProbes(sqlite3))
    assert only([f for f in findings if f.code == "file"]).what.startswith("A directory")


def test_a_socket_at_the_path_is_refused(tmp_path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(tmp_path / "jobs.db"))
        findings = check(tmp_path / "jobs.db", SystemProbes(sqlite3))
    assert "pipe or socket" in only([f for f in findings if f.code == "file"]).what


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert ("path", "refuse") in bad(check(tmp_path / "a", SystemProbes(sqlite3)))


def test_a_link_is_followed_so_that_the_side_files_are_sought_beside_its_target(
    tmp_path: Path,
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "jobs.db-wal").write_bytes(b"left over")
    (tmp_path / "link.db").symlink_to(real / "jobs.db")
    findings = check(tmp_path / "link.db", SystemProbes(sqlite3))
    assert only([f for f in findings if f.code == "orphan-wal"]).which == str(real / "jobs.db-wal")


def test_a_second_name_of_the_file_is_warned_of(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.touch()
    assert "hard-link" not in dict(bad(check(file, SystemProbes(sqlite3))))
    (tmp_path / "other.db").hardlink_to(file)
    assert ("hard-link", "warning") in bad(check(file, SystemProbes(sqlite3)))


AS_NOBODY = """
import json, os, pwd, sqlite3, sys
from millpond.store.sqlite import gate, probes
if os.geteuid() == 0:
    os.setgroups([])
    os.setegid(65534) if sys.argv[2] == "seteuid" else os.setgid(65534)
    getattr(os, sys.argv[2])(65534)
found = gate.check(sys.argv[1], probes.SystemProbes(sqlite3))
print(json.dumps([str(f) for f in found if f.code == "rights" and f.severity == "refuse"]))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A directory that any user can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="millpond-gate-"))
    folder.chmod(0o777)
    yield folder
    for inner in [folder, *folder.rglob("*")]:
        inner.chmod(0o777)
    shutil.rmtree(folder)


def locked_file(folder: Path) -> Path:
    (folder / "jobs.db").touch(0o444)
    return folder / "jobs.db"


def locked_folder(folder: Path) -> Path:
    (folder / "in").mkdir()
    (folder / "in").chmod(0o555)
    return folder / "in"


def closed_folder(folder: Path) -> Path:
    (folder / "in" / "deep").mkdir(parents=True)
    (folder / "in").chmod(0o600)
    return folder / "in" / "deep"


def side_file(folder: Path) -> Path:
    (folder / "jobs.db").touch()
    (folder / "jobs.db").chmod(0o666)
    (folder / "jobs.db-shm").touch(0o444)
    return folder / "jobs.db-shm"


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX rights")
@pytest.mark.parametrize(
    ("prepare", "asked", "right"),
    [
        (locked_file, "jobs.db", "write"),
        (locked_folder, "in/jobs.db", "write"),
        (closed_folder, "in/deep/jobs.db", "search"),
        (side_file, "jobs.db", "write"),
    ],
)
def test_b16_real_rights_of_a_user_without_root_are_seen(
    open_folder: Path, prepare: Callable[[Path], Path], asked: str, right: str
) -> None:
    culprit = prepare(open_folder)
    uid = os.geteuid() or 65534
    (line,) = json.loads(run(AS_NOBODY, open_folder / asked, "setuid"))
    assert f"(uid {uid})" in line
    assert f"missing right: {right}" in line
    assert str(culprit) in line


def test_a_real_user_with_all_rights_passes(open_folder: Path) -> None:
    assert json.loads(run(AS_NOBODY, open_folder / "jobs.db", "setuid")) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX rights")
def test_it_is_the_effective_user_whose_rights_count(open_folder: Path) -> None:
    locked_file(open_folder)
    (line,) = json.loads(run(AS_NOBODY, open_folder / "jobs.db", "seteuid"))
    assert "missing right: write" in line


IN_MOUNT = """
import json, sqlite3, sys
from millpond.store.sqlite import gate, probes
found = gate.check(sys.argv[1], probes.SystemProbes(sqlite3))
print(json.dumps([[f.code, f.severity] for f in found if f.code in ("read-only", "file-system")]))
"""


@on_linux
@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("rw", [["file-system", "warning"]]),
        ("ro", [["read-only", "refuse"], ["file-system", "warning"]]),
    ],
)
def test_real_mounts_in_memory_and_read_only_are_seen(
    tmp_path: Path, option: str, expected: list[list[str]]
) -> None:
    mount = f"mount -t tmpfs -o {option} none {tmp_path}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False, timeout=30).returncode:
        pytest.skip("this user may not mount")
    script = f'{mount} && exec "$0" -c "$1" "$2"'
    command = ["unshare", "-m", "sh", "-c", script, sys.executable, IN_MOUNT]
    done = subprocess.run(
        [*command, str(tmp_path / "jobs.db")],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert json.loads(done.stdout) == expected


def test_an_orphan_is_refused_because_sqlite_would_delete_its_commits(tmp_path: Path) -> None:
    file, wal = tmp_path / "jobs.db", tmp_path / "jobs.db-wal"
    with closing(sqlite3.connect(tmp_path / "first.db", isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = wal")
        conn.execute("CREATE TABLE t (x)")
        wal.write_bytes((tmp_path / "first.db-wal").read_bytes())
    file.touch()
    for _ in range(2):
        assert ("orphan-wal", "refuse") in bad(check(file, SystemProbes(sqlite3)))
        assert wal.stat().st_size > 0
    with closing(sqlite3.connect(file)) as conn:
        assert conn.execute("SELECT * FROM sqlite_schema").fetchall() == []
    assert not wal.exists()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Path]:
    with closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = wal")
        yield tmp_path / "jobs.db"


def test_a_file_that_stays_in_its_place_has_not_moved(opened: Path) -> None:
    assert moved(FileIdentity.of(opened), opened) is None


def test_a_renamed_or_deleted_file_has_moved(opened: Path) -> None:
    identity = FileIdentity.of(opened)
    opened.rename(opened.with_name("elsewhere.db"))
    finding = moved(identity, opened)
    assert finding is not None
    assert (finding.code, finding.severity, finding.which) == ("moved", "refuse", str(opened))
    assert "moved or deleted" in finding.what


def test_a_replaced_file_has_moved(opened: Path) -> None:
    identity = FileIdentity.of(opened)
    restored = opened.with_name("restored.db")
    restored.write_bytes(b"")
    restored.rename(opened)
    finding = moved(identity, opened)
    assert finding is not None
    assert "Another file" in finding.what


def test_a_file_that_can_no_longer_be_seen_counts_as_moved(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").touch()
    identity = FileIdentity.of(tmp_path / "jobs.db")
    finding = moved(identity, tmp_path / "jobs.db" / "below")
    assert finding is not None
    assert "can no longer be seen: Not a directory" in finding.what


FOREIGN = """
import json, sqlite3, sys
import pysqlite3
from millpond.store.sqlite import gate, probes
def codes(module, **options):
    found = gate.check(sys.argv[1], probes.SystemProbes(module), **options)
    return [f.code for f in found if f.severity == "refuse"]
answers = {"nobody has it open": codes(pysqlite3)}
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("PRAGMA journal_mode = wal")
answers["the other has it open"] = codes(pysqlite3)
answers["we have it open"] = codes(pysqlite3, own_open=True)
print(json.dumps(answers))
"""
ALONE = """
import sqlite3, sys
from millpond.store.sqlite import gate, probes
conn = sqlite3.connect(sys.argv[1], isolation_level=None)
conn.execute("PRAGMA journal_mode = wal")
found = gate.check(sys.argv[1], probes.SystemProbes(sqlite3))
print([f.code for f in found if f.severity == "refuse"])
"""


@on_linux
def test_a_real_foreign_library_with_the_file_open_is_refused(tmp_path: Path) -> None:
    need_pysqlite3()
    assert json.loads(run(FOREIGN, tmp_path / "jobs.db")) == {
        "nobody has it open": [],
        "the other has it open": ["foreign-library"],
        "we have it open": [],
    }


@on_linux
def test_an_application_that_uses_the_same_library_on_the_same_file_passes(tmp_path: Path) -> None:
    assert run(ALONE, tmp_path / "jobs.db") == "[]"


LOCKED = """
import sqlite3, sys
conn = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0)
try:
    conn.execute("BEGIN IMMEDIATE")
    print("got the lock")
except sqlite3.OperationalError:
    print("locked")
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_looking_at_an_open_file_drops_none_of_its_locks(tmp_path: Path, journal: str) -> None:
    file = tmp_path / "jobs.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as conn:
        conn.execute(f"PRAGMA journal_mode = {journal}")
        conn.execute("CREATE TABLE t (x)")
        conn.execute("BEGIN IMMEDIATE")
        conn.execute("INSERT INTO t VALUES (1)")
        check(file, SystemProbes(sqlite3))
        assert moved(FileIdentity.of(file), file) is None
        assert run(LOCKED, file) == "locked"
        conn.execute("COMMIT")
    assert run(LOCKED, file) == "got the lock"


def test_the_gate_creates_nothing(tmp_path: Path) -> None:
    check(tmp_path / "jobs.db", SystemProbes(sqlite3))
    assert list(tmp_path.iterdir()) == []
