"""`millpond bulk`: many jobs from a file with one JSON object on each line."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

import click

from millpond.cli.options import NAME, Place, at_store, json_option, option
from millpond.cli.produce import Producer, loads, parse_moment
from millpond.cli.screen import print_json, say
from millpond.cli.words import plural, spoken

if TYPE_CHECKING:
    from millpond.model import JobSpec

_LINE_LIMIT = 64 * 1024 * 1024
"""Bytes of one line: no payload can be larger, and a file without line ends fills no memory."""

_OPTIONS = (
    *("queue", "workload", "priority", "delay", "at", "max_attempts", "timeout", "lease"),
    *("key", "key_ttl", "coalesce", "coalesce_mode", "operation_id"),
    *("serial_key", "limit_key", "limit", "meta"),
)


_IN_JSON = {name: f'"{name}"' for name in _OPTIONS}


class BadLine(click.ClickException):
    """A line that is no job."""

    exit_code = 2


@dataclass(slots=True)
class Tally:
    """What has become of the lines so far; `line` is the last one that is stored."""

    line: int = 0
    answers: Counter[str] = field(default_factory=Counter)


@click.command()
@click.argument("file", type=click.File("rb"))
@option("--task", type=NAME, help="The task of lines that name none.")
@option(
    "--batch", default=1_000, type=click.IntRange(1, 10_000), metavar="N",
    help="Jobs of one transaction.",
)  # fmt: skip
@option(
    "--from-line", default=1, type=click.IntRange(1), metavar="N",
    help="Skip the lines before this one.",
)  # fmt: skip
@option("--dry-run", is_flag=True, help="Check all lines and store nothing.")
@json_option
@at_store
def bulk(
    at: Place,
    /,
    *,
    file: IO[bytes],
    task: str | None,
    batch: int,
    from_line: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Store the jobs of FILE (- is standard input), one JSON object on each line.

    A line holds "task", "payload" (an object) and the options of an enqueue, for example
    {"task": "mail", "payload": {"to": 7}, "key": "mail:7", "priority": 50}.

    A batch is one transaction: all of its lines are stored or none. An error names the line,
    and from which line to go on. Lines with a "key" may simply be sent again: those that are
    stored already are answered as duplicates.
    """
    tally = Tally(line=from_line - 1)
    with Producer(at) as producer:
        lines = _numbered(file, from_line)
        with _progress(lines) as watched:
            for part in _batches(watched, batch):
                _send(producer, part, task, tally, dry_run=dry_run)
    _report(tally, dry_run=dry_run, as_json=as_json)


def _send(
    producer: Producer,
    part: list[tuple[int, bytes]],
    task: str | None,
    tally: Tally,
    *,
    dry_run: bool,
) -> None:
    try:
        specs = [_spec(producer, number, line, task) for number, line in part]
        answers = ["checked"] * len(specs)
        if not dry_run:
            answers = [each.answer for each in producer.pond.submit(specs, None)]
    except BaseException:
        if not dry_run:
            _say_where(tally.line, part[-1][0])
        raise
    tally.answers.update(answers)
    tally.line = part[-1][0]


def _say_where(stored: int, failed: int) -> None:
    """Tell, before the error does, how much of the file is stored."""
    start = stored + 1
    before = ", everything before is" if stored else ""
    click.echo(
        f"nothing of lines {start:,} to {failed:,} is stored{before}; "
        f"go on with --from-line {start}",
        err=True,
    )


def _spec(producer: Producer, number: int, line: bytes, task: str | None) -> JobSpec:
    from millpond.errors import BadConfig, BadPayload, UnknownTask

    try:
        fields = _fields(producer, line)
        name = fields.pop("task", task)
        if not isinstance(name, str):
            raise BadLine(f'line {number:,}: it names no task: add "task", or use --task')
        payload = fields.pop("payload", {})
        if isinstance(fields.get("at"), str):
            fields["at"] = parse_moment(fields["at"], "at")
        return producer.spec(name, payload, fields)
    except (BadConfig, BadPayload, UnknownTask) as error:
        raise type(error)(f"line {number:,}: {spoken(str(error), _IN_JSON)}") from error
    except click.UsageError as error:
        raise BadLine(f"line {number:,}: {error.message}") from error


def _fields(producer: Producer, line: bytes) -> dict[str, Any]:
    from millpond.codec import parse_json
    from millpond.config.checks import refuse_unknown

    # A line holds more than its payload, whose own size is checked when it is encoded.
    fields = loads(parse_json(line, producer.declared.config.max_payload * 2 + 65_536))
    if not isinstance(fields, dict):
        raise click.UsageError("it is no JSON object")
    refuse_unknown("", fields, ("task", "payload", *_OPTIONS))
    return fields


def _numbered(file: IO[bytes], first: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
    for number in itertools.count(1):
        line = file.readline(_LINE_LIMIT)
        if not line:
            return
        if len(line) == _LINE_LIMIT:
            raise BadLine(f"line {number:,} is longer than {_LINE_LIMIT:,} bytes")
        if number >= first and line.strip():
            yield number, line


def _batches(lines: Iterable[tuple[int, bytes]], size: int) -> Iterator[list[tuple[int, bytes]]]:
    source = iter(lines)
    while part := list(itertools.islice(source, size)):
        yield part


def _progress(lines: Iterator[tuple[int, bytes]]) -> Any:
    """Return the lines for a `with` block, which on a terminal shows how far they are read."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext(lines)
    return click.progressbar(
        lines, label="lines", file=sys.stderr, show_pos=True, update_min_steps=500
    )


def _report(tally: Tally, *, dry_run: bool, as_json: bool) -> None:
    answers = dict(sorted(tally.answers.items()))
    if as_json:
        print_json({"lines": tally.answers.total(), "dry_run": dry_run, "answers": answers})
        return
    counts = ", ".join(f"{count:,} {answer}" for answer, count in answers.items())
    say(f"{plural(tally.answers.total(), 'line')}: {counts or 'nothing to do'}")
