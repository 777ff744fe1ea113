from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import (
    DEFAULT_CONCURRENCY,
    Retention,
    Serve,
    WorkerConfig,
    beat_interval_ms,
    check_beat,
    concurrency_for,
    parse_serves,
    slots_asked,
)
from millpond.errors import BadConfig

leases = st.integers(100, 10**9)
serves = st.lists(
    st.builds(Serve, st.sampled_from("abcdef"), slots=st.none() | st.integers(1, 20)),
    unique_by=lambda serve: serve.queue,
)


@given(st.none() | st.integers(1, 10**9), leases)
def test_a_worker_beats_at_least_four_times_in_its_shortest_lease(
    beat: int | None, lease: int
) -> None:
    interval = beat_interval_ms(beat, lease)
    assert 1 <= interval <= lease // 4
    assert interval <= (15_000 if beat is None else beat)


def test_the_default_lease_of_a_minute_is_renewed_every_15_seconds() -> None:
    assert beat_interval_ms(None, 60_000) == 15_000
    assert beat_interval_ms(None, 2_000) == 500
    assert beat_interval_ms(None, 3_600_000) == 15_000


@given(st.integers(1, 10**9), leases)
def test_a_beat_above_a_third_of_a_lease_is_refused_with_both_numbers(
    beat: int, lease: int
) -> None:
    if beat <= lease / 3:
        check_beat(beat, lease, "task 'a': lease_ms")
        return
    with pytest.raises(BadConfig, match=rf"beat_ms is {beat} and task 'a': lease_ms is {lease}:"):
        check_beat(beat, lease, "task 'a': lease_ms")


@given(leases)
def test_a_beat_that_follows_the_leases_fits_every_lease(lease: int) -> None:
    check_beat(None, lease, "the lease")


@pytest.mark.parametrize(
    ("text", "serve"),
    [
        ("reports", Serve("reports")),
        ("reports:4", Serve("reports", slots=4)),
        ("reports/routine", Serve("reports", "routine")),
        ("reports/routine:2", Serve("reports", "routine", 2)),
        (" reports / routine : 2 ", Serve("reports", "routine", 2)),
    ],
)
def test_a_queue_to_serve_is_written_with_workload_and_slots(text: str, serve: Serve) -> None:
    assert Serve.parse(text) == serve
    assert str(serve) == text.replace(" ", "")


@given(serves)
def test_queues_to_serve_are_read_back_as_they_are_shown(queues: list[Serve]) -> None:
    assert parse_serves([",".join(str(serve) for serve in queues)]) == tuple(queues)
    assert parse_serves(str(serve) for serve in queues) == tuple(queues)


@pytest.mark.parametrize(
    "text",
    [":4", "a:", "a:0", "a:-1", "a:x", "a:4:5", "a/", "/b", "a/b/c", "a:99999", "a:٣", "a: "],
)
def test_a_queue_to_serve_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match=r"(a|of a) (queue|workload) to serve|^the slots of"):
        parse_serves([text])


@given(serves, st.integers(0, 8))
def test_a_concurrency_that_nobody_gave_has_room_for_every_queue(
    queues: list[Serve], processes: int
) -> None:
    concurrency = concurrency_for(queues, processes)
    config = WorkerConfig(concurrency, processes, tuple(queues))
    assert config.slots >= slots_asked(queues)
    assert concurrency >= DEFAULT_CONCURRENCY


@given(serves, st.integers(1, 30), st.integers(0, 3))
def test_queues_that_ask_for_more_slots_than_there_are_are_refused_with_both_numbers(
    queues: list[Serve], concurrency: int, processes: int
) -> None:
    there = concurrency * max(processes, 1)
    asked = slots_asked(queues)
    if asked <= there:
        assert WorkerConfig(concurrency, processes, tuple(queues)).slots == there
        return
    with pytest.raises(BadConfig, match=rf"asks for {asked} slots .* there are {there} "):
        WorkerConfig(concurrency, processes, tuple(queues))


def test_queues_without_slots_of_their_own_need_one_to_share() -> None:
    assert slots_asked([Serve("a", slots=3), Serve("b"), Serve("c")]) == 4
    assert slots_asked([]) == 0


def test_a_queue_served_twice_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"^worker\.queues is 'a:1, a:2'"):
        WorkerConfig(queues=parse_serves(["a:1,a:2"]))
    WorkerConfig(queues=parse_serves(["a:1,a/b:2"]))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("concurrency", 0),
        ("concurrency", "4"),
        ("processes", -1),
        ("processes", 1_000),
        ("beat_ms", 0),
        ("poll_ms", 0),
        ("recover_ms", 0),
        ("drain_ms", -1),
        ("busy_ms", -1),
        ("window_ms", -1),
        ("batch", 0),
    ],
)
def test_a_worker_that_cannot_work_is_refused_with_the_setting(setting: str, value: Any) -> None:
    with pytest.raises(BadConfig, match=rf"^worker\.{setting} is .*: it must be "):
        WorkerConfig(**{setting: value})


@pytest.mark.parametrize("setting", ["completed_ms", "failed_ms", "cancelled_ms"])
def test_a_retention_below_nothing_is_refused(setting: str) -> None:
    with pytest.raises(BadConfig, match=rf"^retention\.{setting} is -1"):
        Retention(**{setting: -1})
