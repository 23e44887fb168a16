"""What of a graph has memory, whose it is, and who holds it while C computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load
from pyggml.ggml.memory import GraphViews, Owner, StaleError, Stamp
from pyggml.ggml.tensor import Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.ggml.backend import Backend
    from pyggml.ggml.context import Context
    from pyggml.ggml.graph import Graph

MOST_SOURCES = 10
"""GGML_MAX_SRC."""


@dataclass
class Placement:
    """A graph as it is before anything takes it; tensors are raw.

    Attributes:
        sources: of every node, in its order, NULL left out.
        without: tensors that own memory and have none yet.
        stamps: whose memory the others have.
        meta_views: views of buffers on MetaDevices.
    """

    nodes: list[Any]
    leaves: list[Any]
    sources: list[list[Any]]
    without: list[Any] = field(default_factory=list)
    stamps: set[Stamp] = field(default_factory=set)
    meta_views: dict[GraphViews, list[Any]] = field(default_factory=dict)

    def all(self) -> list[Any]:
        """Nodes and leaves."""
        return [*self.nodes, *self.leaves]


def place(graph: Graph, taker: Owner | None = None) -> Placement:
    """Walk a graph; every tensor whose memory is gone is refused.

    Args:
        taker: takes the graph, and with it the memory of the graph that it has now.

    Raises:
        PyggmlError: the graph is empty, or a tensor's memory is nothing pyggml knows.
        ClosedError, StaleError: memory is gone.
    """
    ffi = load().ffi
    nodes = graph.raw_nodes()
    if not nodes:
        raise PyggmlError(f"{graph.label} is empty", "Add what it shall compute: graph.add(tensor).")
    known = set(nodes)
    leaves: dict[Any, None] = dict(graph.lone)
    sources = []
    for raw in nodes:
        found = [one for one in ffi.unpack(raw.src, MOST_SOURCES) if one]
        sources.append(found)
        for one in found:
            if one not in known:
                leaves[one] = None
    result = Placement(nodes, list(leaves), sources)
    _find_memory(graph, result)
    if taker is not None and any(stamp.owner is taker for stamp in result.stamps):
        raise StaleError(
            f"{graph.label} needs results of the graph that {taker.label} has, and takes their memory",
            "Build both into one graph, or keep the results in a context of their own (ops.cpy).",
        )
    return result


def _find_memory(graph: Graph, placement: Placement) -> None:
    contexts = list(graph.context.reach())
    without: dict[Any, None] = {}
    for raw in placement.all():
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
                if stamp not in placement.stamps:
                    stamp.check(Tensor(graph.context, raw).described())
                    placement.stamps.add(stamp)
                if raw.view_src and root.buffer:
                    _find_view(graph, placement, raw, stamp)
                break
        else:
            if root.buffer or root.data:
                raise PyggmlError(
                    f"{Tensor(graph.context, root).described()} has memory that pyggml did not allocate"
                )
            without[root] = None
    placement.without = list(without)


def _find_view(graph: Graph, placement: Placement, raw: Any, stamp: Stamp) -> None:
    """A view on a MetaDevice belongs to one graph (stc_compute in ggml-backend-meta.cpp)."""
    from pyggml.ggml.meta import MetaBuffer

    owner = stamp.owner
    if not load().lib.ggml_backend_buffer_is_meta((raw.view_src or raw).buffer):
        return
    if isinstance(owner, MetaBuffer) and raw in owner.own_views:
        return
    if not isinstance(owner, MetaBuffer) or raw.buffer:
        raise StaleError(
            f"{Tensor(graph.context, raw).described()} is a view on a MetaDevice that another graph has, or of "
            "another graph's result",
            "Make such views anew for every graph.",
        )
    placement.meta_views.setdefault(owner.views, []).append(raw)
    if owner.views.since_compute + len(placement.meta_views[owner.views]) > owner.most_views:
        raise PyggmlError(
            f"{owner.label} has room for {owner.most_views} views between two computations",
            "Compute meanwhile.",
        )


def bind(graph: Graph, placement: Placement, owner: Owner) -> None:
    """From now on the graph is the owner's, and so is the memory that its tensors got."""
    stamp = Stamp(owner, keep=False)
    graph.bound = stamp
    graph.stamps = {*placement.stamps, stamp}
    contexts = list(graph.context.reach())
    for raw in placement.without:
        _home(contexts, raw).memory[raw] = stamp
    ffi = load().ffi
    for raw, sources in zip(placement.nodes, placement.sources, strict=True):
        if [one for one in ffi.unpack(raw.src, MOST_SOURCES) if one] != sources:
            _home(contexts, raw).bound[raw] = stamp
    for views, raws in placement.meta_views.items():
        views.generation += 1
        views.since_compute += len(raws)
        theirs = Stamp(views, keep=False)
        graph.stamps.add(theirs)
        for raw in raws:
            _home(contexts, raw).bound[raw] = theirs


def check_bound(graph: Graph, owner: Owner) -> bool:
    """Whether the graph is the owner's already.

    Raises:
        StaleError: it was, or it is somebody else's.
        ClosedError: memory of one of its tensors is gone.
    """
    if graph.bound is None:
        return False
    graph.bound.check(graph.label)
    if graph.bound.owner is not owner:
        raise StaleError(
            f"{graph.label} has its memory from {graph.bound.owner.label}, not from {owner.label}",
            "Build a graph for each.",
        )
    check_stamps(graph)
    return True


def check_stamps(graph: Graph) -> None:
    """Raise if memory of one of its tensors is gone."""
    for stamp in graph.stamps:
        stamp.check(f"a tensor of {graph.label}")


@contextlib.contextmanager
def running(graph: Graph) -> Iterator[None]:
    """Nothing that the graph needs is freed meanwhile, whoever closes it."""
    with contextlib.ExitStack() as stack:
        for handle in (graph, *graph.context.reach(), *(stamp.owner for stamp in graph.stamps)):
            stack.enter_context(handle.lease())
        for stamp in graph.stamps:
            if isinstance(stamp.owner, GraphViews):
                stamp.owner.since_compute = 0
        yield


def check_for_backend(graph: Graph, backend: Backend) -> None:
    """Raise unless the backend can compute all of the graph where its tensors are."""
    if graph.bound is not None:
        graph.bound.check(graph.label)
    if graph.ready_for is backend:
        check_stamps(graph)
        return
    placement = place(graph)
    graph.stamps |= placement.stamps
    if backend.device.kind == "meta":
        _check_for_meta(graph, placement)
    bindings = load()
    lib = bindings.lib
    supported: dict[Any, bool] = {}
    for raw in placement.all():
        root = raw.view_src or raw
        if not root.buffer or (not raw.data and not raw.buffer):
            raise PyggmlError(
                f"{Tensor(graph.context, raw).described()} has no memory yet",
                "Allocate the graph with an Allocator, or compute it with a Scheduler.",
            )
        kind = root.buffer.buft
        if kind not in supported:
            supported[kind] = lib.ggml_backend_supports_buft(backend.raw, kind)
        if not supported[kind]:
            name = bindings.ffi.string(lib.ggml_backend_buft_name(kind)).decode("utf-8", "replace")
            raise PyggmlError(
                f"{Tensor(graph.context, raw).described()} is in {name}, which {backend.label} cannot use",
                "A Scheduler copies what is elsewhere.",
            )
    for raw in placement.nodes:
        check_op(graph.context, raw, [backend])
    graph.ready_for = backend


def _check_for_meta(graph: Graph, placement: Placement) -> None:
    from pyggml.ggml.metarules import wrong_view

    if graph.bound is None:
        raise PyggmlError(
            f"{graph.label} has no memory from an Allocator or Scheduler, as a graph on a MetaDevice must have"
        )
    wrong = wrong_view(placement.nodes)
    for raw in placement.nodes:
        if not raw.buffer:
            wrong = f"has no memory for {Tensor(graph.context, raw).described()}"
    if wrong:
        raise PyggmlError(f"{graph.label}, which a MetaDevice shall compute, {wrong}")


def check_op(context: Context, raw: Any, backends: list[Backend]) -> None:
    """Raise if no backend computes a node's operation."""
    lib = load().lib
    if any(lib.ggml_backend_supports_op(one.raw, raw) for one in backends):
        return
    tensor = Tensor(context, raw)
    if is_view_op(tensor.op):
        return
    of = ", ".join(f"{one.type} {one.shape}" for one in tensor.sources)
    raise PyggmlError(
        f"{tensor.described()}: {tensor.op} of {of} is not possible on "
        f"{', '.join(one.device.name for one in backends)}"
    )


def _home(contexts: list[Context], raw: Any) -> Context:
    if len(contexts) == 1:
        return contexts[0]
    bindings = load()
    address = int(bindings.ffi.cast("uintptr_t", raw))
    for context in contexts:
        start = int(bindings.ffi.cast("uintptr_t", bindings.lib.ggml_get_mem_buffer(context.raw)))
        if start <= address < start + bindings.lib.ggml_get_mem_size(context.raw):
            return context
    raise PyggmlError("a tensor of the graph is of no context that is known")
