"""Assertions about arrays; a failure says where they differ, how much, and in how many elements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyggml.ulp import NOT_COMPARABLE, bits, is_float, ulp_distance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def assert_identical(actual: Any, expected: Any, *, label: str | None = None) -> None:
    """Both arrays have the same shape, dtype and bits: NaNs of the same kind, zeros of the same sign.

    Args:
        actual, expected: numpy arrays or scalars, or objects whose `numpy()` gives one.
        label: what is compared, for the message.

    Raises:
        AssertionError: they differ; the message has the coordinates of the first and the worst element, both
            values, the distance in ULPs, how many elements differ, and the NMSE.
        TypeError: one is not an array.
    """
    __tracebackhide__ = True
    pair = _pair(actual, expected, label)
    differ = bits(pair.actual) != bits(pair.expected)
    if differ.any():
        raise AssertionError(pair.describe(differ, "differ"))


def assert_close(
    actual: Any,
    expected: Any,
    *,
    max_ulp: int | None = None,
    nmse: float | None = None,
    label: str | None = None,
) -> None:
    """Both arrays have the same shape and dtype, NaNs at the same places, and values close to each other.

    Args:
        actual, expected: numpy arrays or scalars, or objects whose `numpy()` gives one.
        max_ulp: the largest distance of an element, see ulp_distance.
        nmse: the largest sum of the squared differences, relative to the sum of the squares of `expected` (as in
            upstream's test-backend-ops). With both given, both must hold.
        label: what is compared, for the message.

    Raises:
        AssertionError: they are not close; the message is that of assert_identical.
        TypeError: one is not an array, or neither limit is given.
    """
    import numpy as np

    __tracebackhide__ = True
    if max_ulp is None and nmse is None:
        raise TypeError("assert_close needs max_ulp=... or nmse=...")
    pair = _pair(actual, expected, label)
    if is_float(pair.actual.dtype):
        apart = np.isnan(pair.actual) ^ np.isnan(pair.expected)
        if apart.any():
            raise AssertionError(pair.describe(apart, "are NaN on one side only"))
    if max_ulp is not None:
        far = ulp_distance(pair.actual, pair.expected) > np.uint64(max_ulp)
        if far.any():
            raise AssertionError(pair.describe(far, f"are more than {max_ulp} ULP apart"))
    if nmse is not None and not pair.nmse <= nmse:
        apart = bits(pair.actual) != bits(pair.expected)
        how = f"differ, NMSE {pair.nmse:.3g} > {nmse:g}"
        raise AssertionError(pair.describe(apart, how, pair.difference))


@dataclass(frozen=True)
class _Pair:
    """Two arrays of the same shape and dtype."""

    actual: NDArray[Any]
    expected: NDArray[Any]
    label: str | None

    @property
    def difference(self) -> NDArray[np.float64]:
        """Absolute differences: 0 between two NaNs or equal infinities, infinite between a NaN and a number."""
        import numpy as np

        a, b = self.actual.astype(np.float64), self.expected.astype(np.float64)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(all="ignore"):
            difference = np.where(same, 0.0, np.abs(a - b))
        return np.where(np.isnan(difference), np.inf, difference)

    @property
    def nmse(self) -> float:
        import numpy as np

        b = self.expected.astype(np.float64)
        with np.errstate(all="ignore"):
            squares = float(np.sum(self.difference**2))
            whole = float(np.sum(b[np.isfinite(b)] ** 2))
        if squares == 0:
            return 0.0
        return squares / whole if whole else math.inf

    def describe(self, differ: NDArray[Any], how: str, weight: NDArray[Any] | None = None) -> str:
        """The message.

        Args:
            differ: marks the elements that differ, at least one.
            how: says how they differ.
            weight: the worst element is the one with the largest weight; by default the distance in ULPs.
        """
        import numpy as np

        distance = ulp_distance(self.actual, self.expected)
        weight = np.where(differ, distance if weight is None else weight, 0)
        first, worst = int(np.argmax(differ)), int(np.argmax(weight))
        title = f"{self.label}: " if self.label else ""
        kind = f"{self.actual.dtype.name} {list(self.actual.shape)}"
        lines = [f"{title}{int(differ.sum())} of {differ.size} values {how} ({kind})"]
        if weight.flat[worst] == weight.flat[first]:
            lines.append(f"  first and worst {self._element(first, distance)}")
        else:
            lines.append(f"  first {self._element(first, distance)}")
            lines.append(f"  worst {self._element(worst, distance)}")
        if "NMSE" not in how and is_float(self.actual.dtype):
            lines.append(f"  NMSE {self.nmse:.3g}")
        return "\n".join(lines)

    def _element(self, number: int, distance: NDArray[np.uint64]) -> str:
        import numpy as np

        where = [int(index) for index in np.unravel_index(number, self.actual.shape)]
        a, b = self.actual.flat[number], self.expected.flat[number]
        ulps = int(distance.flat[number])
        if not is_float(self.actual.dtype):
            far = f"{ulps} apart"
        elif ulps == NOT_COMPARABLE:
            far = "no distance"
        else:
            far = f"{ulps} ULP"
        shown = f"actual {a!s}, expected {b!s}"
        if str(a) == str(b) or ulps == 0:
            digits = 2 * self.actual.dtype.itemsize
            raw = [int(bits(array).flat[number]) for array in (self.actual, self.expected)]
            shown = f"actual {a!s} (0x{raw[0]:0{digits}x}), expected {b!s} (0x{raw[1]:0{digits}x})"
        return f"at {where}: {shown}, {far}"


def _pair(actual: Any, expected: Any, label: str | None) -> _Pair:
    __tracebackhide__ = True
    a, b = _array(actual, "actual"), _array(expected, "expected")
    title = f"{label}: " if label else ""
    if a.shape != b.shape:
        raise AssertionError(f"{title}the shapes differ: actual {list(a.shape)}, expected {list(b.shape)}")
    if a.dtype != b.dtype:
        raise AssertionError(f"{title}the dtypes differ: actual {a.dtype.name}, expected {b.dtype.name}")
    return _Pair(a, b, label)


def _array(value: Any, which: str) -> NDArray[Any]:
    import numpy as np

    if not isinstance(value, np.ndarray | np.generic) and callable(getattr(value, "numpy", None)):
        value = value.numpy()
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"{which} is a {type(value).__name__}; numpy arrays are compared here")
    array = np.asarray(value)
    if not is_float(array.dtype) and array.dtype.kind not in "iub":
        raise TypeError(f"{which} has the dtype {array.dtype}; floats, integers and bool are compared here")
    return array
