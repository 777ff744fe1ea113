"""The outbox: an event goes out for every change, however often the publisher is killed."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.examples.told import by_hand, dead_links, story

from millpond import Attempt, Job, Millpond

STEPS = ["placed", "paid", "shipped"]


def attempts_by_order(pond: Millpond) -> dict[str, list[Attempt]]:
    """All attempts on the jobs of an order, as they began."""
    found = defaultdict(list)
    for job in pond.jobs():
        assert job.limit_key is not None
        found[job.limit_key] += pond.attempts(job.id)
    return {key: sorted(attempts, key=lambda a: a.started_at) for key, attempts in found.items()}


def publishers_killed(jobs: list[Job], pond: Millpond) -> set[str | None]:
    """The workers that died with a job in their hands."""
    return {
        attempt.worker
        for job in jobs
        for attempt in pond.attempts(job.id)
        if attempt.outcome in {"lease_lost", "crashed"}
    }


@pytest.mark.slow
def test_no_event_is_lost_and_repeats_carry_the_same_operation_id(tmp_path: Path) -> None:
    told = story("outbox", tmp_path)
    broker = (tmp_path / "broker" / "messages.jsonl").read_text().splitlines()
    sent: list[dict[str, Any]] = [json.loads(line) for line in broker]
    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        outbox = shop.execute("SELECT id, order_name, event, published FROM outbox").fetchall()
        orders = shop.execute("SELECT name, state FROM orders ORDER BY name").fetchall()

    with Millpond(tmp_path / "shop.db") as pond:
        jobs = {job.operation_id: pond.get(job.id) for job in pond.jobs()}
        assert {job.state.value for job in jobs.values()} == {"completed"}
        assert len(publishers_killed(list(jobs.values()), pond)) >= 2
        assert pond.verify() == []

        events = {row[0]: {"order": row[1], "event": row[2]} for row in outbox}
        assert len(events) == len(jobs) == 9
        assert all(row[3] for row in outbox)
        assert orders == [(f"order-{n}", "shipped") for n in (1, 2, 3)]
        for message in sent:
            payload = jobs[message["id"]].payload
            assert payload is not None
            assert events[payload["event_id"]] == {k: message[k] for k in ("order", "event")}
        assert {message["id"] for message in sent} == set(jobs)
        assert len(sent) > len(jobs)

        for attempts in attempts_by_order(pond).values():
            assert all(one.ended_at <= next_.started_at for one, next_ in pairwise(attempts))

    for order in ("order-1", "order-2", "order-3"):
        steps = [STEPS.index(message["event"]) for message in sent if message["order"] == order]
        assert steps == sorted(steps), f"{order} was told out of order: {steps}"
    assert "Every event came, each under the operation id of its job." in told


@pytest.mark.slow
def test_the_commands_of_the_readme_do_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    by_hand("outbox", tmp_path)
    assert dead_links("outbox") == []
