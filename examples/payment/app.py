"""A shop that takes money: a payment may be tried several times, and is charged once.

The provider knows by the operation id that it has seen a payment before. What it answered is
remembered, so that a later attempt need not even ask.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from contextlib import closing
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from millpond import Backoff, Context, Fail, JobRef, Millpond
from millpond.http import retry_from_response

DATABASE = "shop.db"
PROVIDER = os.environ.get("PROVIDER", "http://127.0.0.1:8471")

TABLES = """
CREATE TABLE IF NOT EXISTS payment (
  operation_id TEXT PRIMARY KEY,
  order_number INTEGER NOT NULL,
  charge TEXT NOT NULL,
  cents INTEGER NOT NULL
);
"""

pond = Millpond(DATABASE)


def set_up() -> None:
    """Make the tables of both."""
    pond.open()
    with closing(sqlite3.connect(DATABASE)) as shop:
        shop.executescript(TABLES)


def pay(order: int, cents: int) -> JobRef[str]:
    """Promise that an order will be paid; asked twice, it is the same promise."""
    once = take_payment.using(key=f"order:{order}", operation_id=f"payment-{order}")
    return once.enqueue(order, cents)


@pond.task(lease="2s", max_attempts=10, retry=Backoff(base=0.2, cap=30))
def take_payment(order: int, cents: int, *, ctx: Context = Context.injected) -> str:
    """Charge the card, keep the provider's answer, and book it."""
    answer = ctx.remembered
    if answer is None:
        answer = charge_card(cents, idempotency_key=ctx.operation_id)
        ctx.remember(answer)
    book(ctx.operation_id, order, answer)
    return str(answer["charge"])


def charge_card(cents: int, *, idempotency_key: str) -> dict[str, Any]:
    """Ask the provider to charge; the same key never charges twice."""
    request = Request(
        f"{PROVIDER}/charges",
        data=json.dumps({"cents": cents}).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": idempotency_key},
    )
    try:
        with urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))
    except HTTPError as no:
        with no:
            if retry := retry_from_response(no.code, no.headers):
                raise retry from no
            if no.code == 402:
                raise Fail(f"declined: {json.load(no)['error']}") from no
            raise


def book(operation_id: str, order: int, answer: dict[str, Any]) -> None:
    """Write the payment into the shop's own table, where a second time changes nothing."""
    row = (operation_id, order, answer["charge"], answer["cents"])
    with closing(sqlite3.connect(DATABASE, timeout=10)) as shop, shop:
        shop.execute("INSERT INTO payment VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)


if __name__ == "__main__":
    set_up()
    ref = pay(int(sys.argv[1]), int(sys.argv[2]))
    print(f"the payment of order {sys.argv[1]} is job {ref.id} ({ref.answer})")
