"""Files in which pyggml keeps what it knows between two commands: dataclasses as JSON, bytes as base64."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class FileChange:
    """A change of one file of the project; its path is relative to the root, with `/`. None means no file."""

    path: str
    old: bytes | None
    new: bytes | None


def read_file(path: Path) -> bytes | None:
    """The content of a file; None if there is no such file."""
    return path.read_bytes() if path.is_file() else None


def to_plain(value: object) -> Any:
    """`value` as what JSON has."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value


def to_json(value: object) -> bytes:
    return json.dumps(to_plain(value), indent=1).encode()


def from_plain(kind: type[T], value: Any) -> T:
    """The inverse of `to_plain` for a value of type `kind`: a dataclass, or what its fields are made of.

    Raises:
        ValueError, TypeError, KeyError: `value` is of another shape.
    """
    return _read(kind, value)  # type: ignore[no-any-return]


def _read(kind: Any, value: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _read(next(arg for arg in args if arg is not type(None)), value)
    if origin is tuple and args[-1] is ...:
        return tuple(_read(args[0], item) for item in value)
    if origin is tuple:
        return tuple(_read(arg, item) for arg, item in zip(args, value, strict=True))
    if origin is Mapping:
        return {key: _read(args[1], item) for key, item in value.items()}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{name: _read(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    if kind is Any and isinstance(value, list):
        return tuple(value)
    return base64.b64decode(value) if kind is bytes else value
