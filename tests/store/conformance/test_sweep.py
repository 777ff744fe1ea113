"""What limit keys and tenants leave behind goes in small steps, and never while it is needed."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.store.kit import Bench, ids, spec, specs

from millpond.model import AttemptOutcome, JobFilter, State

OUT = AttemptOutcome
NOW = {"completed_ms": 0, "failed_ms": 0, "cancelled_ms": 0}
NEVER = {"completed_ms": 1 << 40, "failed_ms": 1 << 40, "cancelled_ms": 1 << 40}


def gates(bench: Bench) -> dict[str, int | None]:
    read = bench.store._read  # type: ignore[attr-defined]
    sql = "SELECT ref, max FROM millpond_gate ORDER BY ref"
    return dict(read(lambda run: run(sql).fetchall()))


def uses(bench: Bench) -> int:
    read = bench.store._read  # type: ignore[attr-defined]
    count: int = read(lambda run: run("SELECT count(*) FROM millpond_tenant_use").fetchone()[0])
    return count


def sweep(bench: Bench, limit: int = 100) -> int:
    """Purge until there is no more; return in how many steps."""
    for step in range(1, 100):
        if not bench.store.purge(**NOW, limit=limit).result().more:
            return step
    raise AssertionError("the purge never came to an end")


def done(bench: Bench, count: int, **more: str | int) -> None:
    """Run jobs to their end, each with a limit key of its own."""
    bench.put(*(spec(limit_key=f"key {n:03}", limit=1, **more) for n in range(count)))
    keeper = bench.keeper()
    for claim in keeper.claim(count):
        keeper.complete(claim)


def test_a_limit_goes_with_the_last_job_of_its_key(bench: Bench) -> None:
    done(bench, 3)
    bench.store.purge(**NEVER, limit=100).result()
    assert len(gates(bench)) == 3, "a final job may be put back, and its limit holds then"
    bench.clock.advance(ms=1)
    sweep(bench)
    assert gates(bench) == {}


@pytest.mark.parametrize("state", [State.SCHEDULED, State.READY, State.RUNNING])
def test_a_limit_stays_while_a_job_of_its_key_is_there(bench: Bench, state: State) -> None:
    delay = 60_000 if state is State.SCHEDULED else 0
    job, other = bench.put(*specs(2, limit_key="k", limit=1, delay_ms=delay))
    keeper = bench.keeper()
    if state is State.RUNNING:
        assert ids(keeper.claim(1)) == [job]
    sweep(bench)
    assert gates(bench) == {"k": 1}
    bench.clock.advance(ms=delay)
    # It is held to, before and after: one at a time.
    held = [] if state is State.RUNNING else keeper.claim(5)
    assert ids(held) == ([] if state is State.RUNNING else [job])
    assert keeper.claim(5) == []
    assert bench.state(other) is State.READY


def test_a_limit_that_people_have_set_stays_without_jobs(bench: Bench) -> None:
    bench.store.set_gate("limit", "theirs", 2).result()
    bench.store.set_gate("tenant", "default/shop", 1).result()
    done(bench, 1)
    bench.store.set_gate("limit", "key 000", 1).result()
    bench.clock.advance(ms=1)
    sweep(bench)
    assert set(gates(bench).values()) == {1, 2}
    assert {"key 000", "theirs"} < set(gates(bench))


def test_many_go_in_steps_of_the_size_that_was_asked_for(bench: Bench) -> None:
    done(bench, 25)
    bench.store.discard([job.id for job in bench.store.find(JobFilter(), limit=30)]).result()
    left = [25, 15, 5, 0]
    for before, after in pairwise(left):
        assert len(gates(bench)) == before
        assert bench.store.purge_expired(10).result().more is (after > 0)
        assert len(gates(bench)) == after


def test_what_is_in_use_is_passed_by_without_haste(bench: Bench) -> None:
    done(bench, 30)
    used = [spec(limit_key=f"key {n:03}", limit=1) for n in range(20)]
    bench.store.discard([job.id for job in bench.store.find(JobFilter(), limit=30)]).result()
    bench.put(*used)
    steps = [bench.store.purge_expired(10).result().more for _ in range(3)]
    assert steps == [False, False, True], "the idle ones are the last ten"
    assert list(gates(bench)) == [f"key {n:03}" for n in range(20)]


def test_the_count_of_a_tenant_without_jobs_goes(bench: Bench) -> None:
    kept, gone = bench.put(spec(tenant="a"), spec(tenant="b"))
    assert uses(bench) == 2
    bench.store.cancel(gone).result()
    sweep(bench)
    assert uses(bench) == 1
    assert bench.store.verify() == []
    bench.put(spec(tenant="b"))
    assert uses(bench) == 2
    assert bench.state(kept) is State.READY
    assert bench.store.verify() == []
