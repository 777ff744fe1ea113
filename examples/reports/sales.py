"""What the shop has sold: the same for everybody who asks, made from a seed and no file.

python sales.py 2025 3

It stands for a warehouse that takes its time. Dice are thrown with `random()` only, whose
numbers are promised to be the same in every version of Python.
"""

from __future__ import annotations

import sys
from calendar import monthrange
from collections.abc import Iterator
from datetime import date
from random import Random
from typing import NamedTuple

SEED = 20_250_101

CENTS = {"bread": 420, "butter": 285, "cheese": 690, "coffee": 899, "honey": 545, "tea": 360}
"""What the shop sells, and what a piece costs."""

MONTHS = range(1, 13)


class Sale(NamedTuple):
    """What was sold of a product on a day."""

    day: date
    product: str
    units: int
    cents: int


def days(year: int, month: int) -> Iterator[list[Sale]]:
    """Yield the sales of each day of a month; nothing is sold on Sundays."""
    dice = Random(SEED + 100 * year + month)
    for number in range(1, monthrange(year, month)[1] + 1):
        day = date(year, month, number)
        if day.isoweekday() < 7:
            yield [_sale(dice, day, product) for product in CENTS]


def _sale(dice: Random, day: date, product: str) -> Sale:
    busy = 2 if day.month == 12 else 1
    units = int((5 + 40 * dice.random()) * busy)
    return Sale(day, product, units, units * CENTS[product])


if __name__ == "__main__":
    for sales in days(int(sys.argv[1]), int(sys.argv[2])):
        for sale in sales:
            print(*sale, sep=",")
