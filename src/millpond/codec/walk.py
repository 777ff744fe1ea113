"""Looks at Python values before they are encoded: depth, size, and what JSON has no word for.

Encoders recurse in C; data that is too deep or contains itself is therefore found here
first, by a loop.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import uuid
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from millpond.codec.place import Culprit, Link, Oversize

MAX_DEPTH = 200
"""Containers inside each other that one argument may have."""

_INERT = frozenset((int, bool, type(None), dt.datetime, dt.date, uuid.UUID, decimal.Decimal))
"""Leaves of small size that can be neither infinite nor containers."""

_SIZED = (dict, list, tuple, set, frozenset)
_SLACK = 2
"""The walk guesses sizes (defaults may be left out, text escaped); above this it may refuse."""


def is_model(kind: object) -> bool:
    """Tell whether a class turns itself into JSON and back, as pydantic's models do."""
    return isinstance(kind, type) and all(
        callable(getattr(kind, name, None)) for name in ("model_dump_json", "model_validate_json")
    )


def parts(node: Any) -> tuple[Collection[Any], Collection[Any]] | None:
    """Return the steps to the members of a container and the members, or None for a leaf."""
    kind = type(node)
    if kind is list or kind is tuple:
        return range(len(node)), node
    if kind in _INERT:
        return None
    if issubclass(kind, dict):
        return dict.keys(node), dict.values(node)
    if issubclass(kind, _SIZED):
        return range(len(node)), list(node)
    if issubclass(kind, enum.Enum | type):
        return None
    names = _field_names(kind)
    if names is not None:
        return names, [getattr(node, name, msgspec.UNSET) for name in names]
    if is_model(kind):
        fields = {**vars(node), **(getattr(node, "__pydantic_extra__", None) or {})}
        return fields.keys(), fields.values()
    return None


def survey(root: Any, limit: int, depth: int = 0) -> None:
    """Refuse what is too deep, not a finite number, or far too large to be worth encoding.

    `depth` is that of the root; the object of all arguments has -1, since it is no part of
    any. Raises Culprit or Oversize. The walk is a loop and ends for any value.
    """
    stack: list[tuple[Any, Link, int]] = [(root, None, depth)]
    weight = 0
    while stack:
        node, link, depth = stack.pop()
        # Brackets, commas and a byte for each member: counting them on every visit keeps the
        # walk short where references are shared.
        weight += 2 * len(node) + 1 if isinstance(node, _SIZED) else 1
        if weight > limit * _SLACK:
            raise Oversize(weight, exact=False)
        found = parts(node)
        if found is None:
            weight += _weigh(node, link)
            continue
        if depth >= MAX_DEPTH:
            reason = f"is nested deeper than {MAX_DEPTH} levels, or contains itself"
            raise Culprit(link, reason)
        for step, member in zip(*found, strict=True):
            kind = type(member)
            if kind is str:
                weight += len(member)
            elif kind not in _INERT and not (kind is float and math.isfinite(member)):
                stack.append((member, (link, step), depth + 1))
    if weight > limit * _SLACK:
        raise Oversize(weight, exact=False)


def locate(root: Any, test: Callable[[Any], str | None]) -> Culprit | None:
    """Find the first leaf, or key of a dict, for which `test` gives a reason to refuse it.

    A model writes its own JSON, so it is blamed as a whole if nothing inside it is.
    """
    stack: list[tuple[Any, Link]] = [(root, None)]
    models: list[tuple[Any, Link]] = []
    while stack:
        node, link = stack.pop()
        if is_model(type(node)):
            models.append((node, link))
        found = parts(node)
        if found is None:
            reason = test(node)
            if reason:
                return Culprit(link, reason)
            continue
        steps, members = found
        for key in steps if isinstance(node, dict) else ():
            reason = test({key: None})
            if reason:
                return Culprit((link, key), f"the key {reason}")
        below = [(member, (link, step)) for step, member in zip(steps, members, strict=True)]
        stack.extend(reversed(below))
    blamed = ((test(model), link) for model, link in models)
    return next((Culprit(link, reason) for reason, link in blamed if reason), None)


def _weigh(leaf: object, link: Link) -> int:
    """Return about the bytes that a leaf takes beyond the first, or refuse it."""
    if isinstance(leaf, str | bytes):
        return len(leaf)
    if isinstance(leaf, float) and not math.isfinite(leaf):
        raise Culprit(link, f"{leaf} is no JSON number; pass None or text instead")
    if isinstance(leaf, msgspec.Raw):
        raise Culprit(link, "ready-made JSON is not checked, so it is refused; pass the data")
    return 0


def _field_names(kind: type) -> Collection[str] | None:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    attributes = getattr(kind, "__attrs_attrs__", None)
    return None if attributes is None else [field.name for field in attributes]
