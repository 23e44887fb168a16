"""Allocations that a device refuses, one after the other: llama.cpp says so, keeps nothing, and goes on afterwards."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyggml.errors import PyggmlError
from pyggml.ggml import VirtualDevices
from pyggml.llama import DecodeError, LlamaContext, Model
from pyggml.native.load import load
from pyggml.testing import assert_identical

pytestmark = [pytest.mark.native, pytest.mark.isolated]
BATCH = [([1, 2, 3, 4, 5], 0), ([6, 7], 1)]
OPTIONS = {"n_ctx": 512, "n_seq_max": 2, "flash_attn": True, "threads": 1}


def used(devices: VirtualDevices) -> list[int]:
    return [devices.used(number) for number in range(len(devices))]


def load_split(path: Path, devices: VirtualDevices) -> Model:
    return Model.load(path, devices=devices.names, split_mode="tensor")


@pytest.mark.parametrize("count", [2, 3])
def test_a_model_that_a_device_refuses_is_an_error(made: Callable[..., Path], count: int) -> None:
    with VirtualDevices(count) as devices:
        for nth in itertools.count(1):
            fault = devices.fault(f"alloc:nth={nth}")
            if nth > count:
                load_split(made(), devices).close()
                assert not devices.hits(fault)
                break
            with pytest.raises(PyggmlError, match="unable to allocate Meta"):
                load_split(made(), devices)
            assert devices.hits(fault)
            assert used(devices) == [0] * count
            devices.clear_faults()


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    "layout",
    [{}, {"kv_per_stream": True}, {"offload_kqv": False}],
    ids=["one tensor", "per stream", "host"],
)
def test_every_refused_allocation_of_a_context_is_an_error(
    made: Callable[..., Path], count: int, layout: dict[str, Any]
) -> None:
    with VirtualDevices(count) as devices, load_split(made(), devices) as model:
        with LlamaContext(model, **OPTIONS, **layout) as context:
            expected = context.decode(BATCH, logits="all")
        before, refused = used(devices), {"context": 0, "decode": 0}
        for nth in itertools.count(1):
            fault = devices.fault(f"alloc:nth={nth}")
            try:
                context = LlamaContext(model, **OPTIONS, **layout)
            except PyggmlError as error:
                assert "failed to allocate" in error.message
                assert devices.hits(fault)
                assert used(devices) == before
                refused["context"] += 1
                devices.clear_faults()
                continue
            with context:
                hits = devices.hits(fault)
                if not hits:
                    try:
                        context.decode(BATCH)
                    except DecodeError as error:
                        assert "result -2" in error.message
                        refused["decode"] += 1
                    hits = devices.hits(fault)
                devices.clear_faults()
                context.memory.clear()
                assert_identical(context.decode(BATCH, logits="all"), expected)
            assert used(devices) == before
            if not hits:
                break
        # The cache and the memory to compute with, on each device; and the summands of the reduction.
        assert refused["context"] >= count and refused["decode"] >= count


def test_a_sequence_that_a_device_refuses_stays_released(made: Callable[..., Path]) -> None:
    with (
        VirtualDevices(2) as devices,
        load_split(made(), devices) as model,
        LlamaContext(model, **OPTIONS, kv_per_stream=True) as context,
    ):
        expected = context.decode(BATCH, logits="all")
        context.memory.seq_release(1)
        before = used(devices)
        for nth in (1, 2):
            devices.fault(f"alloc:nth={nth}")
            with pytest.raises(PyggmlError, match=r"no memory for sequence 1: .*failed to allocate Meta"):
                context.memory.seq_reserve(1)
            assert used(devices) == before
            devices.clear_faults()
        context.decode([([8], 0)])
        context.memory.clear()
        assert_identical(context.decode(BATCH, logits="all"), expected)


class Halved:
    """Sequence 1 of three was released; the next allocations succeed until the one for the part `nth` of the cache."""

    def __init__(self, context: LlamaContext, devices: VirtualDevices) -> None:
        self.context, self.devices = context, devices
        self.expected = context.decode([5, 6], seq=1, logits="all")
        context.memory.clear()
        context.decode([([1, 2, 3, 4], seq) for seq in range(3)])
        self.state = context.save_state(2)
        context.memory.seq_release(1)
        self.before = used(devices)
        # What llama.cpp does by itself, without the typed layer's reservation beforehand.
        context.memory.ensure_held = lambda seqs: None  # type: ignore[method-assign]

    def attempt(self, call: Callable[[], object], nth: int) -> None:
        # llama_decode tries a second time if something was pending.
        faults = [self.devices.fault(f"alloc:nth={number}") for number in (nth, 2 * nth)]
        with contextlib.suppress(PyggmlError):
            call()
        assert self.devices.hits(faults[0]) == 1
        self.devices.clear_faults()
        assert used(self.devices) == self.before
        assert self.context.memory.pos_max(1) == -1


@pytest.mark.parametrize(("arch", "parts"), [("gemma3", 2), ("llama", 1), ("lfm2", 1)])
@pytest.mark.parametrize("call", ["reserve", "copy", "decode"])
def test_without_memory_for_one_part_nothing_is_taken(
    tiny: Callable[[str], Path], arch: str, parts: int, call: str
) -> None:
    options = {**OPTIONS, "n_ctx": 768, "n_seq_max": 3, "n_ubatch": 64, "kv_per_stream": True}
    with (
        VirtualDevices(1) as devices,
        Model.load(tiny(arch), devices=devices.names, split_mode="layer") as model,
        LlamaContext(model, **options) as context,
    ):
        halved = Halved(context, devices)
        lib = load().lib
        memory = lib.llama_get_memory(context.pointer)
        calls: dict[str, Callable[[], object]] = {
            "reserve": lambda: lib.llama_memory_seq_reserve(memory, 1),
            "copy": lambda: lib.llama_memory_seq_cp(memory, 0, 1, -1, -1),
            "decode": lambda: context.decode([7], seq=1),
        }
        for nth in range(1, parts + 1):
            halved.attempt(calls[call], nth)
        assert_identical(context.decode([5, 6], seq=1, logits="all"), halved.expected)


def test_without_memory_for_one_part_no_state_is_restored(tiny: Callable[[str], Path]) -> None:
    options = {**OPTIONS, "n_ctx": 768, "n_seq_max": 3, "n_ubatch": 64, "kv_per_stream": True}
    with (
        VirtualDevices(1) as devices,
        Model.load(tiny("gemma3"), devices=devices.names, split_mode="layer") as model,
        LlamaContext(model, **options) as context,
    ):
        halved = Halved(context, devices)
        devices.fault("alloc:nth=2")
        with pytest.raises(PyggmlError, match="no memory to restore stream 1"):
            context.restore_state(halved.state, 1)
        devices.clear_faults()
        assert context.memory.pos_max(1) == -1
        assert_identical(context.decode([5, 6], seq=1, logits="all"), halved.expected)


def test_without_memory_for_a_shift_nothing_is_decoded(made: Callable[..., Path]) -> None:
    # Shifting a quantised K takes memory for all cells at once, and decoding takes little.
    options = {"n_ctx": 8192, "n_ubatch": 16, "type_k": "q8_0", "flash_attn": True, "threads": 1}
    with (
        VirtualDevices(1) as devices,
        Model.load(made(k_size=64, context=8192), devices=devices.names, split_mode="layer") as model,
    ):
        results = []
        for refuse in (False, True):
            with LlamaContext(model, **options) as context:
                context.decode([1, 2, 3, 4, 5])
                context.memory.seq_rm(0, 0, 2)
                context.memory.seq_add(0, -2)
                if refuse:
                    fault = devices.fault("alloc:nth=1")
                    with pytest.raises(DecodeError, match=r"result -2.*K-shift"):
                        context.decode([6])
                    assert devices.hits(fault)
                    devices.clear_faults()
                    assert context.memory.pos_max() == 2
                results.append(context.decode([6]))
        assert_identical(results[1], results[0])
