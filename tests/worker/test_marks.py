"""Marks: what they say outlives the processes, and nobody judges a worker that still lives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.model import JobId, Token
from millpond.worker import marks
from millpond.worker.marks import Mark, Marks, Stage


def token(number: int) -> Token:
    return Token(JobId(number), number * 10)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keeper.marks"


def test_another_process_reads_how_far_each_job_came(path: Path) -> None:
    made = Marks.create(path, 8)
    places = [made.enter(token(number)) for number in range(1, 5)]
    assert None not in places
    runner = Marks.attach(str(path))
    fed, started, returned, settled = (place for place in places if place is not None)
    runner.started(started, 111)
    runner.started(returned, 222)
    runner.returned(returned)
    made.leave(settled)
    assert made.look(started) == Mark(Stage.STARTED, 111)
    assert made.look(fed) == Mark(Stage.FED, None)
    runner.close()
    made.close()
    assert marks.read(str(path)) == {
        token(1): Mark(Stage.FED, None),
        token(2): Mark(Stage.STARTED, 111),
        token(3): Mark(Stage.RETURNED, 222),
    }


def test_marks_of_a_living_keeper_are_not_judged(path: Path) -> None:
    made = Marks.create(path, 4)
    made.enter(token(1))
    assert marks.read(str(path)) is None
    made.close()
    assert marks.read(str(path)) == {token(1): Mark(Stage.FED, None)}


def test_marks_of_a_dead_keeper_with_a_living_runner_are_not_judged(path: Path) -> None:
    made = Marks.create(path, 4)
    made.enter(token(1))
    runner = Marks.attach(str(path))
    made.close()
    assert marks.read(str(path)) is None
    runner.close()
    assert marks.read(str(path)) is not None


def test_marks_survive_a_sudden_death(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from millpond.worker.marks import Marks; from millpond.model import Token;"
        "m = Marks.create(Path(sys.argv[1]), 4);"
        "m.enter(Token(1, 10)); m.started(m.enter(Token(2, 20)), 5);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", code, str(path)], timeout=30, check=False)
    assert died.returncode == -9
    assert marks.read(str(path)) == {
        token(1): Mark(Stage.FED, None),
        token(2): Mark(Stage.STARTED, 5),
    }


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"SQLite format 3\0" * 20),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    ],
)
def test_marks_that_cannot_be_read_say_nothing(path: Path, damage: object) -> None:
    made = Marks.create(path, 4)
    made.enter(token(1))
    made.close()
    damage(path)  # type: ignore[operator]
    assert marks.read(str(path)) is None


def test_an_unknown_stage_makes_the_file_unreadable(path: Path) -> None:
    made = Marks.create(path, 1)
    made.enter(token(1))
    made.close()
    whole = bytearray(path.read_bytes())
    whole[64 + 24] = 99
    path.write_bytes(whole)
    assert marks.read(str(path)) is None


def test_places_are_given_again_and_end(path: Path) -> None:
    made = Marks.create(path, 2)
    first, second = made.enter(token(1)), made.enter(token(2))
    assert made.enter(token(3)) is None
    assert first is not None
    made.leave(first)
    assert made.enter(token(4)) == first
    assert second != first
    made.close(remove=True)
    assert not path.exists()


def test_a_file_is_never_taken_over(path: Path) -> None:
    path.touch()
    with pytest.raises(FileExistsError):
        Marks.create(path, 4)


def test_marks_without_a_file_are_private() -> None:
    made = Marks.create(None, 4)
    place = made.enter(token(1))
    assert place is not None
    made.started(place, 7)
    assert made.look(place) == Mark(Stage.STARTED, 7)
    assert made.path is None
    made.close(remove=True)


steps = st.lists(
    st.tuples(st.sampled_from(["enter", "start", "return", "leave"]), st.integers(0, 2**62))
)


@given(steps)
def test_the_file_says_what_was_done(steps: list[tuple[str, int]]) -> None:
    made = Marks.create(None, 5)
    told: dict[int, Mark] = {}
    for verb, number in steps:
        at = sorted(told)[number % len(told)] if told else None
        match verb, at:
            case "enter", _:
                place = made.enter(token(number % 1000 + 1))
                assert (place is None) == (len(told) == 5)
                if place is not None:
                    assert place not in told
                    told[place] = Mark(Stage.FED, None)
            case "start", int():
                made.started(at, number)
                told[at] = Mark(Stage.STARTED, number)
            case "return", int() if told[at].stage is Stage.STARTED:
                made.returned(at)
                told[at] = Mark(Stage.RETURNED, told[at].started_at)
            case "leave", int():
                made.leave(at)
                del told[at]
            case _:
                pass
        assert {place: made.look(place) for place in told} == told
    made.close()
