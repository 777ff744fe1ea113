"""The pages for readers: their examples run, and every link leads somewhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from tests.docs import pages
from tests.docs.example import SHOWN_ONLY, Example
from tests.docs.pages import DOCS, ROOT, Block, shown

from millpond.config import load

README = ROOT / "README.md"
RUN = [README, DOCS / "tutorial.md", *sorted((DOCS / "howto").glob("*.md"))]
EVERY = [*pages.pages(), ROOT / "CONTRIBUTING.md", ROOT / "changes" / "README.md"]

OUTSIDE = ("http://", "https://", "mailto:")


# --- examples -----------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUN, ids=shown)
def test_the_examples_of_a_page_run_as_they_are_written(page: Path, tmp_path: Path) -> None:
    with Example(shown(page), tmp_path) as example:
        for block in pages.blocks(page):
            example.run(block)


def example_of(tmp_path: Path, language: str, body: str, *words: str) -> None:
    with Example("page", tmp_path) as example:
        example.run(Block(language, words, body, 1))


@pytest.mark.parametrize(
    ("language", "body", "words"),
    [
        ("python", "assert False\n", ()),
        ("python", "import no_such_module\n", ()),
        ("sh", "false\n", ()),
        ("sh", "true\n", ("exit=3",)),
        ("sh", "false; true\n", ()),
        ("sh", "exit 1\n", ("background",)),
        ("output", "anything\n", ()),
        ("perl", "1;\n", ()),
    ],
)
def test_an_example_that_does_not_work_is_found(
    tmp_path: Path, language: str, body: str, words: tuple[str, ...]
) -> None:
    with pytest.raises(AssertionError):
        example_of(tmp_path, language, body, *words)


def test_output_that_is_not_what_was_printed_is_found(tmp_path: Path) -> None:
    with Example("page", tmp_path) as example:
        example.run(Block("python", (), "print('one\\ntwo\\nthree')\n", 1))
        example.run(Block("output", (), "one\n…\nthree\n", 5))
        with pytest.raises(AssertionError, match="page:5"):
            example.run(Block("output", (), "one\nthree\n", 5))


def test_a_page_with_python_but_without_a_single_block_that_runs_is_suspect() -> None:
    for page in RUN:
        languages = {block.language for block in pages.blocks(page)}
        assert languages & {"python", "sh"}, shown(page)


def test_every_block_says_what_it_is() -> None:
    known = SHOWN_ONLY | {"python", "sh", "output"}
    wrong = [
        f"{shown(page)}:{block.line}"
        for page in pages.pages()
        for block in pages.blocks(page)
        if block.language not in known
    ]
    assert wrong == []


def test_every_python_block_compiles_also_where_it_is_not_run() -> None:
    for page in EVERY:
        for block in pages.blocks(page):
            if block.language == "python":
                compile(block.body, f"{shown(page)}:{block.line}", "exec")


def test_every_toml_block_holds_settings_that_exist() -> None:
    found = 0
    for page in pages.pages():
        for block in pages.blocks(page):
            if block.language == "toml":
                settings = load(None, {}, tomllib.loads(block.body))
                assert settings != load(None, {}), f"{shown(page)}:{block.line} sets nothing"
                found += 1
    assert found


# --- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", EVERY, ids=shown)
def test_every_link_leads_to_a_page_and_a_heading_that_are_there(page: Path) -> None:
    dead = []
    for link in pages.links(page):
        if link.startswith(OUTSIDE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        there = target.exists() and target.is_relative_to(ROOT)
        if not there or (anchor and anchor not in pages.anchors(target)):
            dead.append(link)
    assert dead == []


def test_every_page_can_be_reached_from_the_index() -> None:
    seen, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        if page in seen:
            continue
        seen.add(page)
        for link in pages.links(page):
            path = link.partition("#")[0]
            target = (page.parent / path).resolve()
            if path.endswith(".md") and target.exists() and target.is_relative_to(DOCS):
                todo.append(target)
    assert [shown(page) for page in DOCS.rglob("*.md") if page not in seen] == []


def test_decisions_are_numbered_without_gaps() -> None:
    numbers = [int(page.name[:4]) for page in sorted((DOCS / "adr").glob("*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("page", sorted((DOCS / "adr").glob("*.md")), ids=lambda page: page.stem)
def test_a_decision_says_why_what_and_what_would_reopen_it(page: Path) -> None:
    headings = re.findall(r"^## (.*)$", pages.text_of(page), re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "What would reopen it"]
    assert pages.text_of(page).startswith(f"# {int(page.name[:4])}. ")


# --- what the README says -----------------------------------------------------------------------


def test_the_readme_names_the_two_commands_as_the_makefile_has_them() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = {
        line.split("#")[0].strip()
        for block in pages.blocks(README)
        for line in block.body.splitlines()
        if line.startswith("make ")
    }
    assert {"make demo", "make test"} <= commands
    for command in commands:
        assert re.search(rf"^{command.split()[1]}:", makefile, re.MULTILINE), command


def test_the_readme_shows_what_is_promised_within_a_screen_of_code() -> None:
    app = next(block for block in pages.blocks(README) if block.option("file") == "app.py")
    assert len(app.body.splitlines()) <= 12


def test_every_piece_of_news_has_a_name_that_a_release_collects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    kinds = {kind["directory"] for kind in project["tool"]["towncrier"]["type"]}
    news = [path for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert news
    for path in news:
        assert re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(sorted(kinds))})\.md", path.name), path
        assert path.read_text(encoding="utf-8").strip(), path
