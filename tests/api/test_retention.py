"""Retention through the pond: prune, archive, backup (R22)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.api.hand import Hand

from millpond import BadConfig, ManualClock, Millpond, State

DAY = 86_400


@pytest.fixture(autouse=True)
def plain_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def ended(pond: Millpond) -> list[int]:
    """A completed, a failed and a cancelled job, and one that waits."""

    @pond.task(max_attempts=1)
    def work(n: int) -> None: ...

    refs = [work.enqueue(n) for n in range(4)]
    hand = Hand(pond)
    hand.complete()
    hand.fail()
    pond.cancel(refs[2].id)
    return [ref.id for ref in refs]


def left(pond: Millpond) -> list[int]:
    return sorted(job.id for job in pond.jobs())


def test_jobs_are_pruned_after_the_window_of_their_state(
    pond: Millpond, clock: ManualClock, ended: list[int]
) -> None:
    assert pond.prune() == 0
    clock.advance(7 * DAY)
    assert pond.prune() == 0
    clock.advance(ms=1)
    assert pond.prunable() == {State.COMPLETED: 1, State.FAILED: 0, State.CANCELLED: 1}
    assert pond.prune() == 2
    assert left(pond) == [ended[1], ended[3]]
    clock.advance(23 * DAY)
    assert pond.prune() == 1
    assert left(pond) == [ended[3]]


def test_windows_come_from_the_settings_unless_they_are_given(
    pond: Millpond,
    clock: ManualClock,
    ended: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock.advance(3_600)
    (tmp_path / "millpond.toml").write_text('[retention]\ncompleted = "30m"\nfailed = "30m"\n')
    monkeypatch.setenv("MILLPOND_KEEP_FAILED", "2h")
    assert pond.prunable() == {State.COMPLETED: 1, State.FAILED: 0, State.CANCELLED: 0}
    assert pond.prunable(cancelled=0, completed="2h")[State.CANCELLED] == 1
    assert pond.prune(failed="59m") == 2
    assert left(pond) == [ended[2], ended[3]]
    with pytest.raises(BadConfig, match="cancelled"):
        pond.prune(cancelled=-1)


def test_pruning_many_tells_how_far_it_is(pond: Millpond, clock: ManualClock) -> None:
    @pond.task
    def work(n: int) -> None: ...

    with pond.batch() as batch:
        for n in range(1_000):
            batch.add(work, n)
    pond.select("ready").cancel()
    clock.advance(8 * DAY)
    told: list[tuple[int, int]] = []
    assert pond.prune(progress=lambda *now: told.append(now)) == 1_000
    assert told[-1] == (1_000, 1_000)
    assert len(told) > 2
    assert pond.verify() == []


def test_prune_can_be_ended_at_any_time_and_started_again(
    pond: Millpond, clock: ManualClock
) -> None:
    @pond.task
    def work(n: int) -> None: ...

    with pond.batch() as batch:
        for n in range(400):
            batch.add(work, n)
    pond.select("ready").cancel()
    clock.advance(8 * DAY)

    def interrupt(*_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pond.prune(progress=interrupt)
    some = len(pond.jobs(limit=1_000))
    assert 0 < some < 400
    assert pond.prune() == some


def test_expired_results_and_keys_go_as_well(pond: Millpond, clock: ManualClock) -> None:
    @pond.task(result_ttl="1h", key_ttl="1h")
    def work() -> int:
        return 1

    ref = work.using(key="k").enqueue()
    pond.drain()
    clock.advance(2 * 3_600)
    pond.prune()
    rows = pond.store._read(  # type: ignore[attr-defined]
        lambda run: run(
            "SELECT (SELECT count(*) FROM millpond_result) + (SELECT count(*) FROM millpond_dedup)"
        ).fetchone()
    )
    assert rows == (0,)
    assert ref.job().state is State.COMPLETED


@pytest.mark.parametrize("how", ["archive", "prune"])
def test_archived_jobs_stand_in_the_file(
    pond: Millpond, clock: ManualClock, ended: list[int], tmp_path: Path, how: str
) -> None:
    clock.advance(8 * DAY)
    file = tmp_path / "old.jsonl"
    told: list[tuple[int, int]] = []
    if how == "archive":
        moved = pond.archive(file, progress=lambda *now: told.append(now))
    else:
        moved = pond.prune(archive=file, progress=lambda *now: told.append(now))
    assert moved == 2
    assert told[-1] == (2, 2)
    assert left(pond) == [ended[1], ended[3]]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line["id"] for line in lines] == [ended[0], ended[2]]
    assert lines[0]["payload"] == {"n": 0}


def test_archive_takes_an_age_of_its_own(
    pond: Millpond, clock: ManualClock, ended: list[int], tmp_path: Path
) -> None:
    clock.advance(100)
    assert pond.archive(tmp_path / "a.jsonl", older_than=101) == 0
    assert pond.archive(tmp_path / "a.jsonl", older_than="1m") == 3
    assert left(pond) == [ended[3]]
    with pytest.raises(BadConfig):
        pond.archive(tmp_path / "a.jsonl", older_than="a while")


def test_pruning_with_an_archive_never_deletes_a_job_that_is_not_in_it(
    pond: Millpond, clock: ManualClock, ended: list[int], tmp_path: Path
) -> None:
    """Jobs that come past their window while it runs are archived too, or stay."""
    clock.advance(8 * DAY)
    file = tmp_path / "old.jsonl"
    pond.prune(archive=file, progress=lambda *_: clock.advance(23 * DAY))
    archived = {json.loads(line)["id"] for line in file.read_text().splitlines()}
    assert archived | set(left(pond)) == set(ended)


def test_a_backup_is_a_store_of_that_moment(
    pond: Millpond, ended: list[int], tmp_path: Path
) -> None:
    made = pond.backup(tmp_path / "copy.db")
    assert (made.path, made.at) == (str(tmp_path / "copy.db"), pond.get(ended[0]).created_at)
    assert made.size == (tmp_path / "copy.db").stat().st_size
    assert json.loads(json.dumps(made.to_json()))["at"] == "2023-11-14T22:13:20.000Z"
    with Millpond(tmp_path / "copy.db") as copy:
        assert left(copy) == ended
        assert copy.verify() == []
    with pytest.raises(BadConfig, match="there already"):
        pond.backup(tmp_path / "copy.db")


def test_every_call_has_its_awaited_twin(
    pond: Millpond, clock: ManualClock, ended: list[int], tmp_path: Path
) -> None:
    clock.advance(8 * DAY)

    async def all_of_it() -> None:
        assert (await pond.aprunable())[State.COMPLETED] == 1
        assert (await pond.abackup(tmp_path / "copy.db")).size > 0
        assert await pond.aarchive(tmp_path / "a.jsonl", older_than="10d") == 0
        assert await pond.aprune(completed="1d", cancelled="10d") == 1

    asyncio.run(all_of_it())
