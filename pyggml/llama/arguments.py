"""Arguments that C would misread, checked before they get there."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pyggml.errors import UsageError

Int32Array: TypeAlias = "npt.NDArray[np.int32]"

MAX_INT32 = (1 << 31) - 1


def checked_int(what: str, value: Any, least: int, most: int) -> int:
    """`value` as an int from `least` to `most`.

    Raises:
        UsageError: it is not a whole number, or out of range.
    """
    try:
        # True is more likely a mistake than a 1.
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None:
        raise UsageError(f"{what} must be a whole number, not {value!r:.60}")
    if not least <= number <= most:
        raise UsageError(f"{what} is {number}; it must be {least} to {most}")
    return number


def checked_choice(what: str, value: Any, known: Mapping[Any, int]) -> int:
    """The C value of one of the `known` words.

    Raises:
        UsageError: it is not one of them; the message lists them.
    """
    try:
        return known[value]
    except (KeyError, TypeError):
        words = ", ".join(repr(word) for word in known)
        raise UsageError(f"{what} is {value!r:.60}", f"It must be one of {words}.") from None


def checked_int32_array(what: str, values: Any, least: int, most: int) -> Int32Array:
    """A one-dimensional array of whole numbers as int32, never reinterpreted or rounded.

    Raises:
        UsageError: another type, shape or range; the message names the first invalid element.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{what}: {error}") from error
    if array.ndim != 1:
        raise UsageError(f"{what} must be one row of numbers; the shape is {array.shape}")
    if array.size == 0:
        raise UsageError(f"{what}: there are none")
    if not np.issubdtype(array.dtype, np.integer):
        raise UsageError(f"{what} must be whole numbers; the type is {array.dtype}")
    out_of_range = (array < least) | (array > most)
    if out_of_range.any():
        index = int(out_of_range.argmax())
        raise UsageError(f"{what}: number {index} is {array[index]}; it must be {least} to {most}")
    return np.ascontiguousarray(array, np.int32)
