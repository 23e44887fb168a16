"""Graphs: operations in the order in which they are computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyggml.errors import PyggmlError
from pyggml.ggml.handle import Handle
from pyggml.ggml.library import load
from pyggml.ggml.ownership import Stamp, TensorPool
from pyggml.ggml.tensor import Tensor, sources_of

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_tensor

_LARGEST = 1 << 24


class Graph(Handle):
    """A `struct ggml_cgraph` over tensors of one context and those it uses.

    Attributes:
        context: the context.
        bound: the scheduler or allocator that has it, once it has memory; a graph gets memory once.
    """

    def __init__(self, context: TensorPool, *outputs: Tensor, size: int | None = None) -> None:
        """
        Args:
            outputs: what to compute.
            size: room for nodes (and as many leaves); by default one and a half times the tensors that there
                are now, at least 64.

        Raises:
            PyggmlError: a tensor is of a context that `context` does not use, or the graph is too small.
        """
        self.context = context
        self._bindings = load()
        ffi, lib = self._bindings.ffi, self._bindings.lib
        context.check()
        if size is None:
            size = max(64, sum(one.count() for one in context.reach()) * 3 // 2)
        if not isinstance(size, int) or not 1 <= size <= _LARGEST:
            raise PyggmlError(f"a graph of {size!r} nodes is asked for; 1 to {_LARGEST:,} are possible")
        self.size = size
        memory = lib.ggml_graph_overhead_custom(size, False) + lib.ggml_tensor_overhead()
        self._own = lib.ggml_init({"mem_size": memory, "mem_buffer": ffi.NULL, "no_alloc": True})
        if not self._own:
            raise PyggmlError(f"no memory for a graph of {size} nodes")
        self.raw = lib.ggml_new_graph_custom(self._own, size, False)
        self.bound: Stamp | None = None
        self.stamps: set[Stamp] = set()
        self.ready_for: Handle | None = None
        # Leaves that no node reads: nothing in C lists them.
        self.lone: dict[ggml_tensor, None] = {}
        super().__init__(f"a graph of {context.label}", context)
        self.add(*outputs)

    def __len__(self) -> int:
        """How many nodes it has."""
        self.check()
        return self._bindings.lib.ggml_graph_n_nodes(self.raw)

    def add(self, *outputs: Tensor) -> Graph:
        """Compute these as well, after the nodes that there are (ggml_build_forward_expand). Returns: self.

        Raises:
            PyggmlError: it has memory already, has no room for the nodes, or a tensor is of a context that its
                own does not use.
            ClosedError, StaleError: a tensor that is needed lost its memory.
        """
        with self.using(), self.context.using():
            self.ready_for = None
            if self.bound is not None and outputs:
                raise PyggmlError(f"{self.label} has memory already; nothing can be added")
            for tensor in outputs:
                if not isinstance(tensor, Tensor):
                    raise PyggmlError(f"a graph computes tensors, not a {type(tensor).__name__}")
                tensor.check_usable()
                if tensor.context not in self.context.reach():
                    raise PyggmlError(
                        f"{tensor.described()} is of {tensor.context.label}, not of {self.context.label}"
                    )
                self._check_room(tensor)
                self._bindings.lib.ggml_build_forward_expand(self.raw, tensor.raw)
                if tensor.raw.op == 0:
                    self.lone[tensor.raw] = None
        return self

    @property
    def nodes(self) -> list[Tensor]:
        """Its nodes in the order of computation."""
        with self.using():
            return [Tensor(self.context, raw) for raw in self.raw_nodes()]

    def raw_nodes(self) -> list[ggml_tensor]:
        """`struct ggml_tensor *` of its nodes."""
        ffi, lib = self._bindings.ffi, self._bindings.lib
        count = lib.ggml_graph_n_nodes(self.raw)
        nodes: list[ggml_tensor] = ffi.unpack(lib.ggml_graph_nodes(self.raw), count) if count else []
        return nodes

    def _check_room(self, tensor: Tensor) -> None:
        """Expanding a graph that is too small is an assertion in ggml; stale sources are freed memory."""
        contexts = self.context.reach()
        if sum(one.count() for one in contexts) <= self.size and not any(one.bound for one in contexts):
            return
        known = set(self.raw_nodes())
        leaves: set[ggml_tensor] = set(self.lone)
        for raw in known:
            leaves.update(one for one in sources_of(raw) if one not in known)
        nodes, pending = set(known), [tensor.raw]
        while pending:
            raw = pending.pop()
            if raw in nodes or raw in leaves:
                continue
            Tensor(self.context, raw).check_usable()
            (leaves if raw.op == 0 else nodes).add(raw)
            pending.extend(sources_of(raw))
        if max(len(nodes), len(leaves)) > self.size:
            raise PyggmlError(
                f"{tensor.described()} needs {len(nodes)} nodes and {len(leaves)} leaves, and {self.label} "
                f"holds {self.size}",
                "Give the graph a larger size.",
            )

    def _release(self) -> None:
        self._bindings.lib.ggml_free(self._own)
