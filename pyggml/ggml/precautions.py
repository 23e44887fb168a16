"""What ends the process when a scheduler meets it, found before: places, leaves, copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load
from pyggml.ggml.metarules import check_transfer, wrong_view
from pyggml.ggml.placement import Placement, check_op
from pyggml.ggml.tensor import Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.ggml.backend import Backend
    from pyggml.ggml.graph import Graph
    from pyggml.ggml.scheduler import Scheduler


def check_places(scheduler: Scheduler, graph: Graph, placement: Placement) -> None:
    """Every tensor with memory must be where a backend can use it, every node where one can compute it.

    Raises:
        PyggmlError: one is not; upstream aborts in ggml_backend_sched_split_graph.
    """
    bindings = load()
    usable: dict[Any, list[Backend]] = {}
    for number, raw in enumerate(placement.all()):
        buffer = (raw.view_src or raw).buffer
        backends = list(scheduler.backends)
        if buffer:
            kind = buffer.buft
            if kind not in usable:
                usable[kind] = [
                    one for one in backends if bindings.lib.ggml_backend_supports_buft(one.raw, kind)
                ]
            backends = usable[kind]
            if not backends:
                name = bindings.ffi.string(bindings.lib.ggml_backend_buft_name(kind))
                raise PyggmlError(
                    f"{Tensor(graph.context, raw).described()} is in {name.decode('utf-8', 'replace')}, which no "
                    f"backend of {scheduler.label} uses"
                )
        if number < len(placement.nodes):
            check_op(graph.context, raw, backends)


def check_leaves(scheduler: Scheduler, graph: Graph, placement: Placement, parallel: bool) -> None:
    """A leaf gets its backend from what reads it, but not through views (pass 4 of upstream's split).

    Raises:
        PyggmlError: nothing says where a leaf belongs; or with `parallel`, an input has memory of its own.
    """
    lib = load().lib
    without = set(placement.without)
    viewed: set[Any] = set()
    read: set[Any] = set()
    for raw, sources in zip(placement.nodes, placement.sources, strict=True):
        (viewed if is_view_op(Tensor(graph.context, raw).op) else read).update(sources)
    for raw in placement.leaves:
        given = raw.flags & lib.GGML_TENSOR_FLAG_INPUT
        if parallel and given and raw not in without:
            # ggml_gallocr_needs_realloc does not look at leaves, and the copies change places.
            raise PyggmlError(
                f"{Tensor(graph.context, raw).described()} is an input with memory of its own, of which "
                f"{scheduler.label} cannot keep copies",
                "Let the scheduler allocate it, or do not mark it as input.",
            )
        open_ = raw in without and not given
        if open_ and (raw in viewed or raw not in read):
            raise PyggmlError(
                f"{Tensor(graph.context, raw).described()} has no memory, and is read through views or not at "
                "all: upstream cannot tell where it belongs",
                "Mark it as input, or allocate its context.",
            )


def check_copies(scheduler: Scheduler, placement: Placement) -> None:
    """The copies of an allocated graph's inputs must be such as a meta device can make.

    Raises:
        PyggmlError: one is not; upstream asserts it when the copy is made.
    """
    if not any(kind.is_meta for kind in scheduler.buffer_types):
        return
    from pyggml.ggml.meta import MetaDevice

    for split in scheduler.splits:
        device = split.backend.device
        if isinstance(device, MetaDevice) and not device.trust_upstream:
            wrong = wrong_view(placement.nodes[split.start : split.end])
            if wrong:
                raise PyggmlError(
                    f"what a MetaDevice computes (nodes {split.start} to {split.end - 1}) {wrong}",
                    "Change the order of the graph: ggml_backend_meta_graph_compute asserts this.",
                )
        for copy in split.inputs:
            backend = scheduler.assignment(copy.source)
            if backend is not None and backend.device.kind == "meta":
                check_transfer(copy.source, scheduler, 0, copy.source.nbytes, writing=False)
