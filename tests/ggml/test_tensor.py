"""Tensors and numpy: shapes, dtypes, order, strides, blocks, and what is refused."""

from __future__ import annotations

from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import ClosedError, Context, cpu, tensor_type
from pyggml.ggml.types import types

from .conftest import data_for

pytestmark = pytest.mark.native

DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
}


def place_of(devices: Any, where: str) -> Any:
    return cpu() if where == "cpu" else devices(1)[0]


@pytest.mark.parametrize("where", ["cpu", "device"])
@pytest.mark.parametrize("kind", DTYPES)
def test_every_plain_type_keeps_its_bytes(kind: str, where: str, devices: Any, rng: Any) -> None:
    context = Context()
    tensor = context.tensor(DTYPES[kind], (2, 3, 4), "numbers")
    context.allocate(place_of(devices, where))
    data = data_for(tensor, rng)
    tensor.set(data)
    read = tensor.numpy()
    assert tensor.type.name == kind and tensor.ne == (4, 3, 2, 1) and tensor.shape == (2, 3, 4)
    assert read.dtype == DTYPES[kind] and read.shape == (2, 3, 4) and read.tobytes() == data.tobytes()


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_1", "q6_k"])
def test_quantised_types_are_blocks_and_dequantised_as_the_gguf_package_does(kind: str, rng: Any) -> None:
    context = Context()
    tensor = context.tensor(kind, (3, 512), "blocks")
    context.allocate(cpu())
    values = rng.standard_normal((3, 512)).astype(np.float32)
    number = gguf.GGMLQuantizationType[kind.upper()]
    try:
        blocks = gguf.quantize(values, number)
    except NotImplementedError:
        # Some types the package only reads; any bytes with finite scales do.
        blocks = np.full((3, types()[kind].row_bytes(512)), 0x11, np.uint8)
    tensor.set(blocks)
    assert (tensor.numpy() == blocks).all() and (tensor.view() == blocks).all()
    assert tensor.numpy().shape == (3, types()[kind].row_bytes(512))
    np.testing.assert_allclose(tensor.dequantized(), gguf.dequantize(blocks, number), rtol=1e-6)


def test_a_view_is_the_memory_itself() -> None:
    context = Context()
    tensor = context.tensor("f32", (2, 3))
    context.allocate(cpu())
    tensor.view()[...] = np.arange(6).reshape(2, 3)
    assert tensor.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    other = tensor.view()
    tensor.set(np.full((2, 3), 7, np.float32))
    assert (other == 7).all() and not other.flags.owndata


def test_a_transposed_host_view_has_numpy_strides() -> None:
    context = Context()
    tensor = context.tensor("f32", (2, 3))
    turned = context.ops.transpose(tensor)
    context.allocate(cpu())
    turned.set(np.arange(6, dtype=np.float32).reshape(3, 2))
    assert tensor.numpy().tolist() == [[0, 2, 4], [1, 3, 5]]
    assert turned.view().strides == (4, 12) and turned.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]


def test_a_permuted_device_view_moves_row_by_row(devices: Any, rng: Any) -> None:
    context = Context()
    tensor = context.tensor("f32", (4, 3, 5), "t")
    swapped = context.ops.permute(tensor, 0, 2, 1, 3)
    context.allocate(devices(1)[0])
    data = data_for(tensor, rng)
    tensor.set(data)
    assert swapped.shape == (3, 4, 5) and (swapped.numpy() == data.transpose(1, 0, 2)).all()
    swapped.set(np.ascontiguousarray(2 * data.transpose(1, 0, 2)))
    assert (tensor.numpy() == 2 * data).all()


def test_a_transposed_device_view_is_refused_with_its_strides(devices: Any) -> None:
    context = Context()
    turned = context.ops.transpose(context.tensor("f32", (2, 3), "t"))
    context.allocate(devices(1)[0])
    with pytest.raises(PyggmlError, match=r"'t \(transposed\)'.*strides \(12, 4, 24, 24\) bytes.*one by one"):
        turned.numpy()


def test_a_view_made_after_the_allocation_works(devices: Any) -> None:
    for place in (cpu(), devices(1)[0]):
        context, later = Context(), Context()
        tensor = context.tensor("f32", (4, 3))
        context.allocate(place)
        tensor.set(np.arange(12, dtype=np.float32).reshape(4, 3))
        rows = later.ops.view_2d(tensor, 3, 2, 12, 24)
        assert rows.numpy().tolist() == [[6, 7, 8], [9, 10, 11]]


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((2, 3), np.float64), "takes float32, not float64"),
        (np.zeros((2, 3), ">f4"), "takes float32, not >f4"),
        (np.zeros((2, 3), np.int32), "takes float32, not int32"),
        (np.zeros((3, 2), np.float32), r"shape \(2, 3\), not \(3, 2\)"),
        (np.zeros(6, np.float32), r"shape \(2, 3\), not \(6,\)"),
        (np.zeros((2, 3), np.float32).T.copy().T, "not in C order"),
        (np.zeros((2, 6), np.float32)[:, ::2], "not in C order"),
        ([[0.0] * 3] * 2, "comes in a numpy array, not list"),
        (np.zeros((2, 3), object), "takes float32, not object"),
    ],
)
def test_wrong_data_names_the_tensor_and_changes_nothing(array: Any, words: str, devices: Any) -> None:
    context = Context()
    tensor = context.tensor("f32", (2, 3), "numbers")
    context.allocate(devices(1)[0])
    tensor.set(np.ones((2, 3), np.float32))
    with pytest.raises(PyggmlError, match=f"'numbers'.*{words}|{words}.*'numbers'|'numbers' .*{words}"):
        tensor.set(array)
    assert (tensor.numpy() == 1).all()


@pytest.mark.parametrize(
    ("offset", "size"),
    [(-1, 4), (0, 25), (24, 1), (1 << 63, 1), (4, -4), (0.5, 4), ("0", 4), (1 << 70, 1 << 70)],
)
def test_bytes_outside_are_refused(offset: Any, size: Any) -> None:
    context = Context()
    tensor = context.tensor("f32", (2, 3), "numbers")
    context.allocate(cpu())
    with pytest.raises(PyggmlError, match=r"'numbers' .*24 bytes|whole numbers of bytes"):
        tensor.read(offset, size)


def test_bytes_are_written_at_their_offset(devices: Any) -> None:
    context = Context()
    tensor = context.tensor("i32", 4)
    context.allocate(devices(1)[0])
    tensor.fill(0)
    tensor.write(np.array([1, 2], np.int32), 8)
    assert tensor.numpy().tolist() == [0, 0, 1, 2]
    assert tensor.read(9, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("kind", "shape", "words"),
    [
        ("f32", (), "1 to 4 dimensions, not 0"),
        ("f32", (1, 2, 3, 4, 5), "1 to 4 dimensions, not 5"),
        ("f32", (2, 0), "at least 1"),
        ("f32", (-1,), "at least 1"),
        ("f32", (1.5,), "whole numbers"),
        ("f32", "12", "whole numbers"),
        ("q4_0", (2, 33), "blocks have 32 elements"),
        ("f32", (1 << 30, 1 << 30), r"larger than 2\*\*46 bytes"),
        ("f33", (2,), "no tensor type 'f33'"),
        (np.uint8, (2,), "no tensor type"),
        (np.bool_, (2,), "no tensor type"),
        (">f4", (2,), "no tensor type"),
        (None, (2,), "numpy|no tensor type|larger"),
    ],
)
def test_impossible_tensors_are_refused(kind: Any, shape: Any, words: str) -> None:
    if kind is None:
        # numpy takes None for float64.
        assert Context().tensor(kind, shape).type.name == "f64"
        return
    with pytest.raises(PyggmlError, match=words):
        Context().tensor(kind, shape)


@pytest.mark.parametrize("name", ["x" * 64, "ü" * 32, "a\0b", 7])
def test_names_that_do_not_fit_are_refused(name: Any) -> None:
    with pytest.raises(PyggmlError, match="name"):
        Context().tensor("f32", 3, name)


def test_names_come_back_as_given() -> None:
    context = Context()
    assert context.tensor("f32", 3, "x" * 63).name == "x" * 63
    tensor = context.tensor("f32", 3, "größe")
    assert tensor.name == "größe"
    tensor.name = ""
    assert tensor.name == ""


def test_a_full_context_says_so_and_stays_usable() -> None:
    context = Context("small", capacity=3)
    tensors = [context.tensor("f32", 2) for _ in range(4)]
    with pytest.raises(PyggmlError, match="context small is full: it has room for 3 tensors"):
        for _ in range(100):
            tensors.append(context.ops.scale(tensors[0], 1.0))
    assert 3 <= len(context.tensors()) == len(tensors) <= 5 and context.tensors_left == 0


@pytest.mark.parametrize("capacity", [0, -1, 1.5, 1 << 40, "7"])
def test_impossible_capacities_are_refused(capacity: Any) -> None:
    with pytest.raises(PyggmlError, match="capacity"):
        Context(capacity=capacity)


def test_data_without_memory_is_refused() -> None:
    tensor = Context().tensor("f32", 3, "bare")
    for use in (tensor.numpy, tensor.view, tensor.read, lambda: tensor.set(np.zeros(3, np.float32))):
        with pytest.raises(PyggmlError, match=r"'bare' .*has no memory yet"):
            use()
    assert not tensor.allocated


def test_device_memory_has_no_view(devices: Any) -> None:
    context = Context()
    tensor = context.tensor("f32", 3, "far")
    context.allocate(devices(1)[0])
    with pytest.raises(PyggmlError, match=r"'far' .*is not in host memory"):
        tensor.view()


def test_too_little_device_memory_names_the_numbers_and_leaves_the_context_usable(devices: Any) -> None:
    vdev = devices(1, memory=1 << 16)
    context = Context("weights")
    tensor = context.tensor("f32", (200, 100), "big")
    with pytest.raises(PyggmlError, match=r"\(80000 bytes\).*65536 of 65536 bytes free.*'big'.*80000"):
        context.allocate(vdev[0])
    assert not tensor.allocated and vdev.used(0) == 0
    context.allocate(cpu())
    tensor.set(np.zeros((200, 100), np.float32))


def test_a_context_is_allocated_once_and_new_tensors_again() -> None:
    context = Context("twice")
    first = context.tensor("f32", 3)
    context.allocate(cpu())
    with pytest.raises(PyggmlError, match="context twice has no tensor that needs memory"):
        context.allocate(cpu())
    first.set(np.ones(3, np.float32))
    second = context.tensor("f32", 3)
    context.allocate(cpu())
    second.set(np.zeros(3, np.float32))
    assert (first.numpy() == 1).all()


def test_fresh_device_memory_is_not_a_number(devices: Any) -> None:
    context = Context()
    tensor = context.tensor("f32", 100)
    context.allocate(devices(1)[0])
    assert np.isnan(tensor.numpy()).all()


def test_a_closed_buffers_tensors_are_refused_in_new_operations_and_graphs() -> None:
    context = Context()
    tensor = context.tensor("f32", 3, "gone")
    made = context.ops.scale(tensor, 2.0)
    buffer = context.allocate(cpu())
    graph = context.graph(made)
    backend = cpu().backend()
    backend.compute(graph)
    buffer.close()
    for use in (
        lambda: context.ops.scale(tensor, 1.0),
        lambda: context.graph(made),
        lambda: backend.compute(graph),
    ):
        with pytest.raises(ClosedError, match="buffer CPU"):
            use()


def test_a_type_is_itself() -> None:
    assert tensor_type(tensor_type("Q4_0")).block == 32 and tensor_type("Q4_0").block_bytes == 18
    assert tensor_type(np.float16) is tensor_type("f16")
