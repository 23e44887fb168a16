"""States that stay on the devices (LLAMA_STATE_SEQ_FLAGS_ON_DEVICE): saved and restored without end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyggml.ggml import VirtualDevices
from pyggml.llama import LlamaContext, Model
from pyggml.native.load import load
from pyggml.testing import assert_identical

pytestmark = [pytest.mark.native, pytest.mark.isolated]
ON_DEVICE = 2
"""include/llama.h"""
SEQ = 2


@contextmanager
def context_on_devices(path: Path, per_stream: bool) -> Iterator[tuple[VirtualDevices, LlamaContext]]:
    with (
        VirtualDevices(2) as devices,
        Model.load(path, devices=devices.names, split_mode="tensor") as model,
        LlamaContext(
            model, n_ctx=768, n_seq_max=3, kv_per_stream=per_stream, flash_attn=True, threads=1
        ) as context,
    ):
        yield devices, context


def save(context: LlamaContext) -> Any:
    """The state's part on the host; the rest stays with the context."""
    ffi, lib = load().ffi, load().lib
    size = lib.llama_state_seq_get_size_ext(context.pointer, SEQ, ON_DEVICE)
    data = ffi.new("uint8_t[]", size)
    written = lib.llama_state_seq_get_data_ext(context.pointer, data, size, SEQ, ON_DEVICE)
    return data if written == size else None


def restore(context: LlamaContext, data: Any) -> None:
    read = load().lib.llama_state_seq_set_data_ext(context.pointer, data, len(data), SEQ, ON_DEVICE)
    assert read == len(data)


@pytest.mark.parametrize("per_stream", [False, True], ids=["one tensor", "per stream"])
def test_a_state_can_be_restored_any_number_of_times(made: Callable[..., Path], per_stream: bool) -> None:
    with context_on_devices(made(), per_stream) as (_, context):
        context.decode([([1, 2, 3], seq) for seq in range(3)])
        data = save(context)
        expected = context.decode([5, 6], seq=SEQ, logits="all")
        for number in range(100):
            restore(context, data)
            actual = context.decode([5, 6], seq=SEQ, logits="all")
            assert_identical(actual, expected, label=f"round {number}")
            if number % 10 == 0:
                restore(context, data)
                data = save(context)


def test_a_state_is_saved_after_its_sequence_was_released(made: Callable[..., Path]) -> None:
    with context_on_devices(made(), per_stream=True) as (_, context):
        context.decode([1] * 15, seq=SEQ)
        assert save(context)
        context.decode([1], seq=SEQ)
        context.memory.seq_rm(SEQ, 15)
        assert save(context)
        context.memory.seq_release(SEQ)
        context.decode([2] * 15, seq=SEQ)
        data = save(context)
        expected = context.decode([3], seq=SEQ)
        restore(context, data)
        assert_identical(context.decode([3], seq=SEQ), expected)


def test_no_memory_for_a_state_is_an_error(made: Callable[..., Path]) -> None:
    with context_on_devices(made(), per_stream=False) as (devices, context):
        context.decode([1, 2, 3], seq=SEQ)
        for nth in (1, 2):
            devices.fault(f"alloc:nth={nth}")
            assert save(context) is None
            devices.clear_faults()
        data = save(context)
        expected = context.decode([4], seq=SEQ)
        restore(context, data)
        assert_identical(context.decode([4], seq=SEQ), expected)
