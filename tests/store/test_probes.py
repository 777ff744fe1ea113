"""The real probes: what the machine tells the gate, read from it and from recorded tables."""

from __future__ import annotations

import os
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.libraries import need_pysqlite3
from tests.store.gate_helpers import run

from millpond.errors import BadConfig
from millpond.store.sqlite.probes import (
    Features,
    Probes,
    SystemProbes,
    configured_library,
    libraries_in,
    library,
    mount_points,
    mounted_type,
    threadsafe_option,
)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_the_real_libraries_have_all_features() -> None:
    assert SystemProbes(sqlite3).probe_features() == Features((), 1)
    need_pysqlite3()
    program = """
import pysqlite3
from millpond.store.sqlite.probes import Features, SystemProbes
probes = SystemProbes(pysqlite3)
assert probes.probe_features() == Features((), 1)
assert probes.sqlite_version() == pysqlite3.sqlite_version
print(probes.library_name())
"""
    assert run(program).strip() == "pysqlite3"


def test_features_are_tried_and_not_read_from_the_version() -> None:
    class Lacking(sqlite3.Connection):
        def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
            if "STRICT" in sql or "->>" in sql:
                raise sqlite3.OperationalError("near: syntax error")
            return super().execute(sql, *rest)

    module = SimpleNamespace(
        connect=lambda path: sqlite3.connect(path, factory=Lacking), Error=sqlite3.Error
    )
    features = SystemProbes(cast("Any", module)).probe_features()
    assert features.missing == ("STRICT tables", "the JSON operator ->>")


@pytest.mark.parametrize(
    ("options", "expected"),
    [(["THREADSAFE=0"], 0), (["A", "THREADSAFE=2"], 2), (["THREADSAFE"], 1), (["OTHER=0"], 1)],
)
def test_the_thread_safety_option_is_read_as_sqlite_lists_it(
    options: list[str], expected: int
) -> None:
    assert threadsafe_option(options) == expected


# Choosing the library


def test_the_environment_names_the_library_and_stdlib_is_the_default() -> None:
    assert configured_library({}) == "stdlib"
    assert configured_library({"MILLPOND_SQLITE": ""}) == "stdlib"
    assert configured_library({"MILLPOND_SQLITE": "pysqlite3"}) == "pysqlite3"
    with pytest.raises(BadConfig, match=r"MILLPOND_SQLITE is 'apsw'.*stdlib or pysqlite3"):
        configured_library({"MILLPOND_SQLITE": "apsw"})


def test_one_process_uses_one_library_and_a_second_choice_is_refused() -> None:
    need_pysqlite3()
    program = """
import sys
from millpond.errors import BadConfig
from millpond.store.sqlite.probes import library
assert library("pysqlite3") is library() is sys.modules["pysqlite3"]
assert "_sqlite3" not in sys.modules
try:
    library("stdlib")
except BadConfig as error:
    print(error)
"""
    message = run(program, MILLPOND_SQLITE="pysqlite3")
    assert "already opens its stores with pysqlite3, stdlib was asked for" in message


def test_a_missing_library_is_bad_configuration_and_does_not_count_as_a_choice() -> None:
    program = """
import sys
sys.modules["pysqlite3"] = None
from millpond.errors import BadConfig
from millpond.store.sqlite.probes import library
try:
    library("pysqlite3")
except BadConfig as error:
    print(error)
print(library().__name__)
"""
    message, chosen = run(program, MILLPOND_SQLITE="").splitlines()
    assert "pip install 'millpond[sqlite]'" in message
    assert chosen == "sqlite3"


def test_asking_again_for_the_same_library_gives_the_same_module() -> None:
    assert library("stdlib") is library("stdlib") is sqlite3


# The machine


MOUNTS = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /srv rw shared:7 - nfs4 host:/srv rw
31 30 0:41 / /srv/app rw master:3 propagate_from:2 - xfs /dev/vdb rw
32 27 0:42 / /data\040store rw - cifs //host/x rw
33 27 0:43 / /twice rw - ext4 /dev/vdc rw
34 33 0:44 / /twice rw - tmpfs tmpfs rw
35 27 0:45 / /hidden/deep rw - xfs /dev/vdd rw
36 27 0:46 / /hidden rw - nfs host:/h rw
a line of nonsense
37 27 x:y / /srv/app/jobs.db rw - zfs pool rw
"""


@pytest.mark.parametrize(
    ("path", "device", "kind"),
    [
        ("/etc/jobs.db", (254, 0), "ext4"),
        ("/srv/jobs.db", (0, 40), "nfs4"),
        ("/srvother/jobs.db", (0, 99), "ext4"),
        ("/srv/app/jobs.db", (0, 41), "xfs"),
        ("/srv/app", (0, 41), "xfs"),
        ("/data store/jobs.db", (0, 42), "cifs"),
        ("/twice/jobs.db", (0, 44), "tmpfs"),
        ("/hidden/deep/jobs.db", (0, 46), "nfs"),
        # Sub-volumes show a device that no mount has: the longest path decides.
        ("/srv/app/jobs.db", (0, 99), "xfs"),
        ("/twice/jobs.db", (0, 99), "tmpfs"),
    ],
)
def test_the_deepest_mount_of_the_files_device_tells_its_type(
    path: str, device: tuple[int, int], kind: str
) -> None:
    assert mounted_type(path, device, MOUNTS) == kind


def test_only_a_mount_point_itself_is_mounted_alone() -> None:
    points = mount_points(MOUNTS)
    assert {"/", "/data store", "/srv/app"} <= points
    assert "/srv/app/jobs.db" not in points


def test_an_empty_mount_table_tells_nothing() -> None:
    assert mounted_type("/srv/jobs.db", (8, 1), "") is None


@on_linux
def test_the_real_mount_table_is_read() -> None:
    probes = SystemProbes(sqlite3)
    assert probes.filesystem_type(Path("/proc/self/status")) == "proc"
    assert probes.is_mounted_alone(Path("/proc"))
    assert not probes.is_mounted_alone(Path("/proc/self"))
    assert probes.filesystem_type(Path("/nowhere/at/all")) is None
    assert probes.filesystem_type(Path(sys.executable).resolve()) not in {None, "proc"}


MAPS = """
7f00-7f01 r-xp 00000000 fe:00 1 /usr/lib/x86_64-linux-gnu/libsqlite3.so.0.8.6
7f01-7f02 r-xp 00000000 fe:00 2 /app/lib/python3.11/site-packages/rasterio.libs/libsqlite3-a1.so.0
7f02-7f03 r-xp 00000000 fe:00 3 /usr/lib/x86_64-linux-gnu/libsqlcipher.so.0
7f03-7f04 r-xp 00000000 fe:00 4 /usr/lib/libc.so.6
"""


def test_libraries_are_found_by_module_and_by_mapped_file() -> None:
    assert libraries_in([], "") == frozenset()
    assert libraries_in(["os", "apsw", "_sqlite3"], "") == {"apsw", "stdlib"}
    assert libraries_in([], MAPS) == {
        "stdlib",
        "/app/lib/python3.11/site-packages/rasterio.libs/libsqlite3-a1.so.0",
        "/usr/lib/x86_64-linux-gnu/libsqlcipher.so.0",
    }


def test_the_open_files_of_this_process_are_seen(tmp_path: Path) -> None:
    probes: Probes = SystemProbes(sqlite3)
    file = tmp_path / "jobs.db"
    with file.open("w"):
        status = probes.stat(file)
        assert status is not None
        assert status.identity in probes.open_descriptors()
    assert status.identity not in probes.open_descriptors()


def test_the_user_is_the_effective_one() -> None:
    assert SystemProbes(sqlite3).user().uid == os.geteuid()
