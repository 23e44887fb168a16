"""What the scheduler copies of a window over several streams on the host: the ranges in use, not what is between."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Backend, Context, Device, Graph, MetaDevice, Scheduler, VirtualDevices, cpu
from pyggml.ggml.library import load
from pyggml.native.ledger import Ledger

from .conftest import MakeDevices, by_name
from .leaves import (
    CELLS,
    HEADS,
    SPLITS,
    Attention,
    Memory,
    along,
    random_bytes,
    split_by_heads,
)

pytestmark = [
    pytest.mark.native,
    pytest.mark.isolated,
    pytest.mark.patch("name-truncation", "split-input-ranges"),
]

KINDS = ["f16", "q8_0"]
ROWS = {
    ("f16", "k"): 4 * 96 * 2,
    ("f16", "v"): 4 * 64 * 2,
    ("q8_0", "k"): 4 * 3 * 34,
    ("q8_0", "v"): 4 * 2 * 34,
}
"""Bytes of a cell: four heads of WIDTHS elements, of two bytes each or in blocks of 32 elements with 34 bytes."""
WINDOWS = {"k": "cache_k_l0", "v": "cache_v_l0", "window": "window"}
"""What the scheduler calls copies of windows, in short."""
SIZES = [(2, 5), (3, 1), (3, CELLS - 1), (7, 5)]
"""Streams and cells of windows."""


class Run:
    """A graph computed over random bytes in the memory of its result and of what was copied for it.

    Attributes:
        ledger: transfers of the computation alone.
        memory: the bytes then, for each of `count` devices.
        canary: the bytes before; those of the result, and of copies that are not windows, as they are then.
        begin, nbytes: of each copy in the memory.
    """

    def __init__(
        self,
        vdev: VirtualDevices,
        count: int,
        scheduler: Scheduler,
        graph: Graph,
        result: Any,
        copies: dict[str, Any],
        check: Callable[[], Any],
        rng: np.random.Generator,
    ) -> None:
        bindings, probes = load(), Context("probes")
        self.canary = random_bytes(rng, count, bindings.lib.ggml_backend_buffer_get_size(result.buffer))
        Memory(probes, result.buffer, count).write(self.canary)
        vdev.clear_ledger()
        scheduler.compute(graph)
        self.ledger: Ledger = vdev.ledger().transfers()
        # Before the memory is looked at: a new tensor in a meta buffer takes the place of the graph's.
        check()
        self.memory = Memory(probes, result.buffer, count).read()
        base = address(bindings.lib.ggml_backend_buffer_get_base(result.buffer))
        self.begin, self.nbytes = {}, {}
        for name, raw in {**copies, "result": result}.items():
            assert raw.buffer == result.buffer
            self.begin[name] = begin = address(raw.data) - base
            self.nbytes[name] = size = bindings.lib.ggml_nbytes(raw)
            if name not in WINDOWS:
                self.canary[:, begin : begin + size] = self.memory[:, begin : begin + size]

    def windows(self, kv: str) -> Ledger:
        return self.ledger.filter(name=WINDOWS[kv])


def address(pointer: Any) -> int:
    return int(load().ffi.cast("uintptr_t", pointer))


def attend(case: Attention, vdev: VirtualDevices, backend: Backend, rng: np.random.Generator) -> Run:
    """The result is checked against numpy."""
    scheduler, graph = case.allocate(backend)

    def check() -> None:
        np.testing.assert_allclose(case.result(), case.expected(), rtol=0.05, atol=0.05)

    return Run(vdev, len(vdev), scheduler, graph, case.out.raw, case.copies, check, rng)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False], ids=["2d", "row-by-row"])
def test_only_the_ranges_of_a_window_are_copied(
    kind: str, native: bool, devices: MakeDevices, rng: Any
) -> None:
    for streams, used in SIZES:
        vdev, case = devices(1, native_2d=native), Attention(kind, streams, used, rng)
        run = attend(case, vdev, vdev[0].backend(), rng)
        for kv, leaf in case.leaves.items():
            row, what = ROWS[kind, kv], (streams, used, kv)
            assert run.nbytes[kv] == ((streams - 1) * CELLS + used) * row, what
            moved, owed = run.windows(kv).bytes, streams * used * row
            assert moved == owed, f"copied {moved} bytes, {owed} are in use: {what}"
            records = [
                (one.kind, one.offset, one.bytes, one.rows, one.asynchronous) for one in run.windows(kv)
            ]
            if native:
                assert records == [("set_2d", 0, streams * used * row, streams, False)], what
                assert {one.stride for one in run.windows(kv)} == {CELLS * row}
            else:
                offsets = range(0, streams * CELLS * row, CELLS * row)
                assert records == [("set", offset, used * row, 1, False) for offset in offsets], what
            leaf.land(run.canary, run.begin[kv], case.data[kv], [HEADS], leaf.cells())
        # The gaps keep their bytes.
        assert (run.memory == run.canary).all(), (streams, used)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_the_gaps_does_not_matter(kind: str, devices: MakeDevices) -> None:
    """The same bits whatever the memory held before."""
    for streams, used in SIZES:
        results = []
        for seed in range(3):
            vdev, case = devices(1), Attention(kind, streams, used, np.random.default_rng(1))
            run = attend(case, vdev, vdev[0].backend(), np.random.default_rng(seed))
            begin = run.begin["result"]
            results.append(run.memory[0, begin : begin + run.nbytes["result"]])
        assert all((one == results[0]).all() for one in results), (streams, used)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("native", [True, False], ids=["2d", "row-by-row"])
def test_a_window_split_by_heads_is_cut_for_every_device(
    kind: str, native: bool, devices: MakeDevices, rng: Any
) -> None:
    for split, (streams, used) in itertools.product(SPLITS, SIZES):
        vdev, case = devices(len(split), native_2d=native), Attention(kind, streams, used, rng)
        meta = split_by_heads(vdev, split, q=along(2, [2 * heads for heads in split]))
        run = attend(case, vdev, meta.backend(), rng)
        busy = {name: heads for name, heads in zip(vdev.names, split, strict=True) if heads}
        for kv, leaf in case.leaves.items():
            row, what = ROWS[kind, kv], (split, streams, used, kv)
            owed = {name: streams * used * row * heads // HEADS for name, heads in busy.items()}
            assert run.windows(kv).sums("device") == owed, what
            # One transfer for each device and stream, of one row after another without 2-D transfers.
            rows = dict.fromkeys(busy, streams * used)
            assert run.windows(kv).sums("device", of="rows") == rows, what
            calls = (1 if used == 1 else streams) if native else streams * used
            assert run.windows(kv).sums("device", of="count") == dict.fromkeys(busy, calls), what
            leaf.land(run.canary, run.begin[kv], case.data[kv], split, leaf.cells())
        assert (run.memory == run.canary).all(), (split, streams, used)


def test_the_next_graph_sees_what_the_cache_holds_then(devices: MakeDevices, rng: Any) -> None:
    """With four copies of every input, and events; what was copied before does not shine through."""
    vdev, case = devices(1), Attention("f16", 3, 5, rng)
    scheduler, graph = case.allocate(vdev[0].backend(), parallel=True)
    results = []
    for _ in range(3):
        scheduler.compute(graph)
        results.append(case.result())
        np.testing.assert_allclose(results[-1], case.expected(), rtol=0.05, atol=0.02)
        for kv, data in case.data.items():
            case.set_cache(kv, np.roll(data, 1, axis=1))
    assert not (results[0] == results[1]).all()


Layout = tuple[tuple[int, ...], tuple[int, ...]]
"""ne and nb."""
HEAD, CELL, STREAM = 64 * 2, HEADS * 64 * 2, CELLS * HEADS * 64 * 2
"""Bytes of an f16 cache with heads of 64 elements."""
PLAIN = ((64, HEADS, 5, 3), (2, HEAD, CELL, STREAM))
"""The first five cells of three streams."""
WITH_HOLES: dict[str, Layout] = {
    "V as a view of K": ((48, 5, 1, 3), (2, CELL, HEAD, STREAM)),
    "some heads": ((64, 2, 5, 3), (2, HEAD, CELL, STREAM)),
    "parts of heads": ((32, HEADS, 5, 3), (2, HEAD, CELL, STREAM)),
    "every second cell": ((64, HEADS, 3, 3), (2, HEAD, 2 * CELL, STREAM)),
    "transposed": ((5, HEADS, 64, 3), (2, 64 * CELLS * 2, CELLS * 2, STREAM)),
}
"""Windows whose ranges, from the first to the last element of a stream, have holes."""
ODD: dict[str, Layout] = {
    "all cells": ((64, HEADS, CELLS, 3), (2, HEAD, CELL, STREAM)),
    "one stream": ((64, HEADS, 5, 1), (2, HEAD, CELL, STREAM)),
    "overlapping": ((64, HEADS, 5, 3), (2, HEAD, CELL, 3 * CELL)),
    "cells of streams in between": ((64, 2, HEADS, 3), (2, STREAM, HEAD, CELL)),
}
"""Windows that are not evenly spaced ranges with gaps in between."""


def span(ne: tuple[int, ...], nb: tuple[int, ...]) -> int:
    """Bytes from the first to the last."""
    return nb[0] + sum((length - 1) * stride for length, stride in zip(ne, nb, strict=True))


def copied(
    vdev: VirtualDevices,
    layout: Layout,
    rng: np.random.Generator,
    source: Device | None = None,
    target: Device | MetaDevice | None = None,
    mark: Callable[[Any], Any] = lambda raw: None,
) -> list[tuple[str, str, int]]:
    """Device, kind and bytes of what moves for a window over a cache in memory of `source`, by default the host.

    What arrives in memory of `target`, by default the first device, is checked byte by byte.
    """
    (ne, nb), memory, context = layout, Context("cache"), Context("graph")
    target = target or vdev[0]
    cache = memory.tensor("f16", (4, CELLS, HEADS * 64), "cache")
    memory.allocate(source or cpu())
    data = rng.standard_normal(cache.shape).astype(np.float16)
    cache.set(data)
    view = context.ops.view_4d(cache, *ne, *nb[1:], STREAM)
    view.name = "window"
    mark(view.raw)
    out = context.ops.cont(view).mark_output()
    used = [target, *([source] if source else []), cpu()]
    scheduler, graph = Scheduler([one.backend() for one in used]), context.graph(out)
    scheduler.assign(out, scheduler.backends[0])
    scheduler.allocate(graph)
    count = len(vdev) if isinstance(target, MetaDevice) else 1

    def check() -> None:
        assert (out.numpy() == np.ndarray(ne[::-1], np.float16, data, STREAM, nb[::-1])).all()

    run = Run(vdev, count, scheduler, graph, out.raw, {"window": out.raw.src[0]}, check, rng)
    moved = [(one.device, one.kind, one.bytes) for one in run.windows("window")]
    there = data.reshape(-1).view(np.uint8)[STREAM : STREAM + span(ne, nb)]
    assert run.nbytes["window"] == len(there)
    lands = np.zeros(len(there), bool)
    if sum(size for device, _, size in moved if device == moved[0][0]) == len(there):
        lands[:] = True
    else:
        # Only the ranges: of every stream what is from its first to its last element.
        for stream in range(ne[3]):
            lands[stream * nb[3] : stream * nb[3] + span((*ne[:3], 1), nb)] = True
    begin = run.begin["window"]
    run.canary[:, begin : begin + len(there)][:, lands] = there[lands]
    assert (run.memory == run.canary).all()
    return moved


@pytest.mark.parametrize("host_buffer", [False, True], ids=["pageable", "pinned"])
def test_evenly_spaced_ranges_in_any_order(host_buffer: bool, devices: MakeDevices, rng: Any) -> None:
    """Dense within a stream, however its heads and cells are ordered; every second stream as well."""
    vdev = devices(1, host_buffer=host_buffer)
    for layout, size in (
        (PLAIN, 15 * CELL),
        (((64, 5, HEADS, 3), (2, CELL, HEAD, STREAM)), 15 * CELL),
        (((64, HEADS, 5, 2), (2, HEAD, CELL, 2 * STREAM)), 10 * CELL),
        (((64, HEADS, 1, 3), (2, HEAD, CELL, STREAM)), 3 * CELL),
    ):
        assert copied(vdev, layout, rng) == [("VDEV0", "set_2d", size)], layout


def test_a_mirrored_window_goes_to_every_device_at_once(devices: MakeDevices, rng: Any) -> None:
    for count in (1, 2, 3):
        vdev = devices(count)
        moved = copied(vdev, PLAIN, rng, target=by_name(vdev, trust=True, probe=along(1, [1] * count)))
        size = sum(one[-1] for one in moved)
        assert size == 15 * CELL * count, f"copied {size} bytes, {15 * CELL * count} are in use"
        assert moved == [(name, "set_2d", 15 * CELL) for name in vdev.names]


@pytest.mark.patch("window-ranges")
@pytest.mark.parametrize("layout", WITH_HOLES)
def test_ranges_with_holes(layout: str, devices: MakeDevices, rng: Any) -> None:
    ne, nb = WITH_HOLES[layout]
    size = ne[3] * span((*ne[:3], 1), nb)
    assert copied(devices(1), (ne, nb), rng) == [("VDEV0", "set_2d", size)]


@pytest.mark.slow
@pytest.mark.patch("window-ranges")
def test_ranges_two_gib_apart_are_copied_one_by_one(devices: MakeDevices) -> None:
    """cudaMemcpy2D takes a pitch below 2 GiB. The cache here takes address space, the copy 2 GiB of memory."""
    vdev, pitch = devices(1, memory=4 << 30), 1 << 31
    memory, context = Context("cache"), Context("graph")
    cache = memory.tensor("f32", (pitch // 4 + 4,), "cache")
    memory.allocate(cpu())
    ends = np.arange(8, dtype=np.float32).reshape(2, 4)
    for number, end in enumerate(ends):
        cache.write(end, number * pitch)
    out = context.ops.cont(context.ops.view_4d(cache, 4, 1, 1, 2, 16, 16, pitch, 0)).mark_output()
    scheduler, graph = Scheduler([vdev[0].backend(), cpu().backend()]), context.graph(out)
    scheduler.assign(out, scheduler.backends[0])
    scheduler.allocate(graph)
    vdev.clear_ledger()
    scheduler.compute(graph)
    moved = [
        (one.kind, one.offset, one.bytes) for one in vdev.ledger().transfers().filter(kind=["set", "set_2d"])
    ]
    assert moved == [("set", 0, 16), ("set", pitch, 16)]
    assert (out.numpy().reshape(2, 4) == ends).all()


@pytest.mark.parametrize("layout", ODD)
def test_other_layouts_go_as_they_lie(layout: str, devices: MakeDevices, rng: Any) -> None:
    assert copied(devices(1), ODD[layout], rng) == [("VDEV0", "set", span(*ODD[layout]))]


def test_a_users_input_goes_as_it_lies(devices: MakeDevices, rng: Any) -> None:
    """It is copied at once, before the user can change it."""

    def mark(raw: Any) -> None:
        # Newer trees let ggml_set_input take a tensor without an op only, a view is none.
        raw.flags |= load().lib.GGML_TENSOR_FLAG_INPUT

    moved = copied(devices(1), PLAIN, rng, mark=mark)
    assert moved == [("VDEV0", "set", span(*PLAIN))]


@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_between_devices_a_window_goes_as_it_lies(asynchronous: bool, devices: MakeDevices, rng: Any) -> None:
    vdev = devices(2, asynchronous=asynchronous)
    assert copied(vdev, PLAIN, rng, source=vdev[1]) == [("VDEV0", "cpy", span(*PLAIN))]
