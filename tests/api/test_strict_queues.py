"""`strict_queues` turns a misspelt queue into an error instead of jobs that nobody serves."""

from __future__ import annotations

import pytest

from millpond import Millpond
from millpond.errors import BadConfig


@pytest.fixture
def strict(url):
    with Millpond(url, strict_queues=True) as pond:
        pond.queue("emails")
        yield pond


def test_an_undeclared_queue_is_refused_by_name_and_nothing_is_stored(strict):
    @strict.task(queue="emails")
    def send(to: str) -> None: ...

    with pytest.raises(BadConfig, match=r"'emials' is not declared: did you mean 'emails'"):
        send.using(queue="emials").enqueue("a@b")
    batch = strict.batch()
    batch.add(send, "a@b")
    batch.add(send.using(queue="other"), "c@d")
    with pytest.raises(BadConfig, match="not declared"), batch:
        pass
    assert strict.jobs() == []


def test_declared_queues_are_served_as_ever(strict):
    @strict.task(queue="emails")
    def send(to: str) -> None: ...

    assert send.enqueue("a@b").answer == "admitted"


def test_without_it_any_queue_is_made_on_demand(pond):
    @pond.task
    def send(to: str) -> None: ...

    assert send.using(queue="emials").enqueue("a@b").job().queue == "emials"
