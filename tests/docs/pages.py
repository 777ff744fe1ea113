"""Reads the pages of the documentation: fenced blocks, links, headings and tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
_CODE = re.compile(r"``[^`]+``|`[^`]+`")


@dataclass(frozen=True)
class Block:
    """One fenced block: `words` are what follows the language, `line` is its first line."""

    language: str
    words: tuple[str, ...]
    body: str
    line: int

    def option(self, name: str) -> str | None:
        """Return the value of `name=value` among the words."""
        for word in self.words:
            key, equals, value = word.partition("=")
            if equals and key == name:
                return value
        return None


def pages() -> list[Path]:
    """All pages that are written by hand for readers."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def shown(page: Path) -> str:
    """Name a page as a person would."""
    return page.relative_to(ROOT).as_posix()


@cache
def text_of(page: Path) -> str:
    """Return what stands in a page."""
    return page.read_text(encoding="utf-8")


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """Return the fenced blocks of a page, in order."""
    text = text_of(page)
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        line = text.count("\n", 0, match.start("body")) + 1
        indent = len(match["indent"])
        body = "".join(each[indent:] or "\n" for each in match["body"].splitlines(keepends=True))
        found.append(Block(language, tuple(words), body, line))
    return tuple(found)


@cache
def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", text_of(page))


def links(page: Path) -> list[str]:
    """Return the targets of all links of a page."""
    return _LINK.findall(_CODE.sub("", prose(page)))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the anchors that a page's headings make, as GitHub makes them."""
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = seen[anchor] = seen.get(anchor, -1) + 1
        found.add(f"{anchor}-{count}" if count else anchor)
    return frozenset(found)


def rows(page: Path, first_column: str) -> list[list[str]]:
    """Return the rows of every table whose first column has this heading."""
    found, inside = [], False
    for line in prose(page).splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] == first_column:
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            found.append(cells)
    return found


def names(cell: str) -> list[str]:
    """Return what a cell puts in code marks."""
    return re.findall(r"`([^`]+)`", cell)


def column(page: Path, first_column: str) -> list[str]:
    """Return the names in the first column of those tables."""
    return [name for row in rows(page, first_column) for name in names(row[0])]
