"""The command `millpond` itself: finds its commands by name and imports only the one it runs."""

from __future__ import annotations

import difflib
import functools
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from millpond.cli.exits import run
from millpond.cli.words import clean

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("demo:demo", "Watch millpond work: a temporary store, two workers, a crash."),
    "init": ("setup:init", "Make or update the store, and write millpond.toml."),
    "worker": ("work:worker", "Run the jobs of an application."),
    "enqueue": ("produce:enqueue", "Store one job."),
    "bulk": ("bulk:bulk", "Store the jobs of a JSONL file."),
    "status": ("status:status", "Show queues and workers, the verdict first."),
    "jobs": ("jobs:jobs", "List jobs, newest first."),
    "job": ("jobs:job", "Show one job with its history."),
    "explain": ("explain:explain", "Say why a job is not running."),
    "failures": ("review:failures", "Show failed jobs by kind of error."),
    "retry": ("review:retry", "Put final jobs back."),
    "discard": ("review:discard", "Delete final jobs."),
    "cancel": ("review:cancel", "Cancel jobs."),
    "events": ("events:events", "Show what people did, and why."),
    "queues": ("act:queues", "List queues, pause or resume one."),
    "workers": ("status:workers", "List workers."),
    "doctor": ("care:doctor", "Look for what is wrong, each finding with its cure."),
    "verify": ("care:verify", "Check the file, every job and every counter."),
    "reconcile": ("care:reconcile", "Recount the counters, and mend them when asked."),
    "prune": ("retention:prune", "Delete final jobs past their time."),
    "archive": ("retention:archive", "Move final jobs to a file."),
    "backup": ("retention:backup", "Copy the store while it is in use."),
    "migrate": ("setup:migrate", "Bring the store's schema up to date."),
}
"""Where each command stands and what it does, so that the help page imports none of them."""

EPILOG = """\
Settings come from options, MILLPOND_… variables, and millpond.toml (or the file that
MILLPOND_CONFIG names), in this order. Exit codes: 0 ok, 1 failed, 2 usage, 3 refused by
admission, 4 not found, 5 unhealthy, 6 schema mismatch."""


class Lazy(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's own form
        """Return the names, in the order of the help page."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command, None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(import_module(f"millpond.cli.{module}"), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  COMMANDS names nothing else
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; one that is not there is answered with the closest."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            close = difflib.get_close_matches(name, COMMANDS, n=3)
            hint = f"did you mean {' or '.join(close)}?" if close else f"see {ctx.info_name} --help"
            ctx.fail(f"there is no command {clean(name, 60)!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command; by itself, errors become a line and an exit code."""
        call = functools.partial(super().main, *args, **extra, standalone_mode=False)
        if not standalone_mode:
            return call()
        _never_fail_to_print()

        def checked() -> Any:
            given = extra.get("args") or (args[0] if args else None)
            _check_texts(sys.argv[1:] if given is None else given)
            return call()

        sys.exit(run(checked))


def _check_texts(arguments: Sequence[str]) -> None:
    """Refuse what no column, address or file of millpond's could hold."""
    ours = {name: text for name, text in os.environ.items() if name.startswith("MILLPOND_")}
    given = [("argument", text) for text in arguments]
    for what, text in [*given, *ours.items()]:
        try:
            text.encode()
        except UnicodeEncodeError:
            msg = f"{what} '{clean(text, 60)}' is no valid UTF-8: give it in UTF-8"
            raise click.UsageError(msg) from None


def _never_fail_to_print() -> None:
    """Show as an escape what the terminal's encoding does not have."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _version(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("millpond")
        except PackageNotFoundError:
            number = "from a folder, not installed"
        click.echo(f"millpond {number}")
        ctx.exit()


@click.group(
    cls=Lazy,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={
        "auto_envvar_prefix": "MILLPOND",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
@click.pass_context
def root(ctx: click.Context) -> None:
    """A durable background job queue on one SQLite file."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
