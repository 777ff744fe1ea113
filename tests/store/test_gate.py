"""The start-up gate: what it refuses, what it warns of, and that it never touches a lock."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.gate_helpers import bad, only

from millpond.errors import UnsafeStorage
from millpond.store.sqlite.gate import (
    FileIdentity,
    Finding,
    Severity,
    check,
    enforce,
    told_elsewhere,
    wal_reset_affects,
)
from millpond.store.sqlite.probes import Features, FileStatus, User

FILE = Path("/srv/app/jobs.db")
DATABASE = FileStatus(FileIdentity(8, 100), "file", size=4096, links=1, owner=0)
DIRECTORY = FileStatus(FileIdentity(8, 1), "directory", size=4096, links=2, owner=0)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclass(frozen=True)
class ToldProbes:
    """A machine on which all is well, unless a test says otherwise."""

    version: str = "3.53.4"
    own: str = "stdlib"
    features: Features = Features((), 1)  # noqa: RUF009  it is frozen
    files: dict[Path, FileStatus] = field(
        default_factory=lambda: {FILE.parent: DIRECTORY, FILE: DATABASE}
    )
    denied: dict[Path, int] = field(default_factory=dict)
    unreachable: OSError | None = None
    filesystem: str | None = "ext4"
    readonly: bool = False
    mounted_alone: bool = False
    descriptors: frozenset[FileIdentity] = frozenset()
    loaded: frozenset[str] = frozenset({"stdlib"})

    def library_name(self) -> str:
        return self.own

    def sqlite_version(self) -> str:
        return self.version

    def probe_features(self) -> Features:
        return self.features

    def resolve(self, path: Path) -> Path:
        return path

    def stat(self, path: Path) -> FileStatus | None:
        if self.unreachable:
            raise self.unreachable
        return self.files.get(path)

    def access(self, path: Path, mode: int) -> bool:
        return not self.denied.get(path, 0) & mode

    def user(self) -> User:
        return User("worker", 1001)

    def filesystem_type(self, path: Path) -> str | None:
        assert path in {FILE, FILE.parent}
        return self.filesystem

    def is_mounted_alone(self, path: Path) -> bool:
        assert path == FILE
        return self.mounted_alone

    def is_readonly_fs(self, path: Path) -> bool:
        assert path in {FILE, FILE.parent}
        return self.readonly

    def open_descriptors(self) -> frozenset[FileIdentity]:
        return self.descriptors

    def loaded_sqlite_libraries(self) -> frozenset[str]:
        return self.loaded


WELL = ToldProbes()


def without_file(**also: FileStatus) -> dict[Path, FileStatus]:
    sides = {FILE.with_name(f"jobs.db-{name}"): status for name, status in also.items()}
    return {FILE.parent: DIRECTORY, **sides}


def test_a_healthy_place_gets_good_news_only_and_may_be_opened() -> None:
    findings = check(FILE, WELL)
    assert bad(findings) == []
    assert {f.code for f in findings} >= {"sqlite-version", "wal-reset", "rights", "file-system"}
    enforce(findings)


def test_a_file_that_does_not_exist_yet_may_be_created() -> None:
    assert bad(check(FILE, replace(WELL, files=without_file()))) == []


# The library


@pytest.mark.parametrize("version", ["3.7.17", "3.34.1", "3.37.2"])
def test_b16_an_old_sqlite_is_refused_in_one_line_with_found_and_required(version: str) -> None:
    finding = check(FILE, replace(WELL, version=version))[0]
    assert finding.severity is Severity.REFUSE
    line = str(finding)
    assert f"SQLite {version} found, 3.38 or newer required" in line
    assert "pip install 'millpond[sqlite]'" in line
    assert "\n" not in line


@pytest.mark.parametrize("version", ["3.38.0", "3.38", "3.100.0", "4.0.0"])
def test_the_floor_itself_and_all_above_pass(version: str) -> None:
    assert "sqlite-version" not in dict(bad(check(FILE, replace(WELL, version=version))))


def test_b16_a_sqlite_without_returning_is_refused_whatever_its_version() -> None:
    finding = only(check(FILE, replace(WELL, features=Features(("RETURNING",), 1))))
    assert finding.severity is Severity.REFUSE
    assert "SQLite 3.53.4 found, 3.38 or newer required with RETURNING" in str(finding)
    with pytest.raises(UnsafeStorage, match="RETURNING") as caught:
        enforce([finding])
    assert "\n" not in str(caught.value)


def test_a_build_without_thread_safety_is_refused() -> None:
    finding = only(check(FILE, replace(WELL, features=Features((), 0))))
    assert (finding.severity, finding.code) == (Severity.REFUSE, "sqlite-threads")


def test_a_database_in_memory_is_checked_for_its_library_only() -> None:
    assert bad(check(":memory:", replace(WELL, version="3.40.1", files={}))) == []
    refused = only(check(":memory:", replace(WELL, version="3.31.1")))
    assert refused.code == "sqlite-version"


@pytest.mark.parametrize("version", ["3.40.1", "3.46.1", "3.51.2"])
def test_b16_affected_versions_get_one_warning_and_a_refusal_only_when_strict(
    version: str,
) -> None:
    probes = replace(WELL, version=version)
    finding = only(check(FILE, probes))
    assert (finding.code, finding.severity) == ("wal-reset", Severity.WARNING)
    for part in ("You may go on", "Only other programs", "wal_autocheckpoint=0", "3.51.3"):
        assert part in str(finding)
    assert bad(check(FILE, probes, strict=True)) == [("wal-reset", "refuse")]


@pytest.mark.parametrize("version", ["3.44.6", "3.50.7", "3.51.3"])
def test_b16_mended_versions_are_silent_even_when_strict(version: str) -> None:
    assert bad(check(FILE, replace(WELL, version=version), strict=True)) == []


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("3.6.23", False),
        ("3.7.0", True),
        ("3.43.9", True),
        ("3.44.5", True),
        ("3.44.10", False),
        ("3.45.0", True),
        ("3.50.6", True),
        ("3.50.12", False),
        ("3.51.0", True),
        ("3.52.0", False),
        ("3.53.4", False),
        ("4.0.0", False),
    ],
)
def test_the_range_of_the_wal_reset_bug_ends_where_it_was_mended(
    version: str, affected: bool
) -> None:
    assert wal_reset_affects(version) is affected


# The path


@pytest.mark.parametrize("path", ["", "jobs\0.db", "/srv/app/", "/srv/\ud800.db"])
def test_a_path_that_cannot_name_a_file_is_refused(path: str) -> None:
    finding = only(check(path, WELL))
    assert (finding.code, finding.severity) == ("path", Severity.REFUSE)


def test_a_missing_directory_is_refused_and_named() -> None:
    finding = only(check(FILE, replace(WELL, files={})))
    assert (finding.code, finding.which) == ("directory", "/srv/app")
    assert "mkdir -p '/srv/app'" in finding.cure


# Rights


@pytest.mark.parametrize(
    ("path", "mode", "missing"),
    [
        (FILE, os.W_OK, "write"),
        (FILE, os.R_OK, "read"),
        (FILE, os.R_OK | os.W_OK, "read and write"),
        (FILE.parent, os.W_OK, "write"),
        (FILE.parent, os.X_OK, "search"),
        (FILE.with_name("jobs.db-wal"), os.W_OK, "write"),
        (FILE.with_name("jobs.db-shm"), os.W_OK, "write"),
    ],
)
def test_b16_a_missing_right_is_refused_with_path_user_and_right(
    path: Path, mode: int, missing: str
) -> None:
    files = {**WELL.files, FILE.with_name("jobs.db-wal"): DATABASE}
    files[FILE.with_name("jobs.db-shm")] = DATABASE
    finding = only(check(FILE, replace(WELL, files=files, denied={path: mode})))
    assert (finding.code, finding.severity) == ("rights", Severity.REFUSE)
    assert "User worker (uid 1001) cannot use the" in str(finding)
    assert str(finding).count(f"missing right: {missing} ({path})") == 1


def test_every_missing_right_is_listed_by_the_error() -> None:
    denied = {FILE: os.W_OK, FILE.parent: os.W_OK}
    with pytest.raises(UnsafeStorage) as caught:
        enforce(check(FILE, replace(WELL, denied=denied)))
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    assert f"({FILE.parent})" in lines[0]
    assert f"({FILE})" in lines[1]


def test_a_path_that_may_not_be_looked_at_is_refused_with_user_and_right() -> None:
    finding = only(check(FILE, replace(WELL, unreachable=PermissionError(13, "denied"))))
    assert "worker (uid 1001)" in finding.what
    assert "missing right: search" in finding.what


def test_a_read_only_file_system_is_refused_as_such_and_not_as_a_missing_right() -> None:
    probes = replace(WELL, readonly=True, denied={FILE: os.W_OK, FILE.parent: os.W_OK})
    assert bad(check(FILE, probes)) == [("read-only", "refuse")]


# The file system


# fmt: off
NETWORKS = [
    "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "9p", "afs", "ceph", "glusterfs", "lustre",
    "beegfs", "drvfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone",
    "fuse.gcsfuse", "NFS",
]
# fmt: on


@pytest.mark.parametrize("kind", NETWORKS)
def test_b16_a_network_file_system_is_refused_unless_overridden(kind: str) -> None:
    probes = replace(WELL, filesystem=kind)
    finding = only(check(FILE, probes))
    assert (finding.code, finding.severity, finding.which) == ("file-system", "refuse", str(FILE))
    assert f"({kind})" in finding.what
    with pytest.raises(UnsafeStorage):
        enforce([finding])
    assert bad(check(FILE, probes, allow_network_fs=True)) == [("file-system", "warning")]


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "apfs", "fuseblk"])
def test_a_local_file_system_passes_silently(kind: str) -> None:
    assert bad(check(FILE, replace(WELL, filesystem=kind))) == []


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("tmpfs", "nothing survives a reboot"),
        ("ramfs", "nothing survives a reboot"),
        ("fuse", "may end at this machine"),
        ("fuse.mergerfs", "may end at this machine"),
        ("virtiofs", "may end at this machine"),
    ],
)
def test_a_doubtful_file_system_is_warned_of(kind: str, part: str) -> None:
    finding = only(check(FILE, replace(WELL, filesystem=kind)))
    assert finding.severity is Severity.WARNING
    assert part in finding.what


def test_an_unknown_file_system_passes() -> None:
    assert bad(check(FILE, replace(WELL, filesystem=None))) == []


# Files that belong together


def test_a_wal_without_its_database_is_refused() -> None:
    finding = only(check(FILE, replace(WELL, files=without_file(wal=DATABASE))))
    assert (finding.code, finding.severity) == ("orphan-wal", Severity.REFUSE)
    assert finding.which == "/srv/app/jobs.db-wal"


def test_a_file_mounted_by_itself_is_warned_of_and_one_yet_to_come_is_not() -> None:
    probes = replace(WELL, mounted_alone=True)
    assert bad(check(FILE, probes)) == [("mounted-alone", "warning")]
    assert bad(check(FILE, replace(probes, files=without_file()))) == []


def test_an_empty_wal_or_one_with_its_database_is_no_orphan() -> None:
    empty = replace(DATABASE, size=0)
    assert bad(check(FILE, replace(WELL, files=without_file(wal=empty)))) == []
    both = {**WELL.files, FILE.with_name("jobs.db-wal"): DATABASE}
    assert bad(check(FILE, replace(WELL, files=both))) == []


# Another SQLite library


@pytest.mark.parametrize("other", ["apsw", "pysqlite3", "/opt/site-packages/x/libsqlite3-1.so"])
def test_an_open_descriptor_beside_another_library_is_refused(other: str) -> None:
    probes = replace(
        WELL, descriptors=frozenset({DATABASE.identity}), loaded=frozenset({"stdlib", other})
    )
    finding = only(check(FILE, probes))
    assert (finding.code, finding.severity) == ("foreign-library", Severity.REFUSE)
    assert other in finding.what
    assert bad(check(FILE, probes, own_open=True)) == []


def test_an_open_descriptor_of_the_same_library_passes() -> None:
    assert bad(check(FILE, replace(WELL, descriptors=frozenset({DATABASE.identity})))) == []


def test_another_library_that_has_other_files_open_passes() -> None:
    probes = replace(
        WELL,
        descriptors=frozenset({FileIdentity(8, 999)}),
        loaded=frozenset({"stdlib", "apsw"}),
    )
    assert bad(check(FILE, probes)) == []


# Acting on findings


def test_each_warning_is_logged_once_per_process_and_path(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="millpond.store")

    def start(name: str, *codes: str) -> int:
        caplog.clear()
        which = str(tmp_path / name)
        enforce([Finding(code, Severity.WARNING, "Doubtful", which, "Mend it.") for code in codes])
        return len(caplog.records)

    assert start("a.db", "wal-reset") == 1
    assert caplog.messages == [f"Doubtful ({tmp_path / 'a.db'}). Mend it."]
    assert start("a.db", "wal-reset") == 0
    assert start("a.db", "wal-reset", "file-system") == 1
    assert start("b.db", "wal-reset") == 1


def test_a_place_that_another_process_warns_of_is_not_warned_of_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told_elsewhere(tmp_path / "a.db")
    for name in ("a.db", "b.db"):
        enforce([Finding("wal-reset", Severity.WARNING, "Doubtful", str(tmp_path / name))])
    assert [str(tmp_path / "b.db") in line for line in caplog.messages] == [True]
    with pytest.raises(UnsafeStorage):
        enforce([Finding("rights", Severity.REFUSE, "Not ours", str(tmp_path / "a.db"))])


def test_good_news_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    enforce([Finding("rights", Severity.OK, "Fine", "x")])
    assert caplog.records == []


@given(st.lists(st.sampled_from(list(Severity)), max_size=6))
def test_enforce_raises_exactly_when_something_refuses_and_lists_all_of_it(
    severities: list[Severity],
) -> None:
    findings = [Finding(f"c{n}", s, f"What {n}", "law") for n, s in enumerate(severities)]
    refusals = [f.what for f in findings if f.severity is Severity.REFUSE]
    if not refusals:
        enforce(findings)
        return
    with pytest.raises(UnsafeStorage) as caught:
        enforce(findings)
    assert [line.split(" (")[0] for line in str(caught.value).splitlines()] == refusals
