"""Strict JSON of one Python type: what goes in comes back equal and of the same types."""

from __future__ import annotations

import math
import traceback
from typing import Any

import msgspec

from millpond.codec.blame import blame, retell
from millpond.codec.compare import check_same
from millpond.codec.hints import scalars
from millpond.codec.place import Culprit, Link, Oversize, Place
from millpond.codec.walk import is_model, locate, parts, survey

MAX_BYTES = 1_048_576
"""Default limit of one payload or result, in bytes of JSON."""

_OUTDATED = (
    "; the stored JSON does not fit the code: run matching code, "
    "or requeue the job with a corrected payload"
)


class Coder:
    """Encodes and decodes values of one annotation (`Any` for none); made once, used often.

    `depth` is where counting the levels of nesting starts. Raises TypeError or NameError when
    made for an annotation that JSON cannot tell apart or that cannot be resolved.
    """

    __slots__ = ("_decode", "_depth", "_scalars")

    def __init__(self, annotation: Any, depth: int = 0) -> None:
        self._decode = msgspec.json.Decoder(annotation, dec_hook=from_json).decode
        self._scalars = scalars(annotation)
        self._depth = depth

    def encode(self, value: Any, place: Place, max_bytes: int) -> bytes:
        """Return the JSON of a value that will come back the same.

        Raises BadPayload with the path of the culprit, or PayloadTooLarge.
        """
        try:
            return self.dump(value, max_bytes)
        except Culprit as culprit:
            raise place.refuse(culprit) from None
        except Oversize as found:
            raise place.too_large(found, max_bytes) from None
        except MemoryError:
            raise
        except Exception as error:
            # A value of the caller's may raise anything when it is looked at.
            reason = f"cannot be stored as JSON ({type(error).__name__} when it was read)"
            raise place.refuse(Culprit(_suspect(value, max_bytes), reason)) from error

    def decode(self, data: bytes, place: Place, advice: str = _OUTDATED) -> Any:
        """Return the value of stored JSON; raises BadPayload with the path that does not fit."""
        try:
            return self.load(data)
        except Culprit as culprit:
            culprit.reason += advice
            raise place.refuse(culprit) from culprit.__cause__

    def load(self, data: bytes) -> Any:
        """Return the value of JSON; raises Culprit with the path that does not fit."""
        try:
            return self._decode(data)
        except MemoryError:
            raise
        except Exception as error:
            # The caller's own types may raise anything when they are made.
            raise _explain(error, data, self._decode) from error

    def dump(self, value: Any, max_bytes: int) -> bytes:
        """Do what `encode` does, but raise Culprit and Oversize, for callers with a path."""
        if type(value) in self._scalars and (type(value) is not float or math.isfinite(value)):
            return check_size(_dump(value), max_bytes)
        survey(value, max_bytes, self._depth)
        data = check_size(_dump(value), max_bytes)
        try:
            back = self.load(data)
        except Culprit as culprit:
            raise retell(culprit, value) from culprit.__cause__
        check_same(value, back)
        return data


def _suspect(value: Any, max_bytes: int) -> Link:
    """Return the way to the first member that raises when it is looked at, by itself."""
    for step, member in zip(*(parts(value) or ((), ())), strict=False):
        try:
            survey(member, max_bytes)
            check_same(member, member)
            dump_json(member)
        except Exception:  # noqa: BLE001  whatever it was, it was here
            return None, step
    return None


def check_size(data: bytes, max_bytes: int) -> bytes:
    """Return the data when it is within the limit, else raise Oversize."""
    if len(data) > max_bytes:
        raise Oversize(len(data), exact=True)
    return data


def _to_json(value: object) -> msgspec.Raw:
    if is_model(type(value)):
        text: str = value.model_dump_json(by_alias=True, round_trip=True)  # type: ignore[attr-defined]
        # The model wrote it, so it is checked to be strict JSON before it is put among ours.
        msgspec.json.decode(text)
        return msgspec.Raw(text.encode())
    msg = f"{type(value).__name__} has no JSON form; pass plain data, or an id to load it by"
    raise TypeError(msg)


def from_json(kind: type, value: object) -> object:
    """Make a model from the data of its JSON; raises ValueError or TypeError as msgspec expects."""
    if not is_model(kind):
        msg = f"{getattr(kind, '__name__', kind)} cannot be made from JSON"
        raise TypeError(msg)
    try:
        return kind.model_validate_json(msgspec.json.encode(value))  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(_first_complaint(error)) from None


def _first_complaint(error: ValueError) -> str:
    """Say in one line what a model did not like, without the value, which may be secret."""
    complaints: list[dict[str, Any]] = getattr(error, "errors", list)()
    if not complaints:
        return str(error)
    where = ".".join(map(str, complaints[0]["loc"]))
    return f"{where}: {complaints[0]['msg']}" if where else str(complaints[0]["msg"])


dump_json = msgspec.json.Encoder(enc_hook=_to_json).encode
"""Encodes without any of the checks."""


def _dump(value: Any) -> bytes:
    try:
        return dump_json(value)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        found = locate(value, _unencodable)
        if found is None:
            raise
        raise found from error


def _unencodable(leaf: Any) -> str | None:
    """Return why a leaf has no JSON form, or None when it has one."""
    if leaf is msgspec.UNSET:
        return None
    try:
        dump_json(leaf)
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        return f"is no valid Unicode: it holds the lone surrogate U+{code:04X}"
    except msgspec.DecodeError:
        return f"{type(leaf).__name__} wrote JSON that is not valid"
    except Exception as error:  # noqa: BLE001  a caller's value may raise anything
        return str(error) if isinstance(error, TypeError) else f"has no JSON form: {error}"
    return None


def _explain(error: Exception, data: bytes, decode: Any) -> Culprit:
    if isinstance(error, RecursionError):
        return Culprit(None, "is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return blame(error, data, decode)
    if isinstance(error, msgspec.DecodeError):
        return Culprit(None, f"is not valid JSON: {error}")
    said = "".join(traceback.format_exception_only(error)).strip()
    return Culprit(None, f"reading it back raised {said}")
