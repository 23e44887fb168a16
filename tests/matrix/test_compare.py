"""Equal bits, NaN, zeros, units in the last place, and upstream's measure."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyggml.matrix.compare import compare, count_nan, nmse

ONE = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)


def changed(row: int, column: int, value: float) -> np.ndarray:
    array = ONE.copy()
    array[row, column] = value
    return array


def test_equal_bits() -> None:
    found = compare(ONE, ONE.copy())
    assert found.identical
    assert (found.nmse, found.ulp, found.differing, found.first) == (0.0, 0, 0, None)


def test_one_unit_in_the_last_place_is_a_difference() -> None:
    found = compare(ONE, changed(1, 0, float(np.nextafter(np.float32(3), np.float32(4)))))
    assert not found.identical
    assert (found.ulp, found.differing, found.first) == (1, 1, (1, 0))
    # One unit above 3 is 2^-22; the squares of ONE add up to 30.
    assert found.nmse == pytest.approx(2.0**-44 / 30)


def test_the_sign_of_zero_is_a_difference() -> None:
    found = compare(changed(0, 1, 0.0), changed(0, 1, -0.0))
    assert not found.identical
    assert (found.nmse, found.ulp, found.differing, found.first) == (0.0, 0, 1, (0, 1))


def test_a_number_and_a_nan() -> None:
    for a, b in ((ONE, changed(0, 0, math.nan)), (changed(0, 0, math.nan), ONE)):
        found = compare(a, b)
        assert not found.identical
        assert (found.nmse, found.ulp, found.first) == (math.inf, None, (0, 0))


def test_nans_are_compared_as_bits() -> None:
    a, b = changed(1, 1, math.nan), changed(1, 1, math.nan)
    assert compare(a, b).identical
    b.view(np.uint32)[1, 1] |= 1
    found = compare(a, b)
    assert not found.identical
    assert found.first == (1, 1)


def test_an_infinity_that_is_expected_is_no_error() -> None:
    a, b = changed(0, 0, -math.inf), changed(0, 0, -math.inf)
    b[1, 0] += 1
    assert nmse(a, b) == pytest.approx(1 / (4 + 9 + 16))
    assert nmse(ONE, changed(0, 0, math.inf)) == math.inf


def test_the_measure() -> None:
    assert nmse(ONE, changed(0, 1, 5.0)) == pytest.approx(9 / 30)
    assert nmse(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)) == math.inf


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shapes differ"):
        compare(ONE, ONE[:1])


def test_counting_nans() -> None:
    assert count_nan(ONE) == (0, None)
    assert count_nan(changed(1, 0, math.nan)) == (1, 1)
