"""What is typed wrong, or is no text, ends as one clear line and exit code 2."""

from __future__ import annotations

import pytest

from millpond.cli.exits import Code

BAD = "j\udcff"


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", f"key:{BAD}"),
        ("jobs", f"queue:{BAD}"),
        ("queues", "pause", BAD),
        ("cancel", "1", "--by", BAD),
        ("retry", "--where", f"task:{BAD}"),
        ("worker", "app:pond", "-q", BAD),
        ("enqueue", "send", f"to={BAD}"),
        ("result", BAD),
        (BAD,),
        ("backup", BAD),
    ],
    ids=repr,
)
def test_an_argument_that_is_no_text_is_a_usage_error(run, arguments) -> None:
    result = run(*arguments)
    assert result.exit_code == Code.USAGE
    assert r"j\udcff' is no valid UTF-8" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["MILLPOND_INBOX", "MILLPOND_BY", "MILLPOND_FAULT"])
def test_a_variable_that_is_no_text_is_a_usage_error(process, name) -> None:
    result = process("status", **{name: BAD})
    assert result.returncode == Code.USAGE
    assert f"{name} 'j\\udcff' is no valid UTF-8" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("status",), ("worker", "app:pond", "--drain"), ("init",)])
def test_fault_points_that_cannot_be_understood_are_one_line(process, arguments) -> None:
    result = process(*arguments, MILLPOND_FAULT="junk")
    assert result.returncode == Code.USAGE
    assert result.stderr.startswith("error: MILLPOND_FAULT is 'junk': it must be POINT:ACTION")
    assert result.stderr.count("\n") == 1


def test_the_command_alone_shows_its_help(run) -> None:
    alone, asked = run(), run("--help")
    assert (alone.exit_code, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout
    assert "Commands:" in alone.stdout


@pytest.mark.parametrize("act", ["retry", "discard", "cancel"])
def test_yes_is_taken_with_ids_and_changes_nothing(run, act) -> None:
    assert run("enqueue", "send", "to=ann", "--app", "app:pond").exit_code == 0
    if act != "cancel":
        assert run("cancel", "1").exit_code == 0
    assert run(act, "1", "--yes").exit_code == 0
