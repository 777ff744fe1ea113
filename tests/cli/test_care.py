"""Verify, reconcile, doctor, and what a mistyped command is told."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from millpond.cli.exits import Code
from millpond.cli.root import COMMANDS

# care


def test_verify_and_reconcile_find_a_counter_that_was_bent_and_repair_mends_it(run, ask, pond):
    pond.enqueue("a", {}, queue="q")
    pond.close()
    with closing(sqlite3.connect("millpond.db")) as bent:
        bent.execute("UPDATE millpond_workload SET n_jobs = 7")
        bent.commit()
    assert run("verify").exit_code == Code.UNHEALTHY
    result = run("reconcile", "--json")
    assert result.exit_code == Code.UNHEALTHY
    assert json.loads(result.stdout)["drift"][0]["counted"] == 1
    doctor = run("doctor")
    assert doctor.exit_code == Code.UNHEALTHY
    assert "millpond reconcile --repair" in doctor.stdout
    assert run("reconcile", "--repair").exit_code == 0
    assert ask("reconcile") == {"drift": [], "repaired": False}
    assert ask("verify") == {"ok": True, "problems": []}


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("DROP INDEX millpond_final_state", "millpond_final_state"),
        ("DROP VIEW millpond_jobs_view", "millpond_jobs_view"),
        ("DROP TABLE millpond_ready", "millpond_ready"),
        ("ALTER TABLE millpond_event ADD COLUMN colour TEXT", "millpond_event"),
    ],
)
def test_doctor_names_what_is_missing_or_changed_in_the_schema_b28(run, pond, damage, name):
    pond.close()
    with closing(sqlite3.connect("millpond.db")) as bent:
        bent.execute(damage)
        bent.commit()
    result = run("doctor")
    assert result.exit_code == Code.UNHEALTHY
    assert any(name in line for line in result.stdout.splitlines() if line.startswith("serious"))


def test_doctor_shows_the_relaxed_mode_b04(run, pond, ask):
    env = {"MILLPOND_SYNCHRONOUS": "normal"}
    result = run("doctor", env=env)
    assert result.exit_code == 0
    assert "warning  synchronous is 'normal'" in result.stdout
    assert "synchronous is 'full'" in run("doctor").stdout


def test_doctor_of_a_place_without_a_store_says_how_to_make_one(run, folder):
    result = run("doctor")
    assert result.exit_code == Code.UNHEALTHY
    assert "millpond init" in result.stdout
    assert not (folder / "millpond.db").exists()


def test_doctor_refuses_a_missing_folder_with_its_name(run, folder):
    result = run("doctor", "--url", "nowhere/x.db")
    assert result.exit_code == Code.UNHEALTHY
    assert "mkdir -p" in result.stdout


# the whole


def test_a_mistyped_command_or_option_is_answered_with_the_closest(run, folder):
    result = run("stauts")
    assert result.exit_code == Code.USAGE
    assert "did you mean status?" in result.stderr
    result = run("status", "--jsn")
    assert result.exit_code == Code.USAGE
    assert "--json" in result.stderr


def test_settings_that_cannot_be_are_a_usage_error_that_names_them(run, pond):
    result = run("status", env={"MILLPOND_BUSY": "soon"})
    assert result.exit_code == Code.USAGE
    assert "MILLPOND_BUSY" in result.stderr
    result = run("status", "--url", "postgresql://user:secret@host/db")
    assert result.exit_code == Code.USAGE
    assert "secret" not in result.stderr


def test_the_list_of_commands_says_what_their_own_help_says(run, folder):
    overview = " ".join(run("--help").stdout.split())
    for name, (_, about) in COMMANDS.items():
        assert about in overview
        assert run(name, "--help").exit_code == 0


def test_the_version_is_told(run, folder):
    assert run("--version").stdout.startswith("millpond ")
