"""Writes docs/reference/cli.md from the commands themselves: `python -m millpond.cli.reference`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from millpond.cli.exits import MEANINGS
from millpond.cli.query import TOKENS
from millpond.cli.root import COMMANDS, root

PAGE = Path("docs/reference/cli.md")

_HEAD = """\
# Command line

<!-- Made by `python -m millpond.cli.reference`; a test compares it with the commands. -->

`millpond COMMAND …`, or `python -m millpond COMMAND …`. `millpond COMMAND --help` shows what
stands here.

The store is the one of `--url`, else that of the application in `--app`, else that of the
settings: the variable `MILLPOND_URL`, then `millpond.toml`, then `./millpond.db`. What was
typed wins over the environment. Only `init`, `worker` and `enqueue` or `bulk` with a store that
somebody named make one; all other commands say when there is none.

Every option has a twin in the environment, named beside it. `--json` prints JSON: one object,
or one a line where a command goes on (`--watch`, `--follow`); times in it are RFC 3339 in UTC
with milliseconds. Tables are drawn with colours when rich is installed (`pip install
'millpond[rich]'`), the output is a terminal and `NO_COLOR` is not set. Characters that would
move a terminal's cursor or change its colours are shown as escapes, wherever they come from.

Errors are one line on standard error; with `MILLPOND_DEBUG=1` they come with a traceback.
Commands keep quiet about risks of the machine, which `init`, `worker` and `doctor` tell;
`MILLPOND_LOG_LEVEL=warning` makes all of them speak.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, _codes(), _queries(), *_commands()])


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Yield every command with its context, those inside groups after the group."""
    top = click.Context(root, info_name="millpond", **root.context_settings)
    for name in COMMANDS:
        yield from _with_parts(root.get_command(top, name), name, top)


def _with_parts(
    command: click.Command | None, name: str, above: click.Context
) -> Iterator[tuple[click.Context, click.Command]]:
    if command is None:
        return
    context = click.Context(command, info_name=name, parent=above)
    yield context, command
    if isinstance(command, click.Group):
        for part, inner in command.commands.items():
            yield from _with_parts(inner, part, context)


def _codes() -> str:
    rows = "\n".join(f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items())
    return f"## Exit codes\n\n| code | means |\n|---|---|\n{rows}\n"


def _queries() -> str:
    rows = "\n".join(f"| `{token}:` | {about} |" for token, (_, about) in TOKENS.items())
    return (
        "## Queries\n\nWhat `millpond jobs` finds is said with tokens, all of which must fit. A "
        "value with blanks stands in quotes: `'key:\"report 812\"'`.\n\n"
        f"| token | means |\n|---|---|\n{rows}\n"
    )


def _commands() -> Iterator[str]:
    yield "## Commands\n"
    for context, command in commands():
        yield _section(context, command)


def _section(context: click.Context, command: click.Command) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    about = inspect.cleandoc(command.help or "")
    table = "\n".join(_options(context, command))
    return f"### {context.command_path}\n\n    {usage}\n\n{about}\n\n{table}\n"


def _options(context: click.Context, command: click.Command) -> Iterator[str]:
    yield "| option | does | twin |"
    yield "|---|---|---|"
    for option in command.params:
        names = " ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        if isinstance(option, click.Argument):
            if option.envvar:
                yield f"| `{option.make_metavar(context)}` | | `{twin(context, option)}` |"
            continue
        yield f"| {names}{_value(context, option)} | {_about(option)} | `{twin(context, option)}` |"


def _value(context: click.Context, option: click.Parameter) -> str:
    if getattr(option, "is_flag", False):
        return ""
    shown = option.make_metavar(context).replace("|", "\\|")
    return f" {shown}"


def _about(option: click.Parameter) -> str:
    text = getattr(option, "help", "") or ""
    default = option.default
    if isinstance(default, (int, str)) and not isinstance(default, bool):
        text += f" [default: {default}]"
    return text.replace("|", "\\|")


def twin(context: click.Context, option: click.Parameter) -> str:
    """Return the name of an option's variable."""
    if isinstance(option.envvar, str):
        return option.envvar
    return f"{context.auto_envvar_prefix}_{(option.name or '').upper()}"


def main() -> None:
    """Write the page below the working folder, or print it with `-`."""
    if sys.argv[1:] == ["-"]:
        click.echo(page(), nl=False)
        return
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
