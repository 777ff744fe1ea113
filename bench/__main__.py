"""`python -m bench [name …]`: measure this machine and hold the figures against their limits."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure, Skipped
from bench.sizes import FULL, QUICK, TINY, Sizes
from bench.stores import sync_seconds

NAMES = (
    "importing", "enqueue", "e2e", "batch", "pickup", "claim", "crowd", "memory", "history",
    "purge",
)  # fmt: skip
ALL_SIZES = {"full": FULL, "quick": QUICK, "tiny": TINY}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, all of them by default; 1 when one fails, or misses `--check`."""
    args = _parser().parse_args(argv)
    sizes = ALL_SIZES["quick" if args.quick else args.size]
    figures: list[Figure] = []
    failed = False
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=args.folder) as name:
        folder = Path(name)
        machine = _machine(folder)
        print("  ".join(f"{key} {value}" for key, value in machine.items()))
        for bench in args.names or NAMES:
            print(bench, flush=True)
            failed |= not _run(bench, folder, sizes, figures)
    if args.json is not None:
        found = {"machine": machine, "figures": [figure.as_json() for figure in figures]}
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    missed = [figure.name for figure in figures if figure.verdict == "MISS"]
    if missed:
        print(f"missed: {', '.join(missed)}")
    return int(failed or (args.check and bool(missed)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="name",
                        help=f"which to run: {', '.join(NAMES)}")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="smaller and shorter, less exact")
    parser.add_argument(
        "--size", choices=ALL_SIZES, default="full", help="tiny only proves it runs"
    )
    parser.add_argument("--folder", help="where the files are made: must be on a local disk")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a limit is missed")
    return parser


def _run(bench: str, folder: Path, sizes: Sizes, figures: list[Figure]) -> bool:
    """Run one benchmark and print its figures as they come; False when it failed."""
    try:
        for figure in importlib.import_module(f"bench.{bench}").run(folder, sizes):
            print(figure.line(), flush=True)
            figures.append(figure)
    except Skipped as why:
        print(f"  skipped: {why}")
    except Exception as error:  # noqa: BLE001  the other benchmarks still run
        print(f"  failed: {type(error).__name__}: {error}")
        return False
    return True


def _machine(folder: Path) -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cpus": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "sync": f"{sync_seconds(folder) * 1e6:.0f} us",
        "folder": str(folder.parent),
    }


if __name__ == "__main__":
    sys.exit(main())
