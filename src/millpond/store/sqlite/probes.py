"""What the start-up gate asks of the machine, and how the real machine answers.

The gate decides, this module only looks. Nothing here opens the database file or its side
files: closing any descriptor of them would drop the POSIX locks that this process holds.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import stat
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal, Protocol

from millpond.errors import BadConfig, refuse_setting

if sys.platform != "win32":
    import pwd

LibraryName = Literal["stdlib", "pysqlite3"]
LIBRARY_VARIABLE = "MILLPOND_SQLITE"

_MODULES: Mapping[LibraryName, str] = {"stdlib": "sqlite3", "pysqlite3": "pysqlite3"}
_choice: dict[LibraryName, ModuleType] = {}
_choice_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Which file this is, whatever its name: device and inode.

    Take it after SQLite has opened the file for writing: an overlay file system may give a
    file another inode at its first write.
    """

    dev: int
    ino: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileIdentity:
        """Return the identity of the file that stands at the path now, without opening it."""
        found = Path(path).stat()
        return cls(found.st_dev, found.st_ino)


@dataclass(frozen=True, slots=True)
class FileStatus:
    """What `stat` tells of a file; `size` in bytes, `links` counts its names."""

    identity: FileIdentity
    kind: Literal["file", "directory", "other"]
    size: int
    links: int
    owner: int


@dataclass(frozen=True, slots=True)
class Features:
    """Which needed features the SQLite library lacks; `threadsafe` is its compile option."""

    missing: tuple[str, ...]
    threadsafe: int


@dataclass(frozen=True, slots=True)
class User:
    """The user that this process acts as; `uid` is None where there are no numbers."""

    name: str
    uid: int | None

    def __str__(self) -> str:
        return self.name if self.uid is None else f"{self.name} (uid {self.uid})"


class Probes(Protocol):
    """Everything the gate may ask; none of it opens or changes a file."""

    def library_name(self) -> str:
        """Name the SQLite library that will open the file."""
        ...

    def sqlite_version(self) -> str:
        """Return the version of that library, such as 3.51.3."""
        ...

    def probe_features(self) -> Features:
        """Try the features on a database in memory instead of trusting the version."""
        ...

    def resolve(self, path: Path) -> Path:
        """Return the absolute path with symbolic links followed, as SQLite will."""
        ...

    def stat(self, path: Path) -> FileStatus | None:
        """Return what stands at the path, None for nothing; other failures raise OSError."""
        ...

    def access(self, path: Path, mode: int) -> bool:
        """Tell whether this user has all rights of `mode` (`os.R_OK | os.W_OK | os.X_OK`)."""
        ...

    def user(self) -> User:
        """Return the user this process acts as."""
        ...

    def filesystem_type(self, path: Path) -> str | None:
        """Return the type of the file system as the kernel names it, None when unknown."""
        ...

    def is_mounted_alone(self, path: Path) -> bool:
        """Tell whether this very path is a mount point, as a file bound into a container is."""
        ...

    def is_readonly_fs(self, path: Path) -> bool:
        """Tell whether the path lies on a file system mounted read-only."""
        ...

    def open_descriptors(self) -> frozenset[FileIdentity]:
        """Return the files this process has open; empty where that cannot be seen."""
        ...

    def loaded_sqlite_libraries(self) -> frozenset[str]:
        """Name every SQLite library seen in this process, the one in use included."""
        ...


def configured_library(environ: Mapping[str, str] = os.environ) -> LibraryName:
    """Return the library that `MILLPOND_SQLITE` names, stdlib when it is unset.

    Raises BadConfig for any other name.
    """
    wanted = environ.get(LIBRARY_VARIABLE) or "stdlib"
    if wanted not in _MODULES:
        refuse_setting(LIBRARY_VARIABLE, wanted, " or ".join(_MODULES))
    return wanted  # type: ignore[return-value]


def library(name: LibraryName | None = None) -> ModuleType:
    """Import the DB-API module of the one SQLite library this process uses for its stores.

    Without a name the environment decides. Raises BadConfig when another library was chosen
    before in this process, or when the module is not installed.
    """
    wanted = name or configured_library()
    with _choice_lock:
        if wanted not in _choice:
            _refuse_a_second(wanted)
            _choice[wanted] = _import(wanted)
        return _choice[wanted]


def _refuse_a_second(wanted: LibraryName) -> None:
    for chosen in _choice:
        msg = (
            f"this process already opens its stores with {chosen}, {wanted} was asked for: two "
            "SQLite libraries in one process drop each other's file locks. Choose one for the "
            f"whole deployment with {LIBRARY_VARIABLE}, and restart."
        )
        raise BadConfig(msg)


def _import(name: LibraryName) -> ModuleType:
    try:
        return importlib.import_module(_MODULES[name])
    except ImportError as error:
        cure = {
            "stdlib": f"use a Python built with sqlite3, or set {LIBRARY_VARIABLE}=pysqlite3",
            "pysqlite3": f"pip install 'millpond[sqlite]', or unset {LIBRARY_VARIABLE}",
        }
        msg = f"the SQLite library {name} cannot be imported ({error}): {cure[name]}."
        raise BadConfig(msg) from error


class SystemProbes:
    """The real machine, seen through one SQLite library."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def library_name(self) -> str:
        """Name the library by its package, since a program may alias one as the other."""
        package = self._module.__name__.partition(".")[0]
        return "stdlib" if package == "sqlite3" else package

    def sqlite_version(self) -> str:
        """Return the version the library reports of itself at run time."""
        return str(self._module.sqlite_version)

    def probe_features(self) -> Features:
        """Run each needed kind of statement once, on a database in memory."""
        connection = self._module.connect(":memory:")
        try:
            connection.execute("CREATE TABLE probe (x INTEGER)")
            missing = [name for name, sql in _FEATURES if not self._runs(connection, sql)]
            options = [str(row[0]) for row in connection.execute("PRAGMA compile_options")]
        finally:
            connection.close()
        return Features(tuple(missing), threadsafe_option(options))

    def _runs(self, connection: object, sql: str) -> bool:
        try:
            connection.execute(sql).fetchall()  # type: ignore[attr-defined]
        except self._module.Error:
            return False
        return True

    def resolve(self, path: Path) -> Path:
        """Follow symbolic links as far as they lead."""
        return Path(os.path.realpath(path))

    def stat(self, path: Path) -> FileStatus | None:
        """Look at the path without opening it."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        identity = FileIdentity(found.st_dev, found.st_ino)
        return FileStatus(
            identity, _kind(found.st_mode), found.st_size, found.st_nlink, found.st_uid
        )

    def access(self, path: Path, mode: int) -> bool:
        """Ask for the effective user, which is the one that opens the file."""
        effective = os.access in os.supports_effective_ids
        return os.access(path, mode, effective_ids=effective)

    def user(self) -> User:
        """Return the effective user; containers often have no name for it."""
        if sys.platform == "win32":
            return User(os.environ.get("USERNAME", "unknown"), None)
        uid = os.geteuid()
        try:
            return User(pwd.getpwuid(uid).pw_name, uid)
        except KeyError:
            return User("without a name", uid)

    def filesystem_type(self, path: Path) -> str | None:
        """Read the mount table; macOS and Windows are asked through their own calls."""
        if sys.platform == "win32":
            return _windows_type(path)
        if sys.platform == "darwin":
            return _darwin_type(path)
        try:
            device = path.stat().st_dev
        except OSError:
            return None
        return mounted_type(os.fspath(path), (os.major(device), os.minor(device)), _mountinfo())

    def is_mounted_alone(self, path: Path) -> bool:
        """Look for the path among the mount points; where they cannot be read it is none."""
        return os.fspath(path) in mount_points(_mountinfo())

    def is_readonly_fs(self, path: Path) -> bool:
        """Ask statvfs; a path that cannot be asked counts as writable, the rights decide."""
        if sys.platform == "win32":
            return False
        try:
            return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
        except OSError:
            return False

    def open_descriptors(self) -> frozenset[FileIdentity]:
        """List this process's descriptors and stat each through its number."""
        for folder in ("/proc/self/fd", "/dev/fd"):
            try:
                numbers = [entry.name for entry in Path(folder).iterdir()]
            except OSError:
                continue
            return frozenset(filter(None, map(_identity_of_descriptor, numbers)))
        return frozenset()

    def loaded_sqlite_libraries(self) -> frozenset[str]:
        """Look at the imported modules and, where it can be read, at the memory map."""
        try:
            maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            maps = ""
        return libraries_in(tuple(sys.modules), maps) | {self.library_name()}


_FEATURES = (
    ("STRICT tables", "CREATE TABLE probe_strict (x INTEGER) STRICT"),
    ("RETURNING", "INSERT INTO probe VALUES (1) RETURNING x"),
    ("the JSON operator ->>", """SELECT '{"a":1}' ->> 'a'"""),
    ("json_each", "SELECT value FROM json_each('[1]')"),
)


def threadsafe_option(options: Collection[str]) -> int:
    """Return the THREADSAFE compile option; a library that does not list it has SQLite's own 1."""
    for option in options:
        key, _, value = option.partition("=")
        if key == "THREADSAFE":
            return int(value or 1)
    return 1


def _kind(mode: int) -> Literal["file", "directory", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "other"


def _identity_of_descriptor(number: str) -> FileIdentity | None:
    try:
        found = os.fstat(int(number))
    except OSError:  # closed since it was listed, as the listing's own descriptor is
        return None
    return FileIdentity(found.st_dev, found.st_ino)


def _mountinfo() -> str:
    try:
        table = Path("/proc/self/mountinfo")
        return table.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def mount_points(mountinfo: str) -> frozenset[str]:
    """Return all mount points in the text of a mountinfo file."""
    return frozenset(mount.point for mount in map(_mount, mountinfo.splitlines()) if mount)


def mounted_type(path: str, device: tuple[int, int], mountinfo: str) -> str | None:
    """Return the file system type of an absolute path from the text of a mountinfo file.

    The mount with the longest matching path wins, the later one among equals. Mounts of the
    file's own device go first: a mount made later over a parent directory hides deeper ones.
    """
    above = [mount for mount in map(_mount, mountinfo.splitlines()) if mount and mount.holds(path)]
    candidates = [mount for mount in above if mount.device == device] or above
    best: _Mount | None = None
    for mount in candidates:
        if best is None or len(mount.point) >= len(best.point):
            best = mount
    return best.type if best else None


@dataclass(frozen=True, slots=True)
class _Mount:
    device: tuple[int, int]
    point: str
    type: str

    def holds(self, path: str) -> bool:
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


# Positions of the fields in a line of mountinfo.
_DEVICE, _POINT = 2, 4


def _mount(line: str) -> _Mount | None:
    # Fields before " - " vary in number, those after it are type, source and options.
    mount, separator, filesystem = line.partition(" - ")
    fields, kinds = mount.split(" "), filesystem.split(" ")
    if not separator or len(fields) <= _POINT or not kinds[0]:
        return None
    major, _, minor = fields[_DEVICE].partition(":")
    if not (major.isdigit() and minor.isdigit()):
        return None
    return _Mount((int(major), int(minor)), _unescaped(fields[_POINT]), kinds[0])


def _unescaped(text: str) -> str:
    """Undo the octal escapes the kernel writes for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


_BINDINGS = {
    "_sqlite3": "stdlib",
    "pysqlite3": "pysqlite3",
    "apsw": "apsw",
    "sqlcipher3": "sqlcipher3",
    "pysqlcipher3": "pysqlcipher3",
}
_SHARED_LIBRARY = re.compile(r"(/.*/lib(?:sqlite3|sqlcipher)[^/]*\.so[^/]*)$")


def libraries_in(modules: Collection[str], maps: str) -> frozenset[str]:
    """Name the SQLite libraries among loaded modules and in the text of a maps file.

    The shared library of the system is the one stdlib uses; a copy inside an installed
    package is a library of its own and is named by its path.
    """
    names = {name for module, name in _BINDINGS.items() if module in modules}
    for line in set(maps.splitlines()):
        if found := _SHARED_LIBRARY.search(line):
            path = found[1]
            packaged = "/site-packages/" in path or "/dist-packages/" in path
            names.add(path if packaged or "sqlcipher" in path else "stdlib")
    return frozenset(names)


# struct statfs of macOS with 64-bit inodes holds the type's name, 16 bytes, at this offset.
_DARWIN_TYPE_AT, _DARWIN_TYPE_SIZE = 72, 16


def _darwin_type(path: Path) -> str | None:
    libc = ctypes.CDLL(None)
    call = getattr(libc, "statfs$INODE64", None) or getattr(libc, "statfs", None)
    buffer = ctypes.create_string_buffer(4096)  # the structure has 2168 bytes
    if call is None or call(os.fsencode(path), buffer) != 0:
        return None
    name = buffer.raw[_DARWIN_TYPE_AT : _DARWIN_TYPE_AT + _DARWIN_TYPE_SIZE]
    return name.partition(b"\0")[0].decode("ascii", "replace") or None


def _windows_type(path: Path) -> str | None:
    if sys.platform != "win32":
        return None
    remote_drive = 4  # DRIVE_REMOTE of GetDriveTypeW
    root = path.drive + "\\"
    if root.startswith("\\\\") or ctypes.windll.kernel32.GetDriveTypeW(root) == remote_drive:
        return "smb"
    return None
