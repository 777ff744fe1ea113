"""The rules of the project itself: packaging, layers, sizes and the words around the code."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "millpond"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
CONTRACTS = [contract["name"] for contract in PYPROJECT["tool"]["importlinter"]["contracts"]]
LAYERS, PURITY, ENGINE = CONTRACTS

FILE_CEILING = 600
FUNCTION_CEILING = 60
IMPORT_CEILING_S = 1.0

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def run(command: Sequence[str], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )


def files(*patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in ROOT.glob(pattern)]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def copy_of_the_project(target: Path) -> Path:
    """Copies what a build and the layer check read, so that a test may plant faults in it."""
    shutil.copytree(ROOT / "src", target / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, target)
    return target


# --- what is installed --------------------------------------------------------------------------


def requirement_name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match, requirement
    return match[0].lower()


def test_the_core_depends_on_three_small_packages_and_no_more() -> None:
    names = [requirement_name(requirement) for requirement in PROJECT["dependencies"]]
    assert sorted(names) == ["click", "cronsim", "msgspec"]


def test_every_requirement_states_the_oldest_version_it_was_made_for() -> None:
    extras = PROJECT["optional-dependencies"].values()
    requirements = PROJECT["dependencies"] + [line for extra in extras for line in extra]
    assert requirements
    assert [line for line in requirements if ">=" not in line] == []


def test_the_installed_version_is_the_one_in_pyproject() -> None:
    assert importlib.metadata.version("millpond") == PROJECT["version"], "run `make venv` again"


def test_a_readme_is_part_of_the_package_description() -> None:
    declared = "README.md" if (ROOT / "README.md").exists() else None
    assert PROJECT.get("readme") == declared, f"set readme = {declared!r} under [project]"


def test_the_wheel_holds_every_file_of_the_package_sql_included(tmp_path: Path) -> None:
    project = copy_of_the_project(tmp_path / "project")
    planted = project / "src/millpond/store/sqlite/sql/planted.sql"
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text("-- name: planted\nSELECT 1;\n", encoding="utf-8")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    built = run(command, cwd=project)
    assert built.returncode == 0, built.stdout
    (wheel,) = tmp_path.glob("*.whl")
    on_disk = {
        path.relative_to(project / "src").as_posix()
        for path in (project / "src/millpond").rglob("*")
        if path.is_file()
    }
    assert {"millpond/store/sqlite/sql/planted.sql", "millpond/py.typed"} <= on_disk
    assert on_disk - set(zipfile.ZipFile(wheel).namelist()) == set()


# --- importing ----------------------------------------------------------------------------------

IMPORT_PROBE = """
import sys, time
begun = time.perf_counter()
import millpond
print(time.perf_counter() - begun)
print(*sys.modules, sep="\\n")
"""


def import_millpond() -> tuple[float, set[str]]:
    """The seconds that a first import takes, and the modules that are loaded after it."""
    probe = run([sys.executable, "-c", IMPORT_PROBE], cwd=ROOT)
    assert probe.returncode == 0, probe.stdout
    seconds, *modules = probe.stdout.split()
    return float(seconds), set(modules)


def test_importing_millpond_leaves_the_command_line_and_the_extras_alone() -> None:
    _, modules = import_millpond()
    assert "millpond" in modules
    assert modules & {"click", "rich", "psycopg", "pysqlite3", "millpond.cli"} == set()


def test_importing_millpond_is_quick() -> None:
    assert min(import_millpond()[0] for _ in range(3)) < IMPORT_CEILING_S


# --- layers -------------------------------------------------------------------------------------


def lint_imports(project: Path) -> subprocess.CompletedProcess[str]:
    command = str(Path(sysconfig.get_path("scripts")) / "lint-imports")
    return run([command, "--no-cache"], cwd=project, PYTHONPATH=str(project / "src"))


def plant(project: Path, module: str, source: str) -> None:
    path = project / "src" / "millpond" / module
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in path.parents[: len(Path(module).parts) - 1]:
        (package / "__init__.py").touch()
    path.write_text(source, encoding="utf-8")


def test_every_import_respects_the_layers() -> None:
    checked = lint_imports(ROOT)
    assert checked.returncode == 0, checked.stdout
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in checked.stdout


@pytest.mark.parametrize(
    ("module", "source", "contract"),
    [
        ("policy/planted.py", "import random", PURITY),
        ("policy/planted.py", "import millpond.clock", PURITY),
        ("policy/planted.py", "import millpond.store", LAYERS),
        ("store/planted.py", "import millpond.worker", LAYERS),
        ("stray.py", "", LAYERS),
        ("worker/planted.py", "import millpond.store.sqlite.planted", ENGINE),
        ("cli/planted.py", "import millpond.store.sqlite.planted", ENGINE),
    ],
)
def test_an_import_against_the_layers_is_found(
    tmp_path: Path, module: str, source: str, contract: str
) -> None:
    project = copy_of_the_project(tmp_path / "project")
    for neighbour in ("clock.py", "store/__init__.py", "worker/__init__.py"):
        if not (project / "src" / "millpond" / neighbour).exists():
            plant(project, neighbour, "")
    plant(project, "store/sqlite/planted.py", "")
    plant(project, module, source)
    checked = lint_imports(project)
    assert checked.returncode == 1, checked.stdout
    assert f"{contract} BROKEN" in checked.stdout


# --- sizes and docstrings -----------------------------------------------------------------------


def long_functions(source: str) -> list[str]:
    return [
        f"{node.name} has {lines} lines"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, FUNCTIONS)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_CEILING
    ]


def must_be_documented(node: Function | ast.ClassDef) -> bool:
    """An overload, an override and a setter are described where the name is first defined."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    elsewhere = names & {"overload", "override", "setter", "deleter"}
    return not node.name.startswith("_") and not elsewhere


def undocumented(source: str) -> list[str]:
    return list(_undocumented(ast.parse(source), "the module"))


def _undocumented(node: ast.Module | ast.ClassDef | Function, name: str) -> Iterator[str]:
    if ast.get_docstring(node) is None:
        yield name
    if isinstance(node, FUNCTIONS):
        return
    for child in node.body:
        if isinstance(child, (*FUNCTIONS, ast.ClassDef)) and must_be_documented(child):
            yield from _undocumented(child, child.name)


def faults(paths: Sequence[Path], find: Callable[[str], list[str]]) -> list[str]:
    """What `find` says about each of the files; there must be some to look at."""
    assert paths
    return [
        f"{path.relative_to(ROOT)}: {fault}"
        for path in paths
        for fault in find(path.read_text(encoding="utf-8"))
    ]


def too_long(source: str) -> list[str]:
    lines = len(source.splitlines())
    return [f"{lines} lines"] if lines > FILE_CEILING else []


def test_no_source_file_is_longer_than_a_head_holds() -> None:
    paths = files(
        "src/**/*.py", "src/**/*.sql", "tests/**/*.py", "bench/**/*.py", "examples/**/*.py"
    )
    assert faults(paths, too_long) == []


def test_no_function_is_much_longer_than_a_screen() -> None:
    assert faults(files("src/**/*.py"), long_functions) == []


def test_every_public_name_says_what_it_promises() -> None:
    assert faults(files("src/**/*.py"), undocumented) == []


def test_the_size_checks_count_lines_as_an_editor_does() -> None:
    body = "    x = 1\n"
    assert long_functions("def f():\n" + body * (FUNCTION_CEILING - 1)) == []
    assert long_functions("def f():\n" + body * FUNCTION_CEILING) == ["f has 61 lines"]
    assert long_functions("class C:\n  async def g(self):\n" + body * FUNCTION_CEILING)
    assert too_long("x\n" * FILE_CEILING) == []
    assert too_long("x\n" * (FILE_CEILING + 1)) == ["601 lines"]


def test_the_docstring_check_finds_what_is_undocumented() -> None:
    source = """
class Seen:
    "Documented."
    def bare(self): ...
    def _private(self): ...
    @overload
    def told(self): ...
class Bare:
    def within(self): ...
async def alone():
    def inner(): ...
def _hidden(): ...
"""
    assert undocumented(source) == ["the module", "bare", "Bare", "within", "alone"]


def test_every_rule_that_ruff_leaves_out_is_argued() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[tool.ruff.lint]")[2].partition("[tool.ruff.lint.flake8")[0]
    rules = [line for line in section.splitlines() if re.match(r'\s+"[A-Z]+\d*",', line)]
    lint = PYPROJECT["tool"]["ruff"]["lint"]
    declared = len(lint["ignore"]) + sum(map(len, lint["per-file-ignores"].values()))
    assert lint["select"] == ["ALL"]
    assert len(rules) == declared > 0
    assert [rule for rule in rules if not re.search(r"# .{10,}\.$", rule)] == []


# --- commands -----------------------------------------------------------------------------------


def test_make_help_describes_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, flags=re.MULTILINE))
    shown = run(["make", "--no-print-directory", "help"], cwd=ROOT)
    described = set(re.findall(r"^ +make ([a-z]+) +\S", shown.stdout, flags=re.MULTILINE))
    assert {"demo", "test", "check", "fmt", "bench", "venv", "clean", "help"} <= targets
    assert described == targets, shown.stdout


def test_continuous_integration_runs_every_part_of_make_check() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    check = re.search(r"^check: ([a-z ]+?) +##", makefile, flags=re.MULTILINE)
    assert check
    run_there = set(re.findall(r"^step .* make ([a-z]+)$", script, flags=re.MULTILINE))
    assert {"lint", "types", "layers", "test"} <= set(check[1].split()) <= run_there
