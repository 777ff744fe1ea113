"""`millpond init` and `millpond migrate`: the store's schema, and the settings' file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millpond.cli.exits import Code, end
from millpond.cli.options import Place, at_store, json_option, option, typed
from millpond.cli.screen import print_json, say

if TYPE_CHECKING:
    from millpond.config import StoreConfig
    from millpond.store.upkeep import Schema

_DEFAULT_LINE = '#url = "./millpond.db"'

_FIRST_APP = """\
from millpond import Millpond

pond = Millpond()

@pond.task
def hello(name: str) -> str:
    return f"hello {name}"
"""


@click.command()
@json_option
@at_store
def init(at: Place, /, *, as_json: bool) -> None:
    """Make the store, or bring its schema up to date, and write millpond.toml beside you.

    A millpond.toml that is there is left as it is.
    """
    from millpond.config import FILE_NAME, shown_url
    from millpond.store.upkeep import gate_findings, migrate_store, schema_of

    config = at.config()
    before = schema_of(config)
    applied = migrate_store(config)
    written = _write_config(config, named=typed(click.get_current_context(), "url"))
    fresh = before is None or before.number == 0
    if as_json:
        print_json(
            {
                "store": shown_url(config.url),
                "created": fresh,
                "applied": applied,
                "config": FILE_NAME,
                "config_written": written,
            }
        )
        return
    say(*_told(shown_url(config.url), applied, fresh=fresh))
    say(_config_line(config, written=written))
    say(*(f"note: {finding}" for finding in gate_findings(config) if finding.severity != "ok"))
    click.echo("")
    click.echo("Next: put a task into app.py, start a worker, and give it work:\n")
    click.echo("\n".join(f"    {line}".rstrip() for line in _FIRST_APP.splitlines()))
    click.echo("\n    millpond worker app:pond")
    click.echo("    millpond enqueue hello name=world --app app:pond")


def _told(store: str, applied: list[int], *, fresh: bool) -> list[str]:
    if fresh:
        return [f"made the store {store}, schema {max(applied)}"]
    if applied:
        return [f"brought the store {store} to schema {max(applied)}"]
    return [f"the store {store} is there and up to date"]


def _write_config(config: StoreConfig, *, named: bool) -> bool:
    """Write the settings' file unless there is one; the address is set in it when it was named."""
    from millpond.config import EXAMPLE_TOML, FILE_NAME

    text = EXAMPLE_TOML
    if named:
        # A JSON text without escapes of its own is a TOML text as well.
        text = text.replace(_DEFAULT_LINE, f"url = {json.dumps(config.url, ensure_ascii=False)}", 1)
    try:
        with Path(FILE_NAME).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


def _config_line(config: StoreConfig, *, written: bool) -> str:
    from millpond.config import FILE_NAME, load

    if written:
        return f"wrote {FILE_NAME}: every setting with its default, explained"
    if load(FILE_NAME, {}).store.url != config.url:
        return f"{FILE_NAME} is left as it is; it names another store, so say --url, or change it"
    return f"{FILE_NAME} is left as it is"


@click.command()
@option("--check", is_flag=True, help="Change nothing; exit code 6 when there is something to do.")
@json_option
@at_store
def migrate(at: Place, /, *, check: bool, as_json: bool) -> None:
    """Bring the store's schema up to date.

    Safe while workers run: each migration is one transaction, and is applied by one process.
    """
    from millpond.store.upkeep import migrate_store, schema_of

    config = at.checked()
    applied = [] if check else migrate_store(config)
    after = schema_of(config)
    assert after is not None  # noqa: S101  it was there a moment ago
    if as_json:
        state = after.state.value
        print_json(
            {"schema": after.number, "known": after.known, "state": state, "applied": applied}
        )
    else:
        say(_state_line(after, applied))
    end(_code(after))


def _state_line(schema: Schema, applied: list[int]) -> str:
    from millpond.store.upkeep import SchemaState

    numbers = f"the store has schema {schema.number}, this millpond knows {schema.known}"
    if applied:
        return f"applied {', '.join(map(str, applied))}: {numbers}"
    match schema.state:
        case SchemaState.CURRENT:
            return f"nothing to do: {numbers}"
        case SchemaState.BEHIND:
            return f"{numbers}: run `millpond migrate`"
        case SchemaState.NEWER_COMPATIBLE:
            return f"{numbers}, and can work with it"
        case SchemaState.NEWER_INCOMPATIBLE:
            return f"{numbers}, and cannot work with it: upgrade millpond"


def _code(schema: Schema) -> Code:
    from millpond.store.upkeep import SchemaState

    fits = schema.state in {SchemaState.CURRENT, SchemaState.NEWER_COMPATIBLE}
    return Code.OK if fits else Code.SCHEMA
