"""Where a keeper's files lie, and what becomes of those that dead keepers left."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

import pytest

from millpond.worker.bell import WakeSocket
from millpond.worker.marks import Marks
from millpond.worker.places import SOCKET_MAX, new_name, run_directory, socket_path, sweep


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory of this test's own."""
    place = tmp_path / "runtime"
    place.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    return place


def test_the_directory_lies_beside_the_database_and_only_we_may_enter(tmp_path: Path) -> None:
    found = run_directory(tmp_path / "jobs.db")
    assert found == tmp_path / "jobs.db-run"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


def test_rights_that_are_too_wide_are_narrowed(tmp_path: Path) -> None:
    (tmp_path / "jobs.db-run").mkdir(mode=0o755)
    found = run_directory(tmp_path / "jobs.db")
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


@pytest.mark.parametrize("obstacle", ["file", "link"])
def test_what_is_no_directory_of_ours_is_not_used(
    tmp_path: Path, homeless: Path, obstacle: str
) -> None:
    place = tmp_path / "jobs.db-run"
    if obstacle == "file":
        place.write_text("mine", encoding="ascii")
    else:
        place.symlink_to(tmp_path)
    assert run_directory(tmp_path / "jobs.db") == homeless / "millpond"


def test_without_any_place_the_error_names_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(missing))
    monkeypatch.setattr("tempfile.tempdir", str(missing))
    with pytest.raises(OSError, match=r"jobs\.db-run.*millpond.*millpond-"):
        run_directory(missing / "jobs.db")


def test_a_path_too_long_for_a_socket_goes_elsewhere(tmp_path: Path, homeless: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    assert socket_path(tmp_path, "k").parent == tmp_path
    found = socket_path(deep, "k")
    assert found.parent == homeless / "millpond" or found.parent.name.startswith("millpond-")
    assert len(os.fsencode(found)) <= SOCKET_MAX


def test_no_two_keepers_have_one_name() -> None:
    assert len({new_name() for _ in range(100)}) == 100


def test_a_sweep_takes_deserted_sockets_and_old_marks_and_leaves_the_living(
    tmp_path: Path,
) -> None:
    living, deserted = tmp_path / "living.sock", tmp_path / "deserted.sock"
    wake = WakeSocket(living)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
        left.bind(str(deserted))
    held, fresh, old = (tmp_path / f"{name}.marks" for name in ("held", "fresh", "old"))
    owner = Marks.create(held, 1)
    for path in (fresh, old):
        Marks.create(path, 1).close()
    long_ago = time.time() - 30 * 86_400
    for path in (held, old):
        os.utime(path, (long_ago, long_ago))
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "living.sock",
        "held.marks",
        "fresh.marks",
    }
    owner.close()
    wake.close()
    assert not living.exists()


def test_a_sweep_of_a_directory_that_is_gone_does_nothing(tmp_path: Path) -> None:
    sweep(tmp_path / "gone")


def test_a_wake_up_is_heard_once_however_many_came(tmp_path: Path) -> None:
    wake = WakeSocket(tmp_path / "k.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for _ in range(5):
            sender.sendto(b"!", str(wake.path))
    assert wake.hear()
    assert not wake.hear()
    wake.close()
