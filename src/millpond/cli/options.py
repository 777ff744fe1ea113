"""Options that commands share, and the store that they choose.

Every option has a twin in the environment, which its help shows.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import click

if TYPE_CHECKING:
    from millpond.app import Millpond
    from millpond.config import Settings, StoreConfig

    _Text: TypeAlias = click.ParamType[str]
    _Number: TypeAlias = click.ParamType[int]
else:  # older versions of click take no arguments there
    _Text = _Number = click.ParamType

P = ParamSpec("P")
R = TypeVar("R")

option = functools.partial(click.option, show_envvar=True)
"""click's option, whose help names the twin: MILLPOND_, the command's name, the option's."""

json_option = option("--json", "as_json", is_flag=True, envvar="MILLPOND_JSON", help="Print JSON.")
by_option = option(
    "--by", envvar="MILLPOND_BY", metavar="NAME", help="Who asks for it [default: your user name]."
)


@dataclass(frozen=True, slots=True)
class Place:
    """The store that a command was told to use: an address, an application, or the settings'."""

    url: str | None
    app: str | None

    def config(self) -> StoreConfig:
        """Return how the store is opened.

        Raises BadConfig for settings that cannot be, and what importing the application raises.
        """
        settings = self.be_quiet()
        _check_encoding(self.url or "")
        if self.url is None and self.app is not None:
            return application(self.app).config
        return settings.store

    def be_quiet(self) -> Settings:
        """Say of the store only what is wrong, unless the settings, which are returned, ask more.

        A worker, `init` and `doctor` tell about risks of the place; every `status` need not.
        """
        from millpond.config import load
        from millpond.log import configure

        settings = load(None, os.environ, {"store": {"url": self.url}})
        level = settings.log.level
        configure(settings.log.format, "error" if level == "info" else level)
        return settings

    @property
    def named(self) -> bool:
        """Whether somebody named the store, here or in the settings."""
        from millpond.config import DEFAULT_URL

        given = self.app is not None or self.url is not None
        return given or self.config().url != DEFAULT_URL

    @contextmanager
    def existing(self) -> Iterator[Millpond]:
        """Open the store that is there, for a `with` block; none is made, nothing is declared.

        Raises NoStore when there is none.
        """
        from millpond.app import Millpond

        with Millpond(config=self.checked()) as pond:
            yield pond

    def checked(self) -> StoreConfig:
        """Return how to open the store, having seen that it is there."""
        from millpond.store.upkeep import NoStore, schema_of

        config = self.config()
        schema = schema_of(config)
        # A store is often missed by its folder, which a relative path does not show.
        shown = os.path.abspath(config.address.path)  # noqa: PTH100  no links followed
        if schema is None:
            raise NoStore(f"there is no store at {shown}: {self._instead('makes this one')}")
        if schema.number == 0:
            raise NoStore(
                f"{shown} is there and holds no tables of millpond: {self._instead('adds them')}"
            )
        return config

    def _instead(self, init: str) -> str:
        if self.url is None and self.app is not None:
            return (
                f"that is where {self.app} has it; it is made when the application first uses it "
                "(is this the folder that it is started in?)"
            )
        return (
            "name the application that uses it with --app MODULE:POND, or another store with "
            f"--url or MILLPOND_URL; `millpond init` {init}"
        )


def application(name: str) -> Millpond:
    """Import `module:pond`.

    Raises BadConfig for a name that is no application; an import that fails shows its
    traceback, which tells most, and ends the command.
    """
    from millpond.app import Millpond
    from millpond.errors import BadConfig, MillpondError
    from millpond.worker import importing
    from millpond.worker.host import load_host

    try:
        host = load_host(name)
    except MillpondError:
        raise
    except Exception as error:
        importing.show(error)
        raise click.ClickException(importing.told(name, error)) from error
    if not isinstance(host, Millpond):
        raise BadConfig(f"{name!r} is a {type(host).__name__}: name a Millpond object")
    return host


def at_store(command: Callable[Concatenate[Place, P], R]) -> Callable[P, R]:
    """Add `--url` and `--app` to a command, which gets the Place as its first argument."""

    @option(
        "--url", envvar="MILLPOND_URL", metavar="ADDRESS",
        help="The store: a path or sqlite:///path [default: that of millpond.toml, "
        "else ./millpond.db].",
    )  # fmt: skip
    @option(
        "--app", envvar="MILLPOND_APP", metavar="MODULE:POND",
        help="An application, whose store is used.",
    )  # fmt: skip
    @functools.wraps(command)
    def run(*args: Any, url: str | None, app: str | None, **more: Any) -> R:
        return command(_place(url, app), *args, **more)

    return run  # type: ignore[return-value]


def typed(context: click.Context, *names: str) -> bool:
    """Tell whether one of these options was typed; without names, one that chooses the store."""
    source, typing = context.get_parameter_source, click.core.ParameterSource.COMMANDLINE
    return any(source(name) is typing for name in names or ("url", "app"))


def _place(url: str | None, app: str | None) -> Place:
    """What was typed wins over the environment; of two that were typed, the address."""
    context = click.get_current_context()
    if url and app and typed(context, "app") and not typed(context, "url"):
        return Place(None, app)
    return Place(url, app)


def _check_encoding(url: str) -> None:
    from millpond.errors import BadConfig

    try:
        url.encode()
    except UnicodeEncodeError:
        raise BadConfig("the store's address is no valid UTF-8: rename the file") from None


def operator(by: str | None) -> str | None:
    """Return who asks for a change: the name given, else that of the user."""
    if by is not None:
        return by
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return None


class Name(_Text):
    """The name of a task or queue; also as part of a text that commas separate."""

    name = "name"
    envvar_list_splitter = ","


class JobNumber(_Number):
    """A job's id; any number of digits is one, though no job may have it."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, as large as Python reads one."""
        from millpond.cli.words import clean

        text = str(value)
        if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS:
            return int(text)
        return self.fail(f"{clean(text, 60)!r} is no job id: ids are numbers", param, ctx)


_MOST_DIGITS = 4_000
"""Python refuses to read numbers of more than 4,300 digits."""

NAME, JOB = Name(), JobNumber()
