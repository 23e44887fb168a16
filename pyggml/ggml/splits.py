"""What a scheduler made of a graph, read from the graph itself: upstream's struct is not public."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load
from pyggml.ggml.tensor import Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.ggml.backend import Backend
    from pyggml.ggml.graph import Graph
    from pyggml.ggml.placement import Placement
    from pyggml.ggml.scheduler import Scheduler

_INPUTS = 30
"""GGML_SCHED_MAX_SPLIT_INPUTS: with that many, a node with another one begins a new split in older trees."""

_Part = tuple[Any, int, list["InputCopy"]]


@dataclass(frozen=True)
class InputCopy:
    """A tensor that is copied to the backend of a split before it is computed.

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
    """Nodes that one backend computes in a row.

    Attributes:
        start, end: indices of the graph's nodes, the end not included; views count where they stand.
        inputs: what is copied first, in that order.
    """

    backend: Backend
    start: int
    end: int
    inputs: tuple[InputCopy, ...]


def read_splits(scheduler: Scheduler, graph: Graph, placement: Placement) -> list[Split]:
    """Follow pass 5 of ggml_backend_sched_split_graph over the graph that it left.

    Args:
        placement: the graph before the scheduler took it.

    Raises:
        PyggmlError: the number of splits is not the one that upstream says: its rules have changed.
    """
    said = load().lib.ggml_backend_sched_get_n_splits(scheduler.raw)
    # Nothing in the library tells whether it limits the inputs of a split, but the number of splits does.
    tried = [_parts(scheduler, graph, placement, limit) for limit in (_INPUTS, None)]
    parts = next((one for one in tried if len(one) == said), None)
    if parts is None:
        raise PyggmlError(f"upstream made {said} splits, and the graph shows {len(tried[0])}")
    ends = [start for _, start, _ in parts[1:]] + [len(placement.nodes)]
    backends = {one.raw: one for one in scheduler.backends}
    return [
        Split(backends[own], start, end, tuple(inputs))
        for (own, start, inputs), end in zip(parts, ends, strict=True)
    ]


def _parts(scheduler: Scheduler, graph: Graph, placement: Placement, limit: int | None) -> list[_Part]:
    """Backend, first node and inputs of each split, if a split has at most `limit` inputs."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    context = graph.context

    def backend_of(raw: Any) -> Any:
        return lib.ggml_backend_sched_get_tensor_backend(scheduler.raw, raw)

    parts: list[_Part] = []
    copied: set[tuple[Any, Any]] = set()
    for number, raw in enumerate(placement.nodes):
        if is_view_op(Tensor(context, raw).op):
            continue
        own = backend_of(raw)
        now = ffi.unpack(raw.src, 10)
        pairs = list(zip(placement.sources[number], [one for one in now if one], strict=True))
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
        parts.append((scheduler.backends[0].raw, 0, []))
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
