"""B16: what is not safe is refused at the start, in one line, by every command alike."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time

import pytest
from tests.scenarios.mill import Mill, soak

APP = """
from millpond import Millpond
pond = Millpond("jobs.db")
@pond.task
def hello(n: int = 0) -> None: ...
"""

COMMANDS = {
    "worker": ["worker", "app:pond"],
    "worker in one process": ["worker", "app:pond", "--processes", "0"],
    "init": ["init", "--url", "jobs.db"],
    "enqueue": ["enqueue", "hello", "--app", "app:pond"],
    "status": ["status", "--url", "jobs.db"],
    "doctor": ["doctor", "--url", "jobs.db"],
    "migrate": ["migrate", "--url", "jobs.db"],
    "library": [],
}

AS_COMMAND = """
import sys
from millpond.store.sqlite.probes import Features, SystemProbes
{probes}
from millpond.cli import main
sys.argv = ["millpond", *sys.argv[1:]]
main()
"""

AS_LIBRARY = """
import sys
from millpond.store.sqlite.probes import Features, SystemProbes
{probes}
from millpond import Millpond, UnsafeStorage
try:
    Millpond("jobs.db").open().close()
except UnsafeStorage as error:
    sys.exit("error: " + str(error))
"""

REFUSED = 5


def probed(
    mill: Mill, command: str, probes: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a command whose probes of the machine answer as they are told."""
    program = AS_LIBRARY if command == "library" else AS_COMMAND
    code = program.format(probes=probes)
    (mill.folder / "app.py").write_text(APP)
    return subprocess.run(
        [sys.executable, "-c", code, *COMMANDS[command]], cwd=mill.folder, text=True,
        env={**mill.environment, "MILLPOND_LOG_FORMAT": "text", **settings},
        capture_output=True, timeout=30, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def made(mill: Mill) -> None:
    """Make the store with the machine as it is."""
    assert mill.run("init", "--url", "jobs.db").returncode == 0


def refused(done: subprocess.CompletedProcess[str], command: str, *words: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode == (1 if command == "library" else REFUSED), said
    assert "Traceback" not in said
    lines = [line for line in said.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, said


VERSION = "SystemProbes.sqlite_version = lambda self: {!r}"
LACKING = "SystemProbes.probe_features = lambda self: Features({!r}, 1)"
FILESYSTEM = "SystemProbes.filesystem_type = lambda self, path: {!r}"


@pytest.mark.parametrize(
    "command",
    ["worker", "enqueue", "doctor", "library"]
    + [soak(name) for name in ("worker in one process", "init", "status", "migrate")],
)
def test_b16_an_old_library_is_refused_with_both_versions(mill: Mill, command: str) -> None:
    made(mill)
    done = probed(mill, command, VERSION.format("3.37.2"))
    refused(done, command, "3.37.2 found", "3.38", "required")


@pytest.mark.parametrize("command", ["worker", soak("doctor"), "library"])
def test_b16_a_library_without_returning_is_refused(mill: Mill, command: str) -> None:
    made(mill)
    done = probed(mill, command, LACKING.format(("RETURNING",)))
    refused(done, command, "RETURNING", "found", "required")


@pytest.mark.parametrize("command", ["worker", "library"])
def test_b16_a_refusal_makes_no_file(mill: Mill, command: str) -> None:
    done = probed(mill, command, VERSION.format("3.37.2"))
    refused(done, command, "3.37.2 found")
    assert not list(mill.folder.glob("jobs.db*"))


AFFECTED = ["3.40.1", "3.46.1", "3.51.2"]
MENDED = ["3.44.6", "3.50.7", "3.51.3"]


@pytest.mark.parametrize("version", AFFECTED + MENDED)
def test_b16_the_wal_reset_bug_is_one_warning_and_no_refusal(mill: Mill, version: str) -> None:
    made(mill)
    probes = VERSION.format(version)
    worker = probed(mill, "library", probes)
    assert worker.returncode == 0, worker.stderr
    assert worker.stderr.count("WAL-reset") == (version in AFFECTED)
    if version not in {AFFECTED[-1], MENDED[-1]}:
        return  # Two of them will do for the commands, which take longer.
    doctor = probed(mill, "doctor", probes)
    assert doctor.returncode == 0
    assert ("has the WAL-reset bug" in doctor.stdout) == (version in AFFECTED)
    drained = probed(mill, "worker", probes + "\nsys.argv.append('--drain')")
    assert drained.returncode == 0
    assert drained.stderr.count("has the WAL-reset bug") == (version in AFFECTED)


@pytest.mark.parametrize("version", ["3.46.1", "3.50.7"])
def test_b16_strict_mode_refuses_the_wal_reset_bug(mill: Mill, version: str) -> None:
    made(mill)
    probes = VERSION.format(version)
    drained = probed(
        mill, "worker", probes + "\nsys.argv.append('--drain')", MILLPOND_STRICT_SAFETY="true"
    )
    if version in MENDED:
        assert drained.returncode == 0
    else:
        refused(drained, "worker", "WAL-reset")


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("worker", "nfs"),
        ("doctor", "cifs"),
        *(("library", kind) for kind in ("nfs4", "9p", "fuse.sshfs")),
        soak("worker", "fuse.sshfs"),
        soak("doctor", "9p"),
    ],
)
def test_b16_a_network_file_system_is_refused(mill: Mill, command: str, kind: str) -> None:
    made(mill)
    refused(probed(mill, command, FILESYSTEM.format(kind)), command, kind)


def test_b16_a_network_file_system_can_be_allowed(mill: Mill) -> None:
    made(mill)
    probes = FILESYSTEM.format("nfs4") + "\nsys.argv.append('--drain')"
    done = probed(mill, "worker", probes, MILLPOND_ALLOW_NETWORK_FS="true")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("nfs4") == 1


@pytest.mark.parametrize(
    ("command", "place"),
    [
        ("worker", "file 0444"),
        ("enqueue", "folder 0555"),
        soak("worker", "folder 0555"),
        soak("enqueue", "file 0444"),
        ("doctor", "file 0444"),
        soak("doctor", "folder 0555"),
    ],
)
def test_b16_missing_rights_are_named_with_path_and_user(
    mill: Mill, command: str, place: str
) -> None:
    made(mill)
    (mill.folder / "app.py").write_text(APP)
    culprit = mill.path if place.startswith("file") else mill.folder
    culprit.chmod(0o444 if place.startswith("file") else 0o555)
    if os.geteuid() == 0:
        os.chown(culprit, 65534, 65534)
    began = time.monotonic()
    done = subprocess.run(
        [*without_powers(), sys.executable, "-m", "millpond", *COMMANDS[command]],
        cwd=mill.folder, env=mill.environment, text=True, capture_output=True, timeout=30,
        check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    mill.folder.chmod(0o755)

    refused(done, command, str(culprit), f"uid {os.geteuid()}", "missing right: write")
    assert time.monotonic() - began < 10, "nothing is tried again and again"


def without_powers() -> list[str]:
    """Return what runs a command under the rights of files as they are, for root too."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root without setpriv passes every right")
    return ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
