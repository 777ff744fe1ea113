"""The documentation: its examples run, its links lead somewhere, its tables are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import pages
from tests.docs.example import Example
from tests.docs.pages import DOCS, ROOT, shown

RUN = [
    page
    for page in (ROOT / "README.md", DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md")))
    if page.exists()
]


@pytest.mark.parametrize("page", RUN, ids=shown)
def test_the_examples_of_a_page_run_as_they_are_written(page: Path, tmp_path: Path) -> None:
    with Example(shown(page), tmp_path) as example:
        for block in pages.blocks(page):
            example.run(block)
