"""What holds for every call, every value and every text (B31)."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import inspect
import json
import math
import uuid
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millpond.codec import Signature, decode_result, encode_json, encode_result, parse_json
from millpond.errors import BadPayload


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Unit(enum.StrEnum):
    METRE = "m"
    SECOND = "s"


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    amount: decimal.Decimal
    at: dt.datetime
    more: Line | None = None


class Point(msgspec.Struct, frozen=True):
    x: float
    y: float
    unit: Unit = Unit.METRE


class Named(NamedTuple):
    level: Level
    when: dt.date


class Typed(TypedDict, total=False):
    key: uuid.UUID
    blob: bytes


SMALL = 20_000
"""Bytes: a limit at which objects full of shared references are refused soon."""

Pair = tuple[Any, st.SearchStrategy[Any]]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
floats = st.floats(allow_nan=False, allow_infinity=False)
ints = st.one_of(st.integers(), st.integers(-(2**300), 2**300), st.sampled_from([2**63, 2**70]))
decimals = st.decimals(allow_nan=False)
zones = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.integers(-23 * 60, 23 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes))),
)
moments = st.datetimes(timezones=zones).map(lambda moment: moment.replace(fold=0))
lines = st.builds(Line, texts, decimals, moments, st.builds(Line, texts, decimals, moments))

hashables: st.SearchStrategy[Pair] = st.sampled_from(
    [
        (int, ints),
        (str, texts),
        (bool, st.booleans()),
        (bytes, st.binary(max_size=9)),
        (dt.date, st.dates()),
        (dt.timedelta, st.timedeltas()),
        (uuid.UUID, st.uuids()),
        (decimal.Decimal, decimals),
        (Colour, st.sampled_from(Colour)),
        (Level, st.sampled_from(Level)),
        (Unit, st.sampled_from(Unit)),
    ]
)
leaves: st.SearchStrategy[Pair] = st.one_of(
    hashables,
    st.sampled_from(
        [
            (float, floats | ints),
            (dt.datetime, moments),
            (dt.time, st.times().map(lambda moment: moment.replace(fold=0))),
            (None, st.none()),
            (Any, floats | ints | texts | st.booleans() | st.none()),
            (Literal["a", "b", 3], st.sampled_from(["a", "b", 3])),
            (Line, lines),
            (Point, st.builds(Point, floats, floats, st.sampled_from(Unit))),
            (Named, st.builds(Named, st.sampled_from(Level), st.dates())),
            (
                Typed,
                st.fixed_dictionaries(
                    {}, optional={"blob": st.binary(max_size=9), "key": st.uuids()}
                ),
            ),
        ]
    ),
)
keys: st.SearchStrategy[Pair] = st.sampled_from(
    [(int, ints), (str, texts), (dt.date, st.dates()), (uuid.UUID, st.uuids())]
)


def _list(member: Pair) -> Pair:
    hint, values = member
    return list[hint], st.lists(values, max_size=4)  # type: ignore[valid-type]


def _row(member: Pair) -> Pair:
    hint, values = member
    return tuple[hint, ...], st.lists(values, max_size=4).map(tuple)  # type: ignore[valid-type]


def _optional(member: Pair) -> Pair:
    hint, values = member
    return Any if hint in (None, Any) else hint | None, values | st.none()


def _couple(members: tuple[Pair, Pair]) -> Pair:
    (one, ones), (two, twos) = members
    return tuple[one, two], st.tuples(ones, twos)  # type: ignore[valid-type]


def _dict(members: tuple[Pair, Pair]) -> Pair:
    (key, keys_), (hint, values) = members
    return dict[key, hint], st.dictionaries(keys_, values, max_size=4)  # type: ignore[valid-type]


def _set(member: Pair) -> Pair:
    hint, values = member
    return set[hint], st.sets(values, max_size=4)  # type: ignore[valid-type]


def _frozenset(member: Pair) -> Pair:
    hint, values = member
    return frozenset[hint], st.frozensets(values, max_size=4)  # type: ignore[valid-type]


def _containers(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    return st.one_of(
        inner.map(_list),
        inner.map(_row),
        inner.map(_optional),
        st.tuples(inner, inner).map(_couple),
        st.tuples(keys, inner).map(_dict),
        hashables.map(_set),
        hashables.map(_frozenset),
    )


typed = st.recursive(leaves, _containers, max_leaves=6)
plain_data = st.recursive(
    floats | ints | texts | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def exactly(value: Any) -> Any:
    """Spell a value out with the types of all its parts, so that == overlooks nothing."""
    kind = type(value)
    match value:
        case float():
            return kind, value.hex()
        case enum.Enum():
            return kind, value.name
        case decimal.Decimal():
            return kind, value.as_tuple()
        case dt.datetime() | dt.time():
            return kind, value.isoformat()
        case dict():
            return kind, [(exactly(key), exactly(member)) for key, member in value.items()]
        case list() | tuple():
            return kind, [exactly(member) for member in value]
        case set() | frozenset():
            return kind, sorted(map(repr, map(exactly, value)))
        case msgspec.Struct():
            return kind, [exactly(getattr(value, name)) for name in value.__struct_fields__]
        case _ if dataclasses.is_dataclass(value):
            return kind, [exactly(getattr(value, f.name)) for f in dataclasses.fields(value)]
    return kind, value


def taking(hint: Any) -> Signature:
    def report(value):  # type: ignore[no-untyped-def]
        return value

    report.__annotations__["value"] = hint
    return Signature.of(report)


@given(typed, st.data())
def test_annotated_arguments_come_back_equal_and_of_the_same_types(
    pair: Pair, data: st.DataObject
) -> None:
    hint, values = pair
    value = data.draw(values)
    signature = taking(hint)
    payload = signature.encode((value,))
    assert exactly(signature.decode(payload)) == exactly(((value,), {}))
    assert signature.encode((), {"value": value}) == payload
    json.loads(payload, parse_constant=pytest.fail)


@given(typed, st.data())
def test_annotated_results_come_back_equal_and_of_the_same_types(
    pair: Pair, data: st.DataObject
) -> None:
    hint, values = pair
    value = data.draw(values)
    hint = type(None) if hint is None else hint
    assert exactly(decode_result(encode_result(value, hint), hint)) == exactly(value)


@given(plain_data)
def test_plain_json_data_needs_no_annotation(value: Any) -> None:
    signature = taking(Any)
    assert exactly(signature.decode(signature.encode((value,)))) == exactly(((value,), {}))
    assert exactly(decode_result(encode_result(value))) == exactly(value)
    assert encode_json({"value": value}) == signature.encode((value,))


@given(st.one_of(hashables, typed), st.data())
def test_what_is_stored_without_annotation_comes_back_the_same_or_is_refused(
    pair: Pair, data: st.DataObject
) -> None:
    value = data.draw(pair[1])
    signature = taking(Any)
    try:
        payload = signature.encode((value,))
    except BadPayload as error:
        assert str(error).startswith("report(args.value")  # noqa: PT017
    else:
        assert exactly(signature.decode(payload)) == exactly(((value,), {}))


def plain(a: int, b: str = "b", c: Any = None) -> Any:
    return a, b, c


def starred(a: int, b: str = "b", *, c: int, d: Any = None) -> Any:
    return a, b, c, d


def keyword_only(a: int, b: str = "b", *, c: int = 3, d: Any = None) -> Any:
    return a, b, c, d


def by_position(a: int, b: str = "b", /, c: int = 3) -> Any:
    return a, b, c


def variadic(a: int, b: int = 2, *args: int, c: int = 3, **kwargs: str) -> Any:
    return a, b, args, c, kwargs


def hidden(a: int, b: int = 2, /, *args: int, **a_: int) -> Any:
    return a, b, args, a_


def nothing() -> Any:
    return None


arguments = st.one_of(st.integers(0, 3), st.sampled_from(["x", "y", None, True]))
names = st.sampled_from(["a", "b", "c", "d", "z"])


@given(
    st.sampled_from([plain, starred, keyword_only, by_position, variadic, hidden, nothing]),
    st.lists(arguments, max_size=5),
    st.dictionaries(names, arguments, max_size=4),
)
def test_a_stored_call_is_the_call_that_python_would_have_made(
    fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    try:
        inspect.signature(fn).bind(*args, **kwargs)
    except TypeError:
        with pytest.raises(BadPayload, match=rf"{fn.__name__}\(\): .*; it takes"):
            Signature.of(fn).encode(args, kwargs)
        return
    signature = Signature.of(fn)
    try:
        payload = signature.encode(args, kwargs)
    except BadPayload as error:
        assert str(error).startswith(f"{fn.__name__}(args.")  # noqa: PT017
        return
    stored_args, stored_kwargs = signature.decode(payload)
    assert exactly(fn(*stored_args, **stored_kwargs)) == exactly(fn(*args, **kwargs))


class Evil:
    """Raises at every look."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        return 1

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __bool__(self) -> bool:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        printer.text("<evil>")


class EvilDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError

    def __iter__(self) -> Any:
        raise RuntimeError


class Liar:
    __class__ = dict  # type: ignore[assignment]


class Impostor(str):
    __slots__ = ()


@dataclasses.dataclass
class Forgetful:
    size: int = 0

    def __post_init__(self) -> None:
        self.size += 1


@dataclasses.dataclass
class Moody:
    size: int = 0

    def __post_init__(self) -> None:
        if self.size != 7:
            raise KeyError(self.size)


class Model:
    """Looks like a model, but its JSON is broken."""

    def model_dump_json(self, **_: Any) -> str:
        return "{"

    @classmethod
    def model_validate_json(cls, _: bytes) -> Model:
        return cls()


def _circular() -> list[Any]:
    inner: list[Any] = []
    inner.append({"again": inner})
    return inner


def _shared() -> list[Any]:
    inner: list[Any] = [0]
    for _ in range(60):
        inner = [inner, inner]
    return inner


def _moody() -> Moody:
    moody = Moody(7)
    moody.size = 8
    return moody


junk_leaves = st.one_of(
    st.builds(Evil),
    st.builds(lambda: {Evil(): 1}),
    st.builds(EvilDict, a=st.just(1)),
    st.builds(Liar),
    st.builds(Forgetful),
    st.builds(_moody),
    st.builds(Model),
    st.builds(_circular),
    st.builds(_shared),
    st.builds(object),
    st.builds(lambda: 10**5000),
    st.text().map(Impostor),
    st.text(st.characters(categories=["Cs", "L"]), max_size=3),
    st.floats(),
    st.complex_numbers(),
    st.sampled_from(
        [
            Evil, print, ..., NotImplemented, range(3), b"raw", bytearray(b"x"), memoryview(b"x"),
            collections.OrderedDict(a=1), collections.deque([1]), collections.Counter("aab"),
            msgspec.UNSET, msgspec.Raw(b"{"), msgspec.Raw(b"NaN"), json, ValueError("x"), Colour,
            {(1, 2): 3}, {None: 1}, {1.5: 2, "1.5": 3}, {math.nan: 1},
            (x for x in "ab"), iter([1]), lambda: 1, Point(math.nan, 1),
            dt.datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
            dt.datetime(1850, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=3208))),
            Colour.RED, Level.LOW, Unit.METRE, decimal.Decimal("sNaN"),
        ]
    ),
)  # fmt: skip
junk = st.recursive(
    junk_leaves | plain_data,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(texts, inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Line, inner, inner, inner, inner),
        st.builds(Point, inner, inner, inner),
    ),
    max_leaves=5,
)
any_hint = st.sampled_from(
    [
        Any, int, str, float, bytes, list, dict, tuple, list[int], dict[int, str], set[str],
        Line, Line | None, Point, Named, Typed, Colour, Model, Moody, Forgetful, dt.datetime,
    ]
)  # fmt: skip


@given(any_hint, junk)
def test_no_object_whatever_raises_anything_but_bad_payload(hint: Any, value: Any) -> None:
    signature = taking(hint)
    try:
        payload = signature.encode((value,), max_bytes=SMALL)
    except BadPayload as error:
        str(error).encode()
    else:
        assert exactly(signature.decode(payload)) == exactly(((value,), {}))
    for attempt, given_value in (
        (encode_json, {"value": value}),
        (encode_json, value),
        (encode_result, value),
        (signature.encode_named, {"value": value}),
    ):
        try:
            attempt(given_value, max_bytes=SMALL)
        except BadPayload as error:
            str(error).encode()


json_texts = st.one_of(
    st.text(),
    st.binary(),
    plain_data.map(lambda value: json.dumps(value, indent=1)),
    plain_data.map(lambda value: json.dumps(value)[:-1]),
    st.text('[]{}",:\\ue0019.-+nulNaInfity \ud800', max_size=20),
    st.integers(1, 500).map(lambda depth: "[" * depth + "]" * depth),
    st.integers(1, 500).map(lambda depth: '{"a":' * depth + "1" + "}" * depth),
)


def _as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "replace")


@given(json_texts)
def test_no_text_whatever_raises_anything_but_bad_payload(text: str | bytes) -> None:
    try:
        canonical = parse_json(text)
    except BadPayload as error:
        str(error).encode()
        return
    assert exactly(json.loads(canonical)) == exactly(json.loads(text))
    assert parse_json(canonical) == canonical


@given(plain_data)
def test_text_and_data_have_one_canonical_form(value: Any) -> None:
    text = json.dumps({"value": value}, indent=2)
    assert parse_json(text) == encode_json({"value": value})


@given(any_hint, json_texts.map(_as_bytes))
@example(dict[int, str], b'{""')
def test_no_stored_bytes_whatever_raise_anything_but_bad_payload(hint: Any, data: bytes) -> None:
    signature = taking(hint)
    for payload in (data, b'{"value":' + data + b"}"):
        try:
            signature.check(payload)
        except BadPayload as error:
            assert str(error).startswith("report(args")  # noqa: PT017
    try:
        decode_result(data, hint)
    except BadPayload as error:
        assert str(error).startswith("result")  # noqa: PT017


@given(any_hint, st.text())
def test_no_command_line_text_whatever_raises_anything_but_bad_payload(
    hint: Any, text: str
) -> None:
    signature = taking(hint)
    try:
        values = signature.coerce_text({"value": text})
        payload = signature.encode_named(values)
    except BadPayload as error:
        assert str(error).startswith("report(args.value")  # noqa: PT017
    else:
        assert exactly(signature.decode(payload)) == exactly(((values["value"],), {}))


@given(
    st.sampled_from(
        [
            (int, ints, str),
            (float, floats, repr),
            (str, texts, str),
            (bool, st.booleans(), lambda value: str(value).lower()),
            (dt.date, st.dates(), dt.date.isoformat),
            (dt.datetime, moments, dt.datetime.isoformat),
            (uuid.UUID, st.uuids(), str),
            (decimal.Decimal, decimals, str),
            (Colour, st.sampled_from(Colour), lambda value: value.value),
            (Level, st.sampled_from(Level), lambda value: str(value.value)),
            (list[int], st.lists(ints), json.dumps),
            (dict[str, Any] | None, st.dictionaries(texts, plain_data), json.dumps),
        ]
    ),
    st.data(),
)
def test_command_line_text_means_the_value_it_spells(
    case: tuple[Any, st.SearchStrategy[Any], Callable[[Any], str]], data: st.DataObject
) -> None:
    hint, values, spell = case
    value = data.draw(values)
    found = taking(hint).coerce_text({"value": spell(value)})
    assert exactly(found) == exactly({"value": value})
