"""Integer constant expressions of C, as far as headers use them.

cffi could fill in `...` when the extension is compiled. But the numbers are wanted before: in declarations.h and in
abi.json, which `pyggml abi diff` compares for builds that are not loaded.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping
from typing import Any

from pycparser import c_ast

_SIZES = {
    "char": 1,
    "bool": 1,
    "_Bool": 1,
    "short": 2,
    "int": 4,
    "float": 4,
    "double": 8,
    "long long": 8,
    "long": struct.calcsize("l"),
    "size_t": struct.calcsize("P"),
    "ssize_t": struct.calcsize("P"),
    "intptr_t": struct.calcsize("P"),
    "uintptr_t": struct.calcsize("P"),
    "ptrdiff_t": struct.calcsize("P"),
    **{f"{sign}int{bits}_t": bits // 8 for bits in (8, 16, 32, 64) for sign in ("", "u")},
}


def _divide(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
    "%": lambda a, b: a - b * _divide(a, b),
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "&&": lambda a, b: int(bool(a and b)),
    "||": lambda a, b: int(bool(a or b)),
}


def fold(node: Any, names: Mapping[str, int], types: Mapping[str, Any]) -> int | None:
    """The value of an expression, or None if the text alone does not determine it.

    Args:
        names: enumerators and their values.
        types: typedef names and the types they stand for.
    """
    try:
        return _fold(node, names, types)
    except (ValueError, KeyError, ZeroDivisionError, OverflowError):
        return None


def _fold(node: Any, names: Mapping[str, int], types: Mapping[str, Any]) -> int:
    if isinstance(node, c_ast.Constant):
        return _constant(node)
    if isinstance(node, c_ast.ID):
        return names[node.name]
    if isinstance(node, c_ast.UnaryOp):
        if node.op in ("sizeof", "_Alignof"):
            return _size(node.expr.type if isinstance(node.expr, c_ast.Typename) else None, names, types)
        value = _fold(node.expr, names, types)
        return {"-": -value, "+": value, "~": ~value, "!": int(not value)}[node.op]
    if isinstance(node, c_ast.BinaryOp):
        return _BINARY[node.op](_fold(node.left, names, types), _fold(node.right, names, types))
    if isinstance(node, c_ast.TernaryOp):
        chosen = node.iftrue if _fold(node.cond, names, types) else node.iffalse
        return _fold(chosen, names, types)
    if isinstance(node, c_ast.Cast):
        return _cast(_fold(node.expr, names, types), node.to_type.type, names, types)
    raise ValueError(type(node).__name__)


def _constant(node: Any) -> int:
    if "char" in node.type and "'" in node.value:
        text = node.value.strip("'")
        if len(text) != 1:
            raise ValueError(node.value)
        return ord(text)
    digits = node.value.rstrip("uUlL")
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        return int(digits, 8)
    return int(digits, 0)


def _cast(value: int, kind: Any, names: Mapping[str, int], types: Mapping[str, Any]) -> int:
    bits = 8 * _size(kind, names, types)
    value &= (1 << bits) - 1
    return value - (1 << bits) if _signed(kind, types) and value >> (bits - 1) else value


def _signed(kind: Any, types: Mapping[str, Any]) -> bool:
    if isinstance(kind, c_ast.TypeDecl):
        return _signed(kind.type, types)
    words = kind.names
    if len(words) == 1 and words[0] in types:
        return _signed(types[words[0]], types)
    return not any(word in ("unsigned", "bool", "_Bool", "size_t") or word.startswith("u") for word in words)


def _size(kind: Any, names: Mapping[str, int], types: Mapping[str, Any]) -> int:
    if isinstance(kind, c_ast.PtrDecl):
        return struct.calcsize("P")
    if isinstance(kind, c_ast.TypeDecl):
        return _size(kind.type, names, types)
    if isinstance(kind, c_ast.Enum):
        return _SIZES["int"]
    if isinstance(kind, c_ast.ArrayDecl):
        return _fold(kind.dim, names, types) * _size(kind.type, names, types)
    if isinstance(kind, c_ast.IdentifierType):
        words = [word for word in kind.names if word not in ("signed", "unsigned")] or ["int"]
        if len(words) == 1 and words[0] in types:
            return _size(types[words[0]], names, types)
        if len(words) > 1 and words[-1] == "int":
            words.pop()
        return _SIZES[" ".join(words)]
    raise ValueError("size not known from the text alone")
