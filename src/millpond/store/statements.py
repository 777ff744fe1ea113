"""Named SQL: every statement stands in a .sql file under a `-- name: x` line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from types import MappingProxyType

from millpond.errors import InvariantBroken

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def load(package: str) -> Mapping[str, str]:
    """Return all statements of `package`/sql by name; a name used twice is a bug."""
    found: dict[str, str] = {}
    for entry in sorted(files(package).joinpath("sql").iterdir(), key=lambda item: item.name):
        if not entry.name.endswith(".sql"):
            continue
        pieces = _NAME.split(entry.read_text(encoding="utf-8"))
        for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
            if name in found:
                msg = f"statement {name} of {package} stands twice, last in {entry.name}"
                raise InvariantBroken(msg)
            found[name] = _bare(body)
    return MappingProxyType(found)


def _bare(body: str) -> str:
    lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().removesuffix(";")
