"""The patches for a cache per stream: each test fails without its patch."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyggml.llama import LlamaContext
from pyggml.native.load import load
from pyggml.testing import assert_identical
from pyggml.testing.fixtures import MakeDevices

from .conftest import Open, placement, prompt

pytestmark = pytest.mark.native
STREAMS = 3


def fill(context: LlamaContext, streams: int = STREAMS) -> None:
    context.decode([(prompt(context, 8 + 5 * seq, seed=seq), seq) for seq in range(streams)])


def raw_state(context: LlamaContext) -> bytes:
    """The state of the whole context, from upstream's function."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    data = ffi.new("uint8_t[]", lib.llama_state_get_size(context.pointer))
    assert lib.llama_state_get_data(context.pointer, data, len(data)) == len(data)
    return bytes(ffi.buffer(data))


@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_the_state_of_all_streams_is_restored(
    tiny: Callable[[str], Path], open_context: Open, arch: str
) -> None:
    """state-restore-streams: restoring a stream keeps the others."""
    one, other = (open_context(tiny(arch), n_ctx=256 * STREAMS, n_seq_max=STREAMS) for _ in range(2))
    fill(one)
    bindings, state = load(), raw_state(one)
    data = bindings.ffi.from_buffer("uint8_t[]", state)
    assert bindings.lib.llama_state_set_data(other.pointer, data, len(state)) == len(state)
    assert [other.memory.pos_max(seq) for seq in range(STREAMS)] == [7, 12, 17]
    assert raw_state(other) == state
    # The next tokens of longer sequences may get other cells: a restored cache is searched from its start.
    batch = [([seq + 1], seq) for seq in range(2)]
    expected, actual = one.decode(batch), other.decode(batch)
    assert_identical(actual, expected)


def test_a_state_that_is_cut_off_leaves_no_cells_without_data(
    made: Callable[..., Path], open_context: Open
) -> None:
    """state-restore-streams: wherever the state is cut off, the cache is empty and usable afterwards."""
    one, other = (open_context(made(), n_ctx=256 * STREAMS, n_seq_max=STREAMS) for _ in range(2))
    fill(one)
    bindings, state = load(), raw_state(one)
    data = bindings.ffi.from_buffer("uint8_t[]", state)
    for cut in (*range(0, 400, 13), len(state) // 2, len(state) - 1):
        assert bindings.lib.llama_state_set_data(other.pointer, data, cut) == 0
        assert [other.memory.pos_max(seq) for seq in range(STREAMS)] == [-1] * STREAMS, cut
    other.memory.clear()
    one.memory.clear()
    expected, actual = one.decode([1, 2, 3], 1), other.decode([1, 2, 3], 1)
    assert_identical(actual, expected)


@pytest.mark.parametrize("place", ["cpu", "layer-host", "tensor-device", "tensor-host"])
def test_a_batch_of_one_session_on_another_stream_than_the_first(
    made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices, place: str
) -> None:
    """per-stream-tensors: the rows of a stream are relative to its own first cell.

    The last of the streams is written to alone: with the rows of one tensor for all of them that would be
    behind the end of its own. The sequences are as if each had a context to itself.
    """
    options = {"n_ctx": 256 * STREAMS, "n_seq_max": STREAMS, **placement(place, virtual_devices)}
    path = made(heads=4, kv_heads=2)
    context = open_context(path, kv_per_stream=True, **options)
    single = open_context(path, **{**options, "n_ctx": 256, "n_seq_max": 1})
    for seq in (2, 0, 1, 2, 1):
        tokens = prompt(context, 9 + seq, seed=seq)
        single.memory.clear()
        before = context.memory.pos_max(seq)
        if before >= 0:
            single.decode(tokens)
        expected, actual = single.decode(tokens, logits="all"), context.decode(tokens, seq, logits="all")
        assert_identical(actual, expected, label=f"sequence {seq}")


@pytest.mark.patch("per-stream-tensors")
@pytest.mark.parametrize("streams", range(2, 9))
def test_a_ubatch_of_any_number_of_streams(
    tiny: Callable[[str], Path], open_context: Open, virtual_devices: MakeDevices, streams: int
) -> None:
    """sum-at-graph-end: with 4 streams the last layer's GET_ROWS needs a 31st input and begins a split.

    The sum over the devices before it is then the last node of a graph; both layouts compute the same.
    """
    virtual_devices(2)
    options = {"devices": ["VDEV0", "VDEV1"], "split_mode": "tensor", "flash_attn": True}
    options |= {"n_ctx": 256 * streams, "n_seq_max": streams, "type_k": "q8_0", "type_v": "q8_0"}
    one, own = (open_context(tiny("gemma2"), kv_per_stream=each, **options) for each in (False, True))
    batch = [([5 + seq], seq) for seq in range(streams)]
    expected, actual = one.decode(batch), own.decode(batch)
    assert_identical(actual, expected)


def test_each_stream_has_tensors_and_a_buffer_for_each_place(
    made: Callable[..., Path],
    open_context: Open,
    virtual_devices: MakeDevices,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """per-stream-tensors: the names of the tensors, and one log line per buffer in the format that programs parse."""
    virtual_devices(2)
    bindings, layers = load(), 4
    seen: set[str] = set()

    def note(tensor: Any, ask: bool) -> bool:
        for source in tensor.src:
            while source and source.view_src:
                source = source.view_src
            if source:
                seen.add(bindings.ffi.string(source.name).decode())
        return False

    options = {"devices": ["VDEV0", "VDEV1"], "n_ctx": 256 * STREAMS, "n_seq_max": STREAMS, "on_node": note}
    with caplog.at_level(logging.INFO, "pyggml.llama"):
        context = open_context(made(layers=layers), kv_per_stream=True, **options)
    fill(context)
    expected = {f"cache_{kv}_l{il}_s{seq}" for kv in "kv" for il in range(layers) for seq in range(STREAMS)}
    assert {name for name in seen if name.startswith("cache_")} == expected
    sizes = re.findall(r"(\S+) KV buffer size = +([\d.]+) MiB \(stream (\d+)\)", caplog.text)
    assert [(device, int(seq)) for device, _, seq in sizes] == [
        (device, seq) for seq in range(STREAMS) for device in ("VDEV0", "VDEV1")
    ]
    # A cell has 2 KV heads of 16 values in f16, K and V, in each of the layers.
    wanted = 256 * layers * 2 * 16 * 2 * 2 / 2**20
    for seq in range(STREAMS):
        own = [float(size) for _, size, number in sizes if int(number) == seq]
        assert sum(own) == pytest.approx(wanted, abs=0.011)
