"""Where a thread stands, in one line: the application's own innermost line first."""

from __future__ import annotations

import linecache
import sysconfig
from types import FrameType

_LIBRARIES = tuple(
    path
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)
_OWN = "millpond."


def standing(frame: FrameType | None) -> str:
    """Return file, line, function and text of where the handler under `frame` stands.

    The line is the innermost of the application's; a library that it calls comes after it.
    """
    frames = _handlers(frame)
    if not frames:
        return "an unknown place"
    theirs = next((each for each in frames if not _is_library(each)), frames[0])
    inside = "" if theirs is frames[0] else f" (inside {_place(frames[0])})"
    code = linecache.getline(theirs.f_code.co_filename, theirs.f_lineno).strip()
    text = f": {code}" if code else ""
    return f"{_place(theirs)}{text}{inside}"


def _handlers(frame: FrameType | None) -> list[FrameType]:
    """Return the frames that millpond has called, innermost first; all when it has called none."""
    every: list[FrameType] = []
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if isinstance(module, str) and module.startswith(_OWN):
            return every
        every.append(frame)
        frame = frame.f_back
    return every


def _is_library(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<"))


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
