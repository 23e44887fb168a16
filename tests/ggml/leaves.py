"""Windows of a KV cache as they arrive on a device, and what every byte of its memory is to be then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyggml.ggml import (
    Backend,
    Context,
    Graph,
    MetaDevice,
    Scheduler,
    SplitState,
    VirtualDevices,
    cpu,
    tensor_type,
)
from pyggml.ggml.library import load

from .conftest import by_name

along = SplitState.along
Array = np.ndarray[Any, Any]

KINDS = ["f16", "q8_0", "q4_0"]
WIDTHS = {"k": 96, "v": 64}
HEADS, CELLS = 4, 8
STREAMS = (1, 2, 3)
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


class Attention:
    """A graph of one attention whose queries and cache are on the host.

    Attributes:
        leaves: the windows of `k` and `v`.
        data: bytes of the caches, [streams + 1, CELLS, HEADS, head].
        out: [streams, tokens, 2 * HEADS, width of v].
    """

    def __init__(self, kind: str, streams: int, used: int, rng: np.random.Generator, tokens: int = 3) -> None:
        self.host, self.context = Context("host"), Context("graph")
        self.q = rng.standard_normal((streams, 2 * HEADS, tokens, WIDTHS["k"]), np.float32) / 8
        t_q = self.host.tensor("f32", self.q.shape, "q")
        self.leaves, self.caches, self.data = {}, {}, {}
        for kv, width in WIDTHS.items():
            values = rng.standard_normal((streams + 1, CELLS, HEADS * width), np.float32)
            self.leaves[kv] = leaf = Leaf(kind, width, streams, used)
            self.caches[kv] = self.host.tensor(kind, values.shape, f"cache_{kv}_l0")
            self.data[kv] = quantised(kind, values).reshape(streams + 1, CELLS, HEADS, leaf.head)
        self.host.allocate(cpu())
        t_q.set(self.q)
        views = {}
        for kv, leaf in self.leaves.items():
            self.set_cache(kv, self.data[kv])
            stride = CELLS * leaf.cell
            ne = (leaf.width, HEADS, used, streams)
            view = self.context.ops.view_4d(self.caches[kv], *ne, leaf.head, leaf.cell, stride, stride)
            views[kv] = self.context.ops.permute(view, 0, 2, 1, 3)
        out = self.context.ops.flash_attn_ext(t_q, views["k"], views["v"], None, 1.0, 0.0, 0.0)
        self.out = out.mark_output()

    def set_cache(self, kv: str, data: Array) -> None:
        tensor, self.data[kv] = self.caches[kv], data
        rows = data.reshape(*tensor.shape[:-1], -1)
        tensor.set(rows.view(np.float16) if tensor.type.name == "f16" else rows)

    def allocate(self, backend: Backend, **options: Any) -> tuple[Scheduler, Graph]:
        """Its memory, with the attention on `backend`; `copies` then finds what arrives there."""
        scheduler, graph = Scheduler([backend, cpu().backend()], **options), self.context.graph(self.out)
        scheduler.assign(self.out, scheduler.backends[0])
        scheduler.allocate(graph)
        return scheduler, graph

    @property
    def copies(self) -> dict[str, Any]:
        """What the scheduler put in place of the sources, all in the buffer of `out`."""
        copies = {"q": self.out.raw.src[0], "k": self.out.raw.src[1], "v": self.out.raw.src[2]}
        assert all(one.buffer == self.out.raw.buffer for one in copies.values())
        return copies

    def result(self) -> Array:
        found = np.zeros(self.out.shape, np.float32)
        get(self.out.raw, found)
        return found

    def expected(self) -> Array:
        """By numpy, from what the caches hold."""
        floats = {}
        for kv, leaf in self.leaves.items():
            values = self.caches[kv].dequantized().reshape(leaf.streams + 1, CELLS, HEADS, leaf.width)
            floats[kv] = values[1:, : leaf.used]
        return attention(self.q, floats["k"], floats["v"]).reshape(self.out.shape)
