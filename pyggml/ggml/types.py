"""ggml's tensor types and the numpy types that have the same bytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load

if TYPE_CHECKING:
    import numpy as np

_NUMPY = {
    "f32": "float32",
    "f16": "float16",
    "f64": "float64",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
}


@dataclass(frozen=True)
class TensorType:
    """A value of ggml.h's `enum ggml_type`.

    Attributes:
        number: the enumerator's value.
        name: ggml_type_name's, in lower case: `f32`, `bf16`, `q8_0`.
        block: elements in a block; a row's length is a multiple of it.
        block_bytes: bytes in a block.
        dtype: numpy's type of an element, or None for quantised types.
    """

    number: int
    name: str
    block: int
    block_bytes: int
    dtype: np.dtype[Any] | None

    def row_bytes(self, elements: int) -> int:
        """Bytes in a row of that many elements."""
        return elements // self.block * self.block_bytes

    def __str__(self) -> str:
        return self.name


@functools.cache
def types() -> dict[str, TensorType]:
    """All types of the loaded build, by name."""
    import ml_dtypes
    import numpy as np

    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    by_name = {}
    for number in range(lib.GGML_TYPE_COUNT):
        block = lib.ggml_blck_size(number)
        if block <= 0:
            # The number of a type that upstream has removed.
            continue
        name = ffi.string(lib.ggml_type_name(number)).decode().lower()
        dtype = np.dtype(_NUMPY[name]) if name in _NUMPY else None
        if name == "bf16":
            dtype = np.dtype(ml_dtypes.bfloat16)
        by_name[name] = TensorType(number, name, block, lib.ggml_type_size(number), dtype)
    return by_name


@functools.cache
def _by_number() -> dict[int, TensorType]:
    return {one.number: one for one in types().values()}


@functools.cache
def _by_dtype() -> dict[Any, TensorType]:
    return {one.dtype: one for one in types().values() if one.dtype is not None}


def type_of_number(number: int) -> TensorType:
    """The type with that value in `enum ggml_type`."""
    return _by_number()[number]


def tensor_type(wanted: Any) -> TensorType:
    """A type by its name (`"q4_0"`), by a numpy dtype with the same bytes, or itself.

    Raises:
        PyggmlError: ggml has no such type; numpy's bool and unsigned integers have no counterpart.
    """
    if isinstance(wanted, TensorType):
        return wanted
    if isinstance(wanted, str) and wanted.lower() in types():
        return types()[wanted.lower()]
    import numpy as np

    try:
        dtype = np.dtype(wanted)
    except TypeError:
        dtype = None
    if dtype is not None and dtype in _by_dtype():
        return _by_dtype()[dtype]
    raise PyggmlError(f"ggml has no tensor type {wanted!r:.60}", f"It has {', '.join(types())}.")
