"""Models on virtual devices: the same results as on the CPU, and models that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.errors import PyggmlError, UsageError
from pyggml.llama import Model
from pyggml.testing.fixtures import MakeDevices

from .conftest import Open, nmse, prompt

pytestmark = pytest.mark.native

UPSTREAM_BOUND = 1e-4
"""The bound in tests/test-llama-archs.cpp."""


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen2"])
def test_split_by_tensor_equals_the_cpu(
    tiny: Callable[[str], Path], open_context: Open, virtual_devices: MakeDevices, arch: str
) -> None:
    virtual_devices(2)
    path = tiny(arch)
    cpu = open_context(path)
    split = open_context(path, devices=["VDEV0", "VDEV1"], split_mode="tensor", offload_kqv=True)
    tokens = prompt(cpu, 40)
    assert nmse(cpu.decode(tokens, logits="all"), split.decode(tokens, logits="all")) < UPSTREAM_BOUND
    # And again, with what is now in the cache.
    assert nmse(cpu.decode([5]), split.decode([5])) < UPSTREAM_BOUND


def test_devices_of_the_ggml_layer(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices
) -> None:
    from pyggml.ggml import Device
    from pyggml.native.load import load

    virtual_devices(2)
    devices = [Device(load().lib.pyggml_vdev_device(index)) for index in (1, 0)]
    by_device = open_context(made(), devices=devices, split_mode="tensor").decode([1, 2, 3])
    by_name = open_context(made(), devices=["VDEV1", "VDEV0"], split_mode="tensor").decode([1, 2, 3])
    assert np.array_equal(by_device, by_name)


def test_split_by_layer_is_bit_identical_to_the_cpu(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices
) -> None:
    virtual_devices(2)
    path = made(layers=3)
    cpu, split = open_context(path), open_context(path, devices=None)
    tokens = prompt(cpu, 40)
    assert np.array_equal(cpu.decode(tokens, logits="all"), split.decode(tokens, logits="all"))


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_restored_context_on_devices_continues_bit_for_bit(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices, mode: str
) -> None:
    virtual_devices(2)
    context = open_context(made(), devices=["VDEV0", "VDEV1"], split_mode=mode)
    context.decode(prompt(context, 20))
    state = context.save_state()
    expected = [context.decode([token]) for token in (1, 2)]
    context.restore_state(state)
    assert np.array_equal(expected, [context.decode([token]) for token in (1, 2)])


def test_shares(made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices) -> None:
    virtual_devices(2)
    path = made(heads=4, kv_heads=4)
    for bad, words in (
        ([1.0, 1.0, 1.0], "3 shares for 2 devices"),
        ([0.0, 0.0], "not all 0"),
        ([-1.0, 2.0], "must be 0 or more"),
        ([float("nan"), 1.0], "must be 0 or more"),
        ([], "0 shares"),
    ):
        with pytest.raises(UsageError, match=words):
            Model.load(path, devices=["VDEV0", "VDEV1"], tensor_split=bad)
    with pytest.raises(UsageError, match="VDEV0 is listed 2 times"):
        Model.load(path, devices=["VDEV0", "vdev0"])
    with pytest.raises(UsageError, match="main_device is 2; it must be 0 to 1"):
        Model.load(path, devices=["VDEV0", "VDEV1"], split_mode="none", main_device=2)


def test_unsupported_splits(
    tiny: Callable[[str], Path], made: Callable[..., Path], virtual_devices: MakeDevices
) -> None:
    virtual_devices(2)
    with pytest.raises(PyggmlError, match="LLAMA_SPLIT_MODE_TENSOR not implemented for architecture 'mamba'"):
        Model.load(tiny("mamba"), split_mode="tensor")
    with pytest.raises(PyggmlError, match="VDEV0 does not support split buffers"):
        Model.load(made(), split_mode="row")


def test_split_by_tensor_needs_flash_attention(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices
) -> None:
    virtual_devices(2)
    with pytest.raises(PyggmlError, match="SPLIT_MODE_TENSOR requires flash_attn"):
        open_context(made(), devices=None, split_mode="tensor", flash_attn=False)


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_memory_too_small_for_the_model(
    made: Callable[..., Path], virtual_devices: MakeDevices, mode: str
) -> None:
    path = made(embd=256, ff=512, layers=4)
    virtual_devices(2, memory=1 << 20)
    with pytest.raises(PyggmlError, match=r"VDEV0.*") as raised:
        Model.load(path, split_mode=mode)
    # Both what is needed and what there is, in bytes.
    assert "1,048,576" in str(raised.value)


@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_memory_too_small_for_the_context(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices, mode: str
) -> None:
    path = made()
    virtual_devices(2, memory=4 << 20)
    with pytest.raises(PyggmlError, match="VDEV0"):
        open_context(path, devices=None, split_mode=mode, n_ctx=1 << 16)
    virtual_devices(2, memory=256 << 20)
    assert open_context(path, devices=None, split_mode=mode, n_ctx=1 << 16).decode([1]).shape == (1, 300)


@pytest.mark.parametrize("devices", [1, 3])
def test_every_memory_size_is_an_error_or_enough(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices, devices: int
) -> None:
    """With a tensor split a failed allocation would be an assertion in upstream's meta device."""
    path = made(heads=6, kv_heads=3, embd=192, ff=384)
    worked = []
    for step in range(24):
        virtual_devices(devices, memory=(256 << 10) * (step + 1))
        try:
            context = open_context(path, devices=None, split_mode="tensor", n_ubatch=64)
            context.decode([1, 2, 3])
            worked.append(True)
        except PyggmlError:
            worked.append(False)
    assert worked == sorted(worked) and True in worked and False in worked
