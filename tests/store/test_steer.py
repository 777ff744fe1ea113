from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.kit import Dice, Keeper, closing, info, specs

from millpond.clock import ManualClock
from millpond.config import PressureSettings, QueueSettings, WorkloadSettings
from millpond.policy.causes import Cause
from millpond.policy.effects import Effect, Verdict
from millpond.policy.modes import Mode
from millpond.policy.steering import PressureChange
from millpond.store.sqlite import pressure, steer
from millpond.store.sqlite.engine import SqliteStore
from millpond.store.sqlite.names import Context


@pytest.fixture
def store(clock: ManualClock, dice: Dice) -> Iterator[SqliteStore]:
    yield from closing(SqliteStore(":memory:", clock=clock, roll=dice))


def queue(store: SqliteStore, *workloads: WorkloadSettings, **more: Any) -> None:
    given = {"max_jobs": 100, **more}
    store.put_queue(QueueSettings("default", workloads=workloads, **given)).result()


def put(store: SqliteStore, count: int, **more: Any) -> None:
    for start in range(0, count, 1_000):
        store.enqueue(specs(min(1_000, count - start), **more)).result()


def look(store: SqliteStore) -> list[PressureChange]:
    return store.steer().result() if store.pressed() else []


def watch(store: SqliteStore, clock: ManualClock, seconds: int) -> list[PressureChange]:
    changes = []
    for _ in range(seconds):
        clock.advance(1)
        changes += look(store)
    return changes


def seen(store: SqliteStore) -> Any:
    """What the next look would find in the queue `default`."""
    (found,) = store._write(steer.looks).result()
    return found.reading


def rows(store: SqliteStore, text: str) -> list[Any]:
    found: list[Any] = store._read(lambda run: run(text).fetchall())
    return found


def gate(store: SqliteStore, workload: str, utilisation: float = 0.0) -> pressure.Gate:
    def ask(tx: Context) -> pressure.Gate:
        (ident,) = (each.id for each in tx.names.workloads.values() if each.name == workload)
        return pressure.gate(tx, ident, utilisation)

    return store._write(ask).result()


def test_an_idle_store_is_not_looked_at(store: SqliteStore) -> None:
    assert not store.pressed()
    put(store, 1)
    assert store.pressed()


def pulse(store: SqliteStore) -> list[Any]:
    return rows(store, "SELECT at FROM millpond_pulse")


def test_what_is_due_later_or_runs_for_long_is_no_reason_to_write(
    store: SqliteStore, clock: ManualClock
) -> None:
    put(store, 3, delay_ms=3_600_000)
    assert not store.pressed()
    keeper = Keeper(store)
    put(store, 1)
    keeper.claim(1)
    watch(store, clock, 2)
    last = pulse(store)
    assert store.pressed()
    watch(store, clock, 30)
    assert pulse(store) == last
    put(store, 1)
    watch(store, clock, 1)
    assert pulse(store) == [(clock.now(),)]


def test_a_paused_queue_is_not_looked_at(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 3)
    store.pause("default", paused=True).result()
    clock.advance(7_200)
    assert not store.pressed()


def test_a_queue_full_of_what_is_due_later_is_under_pressure(store: SqliteStore) -> None:
    queue(store)
    put(store, 49, delay_ms=3_600_000)
    assert not store.pressed()
    put(store, 41, delay_ms=3_600_000)
    assert [each.mode for each in look(store)] == [Mode.CRITICAL]


def test_a_full_queue_is_critical_and_empty_again_normal_after_the_dwells(
    store: SqliteStore, clock: ManualClock
) -> None:
    queue(store)
    keeper = Keeper(store)
    put(store, 90)
    (change,) = look(store)
    assert (change.queue, change.mode, change.signal) == ("default", Mode.CRITICAL, "utilisation")
    assert change.figures["utilisation"] == 0.9
    for claim in keeper.claim(90):
        keeper.complete(claim)
    told = watch(store, clock, 100)
    assert [(each.mode, each.signal) for each in told if each.signal == "calm"] == [
        (Mode.ELEVATED, "calm"), (Mode.NORMAL, "calm"),
    ]  # fmt: skip
    assert not store.pressed()


def test_a_change_stands_in_the_mode_row_and_among_the_events(
    store: SqliteStore, clock: ManualClock
) -> None:
    queue(store)
    put(store, 75)
    look(store)
    ((name, since, signal, epoch, figures),) = rows(
        store, "SELECT mode, since, signal, epoch, figures FROM millpond_mode"
    )
    assert (name, since, signal, epoch) == ("elevated", clock.now(), "utilisation", 1)
    assert json.loads(figures)["utilisation"] == 0.75
    (event,) = store.events(what="mode")
    assert (event.who, event.which, event.note) == (
        "millpond", "default", "by utilisation, cause steady",
    )  # fmt: skip
    assert json.loads(event.before or "") == {"mode": "normal"}
    assert json.loads(event.after or "")["mode"] == "elevated"


def test_how_a_queue_stands_can_be_read(store: SqliteStore, clock: ManualClock) -> None:
    assert store.pressure() == []
    line(store, clock)
    (shown,) = store.pressure()
    assert (shown.queue, shown.looked_at) == ("default", clock.now())
    assert (shown.mode, shown.signal, shown.cause) == (Mode.ELEVATED, "utilisation", Cause.STEADY)
    assert shown.since == clock.now() - 3_000
    assert shown.figures["utilisation"] == 0.76
    assert shown.lines["routine"].room == pytest.approx(10)


def test_a_queue_of_which_nothing_is_to_be_said_is_normal(
    store: SqliteStore, clock: ManualClock
) -> None:
    Keeper(store)
    put(store, 1)
    watch(store, clock, 2)
    (shown,) = store.pressure()
    assert (shown.mode, shown.since, shown.cause) == (Mode.NORMAL, None, Cause.STEADY)


def test_the_mode_row_is_written_only_when_something_changes(
    store: SqliteStore, clock: ManualClock
) -> None:
    queue(store)
    put(store, 5)
    Keeper(store)
    assert watch(store, clock, 10) == []
    assert rows(store, "SELECT count(*) FROM millpond_mode") == [(0,)]
    assert rows(store, "SELECT at FROM millpond_pulse") == [(clock.now(),)]


def test_eight_thousand_that_wait_two_seconds_are_normal_and_forty_five_minutes_are_not(
    store: SqliteStore, clock: ManualClock
) -> None:
    """R36 on the real store: 8 % of the default limit, told apart by the age of the oldest."""
    put(store, 8_000)
    Keeper(store)
    assert [each for each in watch(store, clock, 2) if each.signal] == []
    clock.advance(45 * 60)
    keeper = Keeper(store)
    assert keeper.id
    changes = [each for each in watch(store, clock, 10) if each.mode is not Mode.NORMAL]
    assert changes[0].mode is Mode.ELEVATED
    assert changes[0].signal == "age"
    assert 2_700_000 <= int(changes[0].figures["age_ms"] or 0) <= 2_712_000


@pytest.mark.parametrize(("each_second", "mode"), [(833, Mode.NORMAL), (5 / 3, Mode.CRITICAL)])
def test_ten_thousand_at_fifty_thousand_a_minute_are_normal_and_at_a_hundred_are_not(
    store: SqliteStore, clock: ManualClock, each_second: float, mode: Mode
) -> None:
    """R36 on the real store: as many come in as end, so that ten thousand wait all the time."""
    keeper = Keeper(store)
    put(store, 10_000)
    look(store)
    done = 0
    for second in range(1, 13):
        clock.advance(1)
        many = int(second * each_second) - done
        done += many
        for claim in keeper.claim(many) if many else []:
            keeper.complete(claim)
        put(store, many)
        look(store)
    found = rows(store, "SELECT mode, signal FROM millpond_mode") or [("normal", "")]
    assert found[0][0] == mode.value
    if mode is Mode.CRITICAL:
        assert found[0][1] == "drain"


def test_the_oldest_is_found_behind_any_priority(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 1, priority=200)
    clock.advance(30)
    put(store, 500, priority=10)
    put(store, 500, priority=-5)
    clock.advance(1)
    (workload,) = seen(store).workloads.values()
    assert (workload.eligible, workload.age_ms) == (1_001, 31_000)


def test_in_ageing_order_the_oldest_of_the_first_thousand_is_found(
    store: SqliteStore, clock: ManualClock
) -> None:
    queue(store, max_jobs=10_000, order="ageing", ageing_ms=60_000)
    put(store, 1, priority=3)
    clock.advance(30)
    put(store, 500, priority=1)
    (workload,) = seen(store).workloads.values()
    assert workload.age_ms == 30_000


def test_what_cannot_run_is_not_late(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 3)
    clock.advance(7_200)
    store.pause("default", paused=True).result()
    (workload,) = seen(store).workloads.values()
    assert (workload.jobs, workload.eligible, workload.age_ms) == (3, 0, 0)
    store.pause("default", paused=False).result()
    (workload,) = seen(store).workloads.values()
    assert (workload.eligible, workload.age_ms) == (3, 7_200_000)


def test_what_waits_for_a_limit_is_not_late(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 3, limit_key="k", limit=1)
    keeper = Keeper(store)
    keeper.claim(3)
    clock.advance(7_200)
    assert seen(store).eligible == 0
    assert seen(store).running == 1


def test_what_is_due_and_not_promoted_waits_too(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 2, delay_ms=10_000)
    assert seen(store).eligible == 0
    clock.advance(25)
    (workload,) = seen(store).workloads.values()
    assert (workload.eligible, workload.age_ms) == (2, 15_000)


def test_work_that_nobody_serves_is_a_failure_of_workers(
    store: SqliteStore, clock: ManualClock
) -> None:
    put(store, 1)
    changes = watch(store, clock, 10)
    assert [(each.cause, each.detail) for each in changes] == [(Cause.FAILURE, "no_workers")]
    store.register(info("mail", queues=("other:2",))).result()
    assert seen(store).slots == 0
    store.register(info("mail", queues=("default/default:2",), slots=2)).result()
    assert seen(store).slots == 2


def test_only_live_workers_count(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 1)
    store.register(info("mail", slots=4)).result()
    assert seen(store).slots == 4
    clock.advance(61)
    assert seen(store).slots == 0


def test_whoever_looks_next_goes_on_where_the_last_one_stopped(
    tmp_path: Path, clock: ManualClock
) -> None:
    first = SqliteStore(str(tmp_path / "jobs.db"), clock=clock)
    second = SqliteStore(str(tmp_path / "jobs.db"), clock=clock)
    try:
        queue(first, max_jobs=20)
        put(first, 15)
        assert [each.mode for each in look(first)] == [Mode.ELEVATED]
        keeper = Keeper(first)
        for claim in keeper.claim(15):
            keeper.complete(claim)
        watch(first, clock, 20)
        told = watch(second, clock, 12)
        assert [each.mode for each in told if each.signal == "calm"] == [Mode.NORMAL]
    finally:
        first.close()
        second.close()


def test_a_memory_that_cannot_be_read_is_made_anew(store: SqliteStore, clock: ManualClock) -> None:
    put(store, 1)
    look(store)
    store._write(
        lambda tx: tx.execute("""UPDATE millpond_pulse SET memory = '{"at": "later"}'""")
    ).result()
    Keeper(store)
    assert watch(store, clock, 3) == []


# -- the gate ------------------------------------------------------------------------------------

CLASSES = tuple(WorkloadSettings(each.value) for each in Effect)


def test_a_gate_follows_the_mode_of_its_queue(store: SqliteStore) -> None:
    queue(store, *CLASSES)
    put(store, 75, workload="user")
    look(store)
    told = [gate(store, each.value).verdict for each in Effect]
    # Nothing was drained yet, so nobody knows how fast routine work may come in.
    assert told == [Verdict.OPEN, Verdict.OPEN, Verdict.OPEN, Verdict.CLOSED]
    put(store, 20, workload="user")
    look(store)
    told = [gate(store, each.value).verdict for each in Effect]
    assert told == [Verdict.OPEN, Verdict.OPEN, Verdict.CLOSED, Verdict.CLOSED]
    assert gate(store, "routine").reason == "mode_critical"


def test_nobody_is_bound_where_no_work_matters_more(store: SqliteStore) -> None:
    queue(store)
    put(store, 95)
    look(store)
    found = gate(store, "default")
    assert (found.verdict, found.mode) == (Verdict.OPEN, Mode.CRITICAL)
    queue(store, WorkloadSettings("default", effect="routine"))
    assert gate(store, "default").verdict is Verdict.CLOSED


def test_a_dry_run_tells_what_it_would_have_said(store: SqliteStore) -> None:
    queue(store, *CLASSES, pressure=PressureSettings(dry_run=True))
    put(store, 95, workload="user")
    look(store)
    found = gate(store, "routine")
    assert (found.verdict, found.would, found.mode) == (
        Verdict.OPEN, Verdict.CLOSED, Mode.CRITICAL,
    )  # fmt: skip


def test_without_a_look_for_fifteen_seconds_room_alone_decides(
    store: SqliteStore, clock: ManualClock
) -> None:
    queue(store, *CLASSES)
    put(store, 95, workload="user")
    look(store)
    clock.advance(15)
    assert gate(store, "routine", 0.1).verdict is Verdict.CLOSED
    clock.advance(ms=1)
    found = gate(store, "routine", 0.1)
    assert (found.verdict, found.inline) == (Verdict.OPEN, True)
    assert gate(store, "routine", 0.9).verdict is Verdict.CLOSED
    assert gate(store, "sheddable", 0.7).verdict is Verdict.CLOSED
    clock.jump(-3_600)
    assert gate(store, "routine", 0.1).inline


def line(store: SqliteStore, clock: ManualClock) -> None:
    """Bring the queue to elevated, with ten jobs a second draining from it."""
    queue(store, *CLASSES, max_jobs=1_000)
    keeper = Keeper(store)
    put(store, 760, workload="routine")
    look(store)
    for _ in range(3):
        clock.advance(1)
        for claim in keeper.claim(10):
            keeper.complete(claim)
        put(store, 10, workload="routine")
        look(store)


def test_on_the_line_so_many_pass_as_drain(store: SqliteStore, clock: ManualClock) -> None:
    line(store, clock)
    found = gate(store, "routine")
    assert (found.verdict, found.full) == (Verdict.LINE, True)
    # 76 % full: ten a second, times one less the cube of 0.06 over 0.2.
    ((rate, room),) = rows(
        store, "SELECT line, room FROM millpond_flow f JOIN millpond_workload w"
        " ON w.id = f.workload WHERE w.name = 'routine'",
    )  # fmt: skip
    assert room == pytest.approx(10)
    assert rate == pytest.approx(10 * (1 - 0.3**3))

    def pass_all(tx: Context) -> int:
        (ident,) = (each.id for each in tx.names.workloads.values() if each.name == "routine")
        pressure.passed(tx, ident, 10)
        return pressure.gate(tx, ident, 0.0).grants

    assert store._write(pass_all).result() == 0
    clock.advance(ms=500)
    assert gate(store, "routine").grants == 4


def test_what_is_undone_has_not_passed_the_line(store: SqliteStore, clock: ManualClock) -> None:
    line(store, clock)

    def fail(tx: Context) -> None:
        (ident,) = (each.id for each in tx.names.workloads.values() if each.name == "routine")
        pressure.passed(tx, ident, 10)
        msg = "undone"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="undone"):
        store._write(fail).result()
    assert gate(store, "routine").full


# -- when to come back ---------------------------------------------------------------------------


def refuse(store: SqliteStore, book: pressure.Refusals, jobs: int = 1) -> float | None:
    def ask(tx: Context) -> float | None:
        (ident,) = (each.id for each in tx.names.workloads.values() if each.name == "routine")
        return book.refused(tx, ident, "queue_full", jobs)

    return store._write(ask).result()


def test_nothing_is_said_before_anything_was_measured(store: SqliteStore) -> None:
    queue(store, *CLASSES)
    put(store, 1, workload="routine")
    assert refuse(store, pressure.Refusals(Dice(0.0))) is None


def test_refused_callers_are_called_back_at_the_rate_that_was_measured(
    store: SqliteStore, clock: ManualClock
) -> None:
    line(store, clock)
    book = pressure.Refusals(Dice(0.0))
    assert refuse(store, book, 20) == pytest.approx(2, rel=0.01)
    assert refuse(store, book, 10) == pytest.approx(3, rel=0.01)


def test_processes_share_one_line_of_refused_callers(
    store: SqliteStore, clock: ManualClock
) -> None:
    line(store, clock)
    mine, other = pressure.Refusals(Dice(0.0)), pressure.Refusals(Dice(0.0))
    refuse(store, mine, 100)
    refuse(store, other, 50)
    assert mine.untold
    told = store._write(mine.flush).result()
    assert mine.untold
    mine.told(told)
    assert not mine.untold
    other.told(store._write(other.flush).result())
    assert refuse(store, mine, 10) == pytest.approx(16, rel=0.01)
    assert rows(store, "SELECT reason, n FROM millpond_refusal") == [("queue_full", 150)]


def test_what_a_flush_that_failed_has_told_is_told_by_the_next(
    store: SqliteStore, clock: ManualClock
) -> None:
    line(store, clock)
    book = pressure.Refusals(Dice(0.0))
    refuse(store, book, 30)

    def fail(tx: Context) -> None:
        book.flush(tx)
        msg = "the disk is full"
        raise RuntimeError(msg)

    with pytest.raises(RuntimeError, match="full"):
        store._write(fail).result()
    refuse(store, book, 5)
    told = store._write(book.flush).result()
    refuse(store, book, 1)
    book.told(told)
    book.told(store._write(book.flush).result())
    assert rows(store, "SELECT n FROM millpond_refusal") == [(36,)]
    assert not book.untold


def test_what_was_refused_counts_as_offered(store: SqliteStore, clock: ManualClock) -> None:
    queue(store, *CLASSES)
    put(store, 1, workload="routine")
    look(store)
    book = pressure.Refusals(Dice(0.0))
    refuse(store, book, 600)
    book.told(store._write(book.flush).result())
    clock.advance(1)
    look(store)
    ((memory,),) = rows(store, "SELECT memory FROM millpond_pulse")
    assert json.loads(memory)["whole"]["offered"]["means"][0] > 100
