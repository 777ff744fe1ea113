from __future__ import annotations

import click
import pytest

from millpond import errors
from millpond.cli.exits import MEANINGS, Code, NotFound, code_of, run
from millpond.store.upkeep import NoStore


def raising(error):
    def call():
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Overloaded("full", reason="queue_full", queue="q", workload="w"), Code.REFUSED),
        (errors.JobNotFound("x"), Code.NOT_FOUND),
        (errors.UnknownTask("x"), Code.NOT_FOUND),
        (errors.BadPayload("x"), Code.USAGE),
        (errors.BadConfig("x"), Code.USAGE),
        (errors.SchemaTooOld("x"), Code.SCHEMA),
        (errors.SchemaTooNew("x"), Code.SCHEMA),
        (errors.UnsafeStorage("x"), Code.UNHEALTHY),
        (errors.InvariantBroken("x"), Code.UNHEALTHY),
        (errors.StoreBusy("x"), Code.FAILED),
        (errors.StoreFull("x"), Code.FAILED),
        (NoStore("x"), Code.FAILED),
        (NotFound("x"), Code.NOT_FOUND),
        (click.UsageError("x"), Code.USAGE),
        (click.ClickException("x"), Code.FAILED),
        (PermissionError(13, "Permission denied", "f"), Code.FAILED),
        (BrokenPipeError(32, "Broken pipe"), Code.FAILED),
        (click.Abort(), 130),
        (KeyboardInterrupt(), 130),
    ],
    ids=repr,
)
def test_every_error_has_its_exit_code_and_shows_no_traceback(capsys, error, code):
    assert run(raising(error)) == code
    assert "Traceback" not in capsys.readouterr().err


def test_every_error_of_millpond_has_a_code():
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MillpondError)
    ]
    assert len(kinds) > 15
    for kind in kinds:
        assert code_of(kind.__new__(kind)) is not None


def test_every_code_is_explained():
    assert set(MEANINGS) == set(Code)


def test_a_refusal_says_when_to_try_again(capsys):
    error = errors.Overloaded(
        "queue reports is full",
        reason="queue_full",
        queue="reports",
        workload="w",
        retry_after=12.2,
    )
    assert run(raising(error)) == Code.REFUSED
    assert capsys.readouterr().err.splitlines() == [
        "error: queue reports is full",
        "retry after 13 s",
    ]


def test_a_message_cannot_move_the_cursor(capsys):
    run(raising(errors.BadConfig("a\x1b[2Jb\nc\x07")))
    assert capsys.readouterr().err == "error: a\\x1b[2Jb\nc\\x07\n"


def test_a_broken_pipe_is_quiet(capsys):
    run(raising(BrokenPipeError(32, "Broken pipe")))
    assert capsys.readouterr().err == ""


def test_a_bug_shows_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run(raising(ZeroDivisionError()))


def test_on_request_every_error_shows_its_traceback(monkeypatch):
    monkeypatch.setenv("MILLPOND_DEBUG", "1")
    with pytest.raises(errors.BadConfig):
        run(raising(errors.BadConfig("x")))


def test_a_command_that_returns_nothing_is_fine():
    assert run(lambda: None) == Code.OK
    assert run(lambda: 5) == Code.UNHEALTHY
