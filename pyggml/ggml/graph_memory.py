"""Which tensors of a graph have memory, who owns that, and who keeps it while C computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyggml.errors import PyggmlError
from pyggml.ggml.graph import Graph
from pyggml.ggml.library import load
from pyggml.ggml.ownership import GraphViews, Owner, StaleError, Stamp, TensorPool
from pyggml.ggml.tensor import Tensor, sources_of

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_tensor


@dataclass
class GraphMemory:
    """The memory of a graph's tensors before anything takes the graph; tensors are raw.

    Attributes:
        sources: of every node, in its order, NULL left out.
        without: tensors that need memory of their own and have none yet.
        stamps: of the memory of the others.
        meta_views: views of buffers on MetaDevices.
    """

    nodes: list[ggml_tensor]
    leaves: list[ggml_tensor]
    sources: list[list[ggml_tensor]]
    without: list[ggml_tensor] = field(default_factory=list)
    stamps: set[Stamp] = field(default_factory=set)
    meta_views: dict[GraphViews, list[ggml_tensor]] = field(default_factory=dict)

    def all(self) -> list[ggml_tensor]:
        """Nodes and leaves."""
        return [*self.nodes, *self.leaves]


def survey(graph: Graph, taker: Owner | None = None) -> GraphMemory:
    """Find the memory of all tensors of a graph.

    Args:
        taker: will give memory to the graph, and reuse that of the graph that it has now.

    Raises:
        PyggmlError: the graph is empty, or pyggml does not know whose memory a tensor has.
        ClosedError, StaleError: memory of a tensor is gone.
    """
    nodes = graph.raw_nodes()
    if not nodes:
        raise PyggmlError(f"{graph.label} is empty", "Add what it is to compute: graph.add(tensor).")
    known = set(nodes)
    leaves: dict[ggml_tensor, None] = dict(graph.lone)
    sources = []
    for raw in nodes:
        sources.append(sources_of(raw))
        for one in sources[-1]:
            if one not in known:
                leaves[one] = None
    result = GraphMemory(nodes, list(leaves), sources)
    _find_memory(graph, result)
    if taker is not None and any(stamp.owner is taker for stamp in result.stamps):
        raise StaleError(
            f"{graph.label} needs results of the graph that {taker.label} has, whose memory it would reuse",
            "Build both into one graph, or keep the results in a context of their own (ops.cpy).",
        )
    return result


def _find_memory(graph: Graph, memory: GraphMemory) -> None:
    contexts = graph.context.reach()
    without: dict[ggml_tensor, None] = {}
    for raw in memory.all():
        for context in contexts:
            bound = context.bound.get(raw)
            if bound is not None:
                bound.check(Tensor(graph.context, raw).described())
        root = raw.view_src or raw
        if root in without:
            continue
        for context in contexts:
            stamp = context.memory.get(root)
            if stamp is not None:
                if stamp not in memory.stamps:
                    stamp.check(Tensor(graph.context, raw).described())
                    memory.stamps.add(stamp)
                if raw.view_src and root.buffer:
                    _find_view(graph, memory, raw, stamp)
                break
        else:
            if root.buffer or root.data:
                raise PyggmlError(
                    f"{Tensor(graph.context, root).described()} has memory that pyggml did not allocate"
                )
            without[root] = None
    memory.without = list(without)


def _find_view(graph: Graph, memory: GraphMemory, raw: ggml_tensor, stamp: Stamp) -> None:
    """A view on a MetaDevice belongs to one graph (stc_compute in ggml-backend-meta.cpp)."""
    if not load().lib.ggml_backend_buffer_is_meta((raw.view_src or raw).buffer):
        return
    views = stamp.owner.graph_views
    if views is not None and raw in views.own:
        return
    if views is None or raw.buffer:
        raise StaleError(
            f"{Tensor(graph.context, raw).described()} is a view on a MetaDevice that belongs to another graph, or "
            "of another graph's result",
            "Make such views anew for every graph.",
        )
    memory.meta_views.setdefault(views, []).append(raw)
    if views.since_compute + len(memory.meta_views[views]) > views.most:
        raise PyggmlError(
            f"{stamp.owner.label} has room for {views.most} views between two computations",
            "Compute in between.",
        )


def bind(graph: Graph, memory: GraphMemory, owner: Owner) -> None:
    """Record that an owner has taken the graph and given memory to its tensors."""
    stamp = Stamp(owner, keep=False)
    graph.bound = stamp
    graph.stamps = {*memory.stamps, stamp}
    contexts = graph.context.reach()
    for raw in memory.without:
        _home(contexts, raw).own(raw, stamp)
    for raw, sources in zip(memory.nodes, memory.sources, strict=True):
        if sources_of(raw) != sources:
            _home(contexts, raw).bind(raw, stamp)
    for views, raws in memory.meta_views.items():
        views.generation += 1
        views.since_compute += len(raws)
        theirs = Stamp(views, keep=False)
        graph.stamps.add(theirs)
        for raw in raws:
            _home(contexts, raw).bind(raw, theirs)


def check_bound(graph: Graph, owner: Owner) -> bool:
    """Whether the owner has the graph already.

    Raises:
        StaleError: it had it before, or another owner has it.
        ClosedError: memory of one of its tensors is gone.
    """
    if graph.bound is None:
        return False
    graph.bound.check(graph.label)
    if graph.bound.owner is not owner:
        raise StaleError(
            f"{graph.label} has its memory from {graph.bound.owner.label}, not from {owner.label}",
            "Build one graph for each.",
        )
    check_stamps(graph)
    return True


def check_stamps(graph: Graph) -> None:
    """Raise if memory of one of its tensors is gone."""
    for stamp in graph.stamps:
        stamp.check(f"a tensor of {graph.label}")


@contextlib.contextmanager
def running(graph: Graph) -> Iterator[None]:
    """Keep everything that the graph needs until the end of the block; none of it can be closed."""
    with contextlib.ExitStack() as stack:
        for handle in (graph, *graph.context.reach(), *(stamp.owner for stamp in graph.stamps)):
            stack.enter_context(handle.lease(in_call=True))
        for stamp in graph.stamps:
            if isinstance(stamp.owner, GraphViews):
                stamp.owner.since_compute = 0
        yield


def _home(contexts: tuple[TensorPool, ...], raw: ggml_tensor) -> TensorPool:
    if len(contexts) == 1:
        return contexts[0]
    bindings = load()
    address = int(bindings.ffi.cast("uintptr_t", raw))
    for context in contexts:
        start = int(bindings.ffi.cast("uintptr_t", bindings.lib.ggml_get_mem_buffer(context.raw)))
        if start <= address < start + bindings.lib.ggml_get_mem_size(context.raw):
            return context
    raise PyggmlError("a tensor of the graph is in a context that pyggml does not know")
