"""What is copied to the devices of a cache on the host: the window of every sequence, and no other cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pyggml.ggml import VirtualDevices

from .conftest import Open, prompt

pytestmark = pytest.mark.native

LAYERS, ROW, CELLS = 2, 4 * 16 * 2, 1024
"""Layers of the model; bytes of a cell (four heads of 16 elements of two bytes); cells of a sequence."""
WINDOW = 256
"""Cells that llama.cpp reads as long as fewer are in use."""


@pytest.mark.parametrize(("mode", "count"), [("layer", 1), ("tensor", 2)], ids=["layer", "tensor"])
@pytest.mark.parametrize("sequences", [2, 3])
def test_a_decode_copies_the_window_of_every_sequence(
    made: Callable[..., Path], open_context: Open, mode: str, count: int, sequences: int
) -> None:
    path = made(layers=LAYERS, heads=4, kv_heads=4)
    results = {}
    with VirtualDevices(count) as vdev:
        for offload in (True, False):
            context = open_context(
                path,
                devices=vdev.names,
                split_mode=mode,
                n_ctx=sequences * CELLS,
                n_seq_max=sequences,
                kv_unified=False,
                offload_kqv=offload,
                flash_attn=True,
            )
            tokens = prompt(context, 40)
            # Different lengths, so that reading another sequence's cells would show.
            prompts = [(tokens[seq : 40 - 3 * seq], seq) for seq in range(sequences)]
            logits = [context.decode(prompts, logits="all")]
            vdev.clear_ledger()
            logits.append(context.decode([([tokens[seq]], seq) for seq in range(sequences)], logits="all"))
            moved = vdev.ledger().filter(kind=["set", "set_2d"], name="cache_[kv]_l").bytes
            used = 0 if offload else 2 * LAYERS * sequences * WINDOW * ROW
            assert moved == used, f"copied {moved} bytes, {used} are in use"
            results[offload] = logits
    for device, host in zip(results[True], results[False], strict=True):
        assert np.array_equal(device, host)
