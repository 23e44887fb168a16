"""Memory for the tensors of a graph, shared among those that are not needed at the same time."""

from __future__ import annotations

from pyggml.errors import PyggmlError
from pyggml.ggml.device import Backend, BufferType, Device, buffer_type_of, free_memory
from pyggml.ggml.graph import Graph
from pyggml.ggml.graph_memory import GraphMemory, bind, check_bound, survey
from pyggml.ggml.library import load
from pyggml.ggml.meta import MetaDevice
from pyggml.ggml.mirrored import SplitMemory
from pyggml.ggml.tensor import Tensor


class Allocator(SplitMemory):
    """A graph allocator over one kind of memory (`ggml_gallocr_t`).

    It holds one graph at a time: allocating the next one makes the tensors of the one before stale.
    """

    def __init__(self, place: Device | Backend | BufferType) -> None:
        self.type = buffer_type_of(place)
        self._bindings = load()
        self.raw = self._bindings.lib.ggml_gallocr_new(self.type.raw)
        super().__init__(f"allocator of {self.type.name}")

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        with self.using():
            return self._bindings.lib.ggml_gallocr_get_buffer_size(self.raw, 0)

    def reserve(self, graph: Graph) -> None:
        """Get memory for a graph of this shape, without giving it to the graph.

        Raises:
            PyggmlError: there is not enough.
        """
        with self.using(), graph.using():
            if graph.bound is not None:
                raise PyggmlError(f"{graph.label} has memory already")
            memory = survey(graph, self)
            self.generation += 1
            self._reserve(graph, memory)

    def allocate(self, graph: Graph) -> None:
        """Give memory to every tensor of the graph that has none.

        Raises:
            PyggmlError: there is not enough, or the graph has memory already.
            ClosedError, StaleError: memory of a tensor is gone.
        """
        with self.using(), graph.using():
            if check_bound(graph, self):
                return
            memory = survey(graph, self)
            self.generation += 1
            # Allocating reserves too, but once that has failed it goes on without memory.
            self._reserve(graph, memory)
            if not self._bindings.guarded(self._bindings.lib.ggml_gallocr_alloc_graph, self.raw, graph.raw):
                raise PyggmlError(self._too_little(graph))
            bind(graph, memory, self)

    def _reserve(self, graph: Graph, memory: GraphMemory) -> None:
        self._check_meta(graph, memory)
        if not self._bindings.guarded(self._bindings.lib.ggml_gallocr_reserve, self.raw, graph.raw):
            raise PyggmlError(self._too_little(graph))

    def _check_meta(self, graph: Graph, memory: GraphMemory) -> None:
        device = self.type.device
        if not isinstance(device, MetaDevice):
            return
        states = device.check_graph(graph, {})
        lib = self._bindings.lib
        for raw in memory.all():
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
            self.type.check_free(sizes[0])
        device.rehearse(graph, states, "ggml_gallocr_alloc_graph", self.raw)

    def _too_little(self, graph: Graph) -> str:
        largest = max(graph.nodes, key=lambda one: one.nbytes)
        return (
            f"no memory for {graph.label} in {free_memory(self.type)}; the largest of its nodes is "
            f"{largest.described()} with {largest.nbytes} bytes"
        )

    def _release(self) -> None:
        self._bindings.lib.ggml_gallocr_free(self.raw)
