"""The payment: a worker that is killed after the charge makes two attempts and one charge."""

from __future__ import annotations

import importlib.util
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.examples.told import EXAMPLES, by_hand, dead_links, story

from millpond import Millpond, Retry


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_two_attempts_make_one_charge(tmp_path: Path) -> None:
    told = story("payment", tmp_path)

    charges = rows(tmp_path / "provider.db", "SELECT idempotency_key, cents FROM charge")
    booked = rows(tmp_path / "shop.db", "SELECT operation_id, cents FROM payment")
    asked = rows(
        tmp_path / "provider.db",
        "SELECT idempotency_key, group_concat(answer) FROM request GROUP BY 1 ORDER BY 1",
    )
    assert sorted(charges) == sorted(booked) == [("payment-812", 4_990), ("payment-813", 1_200)]
    assert asked == [("payment-812", "201,200"), ("payment-813", "201"), ("payment-814", "402")]

    with Millpond(tmp_path / "shop.db") as pond:
        history = {
            job.operation_id: [each.outcome.value for each in pond.attempts(job.id)]
            for job in pond.jobs()
        }
        assert history == {
            "payment-812": ["lease_lost", "completed"],
            "payment-813": ["lease_lost", "completed"],
            "payment-814": ["failed"],
        }
        (declined,) = pond.jobs(state="failed")
        assert declined.reason is not None
        assert declined.reason.startswith("declined")
        assert pond.verify() == []
    assert told.count("Two attempts,") == 2
    assert told.count("one charge.") == 2


@pytest.mark.slow
def test_the_commands_of_the_readme_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PROVIDER", f"http://127.0.0.1:{server.getsockname()[1]}")
    by_hand("payment", tmp_path)
    assert dead_links("payment") == []


class Busy(BaseHTTPRequestHandler):
    """A provider that has no time."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(503)
        self.send_header("Retry-After", "7")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def busy() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Busy) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        thread.join(timeout=30)


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("payment_app", EXAMPLES / "payment" / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "payment_app", module)
    spec.loader.exec_module(module)
    return module


def test_a_busy_provider_is_asked_again_when_it_wants_to_be(
    app: ModuleType, busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "PROVIDER", busy)
    with pytest.raises(Retry) as raised:
        app.charge_card(100, idempotency_key="payment-1")
    assert raised.value.after == 7
