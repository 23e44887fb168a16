"""What each device holds of a cache on the host: its own heads' bytes, and not one byte beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, VirtualDevices
from pyggml.ggml.library import load

from .conftest import MakeDevices
from .leaves import (
    CELLS,
    HEADS,
    KINDS,
    SPLITS,
    STREAMS,
    WIDTHS,
    Array,
    Attention,
    Leaf,
    Memory,
    along,
    get,
    place,
    put,
    random_bytes,
    split_by_heads,
)

pytestmark = [pytest.mark.native, pytest.mark.isolated]

PAD = 256
"""Bytes beside every leaf; a multiple of every device's alignment."""


@dataclass
class Case:
    """K and V leaves of one split in one compute buffer, with canaries before, between and behind them."""

    split: list[int]
    vdev: VirtualDevices
    leaves: list[tuple[Leaf, Any, int, Array]]
    memory: Memory
    canary: Array
    backend: Any

    def sent(self) -> dict[str, int]:
        return self.vdev.ledger().transfers().sums("device")

    def owed(self, leaf: Leaf, cells: int) -> dict[str, int]:
        return {
            name: heads * leaf.head * cells
            for name, heads in zip(self.vdev.names, self.split, strict=True)
            if heads
        }


def cases(kind: str, devices: MakeDevices, rng: Any, **settings: Any) -> Iterator[Case]:
    """Every split, with one to three streams, and windows of a part of the cells and of all of them."""
    lib = load().lib
    for split, streams, used in itertools.product(SPLITS, STREAMS, (5, CELLS)):
        vdev = devices(len(split), **settings)
        meta, context = split_by_heads(vdev, split), Context("leaves")
        kinds = {kv: Leaf(kind, width, streams, used) for kv, width in WIDTHS.items()}
        starts = {"k": PAD, "v": -(-(2 * PAD + kinds["k"].room) // PAD) * PAD}
        buffer = lib.ggml_backend_buft_alloc_buffer(meta.buffer_type.raw, starts["v"] + kinds["v"].room + PAD)
        lib.ggml_backend_buffer_set_usage(buffer, lib.GGML_BACKEND_BUFFER_USAGE_COMPUTE)
        try:
            memory = Memory(context, buffer, len(split))
            leaves = []
            for kv, leaf in kinds.items():
                name = f"cache_{kv}_l0 (view) (permuted)"
                ne = [leaf.width, used, HEADS, streams]
                raw = place(context, buffer, kind, ne, leaf.nb, name, starts[kv])
                cache = random_bytes(rng, streams + 1, CELLS, HEADS, leaf.head)
                leaves.append((leaf, raw, starts[kv], cache))
            assert (memory.read() == 0xFF).all()
            canary = random_bytes(rng, *memory.shape)
            memory.write(canary)
            yield Case(split, vdev, leaves, memory, canary, meta.backend())
        finally:
            lib.ggml_backend_buffer_free(buffer)


@pytest.mark.patch("name-truncation", "head-split-leaves", "strided-readback")
@pytest.mark.parametrize("kind", KINDS)
def test_every_device_gets_its_heads_and_nothing_else(kind: str, devices: MakeDevices, rng: Any) -> None:
    for case in cases(kind, devices, rng):
        for backend in (None, case.backend):
            expected = case.canary.copy()
            case.memory.write(expected)
            for leaf, raw, at, cache in case.leaves:
                what = (case.split, leaf, "sync" if backend is None else "async")
                window = cache[1:].reshape(-1)[: leaf.span]
                case.vdev.clear_ledger()
                put(raw, window.tobytes(), backend=backend)
                owed = case.owed(leaf, leaf.streams * leaf.used)
                assert case.sent() == owed, what
                assert sum(owed.values()) == leaf.streams * leaf.used * leaf.cell
                # Cells that lie evenly in all streams go at once.
                calls = 1 if leaf.used == CELLS else leaf.streams
                counts = case.vdev.ledger().transfers().sums("device", "kind", of="count")
                assert counts == {(name, "set_2d"): calls for name in owed}, what
                leaf.land(expected, at, cache, case.split, leaf.cells())
                assert (case.memory.read() == expected).all(), what
                check_read_back(case, leaf, raw, window, backend)


def check_read_back(case: Case, leaf: Leaf, raw: Any, window: Array, backend: Any) -> None:
    """The window comes back, and what lies between its streams stays as it was."""
    found, wanted = np.full(leaf.span, 0xA5, np.uint8), np.full(leaf.span, 0xA5, np.uint8)
    for stream in range(leaf.streams):
        begin = stream * CELLS * leaf.cell
        wanted[begin : begin + leaf.used * leaf.cell] = window[begin : begin + leaf.used * leaf.cell]
    case.vdev.clear_ledger()
    get(raw, found, backend=backend)
    assert (found == wanted).all(), (case.split, leaf)
    assert case.sent() == case.owed(leaf, leaf.streams * leaf.used)


@pytest.mark.patch("name-truncation", "head-split-leaves", "strided-readback")
@pytest.mark.parametrize("kind", KINDS)
def test_parts_of_a_window_land_where_they_belong(kind: str, devices: MakeDevices, rng: Any) -> None:
    for case in cases(kind, devices, rng):
        for leaf, raw, at, cache in case.leaves:
            ranges = [(0, 1), (2, leaf.used), (leaf.used - 1, leaf.used)]
            # From within a stream into the next, over the cells between them.
            ranges += [(3, CELLS + 2), (CELLS, CELLS + leaf.used)] if leaf.streams > 1 else []
            for (first, last), backend in zip(ranges, itertools.cycle([None, case.backend]), strict=False):
                start, stop = first * leaf.cell, min(last * leaf.cell, leaf.span)
                cells = leaf.cells(start, stop)
                expected = case.canary.copy()
                case.memory.write(expected)
                leaf.land(expected, at, cache, case.split, cells)
                data = cache[1:].reshape(-1)[start:stop]
                case.vdev.clear_ledger()
                put(raw, data.tobytes(), start, backend)
                what = (case.split, leaf, first, last)
                assert case.sent() == case.owed(leaf, len(cells)), what
                assert (case.memory.read() == expected).all(), what


@pytest.mark.parametrize("kind", KINDS)
def test_row_by_row_lands_the_same_bytes(kind: str, devices: MakeDevices, rng: Any) -> None:
    for case in cases(kind, devices, rng, native_2d=False):
        expected = case.canary.copy()
        for leaf, raw, at, cache in case.leaves:
            case.vdev.clear_ledger()
            put(raw, cache[1:].reshape(-1)[: leaf.span].tobytes())
            leaf.land(expected, at, cache, case.split, leaf.cells())
            cells = leaf.streams * leaf.used
            owed = case.owed(leaf, cells)
            assert case.sent() == owed
            counts = case.vdev.ledger().transfers().sums("device", "kind", of="count")
            assert counts == {(name, "set"): cells for name in owed}
        assert (case.memory.read() == expected).all(), case.split


@pytest.mark.parametrize("kind", KINDS)
def test_the_scheduler_copies_to_every_device_its_heads(kind: str, devices: MakeDevices, rng: Any) -> None:
    """Attention with cache and queries on the host; the canary is in the memory that the graph will use."""
    bindings, used = load(), 5
    for split, streams in itertools.product(SPLITS, STREAMS):
        vdev = devices(len(split))
        meta = split_by_heads(vdev, split, q=along(2, [2 * heads for heads in split]))
        case, probes = Attention(kind, streams, used, rng), Context("probes")
        scheduler, graph = case.allocate(meta.backend())
        copies, buffer = case.copies, case.out.raw.buffer
        canary = random_bytes(rng, len(split), bindings.lib.ggml_backend_buffer_get_size(buffer))
        Memory(probes, buffer, len(split)).write(canary)
        vdev.clear_ledger()
        scheduler.compute(graph)
        ledger, what = vdev.ledger().transfers(), (split, streams)
        np.testing.assert_allclose(case.result(), case.expected(), rtol=0.05, atol=0.02, err_msg=str(what))

        for kv, leaf in case.leaves.items():
            owed = {
                name: heads * leaf.head * used * streams
                for name, heads in zip(vdev.names, split, strict=True)
                if heads
            }
            assert ledger.filter(name=f"cache_{kv}_l0").sums("device") == owed, what
        memory = Memory(probes, buffer, len(split)).read()
        base = int(bindings.ffi.cast("uintptr_t", bindings.lib.ggml_backend_buffer_get_base(buffer)))
        for raw in (copies["q"], case.out.raw):
            begin = int(bindings.ffi.cast("uintptr_t", raw.data)) - base
            end = begin + bindings.lib.ggml_nbytes(raw)
            canary[:, begin:end] = memory[:, begin:end]
        for kv, leaf in case.leaves.items():
            begin = int(bindings.ffi.cast("uintptr_t", copies[kv].data)) - base
            leaf.land(canary, begin, case.data[kv], split, leaf.cells())
        assert (memory == canary).all(), what
