"""What cannot come back exactly is refused with its path, what can is not (B31)."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import math
import sys
import uuid
import zoneinfo
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict

import msgspec
import pytest

from millpond.codec import (
    MAX_BYTES,
    PayloadTooLarge,
    Signature,
    decode_result,
    encode_json,
    encode_result,
)
from millpond.errors import BadPayload

NOW = dt.datetime(2024, 5, 31, 8, tzinfo=dt.UTC)
Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
Share = Annotated[float, msgspec.Meta(ge=0)]
Seconds = NewType("Seconds", float)
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"


class Unit(enum.StrEnum):
    METRE = "m"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Item:
    when: dt.datetime
    weight: float = 1.0


@dataclasses.dataclass
class Options:
    items: list[Item]
    days: dict[str, list[int]] = dataclasses.field(default_factory=dict)


class Node(msgspec.Struct):
    next: Node | None = None


class Where(NamedTuple):
    x: int
    y: int


class Extra(TypedDict):
    a: int


class Text(str):
    __slots__ = ()


def refusal(hint: Any, value: Any, max_bytes: int = MAX_BYTES) -> str:
    with pytest.raises(BadPayload) as caught:
        taking(hint).encode((value,), max_bytes=max_bytes)
    return str(caught.value)


def taking(hint: Any) -> Signature:
    def report(v):  # type: ignore[no-untyped-def]
        return v

    report.__annotations__["v"] = hint
    return Signature.of(report)


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth - 1):
        inner = [inner]
    return inner


def circular() -> dict[str, Any]:
    inner: dict[str, Any] = {}
    inner["again"] = [inner]
    return inner


def chain(length: int) -> Node:
    node = Node()
    for _ in range(length - 1):
        node = Node(node)
    return node


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: "a"}, r"report(args.v[1]): the key: int would come back as str; annotate"),
        ({"d": [{1: "a"}]}, "report(args.v.d[0][1]): the key: int would come back as str"),
        ({1: "a", "1": "b"}, "report(args.v[1]): would be lost"),
        ({(1, 2): "a"}, "report(args.v[tuple]): the key tuple has no JSON form"),
        ({None: "a"}, "report(args.v[None]): the key NoneType has no JSON form"),
        ({Unit.METRE: 1}, "report(args.v[Unit]): the key: Unit would come back as str"),
        ([1, (1,), (2,)], "report(args.v[1]): tuple would come back as list"),
        ([1, object(), 1j], "report(args.v[1]): object has no JSON form"),
        ((1, 2), "report(args.v): tuple would come back as list; annotate the parameter"),
        ([{"a": (1, 2)}], "report(args.v[0].a): tuple would come back as list; annotate"),
        ({1, 2}, "report(args.v): set would come back as list; annotate the parameter"),
        (math.nan, "report(args.v): nan is no JSON number"),
        ({"a b": [0, math.inf]}, 'report(args.v["a b"][1]): inf is no JSON number'),
        ([-math.inf], "report(args.v[0]): -inf is no JSON number"),
        (decimal.Decimal("1.5"), "report(args.v): Decimal would come back as str; annotate"),
        (NOW, "report(args.v): datetime would come back as str; annotate the parameter"),
        ([NOW.date()], "report(args.v[0]): date would come back as str; annotate"),
        (NOW.time(), "report(args.v): time would come back as str; annotate"),
        (dt.timedelta(1), "report(args.v): timedelta would come back as str; annotate"),
        (uuid.UUID(int=1), "report(args.v): UUID would come back as str; annotate"),
        (Colour.RED, "report(args.v): Colour would come back as str; annotate"),
        (Level.LOW, "report(args.v): Level would come back as int; annotate"),
        (b"raw", "report(args.v): bytes would come back as str; annotate"),
        (Where(1, 2), "report(args.v): Where would come back as list; annotate"),
        ([Item(NOW)], "report(args.v[0]): Item would come back as dict; annotate"),
        (collections.OrderedDict(a=1), "report(args.v): OrderedDict would come back as dict"),
        (Text("a"), "report(args.v): Text has no JSON form"),
        ({"x": "a\ud800"}, "report(args.v.x): is no valid Unicode: it holds the lone surrogate"),
        ({"\ud800": 1}, 'report(args.v["\\ud800"]): the key is no valid Unicode'),
        ([object()], "report(args.v[0]): object has no JSON form"),
        (1j, "report(args.v): complex has no JSON form"),
        pytest.param(10**5000, "report(args.v): has no JSON form: Exceeds the limit", id="long"),
        (nested(10_000), "is nested deeper than 200 levels"),
        (circular(), "is nested deeper than 200 levels, or contains itself"),
        (msgspec.Raw(b"1"), "report(args.v): ready-made JSON is not checked"),
    ],
)
def test_without_annotation_only_what_json_holds_is_taken(value: Any, message: str) -> None:
    assert message in refusal(Any, value)
    at_top = message.replace("report(args.v", "args.v").replace("):", ":")
    with pytest.raises(BadPayload) as caught:
        encode_json({"v": value})
    assert at_top in str(caught.value)


@pytest.mark.parametrize(
    ("hint", "value", "message"),
    [
        (int, True, "report(args.v): expected int, got bool"),
        (int, "1", "report(args.v): expected int, got str"),
        (int, 1.0, "report(args.v): expected int, got float"),
        (int, decimal.Decimal(1), "report(args.v): expected int, got Decimal"),
        (int, Level.LOW, "report(args.v): Level would come back as int"),
        (int, None, "report(args.v): expected int, got None"),
        (float, "1", "report(args.v): expected int | float, got str"),
        (float, math.nan, "report(args.v): nan is no JSON number"),
        (bool, 1, "report(args.v): expected bool, got int"),
        (str, 1, "report(args.v): expected str, got int"),
        (str, Text("a"), "report(args.v): Text has no JSON form"),
        (str, "\ud800", "report(args.v): is no valid Unicode"),
        (list[int], (1,), "report(args.v): tuple would come back as list"),
        (tuple[int, ...], [1], "report(args.v): list would come back as tuple; pass the annotated"),
        (set[int], [1], "report(args.v): list would come back as set"),
        (set[float], {1.5, "x"}, "report(args.v["),
        (dict[int, str], {"x": "a"}, "report(args.v.x): the key: expected int, got str"),
        (dict[str, int], {"a": 1, "b c": "2"}, 'report(args.v["b c"]): expected int, got str'),
        (dict[str, int], dict.fromkeys("abcdefg", 1) | {"b": "2"}, "report(args.v.b): expected"),
        (Share, 5, "report(args.v): int would come back as float; write it as a float"),
        (Share, -0.5, "report(args.v): expected float >= 0"),
        (dict[str, dict[str, int]], {"a": {}, "b": {"c": 1, "d": None}}, "report(args.v.b.d)"),
        (dict[int, list[int]], {1: [1], 2: [1, "x"]}, 'report(args.v["2"][1]): expected int'),
        (dict[str, Any], {"a": NOW}, "report(args.v.a): datetime would come back as str"),
        (Percent, 101, "report(args.v): expected int <= 100"),
        (Literal["a"], "b", "report(args.v): Invalid enum value 'b'"),
        (Colour, "red", "report(args.v): str would come back as Colour"),
        (dt.datetime, "2024-05-31T08:00:00Z", "report(args.v): str would come back as datetime"),
        (dt.datetime, "soon", "report(args.v): Invalid RFC3339 encoded datetime"),
        (dt.datetime, NOW.date(), "report(args.v): Invalid RFC3339 encoded datetime"),
        (Extra, {"a": 1, "b": 2}, "report(args.v.b): would be lost"),
        (Extra, {}, "report(args.v.a): is missing"),
        (Item, {"when": NOW}, "report(args.v): dict would come back as Item"),
        (Item, Item(NOW, 2), "report(args.v.weight): int would come back as float; write it as"),
        (Options, Options([Item(NOW), Item("x")]), "report(args.v.items[1].when): Invalid RFC"),  # type: ignore[arg-type]
        (Options, Options([Item(NOW, math.nan)]), "report(args.v.items[0].weight): nan is no"),
        (Options, Options([], {"a": [1, "x"]}), "report(args.v.days.a[1]): expected int, got"),  # type: ignore[list-item]
        (Node, chain(10_000), "is nested deeper than 200 levels"),
        (list[Any], nested(10_000), "is nested deeper than 200 levels"),
    ],
)
def test_an_annotation_is_taken_at_its_word(hint: Any, value: Any, message: str) -> None:
    assert message in refusal(hint, value)
    with pytest.raises(BadPayload, match=r"^report\(result"):
        encode_result(value, hint, task="report")


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Any, -0.0),
        (float, -0.0),
        (float, 5),
        (float | None, 5),
        (Seconds, 5),
        (Annotated[float, "unit: s"], 5),
        (Share, 0.5),
        (list[float], [1, 1.0, 1e16, 10**16]),
        (Any, 2**63),
        (Any, 2**70),
        (int, -(2**70)),
        (int, 10**4299),
        (dict[int, str], {1: "a"}),
        (dict[dt.date, int], {NOW.date(): 1}),
        (tuple[int, str], (1, "a")),
        (tuple, (1, "a", [None])),
        (decimal.Decimal, decimal.Decimal("1.500")),
        (dt.datetime, NOW),
        (dt.datetime, NOW.replace(tzinfo=None)),
        (dt.time, NOW.timetz()),
        (bytes, b"\x00\xff"),
        (UserId, UserId(2**63)),
        (Percent, 100),
        (Where, Where(1, 2)),
        (Node, chain(200)),
        (Any, nested(200)),
        (Any, {"": "", "é\u2028": "😀"}),
    ],
)
def test_what_comes_back_exactly_is_accepted(hint: Any, value: Any) -> None:
    signature = taking(hint)
    ((back,), _) = signature.decode(signature.encode((value,)))
    assert type(back) is type(value)
    assert back == value
    assert str(back)[:4000] == str(value)[:4000] if not isinstance(value, int) else True
    assert decode_result(encode_result(value, hint), hint) == value


def test_nesting_is_allowed_up_to_200_levels_whatever_the_recursion_limit() -> None:
    taking(Any).encode((nested(200),))
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        assert "is nested deeper than 200 levels" in refusal(Any, nested(201))
        assert "is nested deeper than 200 levels" in refusal(Any, nested(200_000))
    finally:
        sys.setrecursionlimit(limit)


def test_a_caller_deep_in_its_own_stack_gets_an_answer_and_no_recursion_error() -> None:
    signature = taking(Any)

    def enqueue_from(depth: int) -> object:
        if depth:
            return enqueue_from(depth - 1)
        try:
            return signature.encode((nested(200),))
        except BadPayload:
            return None

    for room in (60, 120, 240, 400):
        enqueue_from(sys.getrecursionlimit() - len_of_stack() - room)


def len_of_stack() -> int:
    frame, depth = sys._getframe(), 0
    while frame.f_back is not None:
        frame, depth = frame.f_back, depth + 1
    return depth


def test_shared_references_cannot_make_a_small_object_endless() -> None:
    inner: list[Any] = [0]
    for _ in range(64):
        inner = [inner, inner]
    assert "takes at least" in refusal(Any, inner)


@pytest.mark.parametrize("limit", [64, MAX_BYTES])
def test_a_payload_may_be_exactly_as_large_as_the_limit(limit: int) -> None:
    room = limit - len(b'{"v":""}')
    for hint in (Any, str):
        assert len(taking(hint).encode(("x" * room,), max_bytes=limit)) == limit
        message = refusal(hint, "x" * (room + 1), max_bytes=limit)
        assert message == (
            f"report(args): takes {limit + 1:,} bytes as JSON, the limit is {limit:,}; "
            "store the data elsewhere and pass a reference"
        )
    assert len(encode_json({"v": "x" * room}, max_bytes=limit)) == limit
    assert len(encode_result("x" * (limit - 2), str, max_bytes=limit)) == limit
    with pytest.raises(PayloadTooLarge, match=r"^result: takes"):
        encode_result("x" * (limit - 1), str, max_bytes=limit)


@pytest.mark.parametrize("value", ["x" * 50_000_000, [0] * 50_000_000, [b"x" * 50_000_000] * 2])
def test_50_megabytes_are_refused_before_they_are_encoded(value: Any) -> None:
    with pytest.raises(PayloadTooLarge, match=r"report\(args\): takes at least") as caught:
        taking(Any).encode((value,))
    assert caught.value.limit == MAX_BYTES
    assert caught.value.size >= 50_000_000


def test_the_size_is_that_of_the_json_in_bytes() -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        taking(str).encode(("é\n" * 10,), max_bytes=20)
    assert caught.value.size == len('{"v":""}') + 40


def test_a_named_zone_comes_back_as_the_offset_of_its_moment() -> None:
    berlin = dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    signature = taking(dt.datetime)
    ((back,), _) = signature.decode(signature.encode((berlin,)))
    assert back.utcoffset() == berlin.utcoffset() == dt.timedelta(hours=1)
    assert back.replace(tzinfo=None) == berlin.replace(tzinfo=None, fold=0)


@pytest.mark.parametrize(
    "moment",
    [
        dt.datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
        dt.datetime(1850, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    ],
)
def test_a_moment_that_json_cannot_keep_is_refused(moment: dt.datetime) -> None:
    assert "report(args.v): this datetime would come back changed" in refusal(dt.datetime, moment)


def test_a_path_does_not_repeat_keys_without_end() -> None:
    message = refusal(Any, {"k" * 10_000: {b"secret": nested(300)}})
    assert len(message) < 400


def test_values_are_captured_when_the_call_is_stored() -> None:
    signature = taking(list[int])
    value = [1, 2]
    payload = signature.encode((value,))
    value.append(3)
    assert signature.decode(payload) == (([1, 2],), {})


def test_an_argument_that_raises_when_looked_at_is_named() -> None:
    class Unreadable:
        @property
        def __attrs_attrs__(self) -> object:
            raise RuntimeError

    class Unreliable(dict[str, int]):
        def __iter__(self) -> Any:
            raise RuntimeError

    assert refusal(Any, Unreadable()).startswith("report(args.v): cannot be stored as JSON")
    assert refusal(Any, Unreliable(a=1)).startswith("report(args.v): ")


def test_only_a_mapping_of_names_is_a_payload() -> None:
    for wrong in ([1], "a", None):
        with pytest.raises(BadPayload, match="expected a mapping of parameter names"):
            encode_json(wrong)  # type: ignore[arg-type]
    with pytest.raises(BadPayload, match=r"args\[1\]: the key: int would come back as str"):
        encode_json({1: "a"})  # type: ignore[dict-item]


def test_a_result_without_annotation_is_plain_json_data() -> None:
    assert decode_result(encode_result({"a": [1, None]})) == {"a": [1, None]}
    assert encode_result(None) == encode_result(None, type(None)) == b"null"
    with pytest.raises(BadPayload, match=r"^report\(result\.a\): datetime would come back as str"):
        encode_result({"a": NOW}, task="report")


def test_a_result_of_an_annotation_that_json_cannot_tell_apart_is_refused() -> None:
    with pytest.raises(BadPayload, match="the return annotation cannot be told apart in JSON"):
        encode_result("x", dt.datetime | str)


def test_a_stored_result_that_no_longer_fits_is_refused_with_its_path() -> None:
    with pytest.raises(BadPayload, match=r"^report\(result\[1\]\): expected int, got str; the sto"):
        decode_result(b'[1,"x"]', list[int], task="report")
