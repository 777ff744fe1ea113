"""`millpond enqueue`: one job from the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import click

from millpond.cli.options import NAME, Place, application, at_store, option, typed
from millpond.cli.screen import print_json
from millpond.cli.words import clean, spoken

if TYPE_CHECKING:
    from millpond.app import Millpond
    from millpond.model import Admission, JobSpec

_UNREAD = 64 * 1024 * 1024
"""Bytes that are read from standard input at most: no payload can be larger."""


@click.command()
@click.argument("task", type=NAME)
@click.argument("pairs", nargs=-1, metavar="[K=V]...")
@option(
    "--json", "payload", envvar="MILLPOND_ENQUEUE_JSON", metavar="PAYLOAD",
    help="The arguments as a JSON object; - reads standard input.",
)  # fmt: skip
@option("--queue", type=NAME, help="The queue, instead of the task's.")
@option("--workload", type=NAME, help="The workload, instead of the task's.")
@option("--priority", type=int, metavar="N", help="Smaller goes first.")
@option("--delay", metavar="LENGTH", help="Due so much later: 30, 10m, 1h30m.")
@option(
    "--at", "due", envvar="MILLPOND_ENQUEUE_AT", metavar="TIME",
    help="Due at a time with its zone: 2030-01-31T08:00:00Z.",
)  # fmt: skip
@option("--max-attempts", type=int, metavar="N", help="How often it is tried.")
@option("--key", help="The same key gives the same job back.")
@option("--coalesce", metavar="KEY", help="Merge into the job of this key that waits.")
@option("--operation-id", metavar="ID", help="Names the operation over all attempts.")
@option("--meta", metavar="JSON", help="An object kept with the job.")
@option(
    "--print", "shown", envvar="MILLPOND_ENQUEUE_PRINT", type=click.Choice(["id", "json"]),
    default="id", help="Print the id, or the whole answer.",
)  # fmt: skip
@at_store
def enqueue(
    at: Place,
    /,
    *,
    task: str,
    pairs: tuple[str, ...],
    payload: str | None,
    shown: str,
    **options: Any,
) -> None:
    """Store one job and print its id.

    With --app the arguments are those of the function and are checked as it would; the text
    after = is read as the parameter's type. Without it, what is valid JSON is read as JSON
    and the rest is text.

    Refused by admission: exit code 3. A store that nobody named is not made.
    """
    given = {name: value for name, value in _options(options).items() if value is not None}
    producer = Producer(at)
    with producer, _in_options():
        arguments = producer.arguments(task, pairs, payload)
        answer = producer.store(task, arguments, given)
    _print(answer, shown)


@contextmanager
def _in_options() -> Iterator[None]:
    """Let errors name options of this command instead of arguments of Python."""
    from millpond.errors import BadConfig, UnknownTask

    options = [name for param in click.get_current_context().command.params for name in param.opts]
    names = {name.lstrip("-").replace("-", "_"): name for name in options if name[:2] == "--"}
    try:
        yield
    except (BadConfig, UnknownTask) as error:
        raise type(error)(spoken(str(error), names)) from error


def _options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as `using(...)` takes them."""
    from millpond.codec import parse_json

    read = dict(options)
    due, meta = read.pop("due"), read.pop("meta")
    read["at"] = None if due is None else parse_moment(due, "--at")
    read["meta"] = None if meta is None else loads(parse_json(meta, task="--meta"))
    return read


def parse_moment(text: str, where: str) -> datetime:
    """Return an aware datetime from RFC 3339 text; `where` it stands is told when it is none."""
    shown = clean(text, 60)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        msg = f"{where} {shown!r} is no time: write it as 2030-01-31T08:00:00Z"
        raise click.UsageError(msg) from error
    if moment.utcoffset() is None:
        raise click.UsageError(
            f"{where} {shown!r} has no time zone, so it could be any of 24 hours: write "
            f"{moment.isoformat()}Z, or an offset such as +05:30 in place of the Z"
        )
    return moment


def loads(data: bytes) -> Any:
    """Return the value of strict JSON."""
    import msgspec

    return msgspec.json.decode(data)


class Producer:
    """Where jobs go: the application's own store, or one whose code is not here."""

    def __init__(self, at: Place) -> None:
        at.be_quiet()
        app = None if at.app is None else application(at.app)
        # The application's tasks may be wanted for another store than its own.
        elsewhere = at.url is not None and typed(click.get_current_context(), "url")
        self.pond: Millpond = _opened(at) if app is None or elsewhere else app
        self.declared: Millpond = app or self.pond
        self._app = at.app
        self._warned: set[str] = set()
        self._stored: dict[str, JobSpec] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pond.close()
        self.declared.close()

    def arguments(self, task: str, pairs: tuple[str, ...], payload: str | None) -> Any:
        """Return the payload that was typed.

        Raises BadPayload with its path, or a usage error.
        """
        if payload is not None and pairs:
            raise click.UsageError("give the arguments as K=V or with --json, not both")
        if payload is not None:
            return self._parsed(task, _read(payload))
        texts = dict(map(_pair, pairs))
        if len(texts) < len(pairs):
            raise click.UsageError("an argument is given twice")
        known = self.declared.registry.get(task)
        if known is None:
            return {name: self._guess(task, text) for name, text in texts.items()}
        most = self.declared.config.max_payload
        signature = known.signature
        values = signature.coerce_text(texts, max_bytes=most)
        return loads(signature.encode_named(values, max_bytes=most))

    def store(self, task: str, arguments: Any, options: Mapping[str, Any]) -> Admission:
        """Store a job and return the answer."""
        (answer,) = self.pond.submit((self.spec(task, arguments, options),), None)
        return answer

    def spec(self, task: str, payload: Any, options: Mapping[str, Any]) -> JobSpec:
        """Return the job that is meant; raises as `pond.enqueue` does."""
        from millpond.codec import encode_json
        from millpond.task.options import read_options, with_payload

        template = self._template(task, options)
        if template is None:
            spec, _ = self.declared.named(task, payload, options)
            return spec
        most = self.declared.config.max_payload
        encoded = encode_json(payload, task=task, max_bytes=most)
        return with_payload(read_options(template, options), encoded)

    def _template(self, task: str, options: Mapping[str, Any]) -> JobSpec | None:
        """Return what the store knows of a task, read once for all lines; None asks the pond."""
        from millpond.app.declared import template_of
        from millpond.config import TaskSettings

        if task in self.declared.registry:
            return None
        if self._stored is None:
            self._stored = {
                name: template_of(settings) for name, settings in self.pond.ready().tasks().items()
            }
        if task not in self._stored and options.get("queue") is not None:
            self._stored[task] = template_of(TaskSettings(task))
        elif task in self._stored and self._app is not None and task not in self._warned:
            self._warned.add(task)
            self._warn(task)
        return self._stored.get(task)

    def _warn(self, task: str) -> None:
        from millpond.app.declared import closest

        click.echo(
            f"warning: {self._app} has no task {task!r}, so its arguments are not checked and the "
            "job waits for a worker of another application that has it: "
            f"{closest(task, self.declared.registry)}",
            err=True,
        )

    def _parsed(self, task: str, text: str | bytes) -> Any:
        from millpond.codec import parse_json

        return loads(parse_json(text, self.declared.config.max_payload, task=task))

    def _guess(self, task: str, text: str) -> Any:
        from millpond.errors import BadPayload

        try:
            return self._parsed(task, text)
        except BadPayload:
            return text


def _opened(at: Place) -> Millpond:
    """Return the store without its application; one that nobody named must be there."""
    from millpond.app import Millpond

    return Millpond(config=at.config() if at.named else at.checked())


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"{clean(text, 60)!r} is no argument: write name=value")
    return name, value


def _read(payload: str) -> str | bytes:
    if payload != "-":
        return payload
    # Beyond this it is refused for its size, so the rest need not be read.
    return sys.stdin.buffer.read(_UNREAD)


def _print(answer: Admission, shown: str) -> None:
    if shown == "json":
        print_json(
            {"id": answer.job_id, "answer": answer.answer, "operation_id": answer.operation_id}
        )
        return
    click.echo(answer.job_id)
    if answer.answer != "admitted":
        click.echo(f"{answer.answer}: this job was there before", err=True)
