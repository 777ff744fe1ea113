"""Models that write and read their own JSON, as pydantic's do."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
from typing import Any

import pytest

from millpond.codec import Signature
from millpond.errors import BadPayload


class Money:
    """The smallest class with the two methods that count."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def model_dump_json(self, **_: Any) -> str:
        return json.dumps([self.cents])

    @classmethod
    def model_validate_json(cls, text: bytes) -> Money:
        return cls(*json.loads(text))


def pay(amount: Money, more: list[Money] | None = None) -> None: ...


def test_anything_with_the_two_methods_is_a_model() -> None:
    signature = Signature.of(pay)
    payload = signature.encode((Money(5), [Money(2**70)]))
    assert payload == b'{"amount":[5],"more":[[%d]]}' % 2**70
    ((amount, more), _) = signature.decode(payload)
    assert (type(amount), amount.cents, more[0].cents) == (Money, 5, 2**70)


@pytest.mark.parametrize(
    ("cents", "message"),
    [
        (math.nan, r"pay\(args\.amount\.cents\): nan is no JSON number"),
        ((1, 2), r"pay\(args\.amount\.cents\): tuple would come back as list"),
        ("\ud800", r"pay\(args\.amount\.cents\): is no valid Unicode"),
        (object(), r"pay\(args\.amount\.cents\): object has no JSON form"),
    ],
)
def test_what_a_model_holds_is_checked_too(cents: Any, message: str) -> None:
    with pytest.raises(BadPayload, match=message):
        Signature.of(pay).encode((Money(cents),))


@pytest.mark.parametrize("amount", [-0.0, decimal.Decimal("0.00"), [-0.0]])
def test_a_model_that_loses_what_equality_overlooks_is_refused(amount: Any) -> None:
    class Lossy:
        def __init__(self, amount: Any) -> None:
            self.amount = amount

        def model_dump_json(self, **_: Any) -> str:
            return "0"

        @classmethod
        def model_validate_json(cls, _: bytes) -> Lossy:
            return cls([0.0] if isinstance(amount, list) else type(amount)(0))

    def f(price: Lossy) -> None: ...

    with pytest.raises(BadPayload, match=r"f\(args\.price\.amount.*would come back changed"):
        Signature.of(f).encode((Lossy(amount),))


def test_a_model_needs_an_annotation() -> None:
    def f(amount):  # type: ignore[no-untyped-def]
        return amount

    with pytest.raises(BadPayload, match=r"f\(args\.amount\): Money would come back as list; ann"):
        Signature.of(f).encode((Money(1),))


def test_a_pydantic_model_comes_back_as_it_was() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model(
        "Order", number=(int, ...), at=(dt.datetime, ...), lines=(list[tuple[str, float]], [])
    )

    def place(order: Any, others: Any = None) -> None: ...

    place.__annotations__["order"] = model
    place.__annotations__["others"] = dict[str, model]  # type: ignore[valid-type]
    signature = Signature.of(place)
    order = model(number=2**70, at=dt.datetime(2024, 5, 31, tzinfo=dt.UTC), lines=[("a", 1.5)])
    assert signature.decode(signature.encode((order, {"x": order}))) == ((order, {"x": order}), {})
    assert signature.schema()["properties"]["order"]["title"] == "Order"
    coerced = signature.coerce_text({"order": order.model_dump_json()})
    assert coerced == {"order": order}
    with pytest.raises(BadPayload, match=r"place\(args\.order\.lines\[0\]\[1\]\): nan is no JSON"):
        signature.encode((order.model_copy(update={"lines": [("a", math.nan)]}),))
    with pytest.raises(
        BadPayload, match=r"place\(args\.order\): number: Input should be a valid i"
    ):
        signature.check(b'{"order":{"number":"x","at":"2024-05-31T00:00:00Z"}}')
    with pytest.raises(BadPayload, match=r"place\(args\.order\): dict would come back as Order"):
        signature.encode((order.model_dump(mode="json"),))
