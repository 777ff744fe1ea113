"""Reads what a function says about its parameters, and which of it JSON can carry."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
import sys
import types
import typing
import uuid
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from millpond.errors import BadConfig

CONTEXT_NAME = "ctx"
POSITIONAL_ONLY = inspect.Parameter.POSITIONAL_ONLY
POSITIONAL_OR_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD
VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD

_EMPTY = inspect.Parameter.empty
_MAPPINGS = frozenset((dict, abc.Mapping, abc.MutableMapping))
_COLLECTIONS = frozenset((list, tuple, set, frozenset, abc.Collection, abc.Sequence))
_MORE_COLLECTIONS = frozenset((abc.MutableSequence, abc.Set, abc.MutableSet))
_SCALARS: frozenset[type] = frozenset((int, float, str, bool, type(None)))
_TEXTUAL = frozenset((dt.date, uuid.UUID, decimal.Decimal, bytes))
_NONE = frozenset((type(None),))
_STUBBORN = 20
"""Enclosing frames that are searched for the names of local types."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter whose value is stored: `hint` is its resolved annotation, Any for none."""

    name: str
    kind: inspect._ParameterKind
    hint: Any
    default: Any

    @property
    def has_default(self) -> bool:
        """A call may leave it out, and the function knows a value then."""
        return self.default is not _EMPTY

    @property
    def required(self) -> bool:
        """A call without it is an error."""
        return not self.has_default and self.kind not in (VAR_POSITIONAL, VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a function declares: stored parameters, the one for the context, and the result.

    `result` is None when the function does not say what it returns.
    """

    parameters: tuple[Parameter, ...]
    signature: inspect.Signature
    context: str | None
    result: Any


def read(fn: Callable[..., Any], context_type: type | None) -> Reading:
    """Read a function's parameters and resolve their annotations.

    Raises BadConfig, with the function and the parameter, for an annotation that cannot be
    resolved and for a context that could be passed by position.
    """
    label = describe(fn)
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise BadConfig(f"{label}: its parameters cannot be read ({error})") from error
    context = _context_of(signature, context_type, label)
    names = _Names(fn, label)
    stored = [p for p in signature.parameters.values() if p.name != context]
    parameters = tuple(
        Parameter(p.name, p.kind, _field_hint(p, names.resolve(p.name, p.annotation)), p.default)
        for p in stored
    )
    returned = signature.return_annotation
    result = None if returned is _EMPTY else names.resolve("return", returned)
    return Reading(parameters, signature.replace(parameters=stored), context, result)


def describe(fn: Callable[..., Any]) -> str:
    """Name a function by module and qualified name, as error messages do."""
    name = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    return f"{getattr(fn, '__module__', '?')}.{name}"


def storable(hint: Any) -> Any:
    """Return the annotation as the decoder must see it.

    Where Python takes an int for a float, an int comes back as an int. `object` is anything,
    and an `Iterable` can only be a list.
    """
    if hint is float:
        return int | float
    if hint is object:
        return Any
    if hasattr(hint, "__supertype__"):
        return storable(hint.__supertype__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is abc.Iterable or origin is abc.Iterable:
        return list[storable(arguments[0])] if arguments else list  # type: ignore[misc]
    if not arguments:
        return hint
    if origin is typing.Annotated:
        return _storable_annotated(hint, arguments[0])
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(storable(one) for one in arguments)]  # noqa: UP007  of many
    if origin in _MAPPINGS:
        return origin[arguments[0], storable(arguments[1])]
    if origin in _COLLECTIONS or origin in _MORE_COLLECTIONS:
        return origin[tuple(one if one is ... else storable(one) for one in arguments)]
    return hint


def scalars(hint: Any) -> frozenset[type]:
    """Return the types whose values cannot change on the way through JSON and back.

    Empty when the annotation allows anything else or has constraints: then every value is
    compared with what comes back.
    """
    if hint is Any:
        return _SCALARS
    united = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = frozenset(
        one for one in (typing.get_args(hint) if united else (hint,)) if isinstance(one, type)
    )
    # JSON tells the plain ones apart; a textual one shares its form with others.
    known = members <= _SCALARS or (len(members - _NONE) == 1 and members - _NONE <= _TEXTUAL)
    return members if known else frozenset()


def _storable_annotated(hint: Any, base: Any) -> Any:
    constrained = any(isinstance(one, msgspec.Meta) for one in hint.__metadata__)
    # A constraint belongs to one type of number: it cannot be put on `int | float`.
    if constrained and base is float:
        return hint
    return typing.Annotated[storable(base), *hint.__metadata__]


def _field_hint(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return the type of what is stored under a parameter's name."""
    unpacked = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Unpack else None
    if parameter.kind is VAR_POSITIONAL:
        return unpacked or tuple[hint, ...]
    if parameter.kind is VAR_KEYWORD:
        return unpacked or dict[str, hint]
    # `x: int = None` says by its default that None is allowed.
    return hint | None if parameter.default is None and hint is not Any else hint


def _context_of(signature: inspect.Signature, kind: type | None, label: str) -> str | None:
    for parameter in signature.parameters.values():
        keyword_only = parameter.kind is KEYWORD_ONLY
        if keyword_only and parameter.name == CONTEXT_NAME:
            return parameter.name
        if kind is None or not _means(parameter.annotation, kind):
            continue
        if not keyword_only:
            raise BadConfig(
                f"{label}: parameter {parameter.name!r} takes the {kind.__name__} and could be "
                f"passed by position: put a star before it, `*, {parameter.name}: {kind.__name__}`"
            )
        return parameter.name
    return None


def _means(annotation: object, kind: type) -> bool:
    """Tell whether an annotation is the class, its name in quotes, or either or None."""
    if isinstance(annotation, str):
        name = annotation.replace(" ", "").removesuffix("|None").strip("'\"")
        return name.rpartition(".")[2] == kind.__name__
    return annotation is kind or kind in typing.get_args(annotation)


class _Names:
    """The names that a function's annotations may use."""

    def __init__(self, fn: Callable[..., Any], label: str) -> None:
        plain = _underlying(fn)
        self._label = label
        self._globals = getattr(plain, "__globals__", {})
        self._locals = {**_enclosing_names(plain), **_closure_names(plain)}

    def resolve(self, name: str, annotation: Any) -> Any:
        """Return the annotation as types; Any for none. Raises BadConfig when it cannot be."""
        if annotation is _EMPTY:
            return Any
        bearer = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            hints = typing.get_type_hints(bearer, self._globals, self._locals, include_extras=True)
        except Exception as error:
            what = "return annotation" if name == "return" else f"annotation of parameter {name!r}"
            raise BadConfig(
                f"{self._label}: the {what}, {annotation!r}, cannot be resolved ({error}): "
                "import the type at run time, not only for type checkers, or define it before"
            ) from error
        return hints[name]


def _underlying(fn: Any) -> Any:
    fn = inspect.unwrap(fn)
    while hasattr(fn, "func"):
        fn = inspect.unwrap(fn.func)
    if not hasattr(fn, "__globals__") and not hasattr(fn, "__func__"):
        fn = type(fn).__call__
    return getattr(fn, "__func__", fn)


def _closure_names(fn: Any) -> dict[str, Any]:
    names: dict[str, Any] = {}
    code = getattr(fn, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), fn.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # The variable has no value yet.
            continue
    return names


def _enclosing_names(fn: Any) -> dict[str, Any]:
    """Return the local variables of the function that is just defining `fn`, if one is."""
    outer = getattr(fn, "__qualname__", "").rpartition(".<locals>.")[0]
    frame = sys._getframe(1) if outer else None  # noqa: SLF001  inspect.stack() reads source files
    for _ in range(_STUBBORN):
        if frame is None:
            break
        if frame.f_code.co_qualname == outer and frame.f_globals is fn.__globals__:
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}
