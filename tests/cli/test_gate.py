"""What commands say when the start-up gate has something against the place (B16)."""

from __future__ import annotations

import os

import pytest

from millpond.cli.exits import Code
from millpond.store.sqlite.probes import SystemProbes, User, library


class Faked(SystemProbes):
    """The real machine, apart from what a test says of it."""

    version, kind, missing = "3.51.3", "ext4", 0

    def sqlite_version(self):
        return self.version

    def filesystem_type(self, _path):
        return self.kind

    def access(self, _path, mode):
        return not mode & self.missing

    def user(self):
        return User("ann", 1000)


@pytest.fixture
def machine(monkeypatch, pond):
    """Let every command see the machine that a test describes."""
    pond.close()

    def describe(**what):
        probes = type("Machine", (Faked,), what)(library())
        for module in ("millpond.store.upkeep", "millpond.store.sqlite.engine"):
            monkeypatch.setattr(f"{module}.SystemProbes", lambda _: probes)

    return describe


@pytest.mark.parametrize("kind", ["nfs", "cifs", "9p", "fuse.sshfs"])
@pytest.mark.parametrize("command", ["status", "doctor", "init"])
def test_a_network_file_system_is_refused_unless_overridden(run, machine, kind, command):
    machine(kind=kind)
    result = run(command)
    assert result.exit_code == Code.UNHEALTHY
    assert kind in result.output
    assert run(command, env={"MILLPOND_ALLOW_NETWORK_FS": "true"}).exit_code == Code.OK


@pytest.mark.parametrize(
    ("version", "warned"),
    [
        *(("3.40.1", True), ("3.46.1", True), ("3.51.2", True)),
        *(("3.44.6", False), ("3.50.7", False), ("3.51.3", False)),
    ],
)
def test_doctor_warns_of_the_wal_reset_bug_where_it_is_and_strict_mode_refuses(
    run, machine, version, warned
):
    machine(version=version)
    result = run("doctor")
    assert result.exit_code == Code.OK
    warnings = [line for line in result.stdout.splitlines() if line.startswith("warning")]
    assert len([line for line in warnings if "WAL-reset" in line]) == warned
    strict = run("doctor", env={"MILLPOND_STRICT_SAFETY": "1"})
    assert strict.exit_code == (Code.UNHEALTHY if warned else Code.OK)


def test_a_library_that_is_too_old_is_one_line_with_both_versions(run, machine):
    machine(version="3.31.0")
    for command in ("status", "doctor", "enqueue send --queue mail --url millpond.db"):
        result = run(*command.split())
        assert result.exit_code == Code.UNHEALTHY
        assert "SQLite 3.31.0 found, 3.38 or newer required" in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize(("missing", "said"), [(os.W_OK, "write"), (os.R_OK, "read")])
def test_missing_rights_name_path_user_and_right(run, machine, folder, missing, said):
    machine(missing=missing)
    for command in ("status", "doctor"):
        result = run(command)
        assert result.exit_code == Code.UNHEALTHY
        assert "User ann (uid 1000)" in result.output
        assert f"missing right: {said}" in result.output
        assert str(folder) in result.output


def test_commands_do_not_repeat_at_every_call_what_doctor_says(run, machine):
    machine(version="3.40.1")
    assert run("status").stderr == ""
