"""What commands say of mistakes, in the words of the command line."""

from __future__ import annotations

import pytest

from millpond.cli.exits import Code
from millpond.cli.words import spoken

APP = ("--app", "app:pond")


def test_a_store_that_is_not_there_is_named_by_its_whole_path(run, folder) -> None:
    result = run("status")
    assert result.exit_code == Code.FAILED
    assert f"there is no store at {folder}/millpond.db: " in result.stderr
    assert "--app" in result.stderr


def test_the_store_of_an_application_that_is_not_there_is_not_to_be_made_by_init(
    run, folder
) -> None:
    result = run("status", *APP)
    assert f"there is no store at {folder}/millpond.db: that is where app:pond" in result.stderr
    assert "init" not in result.stderr


def test_a_misspelt_application_is_one_line(run, folder) -> None:
    result = run("status", "--app", "ap:pond")
    assert (result.exit_code, result.stderr.count("\n")) == (Code.USAGE, 1)
    assert "did you mean app:pond?" in result.stderr


def test_an_application_that_fails_shows_its_own_lines_only(process, folder) -> None:
    (folder / "bad.py").write_text("import nowhere_at_all\n")
    for command in (("status", "--app", "bad:pond"), ("worker", "bad:pond")):
        result = process(*command)
        assert result.returncode == Code.FAILED
        assert "importlib" not in result.stderr
        assert f'File "{folder}/bad.py", line 1' in result.stderr
        last = "error: cannot load 'bad:pond': ModuleNotFoundError: No module named"
        assert result.stderr.splitlines()[-1].startswith(last)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--at", "2030-01-01"), "--at '2030-01-01' has no time zone"),
        (("--at", "2030-01-01"), "write 2030-01-01T00:00:00Z"),
        (("--at", "2030-01-01T00:00:00Z", "--delay", "1s"), "--delay and --at exclude each other"),
    ],
)
def test_options_are_called_by_their_names(run, folder, options, said) -> None:
    result = run("enqueue", "send", "to=ann", *APP, *options)
    assert result.exit_code == Code.USAGE
    assert said in result.stderr


def test_a_task_that_nobody_has_may_be_given_a_queue_by_option(run, folder) -> None:
    result = run("enqueue", "sent", *APP)
    assert "(with --queue the job is stored" in result.stderr


def test_a_line_of_a_file_speaks_of_its_fields(run, folder) -> None:
    (folder / "jobs.jsonl").write_text(
        '{"task": "send", "payload": {"to": "a"}, "at": "2030-01-01"}\n'
    )
    result = run("bulk", "jobs.jsonl", *APP)
    assert "line 1: at '2030-01-01' has no time zone" in result.stderr
    (folder / "jobs.jsonl").write_text('{"task": "sent"}\n')
    assert '(with "queue" the job is stored' in run("bulk", "jobs.jsonl", *APP).stderr


def test_a_task_that_the_application_no_longer_has_is_warned_of(run, folder, pond) -> None:
    pond.enqueue("sent", {}, queue="mail")
    from millpond.config import TaskSettings

    pond.store.put_tasks([TaskSettings("sent")]).result()
    result = run("enqueue", "sent", *APP)
    assert result.exit_code == Code.OK
    assert "warning: app:pond has no task 'sent'" in result.stderr
    assert "did you mean 'send'" in result.stderr
    assert run("enqueue", "sent").stderr == ""


def test_job_and_explain_name_the_same_causes(run, pond) -> None:
    pond.open()
    job, explain = run("job", "99"), run("explain", "99")
    assert (job.stderr, job.exit_code) == (explain.stderr, explain.exit_code)


def test_only_arguments_that_the_command_has_are_renamed() -> None:
    names = {"at": "--at", "key": "--key"}
    text = "at= and delay=, at=datetime(1), key='x', data_key= (at=) not-at="
    said = "--at and delay=, at=datetime(1), key='x', data_key= (--at) not-at="
    assert spoken(text, names) == said
