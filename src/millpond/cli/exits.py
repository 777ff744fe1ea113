"""How a command ends: exit codes, and errors as one clear line instead of a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any, NoReturn

import click

from millpond.cli.words import clean, seconds

DEBUG = "MILLPOND_DEBUG"
"""Set to anything, errors show their traceback."""

INTERRUPTED = 130
"""What shells report for a command that was ended with Ctrl-C."""


class Code(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_FOUND = 4
    UNHEALTHY = 5
    SCHEMA = 6


class NotFound(click.ClickException):
    """What was named is not there."""

    exit_code = Code.NOT_FOUND


MEANINGS = {
    Code.OK: "done",
    Code.FAILED: "failed: standard error says why",
    Code.USAGE: "the command, an option, a setting or a payload cannot be",
    Code.REFUSED: "refused by admission: nothing was stored, try again later",
    Code.NOT_FOUND: "there is no job, task or queue of that name",
    Code.UNHEALTHY: "something is wrong with the store, or it cannot be used safely",
    Code.SCHEMA: "the store's schema is older or newer than this millpond can work with",
}


def end(code: Code) -> NoReturn:
    """End the command with an exit code, after everything was printed."""
    raise click.exceptions.Exit(int(code))


def run(call: Callable[[], Any]) -> int:
    """Run a command and return its exit code; whatever went wrong is told on standard error.

    Only what no code of ours raises on purpose passes through, with its traceback: a bug.
    """
    try:
        code = call()
        sys.stdout.flush()
    except click.ClickException as error:
        return _refused(error)
    except (click.Abort, KeyboardInterrupt):
        _tell("")
        return INTERRUPTED
    except OSError as error:
        if os.environ.get(DEBUG):
            raise
        return _broken(error)
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        return _failed(error)
    return code if isinstance(code, int) else int(Code.OK)


def code_of(error: BaseException) -> Code | None:
    """Return the exit code of an error, None for one that is nobody's purpose."""
    # Imported here: a help page needs none of them.
    from millpond import errors

    codes = (
        (errors.Overloaded, Code.REFUSED),
        (errors.JobNotFound, Code.NOT_FOUND),
        (errors.UnknownTask, Code.NOT_FOUND),
        (errors.BadPayload, Code.USAGE),
        (errors.BadConfig, Code.USAGE),
        (errors.SchemaTooOld, Code.SCHEMA),
        (errors.SchemaTooNew, Code.SCHEMA),
        (errors.UnsafeStorage, Code.UNHEALTHY),
        (errors.InvariantBroken, Code.UNHEALTHY),
        (errors.MillpondError, Code.FAILED),
    )
    return next((code for kind, code in codes if isinstance(error, kind)), None)


def _failed(error: Exception) -> int:
    code = code_of(error)
    if code is None:
        raise error
    _tell(f"error: {error}")
    retry_after = getattr(error, "retry_after", None)
    if code is Code.REFUSED and retry_after is not None:
        _tell(f"retry after {seconds(retry_after)}")
    return int(code)


def _broken(error: OSError) -> int:
    """Tell what could not be written; a pipe that nobody reads any more is no news."""
    where = f"{error.filename}: " if error.filename else ""
    if error.errno != errno.EPIPE:
        _tell(f"error: {where}{error.strerror or error}")
    return _give_up_output(Code.FAILED)


def _refused(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if context is not None:
        _tell(context.get_usage())
        _tell(f"Try '{context.command_path} --help' for help.")
        _tell("")
    _tell(f"error: {error.format_message()}")
    return int(error.exit_code)


def _tell(text: str) -> None:
    with suppress(OSError):  # standard error may be closed, and there is nobody else to tell
        click.echo("\n".join(map(clean, text.split("\n"))), err=True)


def _give_up_output(code: Code) -> int:
    """Keep the interpreter from complaining at its end about what it could not print."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return int(code)
