"""Two runs' logits compared: bit for bit, by upstream's measure, and where they first differ."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyggml.ulp import bits, ulp_distance

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

BOUND = 1e-4
"""The NMSE against the CPU above which upstream's test fails (tests/test-llama-archs.cpp)."""


@dataclass(frozen=True)
class LogitDifference:
    """How logits differ from the expected ones.

    Attributes:
        identical: in every bit; a NaN equals the same NaN, and 0.0 and -0.0 differ.
        nmse: squared error over the squares of the expected; infinite where a number meets a NaN.
        ulp: the largest distance in units in the last place; None where a number meets a NaN.
        differing: how many logits differ.
        first: row and column of the first that differs.
    """

    identical: bool
    nmse: float
    ulp: int | None
    differing: int
    first: tuple[int, int] | None


def compare(expected: Floats, actual: Floats) -> LogitDifference:
    """Compare two arrays of logits, (rows, vocabulary).

    Raises:
        ValueError: the shapes differ.
    """
    import numpy as np

    if expected.shape != actual.shape:
        raise ValueError(f"the shapes differ: {expected.shape} and {actual.shape}")
    different = bits(expected) != bits(actual)
    count = int(different.sum())
    if not count:
        return LogitDifference(True, 0.0, 0, 0, None)
    row, column = np.unravel_index(int(different.argmax()), different.shape)
    apart = np.isnan(expected) != np.isnan(actual)
    ulp = None if apart.any() else int(ulp_distance(expected, actual).max())
    return LogitDifference(False, nmse(expected, actual), ulp, count, (int(row), int(column)))


def nmse(expected: Floats, actual: Floats) -> float:
    """Upstream's measure (tests/test-llama-archs.cpp), in double precision; infinite instead of NaN.

    An infinity where one is expected is no error.
    """
    import numpy as np

    a, b = expected.astype(np.float64), actual.astype(np.float64)
    with np.errstate(all="ignore"):
        error = float(np.square(np.where(a == b, 0.0, a - b)).sum())
        size = float(np.square(a[np.isfinite(a)]).sum())
    if error == 0.0:
        return 0.0
    return error / size if size and math.isfinite(error) else math.inf


def count_nan(logits: Floats) -> tuple[int, int | None]:
    """How many NaNs there are, and the row of the first."""
    import numpy as np

    where: NDArray[Any] = np.isnan(logits)
    count = int(where.sum())
    return count, int(where.any(axis=1).argmax()) if count else None
