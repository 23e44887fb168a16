"""Assertions about arrays, against distances counted one representable number at a time."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyggml.testing import assert_close, assert_identical, ulp_distance

ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs ml_dtypes for bfloat16")
FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
BIG = 2**64 - 1


def message(assertion, *args, **kwargs) -> list[str]:
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **kwargs)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, 2.0**-14, -0.0])
def test_distance_counts_steps_of_nextafter(dtype, start) -> None:
    here = there = np.asarray(start, dtype)
    for steps in range(200):
        assert ulp_distance(here, there) == steps
        assert ulp_distance(there, here) == steps
        there = np.nextafter(there, np.asarray(-np.inf, dtype))


@given(st.floats(width=32, allow_nan=False), st.floats(width=32, allow_nan=False))
def test_distance_of_any_two_f32(x: float, y: float) -> None:
    def place(value: float) -> int:
        (raw,) = struct.unpack("<i", struct.pack("<f", value))
        return raw if raw >= 0 else -(raw + 2**31)

    assert int(ulp_distance(np.float32(x), np.float32(y))) == abs(place(x) - place(y))


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_distance_of_any_two_f64_does_not_overflow(x: float, y: float) -> None:
    def place(value: float) -> int:
        (raw,) = struct.unpack("<q", struct.pack("<d", value))
        return raw if raw >= 0 else -(raw + 2**63)

    assert int(ulp_distance(np.float64(x), np.float64(y))) == abs(place(x) - place(y))


@pytest.mark.parametrize(
    ("dtype", "x", "y", "apart"),
    [
        (np.int64, -(2**63), 2**63 - 1, BIG),
        (np.uint64, 0, BIG, BIG),
        (np.int8, -128, 127, 255),
        (np.uint8, 3, 250, 247),
        (np.bool_, True, False, 1),
    ],
)
def test_distance_of_integers_is_their_difference(dtype, x, y, apart) -> None:
    assert int(ulp_distance(np.asarray(x, dtype), np.asarray(y, dtype))) == apart


@pytest.mark.parametrize("dtype", FLOATS)
def test_distance_at_the_edges(dtype) -> None:
    def of(x, y) -> int:
        return int(ulp_distance(np.asarray(x, dtype), np.asarray(y, dtype)))

    largest = float(ml_dtypes.finfo(dtype).max)
    assert of(0.0, -0.0) == 0
    assert of(largest, np.inf) == 1
    assert of(np.nan, np.nan) == 0
    assert of(np.nan, 1.0) == of(1.0, np.nan) == BIG
    assert of(-np.inf, np.inf) == 2 * of(0.0, np.inf)


def test_distance_wants_the_same_dtype_and_shape() -> None:
    with pytest.raises(TypeError, match="float32 and float64"):
        ulp_distance(np.zeros(2, np.float32), np.zeros(2))
    with pytest.raises(ValueError, match=r"\(2,\) and \(1, 2\)"):
        ulp_distance(np.zeros(2), np.zeros((1, 2)))
    with pytest.raises(TypeError, match="complex128"):
        ulp_distance(np.zeros(2, complex), np.zeros(2, complex))


def test_failure_names_first_worst_how_many_and_nmse() -> None:
    expected = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    actual = expected.copy()
    actual[0, 2] = np.nextafter(np.float32(3), np.float32(4))
    actual[2, 1] = 12.0
    assert message(assert_identical, actual, expected, label="logits") == [
        "logits: 2 of 12 values differ (float32 [3, 4])",
        "  first at [0, 2]: actual 3.0000002, expected 3.0, 1 ULP",
        "  worst at [2, 1]: actual 12.0, expected 10.0, 2097152 ULP",
        "  NMSE 0.00615",
    ]


def test_identical_means_every_bit() -> None:
    quiet, loud = (np.array([raw], np.uint32).view(np.float32) for raw in (0x7FC00000, 0x7FC00001))
    assert_identical(quiet, quiet.copy())
    assert message(assert_identical, loud, quiet) == [
        "1 of 1 values differ (float32 [1])",
        "  first and worst at [0]: actual nan (0x7fc00001), expected nan (0x7fc00000), 0 ULP",
        "  NMSE 0",
    ]
    assert (
        "actual -0.0 (0x8000), expected 0.0 (0x0000), 0 ULP"
        in message(assert_identical, np.float16(-0.0), np.float16(0.0))[1]
    )


def test_identical_for_other_memory_orders_and_empty_arrays() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert_identical(np.asfortranarray(array), array)
    assert_identical(array.transpose(2, 0, 1), np.ascontiguousarray(array.transpose(2, 0, 1)))
    assert_identical(array[:, ::-1][:, ::-1], array)
    assert_identical(np.zeros((0, 3)), np.zeros((0, 3)))
    assert_identical(np.array([1.5, -2.0], ">f4"), np.array([1.5, -2.0], ">f4"))
    assert "1 of 2" in message(assert_identical, np.array([1, 3], ">i4"), np.array([1, 2], ">i4"))[0]


def test_shape_and_dtype_come_before_values() -> None:
    a = np.zeros((2, 3), np.float32)
    assert message(assert_identical, a, a.T) == ["the shapes differ: actual [2, 3], expected [3, 2]"]
    assert message(assert_close, a, a.astype(np.float16), max_ulp=9, label="k") == [
        "k: the dtypes differ: actual float32, expected float16"
    ]
    assert message(assert_identical, np.float32([1]), 1 + np.zeros((1, 1), np.float32))


def test_things_that_are_no_arrays_of_numbers() -> None:
    class Tensor:
        def numpy(self):
            return np.ones(3, np.float32)

    assert_identical(Tensor(), np.ones(3, np.float32))
    with pytest.raises(TypeError, match="actual is a list"):
        assert_identical([1.0], np.ones(1))
    with pytest.raises(TypeError, match="expected has the dtype"):
        assert_identical(np.ones(1), np.array(["a"]))
    with pytest.raises(TypeError, match="needs max_ulp"):
        assert_close(np.ones(1), np.ones(1))


@pytest.mark.parametrize("dtype", FLOATS)
def test_close_by_ulp(dtype) -> None:
    expected = np.array([1.0, 2.0, -3.0, np.nan, np.inf], dtype)
    actual = expected.copy()
    for _ in range(3):
        actual[1] = np.nextafter(actual[1], np.asarray(9, dtype))
    assert_close(actual, expected, max_ulp=3)
    first, where, *_ = message(assert_close, actual, expected, max_ulp=2)
    assert first == f"1 of 5 values are more than 2 ULP apart ({np.dtype(dtype).name} [5])"
    assert where.startswith("  first and worst at [1]: ")
    assert where.endswith("expected 2, 3 ULP" if dtype is ml_dtypes.bfloat16 else "expected 2.0, 3 ULP")


def test_close_by_nmse() -> None:
    expected = np.array([3.0, 4.0, 1e-30], np.float32)
    actual = np.array([3.0, 4.5, -1e-30], np.float32)
    assert_close(actual, expected, nmse=0.0101)
    lines = message(assert_close, actual, expected, nmse=0.0099)
    assert lines[0] == "2 of 3 values differ, NMSE 0.01 > 0.0099 (float32 [3])"
    # By the size of the error, not by ULPs, of which the third one has most.
    assert lines[1].startswith("  first and worst at [1]: ")


def test_close_with_nan_on_one_side_or_nothing_to_compare_with() -> None:
    number, nan = np.array([1.0, 2.0]), np.array([1.0, np.nan])
    for pair in ((number, nan), (nan, number)):
        lines = message(assert_close, *pair, nmse=1e9)
        assert lines[0] == "1 of 2 values are NaN on one side only (float64 [2])"
        assert lines[1].endswith("no distance")
    assert_close(nan, nan, nmse=0, max_ulp=0)
    assert_close(np.zeros(2), np.zeros(2), nmse=0)
    assert "NMSE inf > 1" in message(assert_close, np.ones(2), np.zeros(2), nmse=1)[0]
