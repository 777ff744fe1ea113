"""What is told when an application cannot be imported: where it was sought, what was meant."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from millpond.errors import BadConfig

_OURS = str(Path(__file__).parents[1]) + os.sep
_IMPORTLIB = os.sep + "importlib" + os.sep
_MOST = 2_000
"""Files of the working folder that are looked at for a name that was meant."""


def parts_of(app: str) -> tuple[str, str]:
    """Return module and attribute; raises BadConfig for what is not of the form module:attribute.

    For the path of a file the message says what to write instead.
    """
    module, colon, attribute = app.partition(":")
    if module.endswith(".py") or "/" in module or os.sep in module:
        raise BadConfig(_no_path(app, module, attribute or "pond"))
    if not (module.strip(".") and colon and attribute):
        example = f"{module}:pond" if module.isidentifier() else "app:pond"
        raise BadConfig(
            f"{app!r} names no application: write module:attribute, for example {example}"
        )
    return module, attribute


def _no_path(app: str, path: str, attribute: str) -> str:
    folder, file = os.path.split(os.path.abspath(path))  # noqa: PTH100  no links followed
    inside = os.path.relpath(os.path.join(folder, file))  # noqa: PTH118
    if inside.startswith(os.pardir + os.sep):
        name = file.removesuffix(".py")
        return (
            f"{app!r} is a path, and an application is named by its module: write "
            f"{name}:{attribute}, in the folder {folder}"
        )
    name = inside.removesuffix(".py").replace(os.sep, ".")
    return f"{app!r} is a path, and an application is named by its module: write {name}:{attribute}"


def missing(app: str, module: str, error: ModuleNotFoundError) -> BadConfig | None:
    """Return what to say when it is the named module itself that is not there, else None."""
    parents = [module[:at] for at, char in enumerate(module) if char == "."]
    if error.name not in {module, *parents}:
        return None
    close = difflib.get_close_matches(module, list(_modules(module)), n=1)
    attribute = app.partition(":")[2]
    hint = f"; did you mean {close[0]}:{attribute}?" if close else ""
    return BadConfig(
        f"{app!r}: there is no module {error.name!r}. It was sought in {Path.cwd()} and where "
        f"Python finds its packages (start in the application's folder, or set PYTHONPATH){hint}"
    )


def _modules(like: str) -> Iterator[str]:
    """Name modules of the working folder, and of the package that a dotted name begins with."""
    package = like.rpartition(".")[0]
    for prefix in dict.fromkeys(("", package)):
        folder = Path.cwd().joinpath(*prefix.split(".")) if prefix else Path.cwd()
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)[:_MOST]
        except OSError:
            continue
        for entry in entries:
            name = entry.name.removesuffix(".py")
            package_here = entry.is_dir() and os.path.exists(f"{entry.path}/__init__.py")  # noqa: PTH110
            if name.isidentifier() and (entry.name.endswith(".py") or package_here):
                yield f"{prefix}.{name}" if prefix else name


def show(error: BaseException) -> None:
    """Print the traceback of a failed import, from the application's first line on."""
    kept = error.__traceback__
    while kept is not None and _passed_over(kept):
        kept = kept.tb_next
    traceback.print_exception(type(error), error, kept)
    sys.stderr.flush()


def _passed_over(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    return file.startswith(("<frozen importlib", _OURS)) or _IMPORTLIB in file


def told(app: str, error: BaseException) -> str:
    """Return the one sentence about it."""
    if isinstance(error, BadConfig):
        return str(error)
    return f"cannot load {app!r}: {type(error).__name__}: {error}"
