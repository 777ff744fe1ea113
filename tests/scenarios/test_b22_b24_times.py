"""B22: moments mean the same everywhere. B24: retries of one instant spread, and they end."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.scenarios.mill import Mill, until

from millpond import Backoff, ManualClock, Millpond

APP = """
@pond.task(**FAST)
def send(n: int = 0) -> None:
    note("ran", n)
"""

ZONED = """
import sys
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo
import app

moment = datetime.fromtimestamp(1893456000.123, timezone.utc)
zones = [timezone.utc, ZoneInfo("Asia/Kolkata"), ZoneInfo("America/St_Johns"),
         timezone(timedelta(hours=-3, minutes=-30))]
for zone in zones:
    ref = app.send.using(at=moment.astimezone(zone)).enqueue(1)
    print(ref.job().due_at.timestamp())
try:
    app.send.using(at=datetime(2030, 1, 1)).enqueue(1)
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "America/New_York", "UTC"])
def test_b22_aware_moments_are_equal_and_naive_ones_refused_in_any_zone(
    mill: Mill, zone: str
) -> None:
    mill.write(APP)
    done = subprocess.run(
        [sys.executable, "-c", ZONED], cwd=mill.folder, env={**mill.environment, "TZ": zone},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    *moments, refused = done.stdout.splitlines()
    assert moments == ["1893456000.123"] * 4
    assert refused.startswith("BadConfig")
    assert "time zone" in refused
    assert "Asia/Kolkata" in refused
    assert len(mill.pond.jobs(limit=10)) == 4


SAME = [
    "2030-01-01T00:00:00.123Z",
    "2030-01-01T05:30:00.123+05:30",
    "2029-12-31T20:30:00.123-03:30",
    "2030-01-01T00:00:00.123+00:00",
]


def test_b22_the_command_line_takes_the_same_moments(mill: Mill) -> None:
    mill.write(APP)
    env = {"TZ": "Asia/Kolkata"}
    for text in SAME:
        done = mill.run("enqueue", "send", "--at", text, "--app", "app:pond", env=env)
        assert done.returncode == 0, done.stderr
        mill.accepted.append(int(done.stdout))
    dues = {job.due_at for job in mill.pond.jobs(limit=10)}
    assert dues == {datetime(2030, 1, 1, 0, 0, 0, 123_000, tzinfo=UTC)}

    naive = mill.run("enqueue", "send", "--at", "2030-01-01T00:00", "--app", "app:pond", env=env)
    assert naive.returncode == 2
    assert "time zone" in naive.stderr
    assert "Traceback" not in naive.stderr
    assert len(mill.pond.jobs(limit=10)) == 4


def test_b22_a_workers_clock_can_be_moved(mill: Mill) -> None:
    mill.write(APP)
    ref = mill.one("send", 1, delay="1h")
    soon = mill.worker().ready()
    assert mill.worker("--drain").ended() == 0
    assert mill.state(ref) == "scheduled"
    assert soon.stop() == 0
    mill.worker(env={"MILLPOND_CLOCK_OFFSET": "3601"})
    mill.becomes(ref, "completed")
    until(lambda: mill.pond.status().outstanding == 0)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pond(clock: ManualClock) -> Iterator[Millpond]:
    random.seed(24)  # the worker's dice
    pond = Millpond(":memory:", clock=clock)
    yield pond
    assert pond.verify() == []
    pond.close()


@pytest.mark.parametrize("minimum", [0.0, 2.0])
def test_b24_five_hundred_failures_of_one_instant_spread_their_next_tries(
    pond: Millpond, clock: ManualClock, minimum: float
) -> None:
    @pond.task(retry=Backoff(base=10, minimum=minimum))
    def fail() -> None:
        raise ConnectionError

    with pond.batch() as batch:
        for _ in range(500):
            batch.add(fail)
    pond.drain(concurrency=8)
    now = datetime.fromtimestamp(clock.now() / 1000, UTC)
    waits = [(ref.job().due_at - now).total_seconds() for ref in batch.refs]
    assert min(waits) >= minimum
    assert max(waits) <= 10
    buckets = Counter(int(wait) for wait in waits)
    # The window is ten seconds long, and shorter by the minimum.
    assert max(buckets.values()) <= 0.15 * 500 * 10 / (10 - minimum)
    assert len(buckets) == 10 - minimum


def test_b24_without_jitter_all_come_back_at_once_as_asked(
    pond: Millpond, clock: ManualClock
) -> None:
    @pond.task(retry=Backoff(base=5, jitter="none"))
    def fail() -> None:
        raise ConnectionError

    ref = fail.enqueue()
    waits = []
    while ref.job().state != "failed":
        pond.drain()
        job = ref.job()
        if job.state == "scheduled":
            waits.append(job.due_at.timestamp() - clock.now() / 1000)
            clock.advance(waits[-1])
    assert waits == [5, 10, 20, 40]


def test_b24_a_job_that_always_fails_ends_under_the_default_policy(
    pond: Millpond, clock: ManualClock
) -> None:
    @pond.task
    def fail() -> None:
        raise ConnectionError

    ref = fail.enqueue()
    default, began = Backoff(), clock.now()
    for attempt in range(1, 1_000):
        pond.drain()
        job = ref.job()
        if job.final:
            break
        wait = job.due_at.timestamp() - clock.now() / 1000
        assert 0 <= wait <= min(default.base * default.factor ** (attempt - 1), default.cap)
        clock.advance(wait + 0.001)
    job = ref.job()
    assert (job.state, job.attempts, job.max_attempts) == ("failed", 5, 5)
    outcomes = [each.outcome.value for each in pond.attempts(ref.id)]
    assert outcomes == ["retried"] * 4 + ["failed"]
    assert clock.now() - began < timedelta(days=1).total_seconds() * 1000
    # Dead is dead: nothing brings it back by itself.
    clock.advance(86_400)
    assert pond.drain().ended == 0
