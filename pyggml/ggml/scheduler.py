"""Schedulers: graphs over several backends, split where tensors have to be copied."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.device import Backend, BufferType, check_op, check_status, free_memory
from pyggml.ggml.graph import Graph
from pyggml.ggml.graph_memory import GraphMemory, bind, check_bound, running, survey
from pyggml.ggml.library import load
from pyggml.ggml.meta import MetaDevice
from pyggml.ggml.mirrored import SplitMemory, States, check_leaves, is_host_view, state_of, wrong_view
from pyggml.ggml.ownership import TensorPool
from pyggml.ggml.scheduler_splits import Split, read_splits
from pyggml.ggml.split_state import Axis
from pyggml.ggml.tensor import Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_backend_sched, ggml_tensor

MOST_BACKENDS = 16
"""GGML_SCHED_MAX_BACKENDS."""

MOST_RESULTS = 1_000_000

EvalCallback = Callable[[Tensor, bool], bool]


class Scheduler(SplitMemory):
    """Computes graphs on several backends (`ggml_backend_sched_t`); the first one has the highest priority.

    It has one graph at a time. A graph gets memory once and can then be computed again and again; `reset`, or
    the next graph, makes it and the tensors that got memory here stale.

    Attributes:
        backends: in order of priority.
        graph_size: nodes and leaves of the largest graph.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        buffer_types: Sequence[BufferType] | None = None,
        *,
        graph_size: int = 2048,
        parallel: bool = False,
        op_offload: bool = False,
    ) -> None:
        """
        Args:
            backends: 1 to 16; the last one is the CPU's.
            buffer_types: the memory for each backend's results; by default its device's own.
            graph_size: nodes and leaves of the largest graph; about 20 KB each.
            parallel: keep four copies of every input, so that inputs can be set while a graph is computed.
            op_offload: backends may take over operations whose weights are on the host.

        Raises:
            PyggmlError: other numbers or kinds of backends or buffer types.
            ClosedError: a backend is closed.
        """
        backends = list(backends)
        if not 1 <= len(backends) <= MOST_BACKENDS:
            raise PyggmlError(f"a scheduler has 1 to {MOST_BACKENDS} backends, not {len(backends)}")
        for one in backends:
            if not isinstance(one, Backend):
                raise PyggmlError(f"a scheduler has backends, not a {type(one).__name__}")
            one.check()
        if len(set(backends)) != len(backends):
            raise PyggmlError("a backend is given twice; make another one of the same device")
        if backends[-1].device.kind != "cpu":
            raise PyggmlError(
                f"the last backend must be the CPU's, not {backends[-1].label}",
                "It computes what the others cannot.",
            )
        types = [one.device.buffer_type for one in backends] if buffer_types is None else list(buffer_types)
        if len(types) != len(backends):
            raise PyggmlError(f"{len(types)} buffer types are given for {len(backends)} backends")
        for backend, kind in zip(backends, types, strict=True):
            if not isinstance(kind, BufferType) or not backend.supports(kind):
                raise PyggmlError(f"{backend.label} cannot compute in {kind!r}")
        metas = {getattr(kind.device, "devices", None) for kind in types if kind.is_meta}
        if len(metas) > 1:
            raise PyggmlError("MetaDevices of different devices do not share a scheduler")
        if not isinstance(graph_size, int) or not 1 <= graph_size <= 1 << 20:
            raise PyggmlError(f"a graph size of {graph_size!r} is asked for; 1 to {1 << 20} is possible")
        self.backends = backends
        self.buffer_types = types
        self.graph_size = graph_size
        self._bindings = load()
        self._parallel = bool(parallel)
        self._offload = bool(op_offload)
        with contextlib.ExitStack() as stack:
            for one in backends:
                stack.enter_context(one.lease(in_call=True))
            self.raw = self._new()
        self._assigned: dict[Any, Backend] = {}
        # Assigned tensors are remembered by address, so their contexts must stay.
        self._kept: list[TensorPool] = []
        self._in_graph: set[Any] = set()
        self._graph: Graph | None = None
        self._memory: GraphMemory | None = None
        self._eval: Any = None
        self._probe: Any = None
        self._computing = False
        self._results = 0
        super().__init__(f"scheduler of {', '.join(one.device.name for one in backends)}", *backends)

    @property
    def copies(self) -> int:
        """Copies of every input: 4 with `parallel`, otherwise 1."""
        with self.using():
            return self._bindings.lib.ggml_backend_sched_get_n_copies(self.raw)

    def buffer_size(self, backend: Backend) -> int:
        """Bytes that it holds for results on a backend; backends that share memory count once."""
        with self.using():
            return self._bindings.lib.ggml_backend_sched_get_buffer_size(self.raw, self._own(backend))

    def assign(self, tensor: Tensor, backend: Backend) -> None:
        """Compute a tensor on a backend, whatever the scheduler would choose; until the next reset.

        Raises:
            PyggmlError: the backend is not one of the scheduler's, cannot compute the operation or use the
                tensor's memory, or the tensor is a view (which is always where its source is).
        """
        with self.using():
            self._idle()
            raw_backend = self._own(backend)
            tensor.check_usable()
            if self._graph is not None:
                raise PyggmlError(f"{self.label} has a graph already", "Assign before, or after reset().")
            if tensor.is_view:
                raise PyggmlError(
                    f"{tensor.described()} is a view", "Assign what it is a view of; it follows that."
                )
            if len(self._assigned) >= self.graph_size:
                raise PyggmlError(f"{self.label} has room for {self.graph_size} tensors")
            check_op(tensor.context, tensor.raw, [backend])
            root = tensor.raw.view_src or tensor.raw
            if root.buffer and not self._bindings.lib.ggml_backend_supports_buft(
                backend.raw, root.buffer.buft
            ):
                raise PyggmlError(f"{tensor.described()} has memory that {backend.label} cannot use")
            self._bindings.lib.ggml_backend_sched_set_tensor_backend(self.raw, tensor.raw, raw_backend)
            self._assigned[tensor.raw] = backend
            self._kept.append(tensor.context)

    def assignment(self, tensor: Tensor) -> Backend | None:
        """The backend that a tensor was assigned to, or that the scheduler chose when it took the graph."""
        with self.using():
            tensor.context.check()
            if tensor.raw not in self._assigned and tensor.raw not in self._in_graph:
                return None
            raw = self._bindings.lib.ggml_backend_sched_get_tensor_backend(self.raw, tensor.raw)
            return next((one for one in self.backends if one.raw == raw), None)

    def reserve(self, graph: Graph) -> None:
        """Get memory for a graph of this shape. The graph itself is used up: build another one to compute.

        Raises:
            PyggmlError: see `allocate`.
        """
        with self.using(), graph.using():
            self._idle()
            if graph.bound is not None:
                raise PyggmlError(f"{graph.label} has been taken already")
            memory = self._begin(graph)
            with running(graph):
                done = self._bindings.guarded(
                    self._bindings.lib.ggml_backend_sched_reserve, self.raw, graph.raw
                )
            # The sources of its nodes are the scheduler's now.
            bind(graph, memory, self)
            self._forget()
            if not done:
                raise PyggmlError(self._too_little(graph))

    def allocate(self, graph: Graph) -> None:
        """Split a graph, and give memory to its tensors and to the copies of its inputs.

        The graph before becomes stale. Allocating the graph that it has is harmless.

        Raises:
            PyggmlError: there is not enough memory, the graph is too large or empty, no backend computes a node,
                or a tensor's memory is of none of them.
            ClosedError, StaleError: memory of a tensor is gone.
        """
        with self.using(), graph.using():
            self._idle()
            if check_bound(graph, self):
                return
            assigned = dict(self._assigned) if self._graph is None else {}
            memory = self._begin(graph)
            with running(graph):
                looked = self._check_in_place(graph, memory, assigned)
                done = self._grow(graph, memory, assigned, looked) and self._bindings.guarded(
                    self._bindings.lib.ggml_backend_sched_alloc_graph, self.raw, graph.raw
                )
            bind(graph, memory, self)
            if not done:
                self._forget()
                self._bindings.lib.ggml_backend_sched_reset(self.raw)
                raise PyggmlError(self._too_little(graph))
            self._graph, self._memory = graph, memory
            self._in_graph = set(memory.all())
            try:
                self._check_copies(memory)
            except PyggmlError:
                self._forget()
                self._bindings.lib.ggml_backend_sched_reset(self.raw)
                raise

    def compute(self, graph: Graph) -> None:
        """Compute a graph, allocating it first if that was not done, and wait for it.

        Raises:
            PyggmlError: see `allocate`; or a backend failed. Wrong data ends the process: indices out of range
                in get_rows and set_rows.
            Whatever the eval callback raises.
        """
        with self.using(), graph.using():
            self.allocate(graph)
            with running(graph):
                self._computing = True
                self._results = 0
                try:
                    status = self._bindings.guarded(
                        self._bindings.lib.ggml_backend_sched_graph_compute, self.raw, graph.raw
                    )
                finally:
                    self._computing = False
        check_status(status, f"{self.label} computing {graph.label}")

    def synchronize(self) -> None:
        """Wait for everything that was started."""
        with self.using():
            self._bindings.lib.ggml_backend_sched_synchronize(self.raw)

    def reset(self) -> None:
        """Forget the graph and all assignments; the memory is kept for the next graph."""
        with self.using():
            self._idle()
            self._forget()
            self._bindings.lib.ggml_backend_sched_reset(self.raw)

    @property
    def splits(self) -> list[Split]:
        """The splits of its graph, in the order of computation; none without a graph."""
        with self.using():
            if self._graph is None or self._memory is None:
                return []
            with self._graph.using():
                return read_splits(self.raw, self.backends, self._graph, self._memory)

    def on_eval(self, callback: EvalCallback | None) -> None:
        """Have a function called for every node: `callback(tensor, ask)`.

        With ask True it returns whether it wants to see that node; with ask False it can read the node's data,
        and stops the computation of the node's split by returning False (upstream goes on with the next split:
        ggml-backend.cpp, ggml_backend_sched_compute_splits). Its exception comes out of `compute`. The tensor
        may be used within the call only. The call cannot change this scheduler, nor close what the graph needs.
        None removes the function.
        """
        ffi, lib = self._bindings.ffi, self._bindings.lib
        with self.using():
            self._idle()
            if callback is None:
                lib.ggml_backend_sched_set_eval_callback(self.raw, ffi.NULL, ffi.NULL)
                self._eval = None
                return
            if not callable(callback):
                raise PyggmlError(f"the eval callback must be a function, not a {type(callback).__name__}")

            def call(raw: ggml_tensor, ask: bool) -> bool:
                graph = self._graph
                self.check()
                if graph is None:
                    raise PyggmlError(f"{self.label} is computing a graph that pyggml did not give it")
                if ask and any(kind.is_meta for kind in self.buffer_types) and is_host_view(raw):
                    # Nothing is computed there, and a MetaDevice must not stop after it.
                    return False
                return callback(Tensor(graph.context, raw), ask)

            made = self._bindings.callbacks.make("eval", call)
            lib.ggml_backend_sched_set_eval_callback(self.raw, made.pointer, made.data)
            self._eval = made

    def _new(self) -> ggml_backend_sched:
        return self._bindings.lib.ggml_backend_sched_new(
            [one.raw for one in self.backends],
            [one.raw for one in self.buffer_types],
            len(self.backends),
            self.graph_size,
            self._parallel,
            self._offload,
        )

    def _idle(self) -> None:
        if self._computing:
            raise PyggmlError(
                f"{self.label} is computing", "A callback can read, but not change the scheduler."
            )

    def _own(self, backend: Any) -> Any:
        if backend not in self.backends:
            raise PyggmlError(f"{getattr(backend, 'label', backend)!s:.80} is not a backend of {self.label}")
        return backend.raw

    def _begin(self, graph: Graph) -> GraphMemory:
        memory = survey(graph, self)
        count = len(memory.nodes) + len(memory.leaves) + len(self._assigned)
        if count > self.graph_size:
            raise PyggmlError(
                f"{graph.label} has {len(memory.nodes)} nodes and {len(memory.leaves)} leaves, and "
                f"{self.label} takes {self.graph_size} in all",
                "Give the scheduler a larger graph_size.",
            )
        self._check_places(graph, memory)
        check_leaves(self.label, graph.context, memory, parallel=self._parallel)
        checked = self._check_meta(graph, memory)
        if self._graph is not None:
            self._forget()
            self._bindings.lib.ggml_backend_sched_reset(self.raw)
        self.generation += 1
        if checked is not None:
            device, states = checked
            device.rehearse(graph, states, "ggml_backend_sched_alloc_graph", self.raw)
        return memory

    def _check_meta(self, graph: Graph, memory: GraphMemory) -> tuple[MetaDevice, States] | None:
        metas = [one for one in range(len(self.backends)) if self.buffer_types[one].is_meta]
        if not metas:
            return None
        lib = self._bindings.lib
        elsewhere = {raw: one for raw, one in self._assigned.items() if one.device.kind != "meta"}
        device = self.buffer_types[metas[0]].device
        assert isinstance(device, MetaDevice)  # noqa: S101
        states = device.check_graph(graph, elsewhere)
        # stc_compute in ggml_backend_meta_buffer_type_alloc_buffer.
        self._results += len(memory.nodes) * 2 + len(memory.leaves)
        if self._results > MOST_RESULTS:
            raise PyggmlError(
                f"{self.label} has allocated graphs of {MOST_RESULTS} tensors without computing one",
                "Upstream has room for that many on a MetaDevice: compute in between, or make a new scheduler.",
            )
        sums = [lib.ggml_nbytes(raw) for raw in memory.nodes if self._is_sum(graph, raw, elsewhere, states)]
        for number in metas:
            backend = self.backends[number]
            held = lib.ggml_backend_sched_get_buffer_size(self.raw, backend.raw)
            steps = (len(backend.device.devices) - 1).bit_length()  # type: ignore[attr-defined]
            needed = self._measure(graph, memory)[number] + steps * max(sums, default=0)
            self.buffer_types[number].check_free(needed, held)
        return device, states

    @staticmethod
    def _is_sum(graph: Graph, raw: ggml_tensor, elsewhere: dict[Any, Backend], states: States) -> bool:
        if raw in elsewhere or states.get(raw) is None:
            return False
        state = state_of(graph.context, raw, states, synced=False)
        return state is not None and state.axis == Axis.PARTIAL

    def _check_places(self, graph: Graph, memory: GraphMemory) -> None:
        """Every tensor with memory must be where a backend can use it, every node where one can compute it.

        Raises:
            PyggmlError: one is not; upstream aborts in ggml_backend_sched_split_graph.
        """
        ffi, lib = self._bindings.ffi, self._bindings.lib
        usable: dict[Any, list[Backend]] = {}
        for number, raw in enumerate(memory.all()):
            buffer = (raw.view_src or raw).buffer
            backends = self.backends
            if buffer:
                kind = buffer.buft
                if kind not in usable:
                    usable[kind] = [one for one in backends if lib.ggml_backend_supports_buft(one.raw, kind)]
                backends = usable[kind]
                if not backends:
                    name = ffi.string(lib.ggml_backend_buft_name(kind)).decode("utf-8", "replace")
                    raise PyggmlError(
                        f"{Tensor(graph.context, raw).described()} is in {name}, which no backend of "
                        f"{self.label} uses"
                    )
            if number < len(memory.nodes):
                check_op(graph.context, raw, backends)

    def _check_copies(self, memory: GraphMemory) -> None:
        """The copies of an allocated graph's inputs must be such as a meta device can make.

        Raises:
            PyggmlError: one is not; upstream asserts it when the copy is made.
        """
        if not any(kind.is_meta for kind in self.buffer_types):
            return
        for split in self.splits:
            device = split.backend.device
            if isinstance(device, MetaDevice) and not device.trust_upstream:
                wrong = wrong_view(memory.nodes[split.start : split.end])
                if wrong:
                    raise PyggmlError(
                        f"a MetaDevice cannot compute nodes {split.start} to {split.end - 1}: they {wrong}",
                        "Change the order of the graph: ggml_backend_meta_graph_compute asserts this.",
                    )
            for copy in split.inputs:
                backend = self.assignment(copy.source)
                if backend is not None and backend.device.kind == "meta":
                    source = copy.source
                    self.check_transfer(source.context, source.raw, 0, source.nbytes, writing=False)

    def _grow(self, graph: Graph, memory: GraphMemory, assigned: dict[Any, Backend], always: bool) -> bool:
        """Get the memory that the graph needs beyond what there is.

        Allocating would do that as well, but goes on without memory when there is none (ggml-backend.cpp,
        ggml_backend_sched_alloc_splits). Reserving replaces the graph's sources, so they are restored; it also
        starts the copies of inputs at number 0 again, so it is done only when needed.
        """
        lib = self._bindings.lib
        sizes = self._measure(graph, memory)
        held = [lib.ggml_backend_sched_get_buffer_size(self.raw, one.raw) for one in self.backends]
        if not always and any(held) and all(size <= there for size, there in zip(sizes, held, strict=True)):
            return True
        with self._sources_kept(memory):
            done = self._bindings.guarded(lib.ggml_backend_sched_reserve, self.raw, graph.raw)
        self._assign_all(assigned)
        return bool(done)

    def _check_in_place(self, graph: Graph, memory: GraphMemory, assigned: dict[Any, Backend]) -> bool:
        """Operations that write into another tensor must be where that is; upstream does not ensure it.

        Returns:
            Whether the graph was split, so that memory must be reserved for it.
        """
        without = set(memory.without)
        nodes = [
            raw
            for raw in memory.nodes
            if raw.view_src in without and not is_view_op(Tensor(graph.context, raw).op)
        ]
        if not nodes:
            return False
        lib = self._bindings.lib
        with self._sources_kept(memory):
            lib.ggml_backend_sched_split_graph(self.raw, graph.raw)
        wrong = None
        for raw in nodes:
            own, root = (
                lib.ggml_backend_sched_get_tensor_backend(self.raw, one) for one in (raw, raw.view_src)
            )
            if own != root and not (own and root):
                wrong = raw
            elif own != root:
                kind = lib.ggml_backend_sched_get_buffer_type(self.raw, root)
                if not lib.ggml_backend_supports_buft(own, kind):
                    wrong = raw
        lib.ggml_backend_sched_reset(self.raw)
        self._assign_all(assigned)
        if wrong is not None:
            tensor = Tensor(graph.context, wrong)
            raise PyggmlError(
                f"{tensor.described()} would be computed on another backend than the tensor that it writes into, "
                f"{Tensor(graph.context, wrong.view_src).described()}",
                "Assign that one, mark it as input, or allocate its context.",
            )
        return True

    def _assign_all(self, assigned: dict[Any, Backend]) -> None:
        for raw, backend in assigned.items():
            self._bindings.lib.ggml_backend_sched_set_tensor_backend(self.raw, raw, backend.raw)

    def _measure(self, graph: Graph, memory: GraphMemory) -> list[int]:
        """Upper bound of bytes for each backend, by another scheduler: this one would free its memory."""
        ffi, lib = self._bindings.ffi, self._bindings.lib
        if self._probe is None:
            self._probe = ffi.gc(self._new(), lib.ggml_backend_sched_free)
        sizes = ffi.new("size_t[]", len(self.backends))
        with self._sources_kept(memory):
            lib.ggml_backend_sched_reserve_size(self._probe, graph.raw, sizes)
        # It forgets assignments first, so what is assigned may come on top.
        extra = dict.fromkeys(self.backends, 0)
        for raw, backend in self._assigned.items():
            extra[backend] += lib.ggml_nbytes(raw)
        return [size + extra[one] for size, one in zip(sizes, self.backends, strict=True)]

    @contextlib.contextmanager
    def _sources_kept(self, memory: GraphMemory) -> Iterator[None]:
        """Splitting a graph replaces its nodes' sources by copies: restore them at the end of the block."""
        ffi = self._bindings.ffi
        kept = [bytes(ffi.buffer(raw.src)) for raw in memory.nodes]
        try:
            yield
        finally:
            for raw, data in zip(memory.nodes, kept, strict=True):
                ffi.memmove(raw.src, data, len(data))

    def _forget(self) -> None:
        self.generation += 1
        self._graph = self._memory = None
        self._in_graph = set()
        self._kept = []
        self._assigned.clear()

    def _too_little(self, graph: Graph) -> str:
        largest = max(graph.nodes, key=lambda one: one.nbytes)
        return (
            f"no memory for {graph.label} in "
            f"{', '.join(free_memory(kind) for kind in self.buffer_types)}; the largest of its nodes is "
            f"{largest.described()} with {largest.nbytes} bytes"
        )

    def _on_close(self) -> None:
        self._graph = self._memory = None

    def _release(self) -> None:
        if self._probe is not None:
            self._bindings.ffi.release(self._probe)
        self._bindings.lib.ggml_backend_sched_free(self.raw)
