"""Memory for the tensors of a graph, shared among those that are not needed at the same time."""

from __future__ import annotations

from typing import Any

from pyggml.errors import PyggmlError
from pyggml.ggml.buffer import free_memory
from pyggml.ggml.device import buffer_type_of
from pyggml.ggml.graph import Graph
from pyggml.ggml.library import load
from pyggml.ggml.memory import Owner
from pyggml.ggml.placement import Placement, bind, check_bound, place
from pyggml.ggml.tensor import Tensor


class Allocator(Owner):
    """A graph allocator over one kind of memory (`ggml_gallocr_t`).

    It holds one graph at a time: allocating the next one makes the tensors of the one before stale.
    """

    def __init__(self, place: Any) -> None:
        """
        Args:
            place: a Device, Backend or BufferType.
        """
        self.type = buffer_type_of(place)
        self._bindings = load()
        self.raw: Any = self._bindings.lib.ggml_gallocr_new(self.type.raw)
        super().__init__(f"allocator of {self.type.name}")

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        with self.using():
            return int(self._bindings.lib.ggml_gallocr_get_buffer_size(self.raw, 0))

    def reserve(self, graph: Graph) -> None:
        """Get memory for a graph like this one, without giving it to the graph.

        Raises:
            PyggmlError: there is not enough.
        """
        with self.using(), graph.using():
            if graph.bound is not None:
                raise PyggmlError(f"{graph.label} has memory already")
            placement = place(graph, self)
            self.generation += 1
            self._reserve(graph, placement)

    def allocate(self, graph: Graph) -> None:
        """Give memory to every tensor of the graph that has none.

        Raises:
            PyggmlError: there is not enough, or the graph has memory already.
            ClosedError, StaleError: memory of a tensor is gone.
        """
        with self.using(), graph.using():
            if check_bound(graph, self):
                return
            placement = place(graph, self)
            self.generation += 1
            # Allocating reserves too, but once that has failed it goes on without memory.
            self._reserve(graph, placement)
            if not self._bindings.guarded(self._bindings.lib.ggml_gallocr_alloc_graph, self.raw, graph.raw):
                raise PyggmlError(self._too_little(graph))
            bind(graph, placement, self)

    def _reserve(self, graph: Graph, placement: Placement) -> None:
        self._check_meta(graph, placement)
        if not self._bindings.guarded(self._bindings.lib.ggml_gallocr_reserve, self.raw, graph.raw):
            raise PyggmlError(self._too_little(graph))

    def _check_meta(self, graph: Graph, placement: Placement) -> None:
        if not self.type.is_meta:
            return
        from pyggml.ggml.meta import MetaDevice, check_memory
        from pyggml.ggml.metarules import check_graph

        device = self.type.device
        assert isinstance(device, MetaDevice)  # noqa: S101
        check_graph(graph, {}, len(device.devices), trust=device.trust_upstream)
        lib = self._bindings.lib
        for raw in placement.all():
            root = raw.view_src or raw
            if root.buffer and not lib.ggml_backend_dev_supports_buft(self.type.device.raw, root.buffer.buft):
                raise PyggmlError(
                    f"{Tensor(graph.context, raw).described()} is not on the devices of {self.label}",
                    "A Scheduler copies what is elsewhere.",
                )
        sizes = self._bindings.ffi.new("size_t[1]")
        lib.ggml_gallocr_reserve_n_size(
            self.raw, graph.raw, self._bindings.ffi.NULL, self._bindings.ffi.NULL, sizes
        )
        if sizes[0]:
            check_memory(self.type, sizes[0])

    def _too_little(self, graph: Graph) -> str:
        largest = max(graph.nodes, key=lambda one: one.nbytes)
        return (
            f"memory for {graph.label} is not to be had in {free_memory(self.type)}; the largest of its nodes "
            f"is {largest.described()} with {largest.nbytes} bytes"
        )

    def _release(self) -> None:
        self._bindings.lib.ggml_gallocr_free(self.raw)
