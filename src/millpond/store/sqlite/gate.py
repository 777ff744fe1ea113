"""The start-up gate: whether this file, here, with this SQLite library, is safe for jobs.

`check` looks and answers with findings, `enforce` acts on them; library, worker and `doctor`
use the same two before the file is opened. The gate never opens a file: only SQLite itself may
do so, because any close() of the file elsewhere in the process drops SQLite's locks. Whether
the file is a database at all is therefore SQLite's answer when it opens it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from millpond.errors import UnsafeStorage
from millpond.store.sqlite.probes import (
    LIBRARY_VARIABLE,
    FileIdentity,
    FileStatus,
    Probes,
)

__all__ = ["FileIdentity", "Finding", "Severity", "check", "enforce", "moved", "wal_reset_affects"]

MEMORY = ":memory:"
SQLITE_FLOOR = "3.38"
# SQLite's unix layer takes 512 bytes, of which the names of its side files need the last eight.
LONGEST_PATH_BYTES = 504

# fmt: off
NETWORK_FILESYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb", "smb2", "smb3", "smbfs", "9p", "afs", "openafs", "coda",
        "ncpfs", "ceph", "glusterfs", "lustre", "beegfs", "gpfs", "orangefs", "pvfs2", "panfs",
        "wekafs", "gfs2", "ocfs2", "webdav", "davfs", "drvfs", "vboxsf", "vmhgfs", "prl_fs",
        "osxfs", "grpcfuse",
    }
)
NETWORK_FUSE = frozenset(
    {
        "sshfs", "smbnetfs", "curlftpfs", "ceph", "cephfs", "ceph-fuse", "glusterfs", "mfs",
        "moosefs", "lizardfs", "juicefs", "seaweedfs", "s3fs", "goofys", "mount-s3",
        "mountpoint-s3", "gcsfuse", "blobfuse", "blobfuse2", "rclone", "davfs", "davfs2",
        "gvfsd-fuse", "hdfs", "fuse_dfs", "nfs", "grpcfuse", "osxfs", "vmhgfs-fuse",
    }
)
# fmt: on
VOLATILE_FILESYSTEMS = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})

_log = logging.getLogger("millpond.store")
_warned: set[tuple[str, str]] = set()
_told_elsewhere: set[str] = set()
_warned_lock = threading.Lock()
_WARNED_BOUND = 4096  # a process that opens more stores than this may hear a warning again


class Severity(StrEnum):
    """What a finding means for opening the file."""

    OK = "ok"
    WARNING = "warning"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer of the gate: what is the matter, with which path, and what to do now."""

    code: str
    severity: Severity
    what: str
    which: str
    cure: str = ""

    def __str__(self) -> str:
        line = f"{self.what} ({self.which})."
        return f"{line} {self.cure}" if self.cure else line


@dataclass(frozen=True, slots=True)
class _Place:
    """The resolved file and what stood there when the gate looked; None for nothing."""

    file: Path
    folder: FileStatus | None
    status: FileStatus | None
    wal: FileStatus | None
    shm: FileStatus | None

    def side(self, ending: str) -> Path:
        return _side(self.file, ending)


def check(
    path: str | os.PathLike[str],
    probes: Probes,
    *,
    strict: bool = False,
    allow_network_fs: bool = False,
    own_open: bool = False,
) -> list[Finding]:
    """Return what the gate found, good news included, without opening or changing anything.

    `strict` refuses SQLite versions with the WAL-reset bug, `allow_network_fs` turns that
    refusal into a warning. `own_open` says that this process has the file open already with
    the library of `probes`. The path `:memory:` is checked for the library only.
    """
    where = os.fspath(path)
    findings = _library(where, probes)
    if where == MEMORY:
        return findings
    findings.append(_wal_reset(where, probes, strict=strict))
    unusable = _unusable_name(where)
    if unusable:
        return [*findings, unusable]
    file = probes.resolve(Path(where))
    return findings + _storage(file, probes, allow_network=allow_network_fs, own_open=own_open)


def enforce(findings: Iterable[Finding]) -> None:
    """Let the file be opened, or raise UnsafeStorage that lists every refusal.

    Each warning is logged once per process and path.
    """
    findings = list(findings)
    refusals = [finding for finding in findings if finding.severity is Severity.REFUSE]
    if refusals:
        raise UnsafeStorage("\n".join(map(str, refusals)))
    for finding in findings:
        if finding.severity is Severity.WARNING and _first_time(finding):
            _log.warning("%s", finding)


def told_elsewhere(path: str | os.PathLike[str]) -> None:
    """Log no warning about a file in this process, as the one that started it logs them."""
    with _warned_lock:
        _told_elsewhere.add(os.path.realpath(path))


def _first_time(finding: Finding) -> bool:
    key = (finding.code, finding.which)
    with _warned_lock:
        if finding.which in _told_elsewhere:
            return False
        if key in _warned:
            return False
        if len(_warned) >= _WARNED_BOUND:
            _warned.clear()
        _warned.add(key)
        return True


def moved(identity: FileIdentity, path: str | os.PathLike[str]) -> Finding | None:
    """Tell whether the path still names the file that was opened; None when it does.

    SQLite goes on writing to a file that was renamed, deleted or replaced, and reports
    nothing. One `stat`, cheap enough for every second.
    """
    try:
        now = FileIdentity.of(path)
    except FileNotFoundError:
        what = "The database file was moved or deleted while it was open"
    except OSError as error:
        what = f"The database file can no longer be seen: {error.strerror or error}"
    else:
        if now == identity:
            return None
        what = "Another file was put in the place of the database file while it was open"
    cure = (
        "What is written now goes to the old file. Stop every process that uses this store, "
        "put the right file back together with its -wal, and start them again."
    )
    return Finding("moved", Severity.REFUSE, what, os.fspath(path), cure)


# The SQLite library


def _library(where: str, probes: Probes) -> list[Finding]:
    version, cure = probes.sqlite_version(), _better_library(probes)
    found = f"SQLite {version} found, {SQLITE_FLOOR} or newer required"
    if _numbers(version) < _numbers(SQLITE_FLOOR):
        return [Finding("sqlite-version", Severity.REFUSE, found, where, cure)]
    features = probes.probe_features()
    findings = [_ok("sqlite-version", f"SQLite {version} ({probes.library_name()})", where)]
    if features.missing:
        what = f"{found} with {', '.join(features.missing)}, which this build lacks"
        findings.append(Finding("sqlite-features", Severity.REFUSE, what, where, cure))
    if features.threadsafe == 0:
        what = f"SQLite {version} is built with THREADSAFE=0, a thread-safe build is required"
        findings.append(Finding("sqlite-threads", Severity.REFUSE, what, where, cure))
    return findings


def wal_reset_affects(version: str) -> bool:
    """Tell whether this SQLite version has the WAL-reset bug."""
    number = _numbers(version)
    if number[:2] == (3, 44):
        return number < (3, 44, 6)
    if number[:2] == (3, 50):
        return number < (3, 50, 7)
    return (3, 7, 0) <= number < (3, 51, 3)


def _wal_reset(where: str, probes: Probes, *, strict: bool) -> Finding:
    version = probes.sqlite_version()
    if not wal_reset_affects(version):
        return _ok("wal-reset", f"SQLite {version} is free of the WAL-reset bug", where)
    what = (
        f"SQLite {version} has the WAL-reset bug, which can lose a commit or damage a file when "
        "two checkpoints meet. You may go on: millpond's own never do. Only other programs that "
        "write to this file are a risk"
    )
    cure = (
        "Let them set PRAGMA wal_autocheckpoint=0, or use SQLite 3.51.3 or newer (or 3.50.7, "
        f"3.44.6) in every process that opens it: {_better_library(probes)}"
    )
    severity = Severity.REFUSE if strict else Severity.WARNING
    return Finding("wal-reset", severity, what, where, cure)


def _better_library(probes: Probes) -> str:
    if probes.library_name() == "stdlib":
        return f"pip install 'millpond[sqlite]' and set {LIBRARY_VARIABLE}=pysqlite3."
    return "pip install --upgrade 'millpond[sqlite]'."


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


# The place


def _unusable_name(where: str) -> Finding | None:
    what = _name_fault(where)
    if what is None:
        return None
    cure = "Give the path of a database file, such as ./millpond.db."
    return Finding("path", Severity.REFUSE, what, repr(where), cure)


def _name_fault(where: str) -> str | None:
    if not where:
        return "The path is empty, which SQLite takes for a temporary database"
    if "\0" in where:
        return "The path holds a NUL character"
    if where.endswith(("/", os.sep)):
        return "The path names a directory"
    try:
        os.fsencode(where)
    except UnicodeEncodeError:
        return "The path cannot be written in the file system's encoding"
    return None


def _storage(file: Path, probes: Probes, *, allow_network: bool, own_open: bool) -> list[Finding]:
    try:
        place = _look(file, probes)
    except PermissionError:
        return [_unreachable(file, probes)]
    except OSError as error:
        what = f"The path cannot be looked at: {error.strerror or error}"
        return [Finding("path", Severity.REFUSE, what, str(file), "Mend the path.")]
    obstacle = _obstacle(place)
    if obstacle:
        return [obstacle]
    return [
        *_rights(place, probes),
        _filesystem(place, probes, allow_network=allow_network),
        *_names(place, probes),
        _foreign_library(place, probes, own_open=own_open),
    ]


def _look(file: Path, probes: Probes) -> _Place:
    # The side files go first: another process that makes the database in between shows a file
    # without its WAL, never a WAL without its file, which would be a false alarm.
    wal, shm = probes.stat(_side(file, "-wal")), probes.stat(_side(file, "-shm"))
    return _Place(file, probes.stat(file.parent), probes.stat(file), wal, shm)


def _side(file: Path, ending: str) -> Path:
    return file.with_name(file.name + ending)


def _obstacle(place: _Place) -> Finding | None:
    """Find what makes all further questions about the place pointless."""
    file = str(place.file)
    if len(os.fsencode(file)) > LONGEST_PATH_BYTES:
        what = f"The path has {len(os.fsencode(file))} bytes, SQLite takes {LONGEST_PATH_BYTES}"
        return Finding("path", Severity.REFUSE, what, file, "Choose a shorter one.")
    folder = str(place.file.parent)
    if place.folder is None:
        cure = f"Create it: mkdir -p '{folder}'."
        return Finding("directory", Severity.REFUSE, "The directory does not exist", folder, cure)
    if place.folder.kind != "directory":
        what = "The path leads through something that is no directory"
        return Finding("directory", Severity.REFUSE, what, folder, "Choose another path.")
    if place.status and place.status.kind != "file":
        kind = "A directory" if place.status.kind == "directory" else "A device, pipe or socket"
        what = f"{kind} stands where the database file should be"
        return Finding("file", Severity.REFUSE, what, file, "Give the path of a database file.")
    return None


def _unreachable(file: Path, probes: Probes) -> Finding:
    what = f"User {probes.user()} cannot reach the file: missing right: search"
    cure = "Grant execute (x) on every directory above it, or run as a user who has it."
    return Finding("rights", Severity.REFUSE, what, str(file), cure)


def _rights(place: _Place, probes: Probes) -> list[Finding]:
    for path, exists in ((place.file.parent, place.folder), (place.file, place.status)):
        if exists and probes.is_readonly_fs(path):
            what = "The file system is mounted read-only"
            cure = "Mount it for writing, or keep the store elsewhere."
            return [Finding("read-only", Severity.REFUSE, what, str(path), cure)]
    found = [_missing_rights(place.file.parent, place.folder, probes, _FOLDER_RIGHTS)]
    for path, status in (
        (place.file, place.status),
        (place.side("-wal"), place.wal),
        (place.side("-shm"), place.shm),
    ):
        found.append(_missing_rights(path, status, probes, _FILE_RIGHTS))
    missing = [finding for finding in found if finding]
    return missing or [_ok("rights", f"User {probes.user()} may read and write", str(place.file))]


_FILE_RIGHTS = (("read", os.R_OK), ("write", os.W_OK))
# The directory must take the -wal and -shm files beside the database.
_FOLDER_RIGHTS = (("write", os.W_OK), ("search", os.X_OK))


def _missing_rights(
    path: Path, status: FileStatus | None, probes: Probes, wanted: Sequence[tuple[str, int]]
) -> Finding | None:
    if status is None:
        return None
    missing = [right for right, mode in wanted if not probes.access(path, mode)]
    if not missing:
        return None
    user, rights = probes.user(), " and ".join(missing)
    what = f"User {user} cannot use the {_noun(status)}: missing right: {rights}"
    cure = f"Grant it with chmod or chown, or run as the owner (uid {status.owner})."
    return Finding("rights", Severity.REFUSE, what, str(path), cure)


def _noun(status: FileStatus) -> str:
    return "directory" if status.kind == "directory" else "file"


def _filesystem(place: _Place, probes: Probes, *, allow_network: bool) -> Finding:
    kind = probes.filesystem_type(place.file if place.status else place.file.parent)
    file = str(place.file)
    if kind is None:
        return _ok("file-system", "The type of the file system is unknown", file)
    if is_network_filesystem(kind):
        return _network_filesystem(kind, file, allowed=allow_network)
    if kind in VOLATILE_FILESYSTEMS:
        what = f"The file lies in memory ({kind}): nothing survives a reboot"
        cure = "Keep the store on a disk unless its jobs may be lost."
        return Finding("file-system", Severity.WARNING, what, file, cure)
    if kind in {"virtiofs", "fuse"} or kind.startswith("fuse."):
        what = f"The file system is {kind}: its locks and shared memory may end at this machine"
        cure = "Open the store only from this side of it, or keep it on a local disk."
        return Finding("file-system", Severity.WARNING, what, file, cure)
    return _ok("file-system", f"The file system is {kind}", file)


def is_network_filesystem(kind: str) -> bool:
    """Tell whether locks and shared memory of this file system type do not reach all its users."""
    family, _, member = kind.lower().partition(".")
    if family == "fuse" and member:
        return member in NETWORK_FUSE or member in NETWORK_FILESYSTEMS
    return kind.lower() in NETWORK_FILESYSTEMS


def _network_filesystem(kind: str, file: str, *, allowed: bool) -> Finding:
    what = f"The file lies on a network or shared file system ({kind}), where SQLite's WAL mode "
    what += "can lose commits: locks and shared memory do not reach every machine"
    cure = "Keep the store on a local disk, or use PostgreSQL for several machines. "
    cure += "allow_network_fs overrides this for one machine alone."
    severity = Severity.WARNING if allowed else Severity.REFUSE
    return Finding("file-system", severity, what, file, cure)


def _names(place: _Place, probes: Probes) -> list[Finding]:
    """Look for files that belong together and do not stand together."""
    found = []
    if place.wal and place.wal.size and not (place.status and place.status.size):
        what = "A -wal file with committed data stands here without its database"
        cure = (
            "SQLite would delete it on opening. Put the database file back beside it; if it is "
            "truly left over, move it away and start again."
        )
        found.append(Finding("orphan-wal", Severity.REFUSE, what, str(place.side("-wal")), cure))
    if place.status and place.status.links > 1:
        what = f"The database file has {place.status.links} names (hard links)"
        cure = "Open it by one name only, else each name gets its own -wal and the file is damaged."
        found.append(Finding("hard-link", Severity.WARNING, what, str(place.file), cure))
    if place.status and probes.is_mounted_alone(place.file):
        what = "The database file is mounted by itself, its -wal file stays outside of the mount"
        cure = "Mount its directory instead: a -wal left behind takes committed jobs with it."
        found.append(Finding("mounted-alone", Severity.WARNING, what, str(place.file), cure))
    return found


def _foreign_library(place: _Place, probes: Probes, *, own_open: bool) -> Finding:
    file, own = str(place.file), probes.library_name()
    others = sorted(probes.loaded_sqlite_libraries() - {own})
    is_open = place.status is not None and place.status.identity in probes.open_descriptors()
    if own_open or not others or not is_open:
        return _ok("foreign-library", f"No other SQLite library than {own} has the file open", file)
    what = (
        f"This process has the file open already, and besides {own} it has loaded "
        f"{', '.join(others)}: were that descriptor theirs, closing it would silently drop the "
        f"locks of {own}, and another process could overwrite commits"
    )
    cure = (
        f"Open the file with one SQLite library per process ({LIBRARY_VARIABLE}=stdlib or "
        "pysqlite3), or close the other connection first, or give jobs a file of their own."
    )
    return Finding("foreign-library", Severity.REFUSE, what, file, cure)


def _ok(code: str, what: str, which: str) -> Finding:
    return Finding(code, Severity.OK, what, which)
