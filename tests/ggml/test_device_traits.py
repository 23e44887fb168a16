"""Devices that differ, as ggml sees them, and what a meta device over them computes."""

from __future__ import annotations

from typing import Any

import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import Context
from pyggml.ggml.library import load
from pyggml.native.device_traits import parse_traits

from .conftest import MakeDevices
from .test_reduction import Pair, shares

pytestmark = pytest.mark.native


def test_each_device_has_its_own_memory_alignment_and_abilities(devices: MakeDevices) -> None:
    ffi, lib = load().ffi, load().lib
    text = "*:pad=256;1:memory=1M,in-use=200K,alignment=4096,max-buffer=500000,pad=512,async=off"
    vdev = devices(3, traits=parse_traits(text))
    props = [ffi.new("struct ggml_backend_dev_props *") for _ in vdev]
    for one, into in zip(vdev, props, strict=True):
        lib.ggml_backend_dev_get_props(one.raw, into)
    assert [one.memory for one in vdev] == [
        (8 << 30, 8 << 30), ((1 << 20) - (200 << 10), 1 << 20), (8 << 30, 8 << 30)
    ]  # fmt: skip
    assert [one.buffer_type.alignment for one in vdev] == [128, 4096, 128]
    assert [one.buffer_type.max_size for one in vdev] == [2**64 - 1, 500000, 2**64 - 1]
    assert [(one.caps.events, getattr(one.caps, "async")) for one in props] == [
        (True, True),
        (False, False),
        (True, True),
    ]
    small, large = vdev[1].buffer_type, vdev[2].buffer_type
    for size in (400_000, 400_000):
        small.buffer(size)
    with pytest.raises(PyggmlError, match="no memory for 500001 bytes"):
        small.buffer(500_001)
    kept = [small.buffer(400_000), small.buffer(400_000)]
    with pytest.raises(PyggmlError, match="no memory for 50000 bytes"):  # 48,576 are left
        small.buffer(50_000)
    assert large.buffer(50_000) and len(kept) == 2


@pytest.mark.parametrize(
    ("kind", "row", "expected"),
    [
        ("q4_0", 64, (2 * 36, 2 * 36 + 252)),  # 448 elements in blocks of 32, each 18 bytes
        ("q4_0", 512, (2 * 288, 2 * 288)),
        ("q6_K", 256, (2 * 210, 2 * 210 + 210)),  # a block of 256
        ("f32", 64, (2 * 256, 2 * 256)),  # not quantised
    ],
)
def test_the_last_row_of_a_quantised_tensor_is_padded_as_cuda_does(
    devices: MakeDevices, kind: str, row: int, expected: tuple[int, int]
) -> None:
    lib = load().lib
    vdev = devices(2, traits=parse_traits("1:pad=512"))
    tensor = Context("one").tensor(kind, (2, row), "t")
    sizes = [lib.ggml_backend_buft_get_alloc_size(one.buffer_type.raw, tensor.raw) for one in vdev]
    assert tuple(sizes) == expected


def test_what_a_device_refuses_it_neither_supports_nor_computes(devices: MakeDevices) -> None:
    lib = load().lib
    vdev = devices(2, traits=parse_traits("1:refuse=MUL_MAT/f16+GELU+/bf16+SOFT_MAX"))
    context = Context("graph")

    def supported(tensor: Any) -> list[bool]:
        return [bool(lib.ggml_backend_dev_supports_op(one.raw, tensor.raw)) for one in vdev]

    ops = context.ops
    x, half = context.tensor("f32", (4, 8), "x"), context.tensor("f16", (4, 8), "half")
    brain = context.tensor("bf16", (4, 8), "brain")
    assert supported(ops.mul_mat(x, x)) == [True, True]
    assert supported(ops.mul_mat(half, x)) == [True, False]
    assert supported(ops.soft_max(x)) == [True, False]
    assert supported(ops.gelu(x)) == [True, False]
    assert supported(ops.silu(x)) == [True, True]
    assert supported(ops.mul_mat(brain, x)) == [True, False]
    assert supported(ops.view_1d(brain, 8, 0)) == [True, True]

    alone = Context("alone")
    y = alone.tensor("f32", (4, 8), "y")
    result = alone.ops.gelu(y)
    alone.allocate(vdev[1])
    with pytest.raises(PyggmlError):
        vdev[1].backend().compute(alone.graph(result))


UNEQUAL = [
    "0:alignment=16;1:alignment=4096;2:alignment=256",
    "0:2d=off",
    "1:async=off",
    "0:async=off;2:events=off",
    "1:pad=512,max-buffer=4096",
    "1:memory=1M,in-use=512K,alignment=64,max-buffer=8K,pad=1024,2d=off,async=off",
]


@pytest.mark.parametrize("schedule", ["at-once", "late"])
@pytest.mark.parametrize("text", UNEQUAL)
def test_a_meta_device_over_unequal_devices_computes_numpys_sums(
    text: str, schedule: str, devices: MakeDevices, rng: Any
) -> None:
    vdev = devices(3, traits=parse_traits(text), schedule=schedule, races=True)
    pair = Pair(vdev, shares(16, 3), rng)
    result = pair.context.ops.scale(pair.product, 1.0)
    pair.run(pair.hidden, result)
    assert (pair.hidden.numpy() == pair.x @ pair.up.T).all()
    assert (result.numpy() == pair.x @ pair.up.T @ pair.down.T).all()
    assert vdev.races() == ()
