"""Turns dataclasses into plain JSON values and back by their annotations, and into a JSON Schema."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Turn dataclasses, arrays' numbers and tuples into what JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def built(kind: Any, value: Any) -> Any:
    """Make a value of an annotated type from plain JSON values."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else built(next(arg for arg in args if arg is not type(None)), value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        known = [item.name for item in dataclasses.fields(kind)]
        return kind(**{name: built(hints[name], value[name]) for name in known if name in value})  # type: ignore[operator]
    if origin is dict:
        return {key: built(args[1], item) for key, item in value.items()}
    if origin is list:
        return [built(args[0], item) for item in value]
    if origin is tuple:
        return tuple(built(arg, item) for arg, item in zip(args, value, strict=True))
    return float(value) if kind is float and value is not None else value


def schema_of(kind: Any) -> dict[str, Any]:
    """Describe an annotated type as a JSON Schema."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [{"type": "null"}, *(schema_of(arg) for arg in args if arg is not type(None))]}
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        names = [item.name for item in dataclasses.fields(kind)]
        return {"type": "object", "properties": {name: schema_of(hints[name]) for name in names}, "required": names}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(args[1])}
    if origin is list:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [schema_of(arg) for arg in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    names_of = {float: "number", int: "integer", str: "string", bool: "boolean"}
    return {"type": names_of[kind]} if kind in names_of else {}
