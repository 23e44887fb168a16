"""Names of the scheduler's copies, and where the bytes of a cache's heads land, in the memory of GPUs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context
from pyggml.ggml.library import load
from tests.ggml.conftest import MakeDevices
from tests.ggml.test_copy_names import LAYERS, check_kept, copies_of, source_of
from tests.ggml.test_head_split_leaf import (
    CELLS,
    HEADS,
    KINDS,
    PAD,
    SPLITS,
    STREAMS,
    Leaf,
    Memory,
    get,
    place,
    put,
    random_bytes,
    split_by_heads,
)

pytestmark = pytest.mark.gpu
WIDTH = 64
NAME = "cache_k_l0 (view) (permuted)"


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_meta_devices_copies_name_their_sources(count: int, devices: MakeDevices) -> None:
    sources = [f"cache_v_l{layer} (view) (permuted)" for layer in LAYERS]
    names = copies_of(devices(count), True, sources)
    check_kept(names, sources)
    assert [source_of(name.encode()) for name in names] == [name.encode() for name in sources]


@pytest.mark.parametrize("split", SPLITS, ids=lambda split: "-".join(map(str, split)))
def test_every_device_gets_its_heads_and_nothing_else(
    split: list[int], devices: MakeDevices, rng: Any
) -> None:
    """0002 head-split-leaves and 0005 strided-readback: strided transfers of both directions."""
    lib, meta = load_library(), split_by_heads(devices(len(split)), split)
    context, backend = Context("leaves", capacity=200), meta.backend()
    for kind, streams, used in itertools.product(KINDS, STREAMS, (5, CELLS)):
        leaf = Leaf(kind, WIDTH, streams, used)
        buffer = lib.ggml_backend_buft_alloc_buffer(meta.buffer_type.raw, 2 * PAD + leaf.room)
        lib.ggml_backend_buffer_set_usage(buffer, lib.GGML_BACKEND_BUFFER_USAGE_COMPUTE)
        try:
            memory = Memory(context, buffer, len(split))
            raw = place(context, buffer, kind, [WIDTH, used, HEADS, streams], leaf.nb, NAME, PAD)
            cache = random_bytes(rng, streams + 1, CELLS, HEADS, leaf.head)
            window = cache[1:].reshape(-1)[: leaf.span]
            for by in (None, backend):
                expected = random_bytes(rng, *memory.shape)
                memory.write(expected)
                put(raw, window.tobytes(), backend=by)
                leaf.land(expected, PAD, cache, split, leaf.cells())
                what = (kind, streams, used, "sync" if by is None else "async")
                assert (memory.read() == expected).all(), what
                found, wanted = np.full(leaf.span, 0xA5, np.uint8), np.full(leaf.span, 0xA5, np.uint8)
                for stream in range(streams):
                    begin = stream * CELLS * leaf.cell
                    wanted[begin : begin + used * leaf.cell] = window[begin : begin + used * leaf.cell]
                get(raw, found, backend=by)
                assert (found == wanted).all(), what
        finally:
            lib.ggml_backend_buffer_free(buffer)


def load_library() -> Any:
    return load().lib
