"""The stored form of a task's arguments: one JSON object keyed by parameter name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import is_
from typing import Any

import msgspec
from msgspec.structs import astuple

from millpond.codec.coder import MAX_BYTES, Coder, dump_json
from millpond.codec.hints import (
    KEYWORD_ONLY,
    POSITIONAL_ONLY,
    POSITIONAL_OR_KEYWORD,
    VAR_KEYWORD,
    VAR_POSITIONAL,
    Parameter,
    Reading,
    describe,
    read,
    scalars,
    storable,
)
from millpond.codec.place import Culprit, Oversize, Place
from millpond.codec.plain import decode_result, encode_result
from millpond.codec.schema import describe_arguments
from millpond.codec.text import coerce
from millpond.codec.walk import is_model
from millpond.errors import BadConfig, BadPayload

_MOST_SHAPES = 256
"""Combinations of argument types that a signature remembers, harmless or not."""

_BY_KEYWORD = (POSITIONAL_OR_KEYWORD, KEYWORD_ONLY)
_UNSET = msgspec.UNSET
_NOT_GIVEN = type(msgspec.UNSET)
_NO_KEYWORDS: Mapping[str, Any] = {}


class Signature:
    """How the calls of one function are stored: made once per task, safe to share by threads.

    `context` is the parameter that the worker fills in and no payload holds, or None. `result`
    is the declared type of the result, or None when there is none.
    """

    def __init__(self, reading: Reading, task: str, label: str) -> None:
        self.task = task
        self.parameters = reading.parameters
        self.context = reading.context
        self.result = reading.result
        self._place = Place(task)
        self._bindable = reading.signature
        self._plain = _is_plain(reading.parameters)
        self._all_positional = all(p.kind is POSITIONAL_OR_KEYWORD for p in reading.parameters)
        self._positional = sum(p.kind is POSITIONAL_OR_KEYWORD for p in reading.parameters)
        self._fields = (
            reading.parameters
            if self._plain
            else tuple(sorted(reading.parameters, key=lambda p: not p.required))
        )
        self._record, self._coder = _build(self._fields, task, label)
        self._harmless = tuple(_harmless(p) for p in self._fields)
        self._shapes: dict[tuple[type, ...], tuple[int, ...] | None] = {}

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        *,
        task: str | None = None,
        context_type: type | None = None,
    ) -> Signature:
        """Read a function; `task` is its name in messages, by default the function's own.

        Raises BadConfig, with the function and the parameter, for an annotation that cannot be
        resolved or that no JSON can carry.
        """
        name = getattr(fn, "__name__", type(fn).__name__)
        return cls(read(fn, context_type), task or str(name), describe(fn))

    def encode(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NO_KEYWORDS,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> bytes:
        """Return the payload of a call; `decode` gives equal arguments of the same types.

        Only what the caller gave is stored, no defaults. Raises BadPayload when the function
        cannot be called so, or with the path of an argument that cannot be stored, and
        PayloadTooLarge above `max_bytes`.
        """
        if self._plain and len(args) <= self._positional:
            # The record takes arguments as the function does, and in C.
            try:
                call = self._record(*args, **kwargs)
            except TypeError:
                call = self._bind(args, kwargs)
        else:
            call = self._bind(args, kwargs)
        return self._store(call, max_bytes)

    def encode_named(self, values: Mapping[str, Any], *, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the payload for values by parameter name, those of `*args` as a tuple.

        Also for parameters that a call can only pass by position. Raises as `encode` does.
        """
        self._check_known(values)
        for parameter in self.parameters:
            if parameter.required and parameter.name not in values:
                raise self._place.refuse(Culprit((None, parameter.name), "is missing"))
        return self._store(self._record(**values), max_bytes)

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a stored call, positional and by keyword, without context.

        A parameter that the payload lacks is left to its default. Raises BadPayload, with the
        path, when the payload is not what this function takes.
        """
        return self._arguments(self._coder.decode(payload, self._place))

    def _arguments(self, record: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = astuple(record)
        if self._plain and self._all_positional:
            given = [value for value in values if value is not _UNSET]
            # The usual call leaves out the last ones, if any. Values of the caller's own types
            # are compared by identity, since their == may do anything.
            if all(map(is_, values, given)):
                return tuple(given), {}
        return self._spread(dict(zip((p.name for p in self._fields), values, strict=True)))

    def check(self, payload: bytes) -> None:
        """Raise BadPayload, with the path, when a payload is not what this function takes."""
        self._arguments(self._coder.decode(payload, self._place, "; nothing was stored"))

    def coerce_text(
        self, texts: Mapping[str, str], *, max_bytes: int = MAX_BYTES
    ) -> dict[str, Any]:
        """Return the values that texts by parameter name mean, for `encode_named`.

        A parameter without annotation keeps the text. Lists, objects and models are given as
        JSON. Raises BadPayload that names the parameter.
        """
        self._check_known(texts)
        hints = {p.name: p.hint for p in self.parameters}
        values = {}
        for name, text in texts.items():
            try:
                values[name] = coerce(hints[name], text, (None, name), max_bytes)
            except Culprit as culprit:
                raise self._place.refuse(culprit) from None
            except Oversize as found:
                raise self._place.too_large(found, max_bytes) from None
        return values

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the payload, as far as the annotations have one."""
        return describe_arguments(self.task, self._record, self.parameters)

    def encode_result(self, value: Any, *, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the JSON of a result of this function; raises BadPayload with a path."""
        return encode_result(value, self.result, task=self.task, max_bytes=max_bytes)

    def decode_result(self, data: bytes) -> Any:
        """Return a stored result; raises BadPayload when it does not fit the code any more."""
        return decode_result(data, self.result, task=self.task)

    def _store(self, call: Any, max_bytes: int) -> bytes:
        values = astuple(call)
        shape = tuple(map(type, values))
        floats = self._shapes.get(shape, ...)
        if floats is ...:
            floats = self._learn(shape)
        if floats is not None and all(math.isfinite(values[at]) for at in floats):
            # Such values cannot come back changed; what still fails is explained below.
            try:
                data = dump_json(call)
            except Exception:  # noqa: BLE001, S110
                pass
            else:
                if len(data) <= max_bytes:
                    return data
        return self._coder.encode(call, self._place, max_bytes)

    def _learn(self, shape: tuple[type, ...]) -> tuple[int, ...] | None:
        """Return where the floats are when values of these types need no comparison, or None."""
        floats = None
        if all(kind in known for kind, known in zip(shape, self._harmless, strict=True)):
            floats = tuple(at for at, kind in enumerate(shape) if kind is float)
        if len(self._shapes) < _MOST_SHAPES:
            self._shapes[shape] = floats
        return floats

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            bound = self._bindable.bind(*args, **kwargs)
        except TypeError as error:
            raise BadPayload(f"{self.task}(): {error}; {self._takes()}") from None
        return self._record(**bound.arguments)

    def _spread(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give each value the way by which its parameter can take it."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        by_position = self._count_by_position(values)
        for at, parameter in enumerate(self.parameters):
            value = values[parameter.name]
            if at < by_position:
                args.append(parameter.default if value is _UNSET else value)
            elif value is _UNSET:
                continue
            elif parameter.kind is VAR_POSITIONAL:
                args.extend(value)
            elif parameter.kind is VAR_KEYWORD:
                self._check_extra(parameter, value)
                kwargs.update(value)
            else:
                kwargs[parameter.name] = value
        return tuple(args), kwargs

    def _count_by_position(self, values: dict[str, Any]) -> int:
        """Count the leading parameters to pass by position, with defaults where one is left out.

        All up to the first that was left out; beyond it only if a later one has no other way.
        """
        count = 0
        unbroken = True
        for at, parameter in enumerate(self.parameters):
            given = values[parameter.name] is not _UNSET
            unbroken = unbroken and given
            if parameter.kind is POSITIONAL_ONLY:
                count = at + 1 if given else count
            elif parameter.kind is POSITIONAL_OR_KEYWORD:
                count = at + 1 if unbroken else count
            elif parameter.kind is VAR_POSITIONAL and given and values[parameter.name]:
                count = at
        return count

    def _check_extra(self, parameter: Parameter, extra: Mapping[str, Any]) -> None:
        by_keyword = {p.name for p in self.parameters if p.kind in _BY_KEYWORD}
        for name in extra:
            if name in by_keyword or name == self.context:
                link = ((None, parameter.name), name)
                raise self._place.refuse(Culprit(link, "is a parameter of its own"))

    def _takes(self) -> str:
        return f"it takes {', '.join(map(_show, self.parameters)) or 'no arguments'}"

    def _check_known(self, names: Iterable[str]) -> None:
        known = {p.name for p in self.parameters}
        for name in names:
            if name not in known:
                reason = f"{self.task} has no such parameter; {self._takes()}"
                raise self._place.refuse(Culprit((None, name), reason))


def _is_plain(parameters: Sequence[Parameter]) -> bool:
    """Tell whether a record takes the same calls as the function."""
    optional_seen = False
    for parameter in parameters:
        if parameter.kind not in _BY_KEYWORD:
            return False
        if parameter.required and optional_seen:
            return False
        optional_seen = optional_seen or not parameter.required
    return True


def _harmless(parameter: Parameter) -> frozenset[type]:
    kinds = scalars(storable(parameter.hint))
    return kinds if parameter.required else kinds | {_NOT_GIVEN}


def _build(
    parameters: Sequence[Parameter], task: str, label: str
) -> tuple[type[msgspec.Struct], Coder]:
    for parameter in parameters:
        _check_storable(parameter, label)
    fields = [
        (p.name, storable(p.hint)) if p.required else (p.name, storable(p.hint), _UNSET)
        for p in parameters
    ]
    record = msgspec.defstruct(task, fields, forbid_unknown_fields=True, gc=False)
    return record, Coder(record, depth=-1)


def _check_storable(parameter: Parameter, label: str) -> None:
    """Raise BadConfig for an annotation that JSON cannot carry or cannot tell apart."""
    where = f"{label}: parameter {parameter.name!r}"
    if parameter.name.startswith("__"):
        raise BadConfig(f"{where} begins with two underscores, which no payload holds: rename it")
    try:
        Coder(storable(parameter.hint))
        info = msgspec.inspect.type_info(storable(parameter.hint))
    except Exception as error:
        raise BadConfig(f"{where} has an annotation that JSON cannot carry: {error}") from error
    foreign = _foreign(info)
    # One with a default may serve plain calls; it is refused only when a call gives it.
    if parameter.required and foreign is not None:
        raise BadConfig(
            f"{where} takes {foreign.__name__}, which has no JSON form: "
            "take plain data, or an id, and load the object inside the function"
        )


def _foreign(info: Any) -> type | None:
    """Return the class of a type that millpond can neither write nor read, or None."""
    if isinstance(info, msgspec.inspect.CustomType):
        return None if is_model(info.cls) else info.cls
    for member in ("item_type", "key_type", "value_type", "type"):
        inner = getattr(info, member, None)
        found = _foreign(inner) if isinstance(inner, msgspec.inspect.Type) else None
        if found is not None:
            return found
    return None


def _show(parameter: Parameter) -> str:
    star = "*" * (parameter.kind is VAR_POSITIONAL) + "**" * (parameter.kind is VAR_KEYWORD)
    default = "=..." if parameter.has_default else ""
    return f"{star}{parameter.name}{default}"
