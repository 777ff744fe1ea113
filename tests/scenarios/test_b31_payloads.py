"""B31: a payload is refused with path and reason, or comes back exactly; alike in all modes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.scenarios.mill import Mill, soak

from millpond import BadConfig, BadPayload, JobNotFound, ManualClock, Millpond

LIMIT = 10_000


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


ZONE = timezone(timedelta(hours=5, minutes=30))

VALUES: dict[str, Any] = {
    "a number as key": {1: "a"},
    "a tuple": (1, 2),
    "a tuple inside": {"rows": [(1, 2)]},
    "not a number": math.nan,
    "infinity": math.inf,
    "minus infinity inside": [1.0, -math.inf],
    "minus zero": -0.0,
    "a decimal": Decimal("1.10"),
    "a moment": datetime(2030, 1, 1, 12, 0, 0, 123_456, tzinfo=UTC),
    "a moment elsewhere": datetime(2030, 1, 1, 12, 0, tzinfo=ZONE),
    "a naive moment": datetime(2030, 1, 1),  # noqa: DTZ001  it is the case here
    "bytes": b"\x00\xff",
    "two to the 63": 2**63,
    "two to the 64 less one": 2**64 - 1,
    "two to the 70": 2**70,
    "minus two to the 63": -(2**63),
    "less than that": -(2**63) - 1,
    "a lone surrogate": "\ud800",
    "a lone surrogate as key": {"\ud800": 1},
    "a NUL": "a\0b",
    "nested 10,000 deep": nested(10_000),
    "nested 50 deep": nested(50),
    "a set": {1, 2},
    "an object": object(),
    "a class": int,
    "a float like an integer": 1.0,
    "a small float": 5e-324,
    "a large float": 1.7976931348623157e308,
    "true": True,
    "nothing": None,
    "text of all planes": "é漢𝄞\u2028",
    "a mixture": {"a": [1, "x", None, {"b": 2.5}]},
}

KINDS: dict[str, Any] = {"Any": Any} | {
    "int": int,
    "float": float,
    "str": str,
    "bytes": bytes,
    "Decimal": Decimal,
    "datetime": datetime,
    "dict[int, str]": dict[int, str],
    "tuple[int, int]": tuple[int, int],
    "list[Any]": list[Any],
    "set[int]": set[int],
}

FITTING = {
    "a number as key": "dict[int, str]",
    "a tuple": "tuple[int, int]",
    "minus zero": "float",
    "a float like an integer": "float",
    "a small float": "float",
    "a large float": "float",
    "a decimal": "Decimal",
    "a moment": "datetime",
    "a moment elsewhere": "datetime",
    "a naive moment": "datetime",
    "bytes": "bytes",
    "a set": "set[int]",
    "two to the 63": "int",
    "two to the 64 less one": "int",
    "two to the 70": "int",
    "minus two to the 63": "int",
    "less than that": "int",
    "not a number": "float",
    "infinity": "float",
    "a lone surrogate": "str",
    "a NUL": "str",
}

CASES = [(what, "Any") for what in VALUES] + list(FITTING.items())


def alike(one: Any, other: Any) -> bool:
    """Tell whether two values are equal in value and type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(alike, one.values(), other.values()))
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    if isinstance(one, datetime):
        return bool(one == other and one.utcoffset() == other.utcoffset())
    return bool(one == other)


class Mode:
    """One way to enqueue and run, and what its handler got."""

    def __init__(self, pond: Millpond, kind: Any, *, drains: bool) -> None:
        self.pond = pond
        self.got: list[Any] = []
        self._drains = drains

        def take(value: Any) -> None:
            self.got.append(value)

        take.__annotations__ = {"value": kind, "return": None}
        self.task = pond.task(name="take")(take)

    def enqueue(self, value: Any) -> str | None:
        """Return how it was refused, None when it was not."""
        try:
            self.task.enqueue(value)
        except (BadPayload, TypeError) as error:
            assert self.pond.status().outstanding == 0
            assert self.pond.jobs() == []
            return f"{type(error).__name__}: {error}"
        if self._drains:
            self.pond.drain()
        return None


@pytest.fixture
def modes(tmp_path: Path) -> Iterator[Callable[[Any], list[Mode]]]:
    made: list[Millpond] = []

    def make(kind: Any) -> list[Mode]:
        clock = ManualClock()
        ponds = [
            (Millpond(str(tmp_path / "real.db"), clock=clock, max_payload=LIMIT), True),
            (
                Millpond(str(tmp_path / "eager.db"), clock=clock, max_payload=LIMIT, eager=True),
                False,
            ),
        ]
        made.extend(pond for pond, _ in ponds)
        return [Mode(pond, kind, drains=drains) for pond, drains in ponds]

    yield make
    for pond in made:
        assert pond.verify() == []
        pond.close()


@pytest.mark.parametrize(("what", "kind"), CASES)
def test_b31_a_value_comes_back_exactly_or_is_refused_with_its_path_in_every_mode(
    modes: Callable[[Any], list[Mode]], what: str, kind: str
) -> None:
    value = VALUES[what]
    real, eager = modes(KINDS[kind])
    answers = [mode.enqueue(value) for mode in (real, eager)]
    assert answers[0] == answers[1]
    if answers[0] is None:
        for mode in (real, eager):
            (got,) = mode.got
            assert alike(got, value), (got, value)
    else:
        assert real.got == eager.got == []
        assert "value" in answers[0]
        assert len(answers[0]) < 1_000


ALWAYS = ["true", "nothing", "text of all planes", "a mixture", "nested 50 deep", "a small float"]
NEVER = ["not a number", "infinity", "a lone surrogate", "an object", "a class", "bytes", "a set"]


def test_b31_plain_data_is_accepted_and_what_is_none_is_refused(
    modes: Callable[[Any], list[Mode]],
) -> None:
    real, _ = modes(Any)
    for what in NEVER:
        assert real.enqueue(VALUES[what]) is not None, what
    for what in ALWAYS:
        assert real.enqueue(VALUES[what]) is None, what


@pytest.mark.parametrize("more", [-1, 0, 1, 50_000_000])
def test_b31_the_size_limit_is_exact_in_every_mode(
    modes: Callable[[Any], list[Mode]], more: int
) -> None:
    around = len(json.dumps({"value": ""}, separators=(",", ":")))
    value = "x" * (LIMIT - around + more)
    for mode in modes(str):
        refused = mode.enqueue(value)
        assert (refused is not None) == (more > 0)
        if refused:
            assert f"{LIMIT:,}" in refused or str(LIMIT) in refused
            assert len(refused) < 1_000


OPTIONS = [
    ("priority", 2**63), ("priority", -(2**63)), ("priority", 32_768), ("priority", 1.5),
    ("delay", 1e30), ("delay", -1), ("delay", math.nan), ("delay", math.inf),
    ("max_attempts", 0), ("max_attempts", 2**70), ("key", ""), ("key", "\ud800"),
    ("queue", ""), ("queue", "x" * 10_000), ("operation_id", "\ud800"),
    ("at", datetime(9999, 12, 31, 23, 59, tzinfo=UTC)), ("at", datetime(2030, 1, 1)),  # noqa: DTZ001
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), OPTIONS)
def test_b31_options_out_of_range_are_refused_alike(
    modes: Callable[[Any], list[Mode]], option: str, value: Any
) -> None:
    answers = set()
    for mode in modes(int):
        with pytest.raises(BadConfig) as caught:
            mode.task.using(**{option: value}).enqueue(1)
        answers.add(str(caught.value))
        assert mode.pond.jobs() == []
    (answer,) = answers
    assert option in answer


def test_b31_an_id_beyond_all_ids_is_not_found(modes: Callable[[Any], list[Mode]]) -> None:
    for mode in modes(int):
        for ident in (2**70, 2**63, -1, 0):
            for call in (mode.pond.get, mode.pond.attempts, mode.pond.cancel):
                with pytest.raises(JobNotFound):
                    call(ident)


APP = """
from decimal import Decimal

@pond.task(**FAST)
def take(value: int) -> None:
    note("got", type(value).__name__, value)

@pond.task(**FAST)
def anything(value: object = None) -> None:
    note("got", type(value).__name__)
"""

BAD = {
    "not a number": ["anything", "--json", '{"value": NaN}'],
    "infinity": ["anything", "--json", '{"value": -Infinity}'],
    "no JSON": ["anything", "--json", '{"value": '],
    "no object": ["anything", "--json", "[1]"],
    "a key twice": ["anything", "--json", '{"value": 1, "value": 2}'],
    "a lone surrogate": ["anything", "--json", '{"value": "\\ud800"}'],
    "nested too deep": ["anything", "--json", '{"value": ' + "[" * 10_000 + "]" * 10_000 + "}"],
    "the wrong type": ["take", "--json", '{"value": "x"}'],
    "text for a number": ["take", "value=x"],
    "a fraction": ["take", "value=1.5"],
    "no such parameter": ["take", "value=1", "other=2"],
    "nothing": ["take"],
    "priority": ["take", "value=1", "--priority", str(2**63)],
    "delay": ["take", "value=1", "--delay", "1e30"],
    "naive": ["take", "value=1", "--at", "2030-01-01T00:00"],
    "no moment": ["take", "value=1", "--at", "soon"],
}


@pytest.mark.parametrize("where", ["quickly", soak("app"), soak("url")])
def test_b31_the_command_line_refuses_with_a_line_and_writes_nothing(
    mill: Mill, where: str
) -> None:
    mill.write(APP)
    assert mill.pond.status().outstanding == 0
    place = ["--url", "jobs.db"] if where == "url" else ["--app", "app:pond"]
    always = ("not a number", "no object", "the wrong type", "nothing", "priority", "naive")
    untyped = {"the wrong type", "text for a number", "a fraction", "no such parameter", "nothing"}
    for what, arguments in BAD.items():
        if where == "url" and what in untyped:
            continue  # Without the code nobody can know.
        if where == "quickly" and what not in always:
            continue
        done = mill.run("enqueue", *arguments, *place)
        assert done.returncode == 2, (what, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, what
        assert "error" in done.stderr.lower(), what
        assert len(done.stderr) < 3_000, what
    assert mill.pond.jobs() == []


def test_b31_the_command_line_accepts_what_comes_back(mill: Mill) -> None:
    mill.write(APP)
    for value in ("7", str(2**63 - 1), str(-(2**63))):
        done = mill.run("enqueue", "take", f"value={value}", "--app", "app:pond")
        assert done.returncode == 0, done.stderr
        mill.accepted.append(int(done.stdout))
    assert mill.worker("--drain").ended() == 0
    assert {note.words[2] for note in mill.notes("got")} == {"7", str(2**63 - 1), str(-(2**63))}


@pytest.mark.parametrize(
    ("command", "ident"),
    [
        ("job", str(2**70)),
        ("explain", "9" * 5_000),
        ("cancel", "x"),
        *(soak(name, text) for name in ("job", "explain", "cancel") for text in ("-1", "9" * 99)),
    ],
)
def test_b31_the_command_line_finds_no_such_job(mill: Mill, command: str, ident: str) -> None:
    mill.write(APP)
    mill.pond.status()
    done = mill.run(command, ident, "--url", "jobs.db")
    assert done.returncode in ({4, 2} if ident.isdigit() else {2})
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 2_000


def read_bytes() -> int:
    """Return how much this process has read."""
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.partition(":")[2])


def test_b31_a_list_loads_no_bodies(mill: Mill) -> None:
    mill.write(APP)
    body = "x" * 1_000_000
    for _ in range(10):
        mill.accepted.append(mill.app.anything.using(meta={"n": 1}).enqueue(body).id)
    mill.pond.close()
    mill.pond.open()
    mill.pond.status()
    before = read_bytes()
    jobs = mill.pond.jobs()
    listed = read_bytes() - before
    assert len(jobs) == 10
    assert {job.payload for job in jobs} == {None}
    assert listed < 2_000_000
    before = read_bytes()
    assert [len(str(mill.pond.get(job.id).payload)) > 900_000 for job in jobs] == [True] * 10
    assert read_bytes() - before > 9_000_000, "the measure sees what is read"
    shown = mill.run("jobs", "--json", "--url", "jobs.db")
    assert len(shown.stdout) < 20_000
