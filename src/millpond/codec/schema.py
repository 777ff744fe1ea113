"""Describes the arguments of a task as a JSON schema, for documentation and the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millpond.codec.coder import dump_json
from millpond.codec.hints import Parameter
from millpond.codec.walk import is_model


def describe_arguments(
    task: str, record: type[msgspec.Struct], parameters: Sequence[Parameter]
) -> dict[str, Any]:
    """Return the schema of a payload; where annotations have none, only the names are told."""
    try:
        (reference,), parts = msgspec.json.schema_components([record], schema_hook=_model_schema)
        schema = parts.pop(reference["$ref"].rpartition("/")[2])
    except Exception:  # noqa: BLE001  a type of the caller's may have no schema
        schema, parts = _names_only(parameters), {}
    schema["title"] = task
    for parameter in parameters:
        _tell_default(schema["properties"][parameter.name], parameter)
    return {**schema, "$defs": parts} if parts else schema


def _model_schema(kind: type) -> dict[str, Any]:
    if is_model(kind):
        return dict(kind.model_json_schema())  # type: ignore[attr-defined]
    raise NotImplementedError


def _names_only(parameters: Sequence[Parameter]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {p.name: {} for p in parameters},
        "required": [p.name for p in parameters if p.required],
        "additionalProperties": False,
    }


def _tell_default(field: dict[str, Any], parameter: Parameter) -> None:
    if not parameter.has_default:
        return
    try:
        field["default"] = msgspec.json.decode(dump_json(parameter.default))
    except Exception:  # noqa: BLE001  a default without a JSON form is not told
        field.pop("default", None)
