"""The splits that a scheduler made of a graph, read from the graph itself: upstream's struct is not public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.device import Backend
from pyggml.ggml.graph import Graph
from pyggml.ggml.graph_memory import GraphMemory
from pyggml.ggml.library import load
from pyggml.ggml.tensor import Tensor, is_view_op, sources_of

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_backend, ggml_backend_sched, ggml_tensor

_INPUTS = 30
"""GGML_SCHED_MAX_SPLIT_INPUTS: with that many, a node with another one begins a new split in older trees."""

_Part = tuple[Any, int, list["InputCopy"]]


@dataclass(frozen=True)
class InputCopy:
    """A tensor that is copied to the backend of a split before the split is computed.

    Attributes:
        name: the copy's, `<backend>#<source>#<number>`.
        bytes: what is copied.
        source: the tensor that is copied.
    """

    name: str
    bytes: int
    source: Tensor


@dataclass(frozen=True)
class Split:
    """Consecutive nodes that one backend computes.

    Attributes:
        start, end: indices of the graph's nodes, end excluded; views count at their place.
        inputs: what is copied first, in this order.
    """

    backend: Backend
    start: int
    end: int
    inputs: tuple[InputCopy, ...]


def read_splits(
    scheduler: ggml_backend_sched, backends: Sequence[Backend], graph: Graph, memory: GraphMemory
) -> list[Split]:
    """Follow pass 5 of ggml_backend_sched_split_graph over the graph that it left.

    Args:
        scheduler: `ggml_backend_sched_t`.
        memory: the graph's before the scheduler took it.

    Raises:
        PyggmlError: upstream counts another number of splits: its rules have changed.
    """
    said = load().lib.ggml_backend_sched_get_n_splits(scheduler)
    # Whether the library limits the inputs of a split shows in the number of splits only.
    tried = [_parts(scheduler, backends[0].raw, graph, memory, limit) for limit in (_INPUTS, None)]
    parts = next((one for one in tried if len(one) == said), None)
    if parts is None:
        raise PyggmlError(f"upstream made {said} splits, and the graph shows {len(tried[0])}")
    ends = [start for _, start, _ in parts[1:]] + [len(memory.nodes)]
    by_raw = {one.raw: one for one in backends}
    return [
        Split(by_raw[own], start, end, tuple(inputs))
        for (own, start, inputs), end in zip(parts, ends, strict=True)
    ]


def _parts(
    scheduler: ggml_backend_sched, first: ggml_backend, graph: Graph, memory: GraphMemory, limit: int | None
) -> list[_Part]:
    """Backend, first node and inputs of each split, if a split has at most `limit` inputs."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    context = graph.context

    def backend_of(raw: ggml_tensor) -> Any:
        return lib.ggml_backend_sched_get_tensor_backend(scheduler, raw)

    parts: list[_Part] = []
    copied: set[tuple[Any, Any]] = set()
    for number, raw in enumerate(memory.nodes):
        if is_view_op(Tensor(context, raw).op):
            continue
        own = backend_of(raw)
        pairs = list(zip(memory.sources[number], sources_of(raw), strict=True))
        if not parts:
            parts.append((own, 0, []))
        elif own != parts[-1][0] or _begins(pairs, own, parts[-1][2], copied, backend_of, limit):
            parts.append((own, number, []))
        for source, copy in pairs:
            if source != copy and (source, own) not in copied:
                copied.add((source, own))
                name = ffi.string(copy.name).decode("utf-8", "surrogateescape")
                parts[-1][2].append(InputCopy(name, lib.ggml_nbytes(source), Tensor(context, source)))
    if not parts:
        parts.append((first, 0, []))
    return parts


def _begins(
    pairs: list[tuple[Any, Any]],
    own: Any,
    inputs: list[InputCopy],
    copied: set[tuple[Any, Any]],
    backend_of: Any,
    limit: int | None,
) -> bool:
    lib = load().lib
    if not inputs:
        return False
    for source, copy in pairs:
        elsewhere = source != copy
        weights = source.buffer and source.buffer.usage == lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS
        if weights and elsewhere and backend_of(source) != own:
            return True
        if limit is not None and len(inputs) >= limit and elsewhere and (source, own) not in copied:
            return True
    return False
