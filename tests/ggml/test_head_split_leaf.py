"""What each device holds of a cache on the host: its own heads' bytes, and not one byte beside them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pyggml.ggml import Context, MetaDevice, Scheduler, SplitState, VirtualDevices, cpu, tensor_type
from pyggml.ggml.library import load

from .conftest import MakeDevices, by_name

pytestmark = [pytest.mark.native, pytest.mark.isolated]

along = SplitState.along
Array = np.ndarray[Any, Any]

KINDS = ["f16", "q8_0", "q4_0"]
WIDTHS = {"k": 96, "v": 64}
HEADS, CELLS = 4, 8
STREAMS = (1, 2, 3)
PAD = 256
"""Bytes beside every leaf; a multiple of every device's alignment."""
SPLITS = [
    [4], [2, 2], [1, 3], [3, 1], [4, 0], [0, 4], [2, 1, 1], [0, 3, 1], [1, 1, 1, 1], [0, 0, 4, 0], [1, 0, 2, 1],
]  # fmt: skip


@dataclass(frozen=True)
class Leaf:
    """A permuted window of a cache: `used` cells of `streams` streams, the first of which is stream 1.

    Attributes:
        head: bytes of one head in one cell.
    """

    kind: str
    width: int
    streams: int
    used: int

    @property
    def head(self) -> int:
        return tensor_type(self.kind).row_bytes(self.width)

    @property
    def cell(self) -> int:
        return HEADS * self.head

    @property
    def span(self) -> int:
        """Bytes from the first to the last of the window in the cache."""
        return ((self.streams - 1) * CELLS + self.used) * self.cell

    @property
    def room(self) -> int:
        return self.streams * CELLS * self.cell

    @property
    def nb(self) -> list[int]:
        return [tensor_type(self.kind).block_bytes, self.cell, self.head, CELLS * self.cell]

    def cells(self, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """(stream, cell) of those whose bytes lie in [start, stop) of the window."""
        stop = self.span if stop is None else stop
        return [
            (stream, cell)
            for stream in range(self.streams)
            for cell in range(self.used)
            if start <= (stream * CELLS + cell) * self.cell < stop
        ]

    def land(
        self, memory: Array, at: int, cache: Array, split: list[int], cells: list[tuple[int, int]]
    ) -> None:
        """What the memory is to be once cells of a cache [streams + 1, CELLS, HEADS, head] were written."""
        first = 0
        for device, heads in enumerate(split):
            for stream, cell in cells:
                data = cache[1 + stream, cell, first : first + heads].reshape(-1)
                begin = at + (stream * CELLS + cell) * heads * self.head
                memory[device, begin : begin + len(data)] = data
            first += heads


class Memory:
    """All bytes of a meta buffer on every device, through a tensor with one row for each of them."""

    def __init__(self, context: Context, buffer: Any, devices: int) -> None:
        lib = load().lib
        self.shape = (devices, lib.ggml_backend_buffer_get_size(buffer))
        self.raw = place(context, buffer, "i8", [self.shape[1], devices, 1, 1], None, "probe", 0)

    def read(self) -> Array:
        found = np.zeros(self.shape, np.uint8)
        get(self.raw, found)
        return found

    def write(self, data: Array) -> None:
        put(self.raw, data.tobytes())


def place(
    context: Context, buffer: Any, kind: str, ne: list[int], nb: list[int] | None, source: str, at: int
) -> Any:
    """A tensor as the scheduler makes one of `source`, at byte `at` of a compute buffer."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    raw = context.tensor(kind, ne[::-1]).raw
    lib.ggml_backend_sched_format_copy_name(raw.name, b"Meta", source.encode(), 0)
    for number, stride in enumerate(nb or []):
        raw.nb[number] = stride
    base = ffi.cast("char *", lib.ggml_backend_buffer_get_base(buffer))
    assert lib.ggml_backend_tensor_alloc(buffer, raw, base + at) == lib.GGML_STATUS_SUCCESS
    return raw


def put(raw: Any, data: bytes, offset: int = 0, backend: Any = None) -> None:
    ffi, lib = load().ffi, load().lib
    if backend is None:
        lib.ggml_backend_tensor_set(raw, ffi.from_buffer(data), offset, len(data))
    else:
        lib.ggml_backend_tensor_set_async(backend.raw, raw, ffi.from_buffer(data), offset, len(data))
        backend.synchronize()


def get(raw: Any, target: Array, offset: int = 0, backend: Any = None) -> None:
    ffi, lib = load().ffi, load().lib
    if backend is None:
        lib.ggml_backend_tensor_get(raw, ffi.from_buffer(target), offset, target.nbytes)
    else:
        lib.ggml_backend_tensor_get_async(backend.raw, raw, ffi.from_buffer(target), offset, target.nbytes)
        backend.synchronize()


def split_by_heads(vdev: VirtualDevices, split: list[int], **others: SplitState) -> MetaDevice:
    states = {f"cache_{kv}_l0 (view) (permuted)": along(2, split) for kv in "kv"}
    return by_name(vdev, trust=True, probe=along(1, [1] * len(split)), **states, **others)


def random_bytes(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(0, 256, shape, np.uint8)


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


def quantised(kind: str, values: Array) -> Array:
    """Rows of float32 as bytes of a type."""
    bindings, shape = load(), values.shape
    made = np.zeros((*shape[:-1], tensor_type(kind).row_bytes(shape[-1])), np.uint8)
    rows = values.size // shape[-1]
    ffi = bindings.ffi
    source, target = ffi.from_buffer("float[]", values), ffi.from_buffer(made)
    bindings.lib.ggml_quantize_chunk(tensor_type(kind).number, source, target, 0, rows, shape[-1], ffi.NULL)
    return made


def attention(q: Array, k: Array, v: Array) -> Array:
    """[streams, heads, tokens, d] with [streams, cells, heads / 2, d] as [streams, tokens, heads, d]."""
    k, v = (one.repeat(2, axis=2) for one in (k, v))
    scores = np.einsum("shtd,schd->shtc", q, k)
    weight = np.exp(scores - scores.max(-1, keepdims=True))
    weight /= weight.sum(-1, keepdims=True)
    return np.einsum("shtc,schd->sthd", weight, v)


@pytest.mark.parametrize("kind", KINDS)
def test_the_scheduler_copies_to_every_device_its_heads(kind: str, devices: MakeDevices, rng: Any) -> None:
    """Attention with cache and queries on the host; the canary is in the memory that the graph will use."""
    bindings, tokens, used = load(), 3, 5
    for split, streams in itertools.product(SPLITS, STREAMS):
        vdev = devices(len(split))
        meta = split_by_heads(vdev, split, q=along(2, [2 * heads for heads in split]))
        host, context, probes = Context("host"), Context("graph"), Context("probes")
        q = rng.standard_normal((streams, 2 * HEADS, tokens, WIDTHS["k"]), np.float32) / 8
        t_q = host.tensor("f32", q.shape, "q")
        caches, floats, views = {}, {}, {}
        for kv, width in WIDTHS.items():
            values = rng.standard_normal((streams + 1, CELLS, HEADS * width), np.float32)
            data = quantised(kind, values)
            leaf = Leaf(kind, width, streams, used)
            caches[kv] = (leaf, host.tensor(kind, values.shape, f"cache_{kv}_l0"), data)
        host.allocate(cpu())
        t_q.set(q)
        for kv, (leaf, tensor, data) in caches.items():
            tensor.set(data.view(np.float16) if kind == "f16" else data)
            floats[kv] = tensor.dequantized().reshape(streams + 1, CELLS, HEADS, leaf.width)[1:, :used]
            stride = CELLS * leaf.cell
            ne = (leaf.width, HEADS, used, streams)
            view = context.ops.view_4d(tensor, *ne, leaf.head, leaf.cell, stride, stride)
            views[kv] = context.ops.permute(view, 0, 2, 1, 3)
        out = context.ops.flash_attn_ext(t_q, views["k"], views["v"], None, 1.0, 0.0, 0.0).mark_output()
        scheduler, graph = Scheduler([meta.backend(), cpu().backend()]), context.graph(out)
        scheduler.assign(out, scheduler.backends[0])
        scheduler.allocate(graph)

        copies = {"q": out.raw.src[0], "k": out.raw.src[1], "v": out.raw.src[2]}
        buffer = out.raw.buffer
        assert all(one.buffer == buffer for one in copies.values())
        canary = random_bytes(rng, len(split), bindings.lib.ggml_backend_buffer_get_size(buffer))
        Memory(probes, buffer, len(split)).write(canary)
        vdev.clear_ledger()
        scheduler.compute(graph)
        ledger, found = vdev.ledger().transfers(), np.zeros(out.shape, np.float32)
        get(out.raw, found)
        expected = attention(q, floats["k"], floats["v"])
        what = (split, streams)
        np.testing.assert_allclose(
            found.reshape(expected.shape), expected, rtol=0.05, atol=0.02, err_msg=str(what)
        )

        for kv, (leaf, _, _) in caches.items():
            owed = {
                name: heads * leaf.head * used * streams
                for name, heads in zip(vdev.names, split, strict=True)
                if heads
            }
            assert ledger.filter(name=f"cache_{kv}_l0").sums("device") == owed, what
        memory = Memory(probes, buffer, len(split)).read()
        base = int(bindings.ffi.cast("uintptr_t", bindings.lib.ggml_backend_buffer_get_base(buffer)))
        for raw in (copies["q"], out.raw):
            begin = int(bindings.ffi.cast("uintptr_t", raw.data)) - base
            end = begin + bindings.lib.ggml_nbytes(raw)
            canary[:, begin:end] = memory[:, begin:end]
        for kv, (leaf, _, data) in caches.items():
            begin = int(bindings.ffi.cast("uintptr_t", copies[kv].data)) - base
            cache = data.reshape(streams + 1, CELLS, HEADS, leaf.head)
            leaf.land(canary, begin, cache, split, leaf.cells())
        assert (memory == canary).all(), what
