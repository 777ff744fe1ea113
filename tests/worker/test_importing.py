"""An application that cannot be imported: what was sought, where, and what was meant."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import BadConfig
from millpond.worker import importing
from millpond.worker.host import load_host

POND = "from millpond import Millpond\nqueue = Millpond(':memory:')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    known = set(sys.modules)
    (tmp_path / "seek_tasks.py").write_text(POND)
    (tmp_path / "seek_pkg").mkdir()
    (tmp_path / "seek_pkg" / "__init__.py").touch()
    (tmp_path / "seek_pkg" / "tasks.py").write_text(POND)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("app", "meant"),
    [
        ("seek_task:queue", "seek_tasks:queue"),
        ("seek_pkg.task:queue", "seek_pkg.tasks:queue"),
        ("seekpkg:queue", "seek_pkg:queue"),
    ],
)
def test_a_module_that_is_not_there_is_told_with_the_one_that_was_meant(
    folder: Path, app: str, meant: str
) -> None:
    with pytest.raises(BadConfig) as caught:
        load_host(app)
    said = str(caught.value)
    assert f"sought in {folder}" in said
    assert said.endswith(f"did you mean {meant}?")


def test_nothing_is_guessed_where_nothing_is_like_it(folder: Path) -> None:
    with pytest.raises(BadConfig) as caught:
        load_host("zzzzzz:pond")
    assert "there is no module 'zzzzzz'" in str(caught.value)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("app", "write"),
    [
        ("seek_tasks.py", "write seek_tasks:pond"),
        ("seek_tasks.py:queue", "write seek_tasks:queue"),
        ("./seek_pkg/tasks.py:queue", "write seek_pkg.tasks:queue"),
        ("seek_pkg/tasks:queue", "write seek_pkg.tasks:queue"),
        ("/elsewhere/shop.py:pond", "write shop:pond, in the folder /elsewhere"),
        ("../shop:pond", "write shop:pond, in the folder {parent}"),
    ],
)
def test_a_path_is_answered_with_what_to_write_instead(folder: Path, app: str, write: str) -> None:
    with pytest.raises(BadConfig) as caught:
        load_host(app)
    assert str(caught.value).endswith(write.format(parent=folder.parent))


def test_a_path_inside_the_folder_may_be_absolute(folder: Path) -> None:
    with pytest.raises(BadConfig, match=r"write seek_tasks:pond$"):
        load_host(f"{folder}/seek_tasks.py")


@pytest.mark.parametrize("app", ["shop", "shop:", ":pond", ".:pond", ""])
def test_what_is_not_of_the_form_is_refused_with_the_form(folder: Path, app: str) -> None:
    with pytest.raises(BadConfig, match="write module:attribute, for example"):
        load_host(app)


def test_the_applications_of_a_module_are_named(folder: Path) -> None:
    with pytest.raises(BadConfig, match=r"has no .pond.; name its Millpond object: queue$"):
        load_host("seek_tasks:pond")


def test_a_module_that_the_application_itself_lacks_passes_through(folder: Path) -> None:
    (folder / "seek_lacks.py").write_text("import seek_nowhere\n")
    with pytest.raises(ModuleNotFoundError, match="seek_nowhere"):
        load_host("seek_lacks:pond")


def test_a_traceback_begins_with_the_applications_own_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "seek_fails.py").write_text("def f():\n    return 1 / 0\n\n\nf()\n")
    with pytest.raises(ZeroDivisionError) as caught:
        load_host("seek_fails:pond")
    # This test's own frame stands for the one of whoever asked, which is millpond's.
    trace = caught.value.__traceback__
    assert trace is not None
    importing.show(caught.value.with_traceback(trace.tb_next))
    lines = capsys.readouterr().err.splitlines()
    assert lines[1].strip() == f'File "{folder}{os.sep}seek_fails.py", line 5, in <module>'
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert not any("importlib" in line or "host.py" in line for line in lines)
