"""A worker that was killed: every command says so as soon as a beat is overdue."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond import Millpond
from millpond.model import Want, WorkerInfo

AGO = 40_000


@pytest.fixture
def killed(pond: Millpond, folder: Path) -> None:
    """A worker that holds a job and beat last 40 s ago, under a lease of 60 s."""
    store = pond.store
    pond.enqueue("send", {"to": "ann"}, queue="mail")
    info = WorkerInfo(
        host="box", pid=7, wake=None, version="1", interval_ms=15_000, tasks=("send",)
    )
    worker = store.register(info).result()
    assert store.claim(worker, [Want(1)], ["send"], 1).result().claims
    with sqlite3.connect(folder / "millpond.db") as connection:
        connection.execute("PRAGMA wal_autocheckpoint=0")
        connection.execute(
            "UPDATE millpond_worker SET beat_at = beat_at - ?, beat_mono = beat_mono - ?",
            (AGO, AGO),
        )
        connection.execute(
            "UPDATE millpond_running SET claimed_at = claimed_at - ?,"
            " claimed_mono = claimed_mono - ?",
            (AGO, AGO),
        )
    connection.close()


@pytest.mark.parametrize("command", ["status", "workers", "job 1", "explain 1"])
def test_every_command_says_that_the_worker_is_late(
    killed: None, run: Callable[..., object], command: str
) -> None:
    shown = run(*command.split()).stdout  # type: ignore[attr-defined]
    assert "has not been heard of for 40 s" in shown
    assert "in about 20 s" in shown or "in about 19 s" in shown
    assert "all is well" not in shown


def test_programs_are_told_too(killed: None, ask: Callable[..., object]) -> None:
    told: dict = ask("status")  # type: ignore[type-arg, assignment]
    assert "has not been heard of" in told["verdict"]
    assert told["workers"][0]["late"] is True
    assert told["workers"][0]["lease_ends_at"].endswith("Z")
    assert "goes to another" in ask("job", "1")["worker_late"]  # type: ignore[index]
    assert [reason["code"] for reason in ask("explain", "1")["reasons"]] == [  # type: ignore[index]
        "running",
        "worker_silent",
    ]


def test_a_late_worker_is_neither_live_nor_lost(killed: None, run: Callable[..., object]) -> None:
    assert "late" in run("workers").stdout.splitlines()[1]  # type: ignore[attr-defined]
