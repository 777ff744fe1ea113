"""The files of the demo's reports: whole or not there, and told apart when they are wrong."""

from __future__ import annotations

import pytest

from millpond.demo import report

MONTHS = range(1, 4)


class PowerFailure(BaseException):
    pass


def fail():
    raise PowerFailure


@pytest.fixture
def table(tmp_path):
    for month in MONTHS:
        report.write_month(tmp_path, 7, month, lambda: None)
    return report.put_together(tmp_path, 7, MONTHS)


def test_a_month_has_its_name_only_when_it_is_complete(tmp_path):
    with pytest.raises(PowerFailure):
        report.write_month(tmp_path, 7, 5, fail)
    assert report.finished(tmp_path) == []
    assert report.half_written(tmp_path) == ["May"]
    report.write_month(tmp_path, 7, 5, lambda: None)
    assert report.finished(tmp_path) == ["May"]
    assert (tmp_path / "05.csv").read_text().splitlines() == report.rows(7, 5)


def test_a_report_has_every_row_of_its_months(table):
    assert report.is_right(table, 7, MONTHS)
    assert table.read_text().splitlines() == [
        report.HEAD, *(line for month in MONTHS for line in report.rows(7, month)),
    ]  # fmt: skip
    text = table.with_suffix(".txt").read_text().splitlines()
    february = sum(int(line.split(",")[2]) for line in report.rows(7, 2))
    assert text[0] == "Report 7"
    assert text[2].split() == ["February", str(february)]


@pytest.mark.parametrize("spoil", ["missing", "cut", "twice", "other"])
def test_a_report_that_is_wrong_is_seen(table, spoil):
    lines = table.read_text().splitlines(keepends=True)
    if spoil == "missing":
        table.unlink()
    elif spoil == "cut":
        table.write_text("".join(lines[:-1]))
    elif spoil == "twice":
        table.write_text("".join([*lines, lines[-1]]))
    assert not report.is_right(table, 8 if spoil == "other" else 7, MONTHS)
