"""The report: killed at minute 2, it is finished by another worker, and no month is made twice."""

from __future__ import annotations

import csv
import hashlib
import importlib.util
import json
import shutil
import sys
from calendar import month_name
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pypdf
import pytest
from tests.examples.told import EXAMPLES, by_hand, dead_links, story

from millpond import Context, LeaseLost, Millpond

REPORTS = EXAMPLES / "reports"

YEAR_2025 = "49b17d4c5a6c23c569ae2e4ad43e33535b1908820c8124ef920c39273ff21728"
"""SHA-256 of the sales of 2025: the data set is the same on every machine and Python."""


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, REPORTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sales(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("sales", monkeypatch)


@pytest.fixture
def artefacts(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("artefacts", monkeypatch)


@pytest.fixture
def app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sales: ModuleType, artefacts: ModuleType
) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REPORTS_SPEED", "1e9")
    load("paper", monkeypatch)
    return load("app", monkeypatch)


def rows_of(sales: ModuleType, year: int) -> list[list[str]]:
    sold = [sale for month in sales.MONTHS for day in sales.days(year, month) for sale in day]
    return [[str(value) for value in sale] for sale in sold]


def table(path: Path) -> list[list[str]]:
    with path.open(newline="") as lines:
        return list(csv.reader(lines))


def texts(pdf: bytes) -> list[str]:
    """Parse strictly, by the cross-reference table; return the text of every page."""
    assert pdf.startswith(b"%PDF-1.7\n")
    assert pdf.rstrip().endswith(b"%%EOF")
    at = int(pdf.rsplit(b"startxref", 1)[1].split()[0])
    assert pdf[at:].startswith(b"xref\n")
    return [page.extract_text() for page in pypdf.PdfReader(BytesIO(pdf), strict=True).pages]


def money(cents: int) -> str:
    return f"{cents / 100:,.2f}"


def begun(folder: Path, year: str) -> Counter[str]:
    """How often each month of a year was begun, by whichever attempt."""
    lines = (folder / "work.log").read_text().splitlines()
    return Counter(line.split()[-1] for line in lines if line.split()[-1].startswith(year))


@pytest.mark.slow
def test_a_report_killed_at_minute_2_is_finished_with_what_was_there(
    tmp_path: Path, sales: ModuleType
) -> None:
    told = story("reports", tmp_path)
    archive = (tmp_path / "old.jsonl").read_text().splitlines()
    jobs: dict[str, Any] = {job["operation_id"]: job for job in map(json.loads, archive)}
    assert sorted(jobs) == ["report-2024", "report-2025"]
    for job in jobs.values():
        assert [each["outcome"] for each in job["history"]] == ["lease_lost", "completed"]
    killed, frozen = (jobs[f"report-{year}"]["history"][0] for year in (2025, 2024))
    assert killed["late_at"] is None, "the dead say nothing"
    assert frozen["late_at"] > jobs["report-2024"]["finished_at"]

    for year in (2025, 2024):
        rows = table(tmp_path / "fetched" / f"{year}.csv")
        assert rows == [["day", "product", "units", "cents"], *rows_of(sales, year)]
        pages = texts((tmp_path / "fetched" / f"{year}.pdf").read_bytes())
        assert len(pages) == 13
        assert f"Sales {year}" in pages[0]
        assert money(sum(int(cents) for *_, cents in rows[1:])) in pages[0]

    counted = begun(tmp_path, "2025")
    again = [month for month, times in counted.items() if times == 2]
    assert counted.keys() == {f"2025-{month:02}" for month in sales.MONTHS}
    assert sum(counted.values()) == 13, "twelve months, and the one in work once more"
    assert again >= ["2025-07"], "it was killed at minute 2, not before"

    assert list((tmp_path / "artefacts").iterdir()) == []
    with Millpond(tmp_path / "reports.db") as pond:
        assert pond.jobs() == []
        assert pond.verify() == []
    assert "what was finished was taken over as it was," in told
    assert "late is noted. Not a byte of the report has changed." in told


@pytest.mark.slow
def test_the_commands_of_the_readme_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    by_hand("reports", tmp_path)
    assert dead_links("reports") == []


def test_the_data_set_is_the_same_everywhere(sales: ModuleType) -> None:
    rows = "\n".join(",".join(row) for row in rows_of(sales, 2025))
    assert rows.count("\n") + 1 == 1_878
    assert hashlib.sha256(rows.encode()).hexdigest() == YEAR_2025


def test_each_page_shows_the_figures_of_its_month(app: ModuleType, sales: ModuleType) -> None:
    files = app.build_report(2025)
    rows = rows_of(sales, 2025)
    pages = texts(Path(files["pdf"]).read_bytes())
    for month, page in zip(sales.MONTHS, pages[1:], strict=True):
        cents = Counter[str]()
        for day, product, _, amount in rows:
            if day.startswith(f"2025-{month:02}"):
                cents[product] += int(amount)
        assert month_name[month] in page
        for product, total in cents.items():
            assert f"{product} {money(total)}" in page
        assert f"total {money(cents.total())}" in page


def test_a_report_that_was_interrupted_equals_one_that_was_not(
    app: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = {kind: Path(file).read_bytes() for kind, file in app.build_report(2025).items()}
    shutil.rmtree("artefacts")
    ctx = Context.local("build_report")
    ends_in(monkeypatch, app, month=7)
    with pytest.raises(PowerFailure):
        app.build_report(2025, ctx=ctx)
    assert len(ctx.remembered) == 6
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    files = app.build_report(2025, ctx=ctx)
    assert {kind: Path(file).read_bytes() for kind, file in files.items()} == whole


class PowerFailure(BaseException):
    pass


def ends_in(monkeypatch: pytest.MonkeyPatch, app: ModuleType, *, month: int) -> None:
    """Let the warehouse break off in the middle of a month."""
    days = app.sales.days

    def breaking_off(year: int, number: int) -> Iterator[Any]:
        for day in days(year, number):
            if (number, day[0].day.day) == (month, 15):
                raise PowerFailure
            yield day

    monkeypatch.setattr(app.sales, "days", breaking_off)


@pytest.mark.parametrize("damage", ["cut", "changed", "deleted"])
def test_a_finished_month_that_is_not_sound_is_made_again(app: ModuleType, damage: str) -> None:
    ctx = Context.local("build_report")
    before = app.build_report(2025, ctx=ctx)
    march = next(Path(before["csv"]).parent.glob("03-*.csv"))
    whole = march.read_bytes()
    if damage == "deleted":
        march.unlink()
    else:
        march.write_bytes(whole[:100] if damage == "cut" else whole.replace(b"7", b"8", 1))
    assert app.build_report(2025, ctx=ctx) == before
    assert march.read_bytes() == whole
    counted = begun(Path(), "2025")
    assert counted.pop("2025-03") == 2
    assert set(counted.values()) == {1}


def test_a_file_has_its_name_only_when_it_is_complete(
    artefacts: ModuleType, tmp_path: Path
) -> None:
    with artefacts.writing(tmp_path, "a.csv") as artefact:
        artefact.write("half")
        assert [path.name[0] for path in tmp_path.iterdir()] == ["."]
        artefact.write(", and the rest")
    assert artefact.path.read_text() == "half, and the rest"
    assert artefacts.sound(artefact.path)
    assert list(tmp_path.iterdir()) == [artefact.path]


def test_a_file_that_could_not_be_finished_leaves_nothing(
    artefacts: ModuleType, tmp_path: Path
) -> None:
    def write_half() -> None:
        with artefacts.writing(tmp_path, "a.csv") as artefact:
            artefact.write("half")
            raise LeaseLost("another attempt may own the job")

    with pytest.raises(LeaseLost):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_comes_too_late_changes_no_file(
    artefacts: ModuleType, tmp_path: Path
) -> None:
    with artefacts.writing(tmp_path, "a.csv") as late:
        late.write("old fi")
        with artefacts.writing(tmp_path, "a.csv") as new:
            new.write("new figures")
        late.write("gures")
    assert new.path.read_text() == "new figures"
    assert late.path != new.path
    assert artefacts.sound(new.path)


def test_only_what_the_store_has_forgotten_is_swept(app: ModuleType) -> None:
    with app.pond.testing():
        for year in (2024, 2025):
            app.request(year)
        app.pond.drain()
        assert app.sweep() == []
        app.pond.prune(completed=0)
        assert app.sweep() == [], "their results are kept longer"
    with app.pond.testing():
        app.request(2025)
        assert app.sweep() == ["report-2024"]
        assert [path.name for path in Path("artefacts").iterdir()] == ["report-2025"]


def test_a_report_asked_for_twice_is_one_job_and_found_by_its_operation(app: ModuleType) -> None:
    with app.pond.testing() as pond:
        first, again = app.request(2025), app.request(2025)
        assert (again.id, again.answer) == (first.id, "duplicate")
        assert app.show(2025) is None
        pond.drain()
        files = pond.result(operation_id="report-2025")
        assert files == first.wait(timeout=10)
        assert sorted(path.suffix for path in map(Path, files.values())) == [".csv", ".pdf"]
