"""A cache per stream: the same bits as with one tensor, memory that is released and reserved, and bad input."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError, UsageError
from pyggml.llama import LlamaContext, NoMemoryError, State
from pyggml.llama.params import _set_kv_per_stream
from pyggml.native.load import load
from pyggml.testing import assert_identical
from pyggml.testing.fixtures import MakeDevices

from .conftest import Open, placement, prompt

native = pytest.mark.native
STREAMS = 4
REFUSING = {
    "deepseek32": "a DSA KV cache",
    "glm-dsa": "a DSA KV cache",
    "mamba": "a recurrent state",
    "mamba2": "a recurrent state",
    "minimax-m3": "an MSA KV cache",
}
"""Architectures whose kind of cache does not support a layout per stream, and the words of the refusal."""


@pytest.fixture
def layout(pyggml_build: Build) -> None:
    bindings = load(pyggml_build)
    if not hasattr(bindings.lib.llama_context_default_params(), "kv_per_stream"):
        pytest.skip(f"the build {pyggml_build.record.variant} has no kv_per_stream: the patch is not in it")


@pytest.fixture
def both(layout: None, open_context: Open) -> Callable[..., tuple[LlamaContext, LlamaContext]]:
    """`both(path, ...)`: two contexts of four sequences, with one tensor and with a tensor per sequence."""

    def make(path: Path, **options: Any) -> tuple[LlamaContext, LlamaContext]:
        options = {"n_ctx": 256 * STREAMS, "n_seq_max": STREAMS, **options}
        return open_context(path, **options), open_context(path, kv_per_stream=True, **options)

    return make


def same(one: LlamaContext, own: LlamaContext, *batches: list[tuple[list[int], int]]) -> None:
    """Both compute the same bits, and no NaN."""
    for number, batch in enumerate(batches):
        expected, actual = one.decode(batch, logits="all"), own.decode(batch, logits="all")
        assert not np.isnan(expected).any()
        assert_identical(actual, expected, label=f"batch {number}")


def filled(one: LlamaContext, own: LlamaContext) -> None:
    """Fill every sequence with different tokens, and a different number of them."""
    same(one, own, [(prompt(one, 9 + 5 * seq, seed=seq), seq) for seq in range(STREAMS)])


def test_a_build_without_kv_per_stream_refuses_it_only_if_requested() -> None:
    build = SimpleNamespace(record=SimpleNamespace(variant="old-cpu"))
    bindings, params = SimpleNamespace(build=build), SimpleNamespace(kv_unified=False, n_seq_max=2)
    _set_kv_per_stream(bindings, params, SimpleNamespace(kv_per_stream=False))  # type: ignore[arg-type]
    assert not hasattr(params, "kv_per_stream")
    with pytest.raises(PyggmlError, match="the build old-cpu has no kv_per_stream"):
        _set_kv_per_stream(bindings, params, SimpleNamespace(kv_per_stream=True))  # type: ignore[arg-type]


@native
def test_unified_and_per_stream_exclude_each_other(
    layout: None, made: Callable[..., Path], open_context: Open
) -> None:
    options = {"kv_unified": True, "kv_per_stream": True}
    with pytest.raises(
        UsageError, match="exclude each other: the 2 sequences share one cache or have one each"
    ):
        open_context(made(), n_ctx=512, n_seq_max=2, **options)
    # A single sequence always has a single cache.
    assert open_context(made(), **options).decode([1]).shape == (1, 300)


@native
@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2", "deepseek2", "falcon-h1", "qwen35"])
def test_every_kind_of_batch_gives_the_bits_of_the_one_tensor(
    tiny: Callable[[str], Path], both: Callable[..., tuple[LlamaContext, LlamaContext]], arch: str
) -> None:
    one, own = both(tiny(arch))
    # Begin with a sequence other than the first, alone: its rows are not those of the first.
    same(one, own, [([5, 6, 7], 3)], [([8], 3)], [([9], 1)])
    same(one, own, [([1, 2], 0), ([3], 2)], [([4], 0), ([5], 3)], [([1], 3), ([2], 1)])
    one.memory.seq_rm(2), own.memory.seq_rm(2)
    same(one, own, [([7] * (seq + 1), seq) for seq in range(STREAMS)], [([8], seq) for seq in range(STREAMS)])


@native
@pytest.mark.parametrize(
    "options",
    [
        {"type_k": "q8_0", "type_v": "q8_0"},
        {"type_k": "q8_0", "type_v": "f16"},
        {"flash_attn": False},
        {"n_ubatch": 7},
    ],
    ids=["q8_0", "quantised K", "transposed V", "small ubatches"],
)
def test_other_caches_give_the_bits_of_the_one_tensor(
    made: Callable[..., Path], both: Callable[..., tuple[LlamaContext, LlamaContext]], options: dict[str, Any]
) -> None:
    one, own = both(made(k_size=32), **options)
    filled(one, own)
    same(one, own, [([1], seq) for seq in range(STREAMS)], [([2], 3)], [([3], 1), ([4], 2)])


@native
@pytest.mark.parametrize("place", ["layer-device", "layer-host", "tensor-device", "tensor-host"])
def test_on_devices_the_bits_are_those_of_the_one_tensor_in_the_same_place(
    made: Callable[..., Path],
    both: Callable[..., tuple[LlamaContext, LlamaContext]],
    virtual_devices: MakeDevices,
    place: str,
) -> None:
    one, own = both(made(), **placement(place, virtual_devices))
    same(one, own, [([5, 6, 7], 3)])
    same(one, own, [(prompt(one, 9 + 5 * seq, seed=seq), seq) for seq in range(3)])
    same(one, own, [([1], seq) for seq in range(STREAMS)], [([2], 2)], [([3], 0), ([4], 3)])


@native
@pytest.mark.isolated
@pytest.mark.parametrize("place", ["tensor-device", "tensor-host"])
def test_one_head_in_a_fused_qkv_gives_the_bits_of_the_one_tensor(
    made: Callable[..., Path],
    both: Callable[..., tuple[LlamaContext, LlamaContext]],
    virtual_devices: MakeDevices,
    place: str,
) -> None:
    path = made(heads=8, kv_heads=1, fused_qkv=True)
    one, own = both(path, flash_attn=True, **placement(place, virtual_devices))
    # One token of each sequence: the part of a sequence is one head of one token, with the strides of all.
    same(one, own, [([1, 2, 3], 0), ([1], 1)], [([4], seq) for seq in range(STREAMS)], [([5], 2)])


@native
@pytest.mark.parametrize("arch", ["llama", "gemma2"])
def test_shifts_and_copies_give_the_bits_of_the_one_tensor(
    tiny: Callable[[str], Path], both: Callable[..., tuple[LlamaContext, LlamaContext]], arch: str
) -> None:
    one, own = both(tiny(arch))
    filled(one, own)
    for context in (one, own):
        context.memory.seq_rm(2, 0, 4)
        context.memory.seq_add(2, -4)
        context.memory.seq_div(1, 2)
    same(one, own, [([1], seq) for seq in range(STREAMS)])
    for context in (one, own):
        context.memory.seq_cp(1, 3)
        assert context.memory.pos_max(3) == context.memory.pos_max(1)
    same(one, own, [([2], 3)], [([2], 1), ([3], 0)])


@native
@pytest.mark.parametrize("arch", ["llama", "gemma2", "falcon-h1"])
def test_states_are_the_same_in_both_layouts_and_interchangeable(
    tiny: Callable[[str], Path], both: Callable[..., tuple[LlamaContext, LlamaContext]], arch: str
) -> None:
    one, own = both(tiny(arch))
    filled(one, own)
    for seq in (None, 0, 3):
        assert one.save_state(seq).data == own.save_state(seq).data
    state, third = one.save_state(), one.save_state(3)
    same(one, own, [([1], seq) for seq in range(STREAMS)])
    # Each restores the other's state: that of the whole, and that of one sequence into another.
    for context, saved in ((one, own.save_state()), (own, one.save_state())):
        context.memory.clear()
        context.restore_state(saved)
    same(one, own, [([2], seq) for seq in range(STREAMS)])
    for context in (one, own):
        context.restore_state(state)
        context.restore_state(third, 1)
        assert context.memory.pos_max(1) == context.memory.pos_max(3)
    same(one, own, [([3], 1)], [([4], seq) for seq in range(STREAMS)])


@native
def test_bad_states_leave_the_streams_intact(
    made: Callable[..., Path], both: Callable[..., tuple[LlamaContext, LlamaContext]], tmp_path: Path
) -> None:
    one, own = both(made())
    filled(one, own)
    whole, part = own.save_state(), own.save_state(3)
    ends = [own.memory.pos_max(seq) for seq in range(STREAMS)]
    bad: list[tuple[State, int | None, str]] = []
    for state, into in ((whole, None), (part, 1)):
        for cut in (0, 4, 40, len(state.data) // 2, len(state.data) - 1):
            bad.append((State(state.data[:cut], state.seq, state.origin), into, "does not fit"))
    fewer = State(whole.data, None, {**whole.origin, "caches": 2})
    bad.append((fewer, None, "caches is 2 there and 4 here"))
    for state, into, words in bad:
        with pytest.raises(PyggmlError, match=words):
            own.restore_state(state, into)
        assert [own.memory.pos_max(seq) for seq in range(STREAMS)] == ends
    with pytest.raises(PyggmlError, match=r"version 2 of pyggml's state format"):
        own.restore_state(bytes(whole).replace(b" 1\n", b" 2\n", 1))
    for context in (one, own):
        with pytest.raises(UsageError, match="the sequence is 4; it must be 0 to 3"):
            context.restore_state(part, STREAMS)
    same(one, own, [([1], seq) for seq in range(STREAMS)])


@native
def test_refused_raw_calls_leave_the_streams_intact(
    made: Callable[..., Path],
    both: Callable[..., tuple[LlamaContext, LlamaContext]],
    open_context: Open,
    tmp_path: Path,
) -> None:
    """The raw calls, without the checks of the typed layer."""
    one, own = both(made())
    filled(one, own)
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    memory = lib.llama_get_memory(own.pointer)
    for seq in (-2, -1, STREAMS, 1 << 20):
        assert not lib.llama_memory_seq_release(memory, seq)
        assert not lib.llama_memory_seq_reserve(memory, seq)
    other = open_context(made(), n_ctx=512, n_seq_max=2, kv_per_stream=True)
    other.decode([([1, 2], 0), ([3], 1)])
    two = other.save_state().data
    assert lib.llama_state_set_data(own.pointer, ffi.from_buffer(two), len(two)) == 0
    file = tmp_path / "upstream's"
    assert lib.llama_state_save_file(own.pointer, bytes(file), ffi.NULL, 0)
    blob = bytearray(file.read_bytes())
    version = int.from_bytes(blob[4:8], "little")
    file.write_bytes(blob[:4] + (version + 1).to_bytes(4, "little") + blob[8:])
    count = ffi.new("size_t *")
    assert not lib.llama_state_load_file(own.pointer, bytes(file), ffi.NULL, 0, count)
    same(one, own, [([1], seq) for seq in range(STREAMS)])


def resident() -> int:
    """Resident bytes of this process, counted page by page (proc_pid_smaps(5))."""
    gc.collect()
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(text.partition("Rss:")[2].split()[0]) << 10


@native
@pytest.mark.isolated
def test_a_streams_memory_is_returned_to_the_system_and_allocated_again(
    layout: None, made: Callable[..., Path], open_context: Open
) -> None:
    # 40 MiB per stream: more than malloc would keep after a free (DEFAULT_MMAP_THRESHOLD_MAX, mallopt(3)).
    cells, layers, row = 10240, 2, 4 * 128 * 2
    size = cells * layers * 2 * row
    path = made(heads=4, kv_heads=4, k_size=128, layers=layers, context=cells)
    context = open_context(path, n_ctx=3 * cells, n_seq_max=3, kv_per_stream=True)
    context.decode([(prompt(context, 20, seed=seq), seq) for seq in range(3)])
    others = [context.save_state(seq).data for seq in (0, 2)]
    before = resident()
    context.memory.seq_release(1)
    freed = before - resident()
    # The kernel may reclaim cold pages meanwhile, which changes the sum by a few MiB.
    assert 0.8 * size < freed < 1.2 * size
    assert not context.memory.seq_held(1)
    assert [context.memory.pos_max(seq) for seq in range(3)] == [19, -1, 19]
    assert [context.save_state(seq).data for seq in (0, 2)] == others
    context.memory.seq_release(1)
    context.decode([([1], 0), ([1], 2)])
    low = resident()
    context.memory.seq_reserve(1)
    assert 0.8 * size < resident() - low < 1.2 * size
    assert context.memory.seq_held(1)


@native
@pytest.mark.parametrize("place", ["cpu", "layer-device", "layer-host", "tensor-device", "tensor-host"])
def test_a_released_sequence_is_like_a_new_one(
    made: Callable[..., Path],
    both: Callable[..., tuple[LlamaContext, LlamaContext]],
    virtual_devices: MakeDevices,
    place: str,
) -> None:
    one, own = both(made(), **placement(place, virtual_devices))
    filled(one, own)
    memory = own.memory
    for seq in (1, 3):
        memory.seq_release(seq)
        one.memory.seq_rm(seq)
    same(one, own, [([1], 0), ([2], 2)], [([3], 2)])
    # Whatever needs memory allocates it: a decode, a copy, a state.
    same(one, own, [([4, 5, 6], 1), ([7], 0)])
    assert memory.seq_held(1) and not memory.seq_held(3)
    one.memory.seq_cp(1, 3), memory.seq_cp(1, 3)
    assert memory.seq_held(3)
    same(one, own, [([8], seq) for seq in range(STREAMS)])
    state = one.save_state(2)
    memory.seq_release(2)
    own.restore_state(state)
    same(one, own, [([9], seq) for seq in range(STREAMS)])
    # Save and restore a whole context that has released streams.
    for seq in (0, 1):
        memory.seq_release(seq)
        one.memory.seq_rm(seq)
    assert own.save_state().data == one.save_state().data
    own.restore_state(one.save_state())
    memory.clear(), one.memory.clear()
    filled(one, own)


@native
def test_a_copy_that_is_still_to_be_made_survives_the_release_of_its_source(
    made: Callable[..., Path], both: Callable[..., tuple[LlamaContext, LlamaContext]]
) -> None:
    one, own = both(made())
    filled(one, own)
    one.memory.seq_cp(0, 2), own.memory.seq_cp(0, 2)
    own.memory.seq_release(0)
    one.decode([([1], 2)])  # With one tensor the copy happens here, before the source is removed.
    own.decode([([1], 2)])
    one.memory.seq_rm(0)
    same(one, own, [([2], 2)], [([3], 0), ([4], 2)])


@native
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_the_other_streams_work_while_one_has_no_memory(
    made: Callable[..., Path],
    both: Callable[..., tuple[LlamaContext, LlamaContext]],
    virtual_devices: MakeDevices,
    mode: str,
) -> None:
    from pyggml.ggml import Context, Device

    virtual_devices(2, memory=64 << 20)
    one, own = both(made(context=8192), devices=["VDEV0", "VDEV1"], split_mode=mode, n_ctx=STREAMS * 8192)
    filled(one, own)
    device = Device(load().lib.pyggml_vdev_device(1))
    full = device.memory[0]
    own.memory.seq_release(3)
    one.memory.seq_rm(3)
    free = device.memory[0]
    assert free > full
    with Context("hog") as hog:
        hog.tensor("i8", free - (free - full) // 2)
        hog.allocate(device)
        for call in (
            lambda: own.memory.seq_reserve(3),
            lambda: own.decode([([1], 0), ([5, 6], 3)]),
            lambda: own.memory.seq_cp(0, 3),
            lambda: own.restore_state(one.save_state(2), 3),
        ):
            with pytest.raises(NoMemoryError, match=r"no memory for sequence 3: .*VDEV1"):
                call()
            assert not own.memory.seq_held(3)
            assert own.memory.pos_max(3) == -1
        same(one, own, [([1], 0), ([2], 1), ([3], 2)], [([4], 2)])
    own.memory.seq_reserve(3)
    same(one, own, [([5, 6], 3), ([7], 1)])


@native
@pytest.mark.parametrize("mode", ["layer", "tensor"])
def test_a_context_that_does_not_fit_is_refused_and_a_smaller_one_works(
    layout: None, made: Callable[..., Path], open_context: Open, virtual_devices: MakeDevices, mode: str
) -> None:
    virtual_devices(2, memory=24 << 20)
    options = {"devices": ["VDEV0", "VDEV1"], "split_mode": mode, "kv_per_stream": True, "n_ubatch": 64}
    path = made(context=32768)
    with pytest.raises(PyggmlError, match="VDEV"):
        open_context(path, n_ctx=8 * 32768, n_seq_max=8, **options)
    context = open_context(path, n_ctx=2 * 256, n_seq_max=2, **options)
    assert np.isfinite(context.decode([([1, 2], 1)])).all()


@native
def test_release_needs_a_memory_per_stream(
    layout: None, made: Callable[..., Path], open_context: Open
) -> None:
    for options in ({}, {"kv_unified": True}, {"kv_per_stream": True, "n_seq_max": 1}):
        context = open_context(made(), **{"n_ctx": 512, "n_seq_max": 2, **options})
        for call in (context.memory.seq_release, context.memory.seq_reserve):
            with pytest.raises(PyggmlError, match="do not have their own memory"):
                call(0)
        assert context.memory.seq_held(0)
    context = open_context(made(), n_ctx=512, n_seq_max=2, kv_per_stream=True)
    for seq in (-1, 2, True, 1.0):
        with pytest.raises(UsageError, match="the sequence"):
            context.memory.seq_release(seq)  # type: ignore[arg-type]


@native
@pytest.mark.parametrize("arch", sorted(REFUSING))
def test_unsupported_kinds_of_caches_are_named(
    layout: None, tiny: Callable[[str], Path], open_context: Open, arch: str
) -> None:
    with pytest.raises(PyggmlError, match=REFUSING[arch]) as raised:
        open_context(tiny(arch), n_ctx=512, n_seq_max=2, kv_per_stream=True)
    # The matrix recognizes by these words that it is not a defect.
    assert "per-stream" in raised.value.message or "kv_per_stream" in raised.value.message
