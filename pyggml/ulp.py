"""Distances between floating-point numbers, in units in the last place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NOT_COMPARABLE = 2**64 - 1
"""The distance of a NaN from a number."""


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether it is float16, bfloat16 (of ml_dtypes), float32 or float64."""
    return dtype.name in ("float16", "bfloat16", "float32", "float64")


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The array's bits as unsigned integers of the same width and shape."""
    import numpy as np

    native = np.ascontiguousarray(array).reshape(array.shape)
    if not native.dtype.isnative:
        native = native.byteswap().view(native.dtype.newbyteorder("="))
    unsigned: NDArray[Any] = native.view(np.dtype(f"u{native.dtype.itemsize}"))
    return unsigned


def ulp_distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.uint64]:
    """The distance of two arrays, element by element, in representable numbers.

    Neighbours are 1 apart, and so are the largest finite number and infinity; 0.0 and -0.0 are 0 apart. For
    integers and booleans it is the difference. Two NaNs are 0 apart whatever their bits (`assert_identical`
    compares those); a NaN and a number are NOT_COMPARABLE.

    Args:
        a, b: of the same shape and dtype: float16, bfloat16, float32, float64, integers or bool.

    Raises:
        TypeError: the dtypes differ or have no such distance.
        ValueError: the shapes differ.
    """
    import numpy as np

    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype:
        raise TypeError(f"the dtypes differ: {a.dtype} and {b.dtype}")
    if a.shape != b.shape:
        raise ValueError(f"the shapes differ: {a.shape} and {b.shape}")
    if not is_float(a.dtype) and a.dtype.kind not in "iub":
        raise TypeError(f"{a.dtype} has no distance in units in the last place")
    x, y = _order(a), _order(b)
    # Unsigned subtraction wraps around to the right result, however far apart they are.
    distance = np.where(
        x > y, x.astype(np.uint64) - y.astype(np.uint64), y.astype(np.uint64) - x.astype(np.uint64)
    )
    if is_float(a.dtype):
        nan_a, nan_b = np.isnan(a), np.isnan(b)
        distance = np.where(nan_a & nan_b, np.uint64(0), distance)
        distance = np.where(nan_a ^ nan_b, np.uint64(NOT_COMPARABLE), distance)
    return distance.astype(np.uint64)


def _order(array: NDArray[Any]) -> NDArray[Any]:
    """Integers ordered like the numbers, neighbours 1 apart: IEEE 754 bits are sign and magnitude."""
    import numpy as np

    raw = bits(array)
    if array.dtype.kind in "ub":
        return raw.astype(np.uint64)
    if array.dtype.kind == "i":
        return array.astype(np.int64)
    sign = raw.dtype.type(1 << (8 * raw.dtype.itemsize - 1))
    magnitude = (raw & ~sign).astype(np.int64)
    signed: NDArray[Any] = np.where(raw & sign, -magnitude, magnitude)
    return signed
