"""Compares a value with what came back from its JSON: equal is not enough, types count."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import struct
import uuid
from collections.abc import Collection
from typing import Any

from millpond.codec.place import Culprit, Link
from millpond.codec.walk import parts

_ANNOTATE = "annotate the parameter with its exact type, or pass plain JSON data"
_PLAIN = (str, int, float, bool, list, dict, type(None))
_BY_VALUE = frozenset((int, str, bool, type(None), bytes, dt.date, dt.timedelta, uuid.UUID))
"""Types of which two equal values are the same in every respect."""

_Parts = tuple[Collection[Any], Collection[Any]]
_Pair = tuple[Any, Any, Link]


def check_same(given: Any, back: Any) -> None:
    """Raise Culprit at the first part of `given` that `back` does not repeat exactly.

    A loop, not a recursion. Members are compared in the order that JSON keeps.
    """
    stack: list[_Pair] = [(given, back, None)]
    while stack:
        one, other, link = stack.pop()
        if type(one) is not type(other):
            raise Culprit(link, _retyped(one, other))
        mine = parts(one)
        if mine is not None:
            stack.extend(reversed(_unsettled(one, mine, other, link)))
        elif not _same_leaf(one, other):
            raise Culprit(link, f"this {_name(one)} would come back changed; {_cure(one)}")


def _unsettled(one: Any, mine: _Parts, other: Any, link: Link) -> list[_Pair]:
    """Pair the members of two containers of one type, leaving out those that are the same.

    Raises Culprit where a member has no counterpart.
    """
    theirs = parts(other) or ((), ())
    if isinstance(one, set | frozenset):
        theirs = theirs[0], _in_order_of(one, other, link)
    elif isinstance(one, dict):
        _check_keys(one, other, link)
    elif len(mine[1]) != len(theirs[1]):
        raise Culprit(link, f"would come back with {len(theirs[1])} of {len(mine[1])} members")
    pairs: list[_Pair] = []
    for step, member, twin in zip(*mine, theirs[1], strict=True):
        kind = type(member)
        # A zero is left to the closer look: only there the sign is asked for.
        plain = kind in _BY_VALUE or (kind is float and member)
        if not plain or kind is not type(twin) or member != twin:
            pairs.append((member, twin, (link, step)))
    return pairs


def _in_order_of(one: Any, other: Any, link: Link) -> list[Any]:
    """Return the members of one set in the order of another."""
    theirs = {member: member for member in other}
    if len(one) != len(theirs) or any(member not in theirs for member in one):
        raise Culprit(link, f"members of this {_name(one)} would come back changed; {_ANNOTATE}")
    return [theirs[member] for member in one]


def _check_keys(one: dict[Any, Any], other: dict[Any, Any], link: Link) -> None:
    for lost in one if len(one) != len(other) else ():
        if lost not in other:
            reason = "would be lost: its type does not declare it, or two keys are one in JSON"
            raise Culprit((link, lost), reason)
    for key, twin in zip(one, other, strict=True):
        if type(key) is str is type(twin) and key == twin:
            continue
        try:
            check_same(key, twin)
        except Culprit as culprit:
            raise Culprit((link, key), f"the key: {culprit.reason}") from None


def _same_leaf(one: Any, other: Any) -> bool:
    """Compare two leaves of one type, by more than `==` where that overlooks something."""
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    if isinstance(one, decimal.Decimal):
        return bool(one.as_tuple() == other.as_tuple())
    if isinstance(one, dt.datetime | dt.time):
        return _same_clock(one, other)
    if isinstance(one, enum.Enum):
        return one is other
    return one is other or bool(one == other)


def _same_clock(one: dt.datetime | dt.time, other: dt.datetime | dt.time) -> bool:
    """Compare wall clock and offset: a named zone may come back as its offset of that moment.

    Where there is no offset, `fold` alone tells two moments apart, and JSON has no place for it.
    """
    if one.utcoffset() != other.utcoffset():
        return False
    if one.utcoffset() is None and one.fold != other.fold:
        return False
    return one.replace(tzinfo=None, fold=0) == other.replace(tzinfo=None, fold=0)


def _cure(leaf: object) -> str:
    if isinstance(leaf, dt.datetime | dt.time):
        return "JSON keeps neither `fold` nor seconds of an offset: use UTC"
    return _ANNOTATE


def _retyped(one: object, other: object) -> str:
    before, after = _name(one), _name(other)
    if type(one) is int and type(other) is float:
        return f"{before} would come back as float; write it as a float, for instance 5.0"
    cure = _ANNOTATE if type(other) in _PLAIN else f"pass the annotated type, {after}"
    return f"{before} would come back as {after}; {cure}"


def _name(value: object) -> str:
    return "None" if value is None else type(value).__name__
