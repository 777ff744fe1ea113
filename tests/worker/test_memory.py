"""What is said of memory after a process was killed, read from made-up control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.worker.memory import Cgroup

MIB = 1 << 20


def group(tmp_path: Path, *, inner: str = "max", outer: str = "max") -> tuple[Path, Path]:
    """Return the root of groups and the file that names this process's one."""
    folder = tmp_path / "system" / "shop"
    folder.mkdir(parents=True)
    (folder / "memory.max").write_text(f"{inner}\n")
    (folder.parent / "memory.max").write_text(f"{outer}\n")
    kills(tmp_path, 0)
    own = tmp_path / "own"
    own.write_text("1:name=systemd:/x\n0::/system/shop\n")
    return tmp_path, own


def kills(root: Path, count: int) -> None:
    events = f"low 0\noom 9\noom_kill {count}\noom_group_kill 0\n"
    (root / "system" / "shop" / "memory.events").write_text(events)


@pytest.mark.parametrize(
    ("inner", "outer", "least"),
    [(str(512 * MIB), "max", 512), ("max", str(256 * MIB), 256), (str(MIB), str(2 * MIB), 1)],
)
def test_the_narrowest_limit_holds(tmp_path: Path, inner: str, outer: str, least: int) -> None:
    assert Cgroup(*group(tmp_path, inner=inner, outer=outer)).limit() == least * MIB


def test_without_limits_and_without_groups_nothing_is_claimed(tmp_path: Path) -> None:
    assert Cgroup(*group(tmp_path)).limit() is None
    nowhere = Cgroup(tmp_path, tmp_path / "missing")
    assert nowhere.limit() is None
    assert (
        nowhere.why(812 * MIB) == "it had up to 812 MiB: out of memory, unless somebody killed it"
    )


def test_a_kill_by_the_kernel_is_told_from_one_by_a_person(tmp_path: Path) -> None:
    root, own = group(tmp_path, inner=str(1024 * MIB))
    cgroup = Cgroup(root, own)
    guess = "it had up to 812 MiB of 1,024 MiB: out of memory, unless somebody killed it"
    assert cgroup.why(812 * MIB) == guess
    kills(root, 1)
    told = "out of memory: it had up to 812 MiB of 1,024 MiB, and the kernel has ended a process"
    assert cgroup.why(812 * MIB).startswith(told)
    assert cgroup.why(812 * MIB) == guess, "one kill explains one death"


def test_in_a_container_the_groups_own_folder_is_the_root(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/of/the/host\n")
    (tmp_path / "memory.max").write_text(str(64 * MIB))
    assert Cgroup(tmp_path, own).limit() == 64 * MIB
