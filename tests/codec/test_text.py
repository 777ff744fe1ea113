"""What people type: JSON text and `name=value` pairs."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import uuid
from typing import Any, Literal

import pytest

from millpond.codec import PayloadTooLarge, Signature, parse_json
from millpond.errors import BadPayload


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Options:
    sizes: list[int]


def report(  # type: ignore[no-untyped-def]
    size: int = 0,
    *,
    ratio: float = 0,
    deep: bool = False,
    title: str = "",
    colour: Colour = Colour.RED,
    kind: Literal["a", 1] = "a",
    at: dt.datetime | None = None,
    id: uuid.UUID | None = None,
    price: decimal.Decimal | None = None,
    options: Options | None = None,
    tags: list[str] = [],  # noqa: B006  only the signature is read
    days: dict[int, str] = {},  # noqa: B006  only the signature is read
    anything=None,
) -> None: ...


def test_text_is_stored_in_its_canonical_form() -> None:
    text = '\n{ "b" : [1.50, 1E2, -0.0, 12345678901234567890123],\t"a": "\\u00e9\\/" }\n'
    assert parse_json(text) == '{"b":[1.5,100.0,-0.0,12345678901234567890123],"a":"é/"}'.encode()
    assert parse_json(text.encode()) == parse_json(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": [NaN]}', "args.a[0]: nan is no JSON number"),
        ('{"a": -Infinity}', "args.a: -inf is no JSON number"),
        ('{"a": 1e400}', "args.a: inf is no JSON number"),
        ('{"a": [{"b": 1, "c": 2, "b": 1}]}', 'args.a[0]: names the key "b" twice'),
        ('{"a": 1, "a": 1}', 'args: names the key "a" twice'),
        ('{"a": "\\ud800"}', "args.a: is no valid Unicode: it holds the lone surrogate U+D800"),
        ('{"\ud800": 1}', 'args["\\ud800"]: the key is no valid Unicode'),
        ("{} {}", "args: is not valid JSON: Extra data: line 1 column 4"),
        ("{'a': 1}", "args: is not valid JSON: Expecting property name"),
        ('{"a": 1,}', "args: is not valid JSON"),
        ('{"a": "\n"}', "args: is not valid JSON: Invalid control character"),
        ("", "args: is not valid JSON"),
        (b'{"a": "\xff"}', "args: is not valid UTF-8: invalid start byte at byte 7"),
        ("[" * 10_000, "args: is nested deeper than 200 levels"),
        ('{"a":' + "[" * 201 + "]" * 201 + "}", "is nested deeper than 200 levels"),
        ("1" * 5000, "args: is not valid JSON: Exceeds the limit"),
    ],
)
def test_text_that_is_no_strict_json_is_refused(text: str | bytes, message: str) -> None:
    with pytest.raises(BadPayload) as caught:
        parse_json(text)
    assert message in str(caught.value)


def test_brackets_inside_texts_are_no_nesting() -> None:
    text = '{"a": "' + '[{\\"' * 1000 + '"}'
    assert parse_json(text)
    assert parse_json('{"a":' + "[" * 200 + "]" * 200 + "}")


def test_an_unclosed_text_is_refused_in_linear_time() -> None:
    with pytest.raises(BadPayload, match="is not valid JSON"):
        parse_json('["' + '\\"[' * 300_000)


def test_whitespace_does_not_count_against_the_limit() -> None:
    assert parse_json('{"a": ' + " " * 40 + "1}", 7) == b'{"a":1}'
    with pytest.raises(PayloadTooLarge, match="takes 8 bytes as JSON, the limit is 7"):
        parse_json('{"a":12}', 7)
    with pytest.raises(PayloadTooLarge, match="the limit is 7"):
        parse_json(" " * 100 + "1", 7)


def test_the_name_of_the_task_stands_in_messages() -> None:
    with pytest.raises(BadPayload, match=r"^report\(args\.a\): nan"):
        parse_json('{"a": NaN}', task="report")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("size", "-12", -12),
        ("size", str(2**70), 2**70),
        ("ratio", "5", 5.0),
        ("ratio", "1e3", 1000.0),
        ("deep", "true", True),
        ("deep", "0", False),
        ("title", "12", "12"),
        ("title", "null", "null"),
        ("title", '{"a": 1}', '{"a": 1}'),
        ("title", "", ""),
        ("colour", "red", Colour.RED),
        ("kind", "1", 1),
        ("at", "2024-05-31T08:00:00Z", dt.datetime(2024, 5, 31, 8, tzinfo=dt.UTC)),
        ("at", "null", None),
        ("id", "00000000-0000-0000-0000-000000000001", uuid.UUID(int=1)),
        ("price", "1.50", decimal.Decimal("1.50")),
        ("options", '{"sizes": [1, 2]}', Options([1, 2])),
        ("tags", '["a", "b"]', ["a", "b"]),
        ("days", ' {"1": "a"}', {1: "a"}),
        ("anything", "12", "12"),
    ],
)
def test_text_becomes_the_annotated_type(name: str, text: str, value: Any) -> None:
    signature = Signature.of(report)
    values = signature.coerce_text({name: text})
    assert values == {name: value}
    assert type(values[name]) is type(value)
    assert signature.decode(signature.encode_named(values))[1 if name != "size" else 0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("size", "twelve", "report(args.size): expected int, got str, from the text given"),
        ("size", "1.5", "report(args.size): expected int"),
        ("ratio", "nan", "report(args.ratio): nan is no JSON number"),
        ("deep", "perhaps", "report(args.deep): expected bool"),
        ("colour", "green", "report(args.colour): Invalid enum value 'green'"),
        ("at", "5", "report(args.at): expected a date and time such as"),
        ("at", "tomorrow", "report(args.at): "),
        ("options", '{"sizes": [1, "x"]}', "report(args.options.sizes[1]): expected int, got str"),
        ("options", '{"sizes": [NaN]}', "report(args.options.sizes[0]): nan is no JSON number"),
        ("options", "{", "report(args.options): is not valid JSON"),
        ("tags", "a,b", "report(args.tags): expected array, got str"),
        ("days", '{"x": "a"}', "report(args.days.x): the key: expected int, got str"),
        ("days", '{"1": "a", "1": "b"}', 'report(args.days): names the key "1" twice'),
        ("color", "red", "report(args.color): report has no such parameter; it takes size=..., "),
    ],
)
def test_text_that_means_nothing_is_refused_with_the_name(
    name: str, text: str, message: str
) -> None:
    with pytest.raises(BadPayload) as caught:
        Signature.of(report).coerce_text({name: text})
    assert message in str(caught.value)


def test_text_of_a_container_is_bound_by_the_limit() -> None:
    with pytest.raises(PayloadTooLarge, match=r"report\(args\): takes"):
        Signature.of(report).coerce_text({"tags": '["aaaaaaaaaa"]'}, max_bytes=5)
