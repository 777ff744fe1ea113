"""The benchmarks run, each in its smallest size, and say what they measured."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from bench.__main__ import NAMES, main
from bench.figures import Figure, Skipped, at_least, at_most, compared, number, percentile
from bench.rounds import pairs

LINUX = sys.platform.startswith("linux")

FIGURES = {
    "importing": {"importing.Millpond", "importing.unwanted_modules"},
    "enqueue": {"enqueue.one_thread", "enqueue.4_threads"},
    "e2e": {"e2e.store", "e2e.threads", "e2e.async"},
    "batch": {"batch.50_typed_calls"},
    "pickup": {"pickup.p50", "pickup.p99"},
    "claim": {"claim.1_of_big_64_lanes_p50", "claim.100_64_lanes_to_one_big"},
    "crowd": {"crowd.busy_errors", "crowd.slowest_producer"},
    "memory": {"memory.keeper", "memory.runner"} if LINUX else set(),
    "history": {"history.jobs", "history.jobs_failed", "history.failures", "history.job"},
    "purge": {"purge.enqueue_max", "purge.claim_max", "purge.jobs_per_second"},
}


def test_every_benchmark_is_tried_here() -> None:
    assert set(FIGURES) == set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_prints_and_stores_its_figures(name, tmp_path, capsys) -> None:
    report = tmp_path / "report.json"
    code = main([name, "--size", "tiny", "--json", str(report), "--folder", str(tmp_path)])
    said = capsys.readouterr().out
    assert code == 0, said
    found = json.loads(report.read_text(encoding="utf-8"))
    names = {figure["name"] for figure in found["figures"]}
    assert FIGURES[name] <= names, said
    assert all(figure["median"] >= 0 for figure in found["figures"])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_figure_is_judged_by_the_median_of_its_rounds() -> None:
    assert Figure("x", (0.1, 0.8, 0.9), at_least(0.7)).verdict == "ok"
    assert Figure("x", (0.1, 0.2, 0.9), at_least(0.7)).verdict == "MISS"
    assert Figure("x", (3.0, 1.0, 1.2), at_most(1.5)).verdict == "ok"
    assert not Figure("x", (3.0,)).verdict


def test_who_is_measured_first_alternates() -> None:
    order: list[str] = []

    def measure(side: str) -> float:
        order.append(side)
        return float(len(order))

    found = pairs(2, lambda: measure("left"), lambda: measure("right"))
    assert order == ["left", "right", "right", "left"]
    assert found == [(1.0, 2.0), (4.0, 3.0)]


def test_compared_rates_show_the_pair_in_the_middle() -> None:
    figure = compared("x", [(50, 100), (90, 100), (70, 100)], at_least(0.7), "the other")
    assert figure.value == pytest.approx(0.7)
    assert figure.note == "70.0 jobs/s against 100 of the other"


def test_numbers_are_told_with_about_three_digits() -> None:
    assert [number(value) for value in (0.123, 12.34, 123.4, 12_345.6)] == [
        "0.12", "12.3", "123", "12,346"
    ]  # fmt: skip


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([5.0, 1.0, 3.0], 1.0) == 5.0


def test_a_slow_sync_is_skipped_where_nothing_can_compile_it(tmp_path, monkeypatch) -> None:
    from bench import slowsync

    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(Skipped, match="C compiler"):
        slowsync.built(tmp_path)
