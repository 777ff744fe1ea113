"""`prune`, `archive` and `backup` (R22)."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from millpond import Millpond

PAST = {"MILLPOND_CLOCK_OFFSET": str(9 * 86_400)}
"""Nine days ahead: completed and cancelled jobs are past their time, failed ones are not."""


@pytest.fixture
def jobs(pond: Millpond) -> list[int]:
    """Ten jobs that were cancelled, and one that waits."""

    @pond.task
    def work(n: int) -> None: ...

    refs = [work.enqueue(n) for n in range(11)]
    for ref in refs[:10]:
        pond.cancel(ref.id)
    return [ref.id for ref in refs]


def left(pond: Millpond) -> list[int]:
    return sorted(job.id for job in pond.jobs())


def archived(file: Path) -> list[int]:
    return [json.loads(line)["id"] for line in file.read_text().splitlines()]


def test_prune_deletes_what_is_past_its_time(pond: Millpond, jobs, run, monkeypatch) -> None:
    assert run("prune").stdout == "0 jobs deleted\n"
    monkeypatch.setenv("MILLPOND_CLOCK_OFFSET", PAST["MILLPOND_CLOCK_OFFSET"])
    result = run("prune")
    assert (result.exit_code, result.stdout) == (0, "10 jobs deleted\n")
    assert left(pond) == jobs[10:]


def test_a_dry_run_counts_by_state(pond: Millpond, jobs, run, ask) -> None:
    told = ask("prune", "--dry-run", "--cancelled", "0")
    assert told == {"prunable": {"completed": 0, "failed": 0, "cancelled": 10}, "jobs": 10}
    shown = run("prune", "--dry-run", "--cancelled", "0").stdout
    assert "10 jobs would be deleted; nothing was changed" in shown
    assert "10 cancelled" in shown
    assert left(pond) == jobs


def test_windows_are_those_of_the_settings(pond: Millpond, jobs, run, folder: Path) -> None:
    (folder / "millpond.toml").write_text('[retention]\ncancelled = "0s"\n')
    assert run("prune", "--cancelled", "1d").stdout == "0 jobs deleted\n"
    assert run("prune").stdout == "10 jobs deleted\n"


@pytest.mark.parametrize("command", ["archive", "prune"])
def test_archived_jobs_stand_in_the_file(
    pond: Millpond, jobs, ask, folder: Path, command: str
) -> None:
    if command == "archive":
        assert ask("archive", "old.jsonl", "--older-than", "0") == {"jobs": 10}
    else:
        assert ask("prune", "--archive", "old.jsonl", "--cancelled", "0") == {"jobs": 10}
    assert archived(folder / "old.jsonl") == jobs[:10]
    assert left(pond) == jobs[10:]


def test_an_archive_that_is_a_store_is_read_with_the_same_commands(
    pond: Millpond, jobs, run, ask
) -> None:
    assert run("archive", "old.db", "--older-than", "0").stdout == "10 jobs moved to old.db\n"
    assert len(ask("jobs", "state:cancelled", "--url", "old.db")["jobs"]) == 10
    assert ask("job", "1", "--url", "old.db")["payload"] == {"n": 0}
    assert run("verify", "--url", "old.db").exit_code == 0
    refused = run("retry", "1", "--url", "old.db")
    assert refused.exit_code == 1
    assert "archive of" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("archive", "notes.txt"), "something else"),
        (("archive", "millpond.db"), "belongs to the store"),
        (("archive", "old.jsonl.gz"), "compress it"),
        (("archive", "old.jsonl", "--older-than", "long"), "length of time"),
        (("prune", "--failed", "long"), "length of time"),
        (("backup", "notes.txt"), "there already"),
        (("backup", "nowhere/copy.db"), "no folder"),
        (("backup", "millpond.db"), "belongs to the store"),
    ],
)
def test_files_that_must_not_be_written_are_refused(
    pond: Millpond, jobs, run, arguments: tuple[str, ...], said: str
) -> None:
    Path("notes.txt").write_text("mine")
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert Path("notes.txt").read_text() == "mine"
    assert left(pond) == jobs


def test_a_backup_is_a_sound_store(pond: Millpond, jobs, run, ask, folder: Path) -> None:
    told = ask("backup", "copy.db")
    assert (told["path"], told["size"]) == (
        str(folder / "copy.db"), (folder / "copy.db").stat().st_size
    )  # fmt: skip
    assert run("verify", "--url", "copy.db").exit_code == 0
    assert len(ask("jobs", "--url", "copy.db")["jobs"]) == 11
    assert "checked" in run("backup", "second.db").stdout


@pytest.mark.parametrize("command", ["prune", "archive", "backup"])
def test_none_of_them_makes_a_store(run, folder: Path, command: str) -> None:
    arguments = () if command == "prune" else ("file.x",)
    result = run(command, *arguments)
    assert result.exit_code == 1
    assert "there is no store" in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["app.py"]


@pytest.mark.parametrize("step", ["archive-written", "archive-synced", "archive-deleted"])
@pytest.mark.parametrize("name", ["old.jsonl", "old.db"])
def test_a_killed_archive_goes_on_with_the_same_command(
    pond: Millpond, jobs, process, name: str, step: str
) -> None:
    """Nothing is missing, nothing is there twice, whatever the step."""
    command = ("archive", name, "--older-than", "0")
    assert process(*command, MILLPOND_FAULT=f"{step}:kill").returncode == -signal.SIGKILL
    assert process(*command).returncode == 0
    assert left(pond) == jobs[10:]
    if name == "old.jsonl":
        assert archived(Path(name)) == jobs[:10]
    else:
        shown = process("jobs", "--url", name, "--json")
        assert [job["id"] for job in json.loads(shown.stdout)["jobs"]] == jobs[9::-1]
