"""`millpond worker`: runs the jobs of an application."""

from __future__ import annotations

import os

import click

from millpond.cli.exits import Code, end
from millpond.cli.options import NAME, option


@click.command()
@click.argument("app", envvar="MILLPOND_APP", metavar="APP")
@option(
    "-q", "--queues", multiple=True, type=NAME, envvar="MILLPOND_QUEUES", metavar="QUEUE[:SLOTS]",
    help="A queue to serve, or one workload of it (reports/routine:2); a number keeps slots for "
    "it. May be given several times, or with commas [default: all queues].",
)  # fmt: skip
@option(
    "--concurrency", type=int, envvar="MILLPOND_CONCURRENCY", metavar="N",
    help="Jobs that each process runs at once [default: 4].",
)  # fmt: skip
@option(
    "--processes", type=int, envvar="MILLPOND_PROCESSES", metavar="N",
    help="Processes that run jobs; 0 runs them in the worker's own [default: 1].",
)  # fmt: skip
@option("--once", is_flag=True, help="Run at most one job a slot, then end.")
@option("--drain", is_flag=True, help="Run what is ready, then end.")
@option(
    "--log-format", type=click.Choice(["text", "json"]), envvar="MILLPOND_LOG_FORMAT",
    help="How the lines of the log look [default: text].",
)  # fmt: skip
@option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]),
    envvar="MILLPOND_LOG_LEVEL", help="Which lines are logged [default: info].",
)  # fmt: skip
def worker(
    *,
    app: str,
    queues: tuple[str, ...],
    concurrency: int | None,
    processes: int | None,
    once: bool,
    drain: bool,
    log_format: str | None,
    log_level: str | None,
) -> None:
    """Run the jobs of APP, a module and its Millpond object: app:pond.

    SIGTERM or Ctrl-C stops it in order: it claims nothing more, hands back what has not
    started and lets running jobs end (25 s by default); a second one ends at once. The last
    line sums up what was finished, handed back and lost. An application that cannot be
    imported ends it with exit code 1. Further settings stand in millpond.toml.
    """
    from millpond.config import load
    from millpond.worker import run_worker

    if once and drain:
        raise click.UsageError("--once and --drain exclude each other")
    settings = load(
        None,
        os.environ,
        {
            "worker": {
                "queues": list(queues) or None,
                "concurrency": concurrency,
                "processes": processes,
            },
            "log": {"format": log_format, "level": log_level},
        },
    )
    code = run_worker(app, settings.worker, once=once, drain=drain, log=settings.log)
    end(Code(code))
