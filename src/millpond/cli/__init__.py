"""The command line: `millpond COMMAND …`, or `python -m millpond COMMAND …`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    from millpond.cli.root import root

    root.main(args=None if arguments is None else list(arguments), prog_name="millpond")
