"""Several devices as one: tensors are split over them as a Python function says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.device import Buffer, BufferType, Device, too_little
from pyggml.ggml.graph import Graph
from pyggml.ggml.library import load
from pyggml.ggml.mirrored import SplitMemory, States, check_graph
from pyggml.ggml.ownership import GraphViews, TensorPool
from pyggml.ggml.rehearsal import can_rehearse, rehearse
from pyggml.ggml.split_state import SplitState
from pyggml.ggml.tensor import Loan, Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_backend_buffer, ggml_tensor

MOST_DEVICES = 16
"""GGML_BACKEND_META_MAX_DEVICES."""


class MetaDevice(Device):
    """A device for tensor parallelism over others (`ggml_backend_meta_device`).

    `split(tensor)` is asked once for every tensor of a context that is allocated on it and answers with a
    SplitState. It runs before C does, so its exceptions and mistakes change nothing. Results of operations
    are split as upstream derives it from their sources (ggml-backend-meta.cpp,
    ggml_backend_meta_get_split_state; the rules that pyggml knows are in mirrored.py).

    This upstream cannot read a product that is still a sum over devices (compute something from it), make views
    of split tensors, or go on when a device refuses memory (it asserts).

    Attributes:
        devices: those it is made of.
        trust_upstream: see __init__.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        split: Callable[[Tensor], SplitState],
        *,
        trust_upstream: bool = False,
    ) -> None:
        """
        Args:
            devices: 1 to 16, all different, none of them the host's memory or a MetaDevice.
            trust_upstream: allow graphs with operations that pyggml does not know upstream to split correctly,
                or that the upstream it was written for cannot split. Such a graph is first allocated in a
                forked child, so that what upstream asserts there is an exception (not beside a GPU's driver,
                which does not survive a fork). What it asserts in the computation still ends the process.

        Raises:
            PyggmlError: other numbers or kinds of devices.
        """
        devices = tuple(devices)
        if not 1 <= len(devices) <= MOST_DEVICES:
            raise PyggmlError(f"a MetaDevice has 1 to {MOST_DEVICES} devices, not {len(devices)}")
        for one in devices:
            if not isinstance(one, Device):
                raise PyggmlError(f"a MetaDevice is made of Devices, not of a {type(one).__name__}")
            if one.kind == "meta" or one.buffer_type.is_host:
                raise PyggmlError(f"a MetaDevice needs devices with memory of their own, not {one!r}")
        if len(set(devices)) != len(devices):
            raise PyggmlError(f"a device is given twice: {', '.join(one.name for one in devices)}")
        if not callable(split):
            raise PyggmlError(f"the split must be a function, not a {type(split).__name__}")
        bindings = load()
        self.devices = devices
        self.trust_upstream = trust_upstream
        self._split = split
        self._decided: dict[ggml_tensor, SplitState] = {}
        ffi, count = bindings.ffi, len(devices)
        # Not self: the callback is kept by it.
        decided = self._decided

        def answer(raw: Any) -> Any:
            state = decided.get(raw)
            if state is None:
                with Loan("a tensor that upstream asks about") as loan:
                    state = _decide(split, Tensor(loan, raw), count)
            return state.to_c(ffi, count)

        self._callback = bindings.callbacks.make("split", answer)
        super().__init__(
            bindings.lib.ggml_backend_meta_device(
                [one.raw for one in devices], count, self._callback.pointer, self._callback.data
            )
        )

    def allocate(self, context: TensorPool, buffer_type: BufferType, without: list[ggml_tensor]) -> Buffer:
        """See Context.allocate; upstream's function takes all tensors of the context or none."""
        bindings = load()
        if len(without) != sum(1 for _ in context.raw_tensors()):
            raise PyggmlError(
                f"tensors of {context.label} have memory already; a MetaDevice takes all or none"
            )
        states: dict[ggml_tensor, SplitState] = {}
        for raw in without:
            if not raw.view_src:
                states[raw] = self._state_for(Tensor(context, raw))
        context.check()
        if [raw for raw in context.raw_tensors() if not raw.data and not raw.buffer] != without:
            raise PyggmlError(f"the split function changed {context.label} while that was allocated")
        views = {raw for raw in without if raw.view_src}
        for raw in views:
            tensor, state = Tensor(context, raw), states.get(raw.view_src)
            if state is None or state.is_split or not is_view_op(tensor.op):
                raise PyggmlError(
                    f"{tensor.described()} is made of another tensor of {context.label}; upstream allocates it "
                    "here only if that one is mirrored",
                    "Make it in the context of the graph that needs it.",
                )
        self._check_shares(context, buffer_type, states)
        self._decided.update(states)
        raw_buffer = bindings.guarded(
            bindings.lib.ggml_backend_alloc_ctx_tensors_from_buft, context.raw, buffer_type.raw
        )
        return MetaBuffer(raw_buffer, buffer_type, self, states, views)

    def check_free(self, buffer_type: BufferType, size: int, held: int) -> None:
        """See BufferType.check_free."""
        for one in self.devices:
            free, total = one.memory
            limit = one.buffer_type.max_size
            if size > free + held or size > limit:
                raise PyggmlError(
                    f"no memory for {size} bytes on each of {len(self.devices)} devices: {one.name} has {free} of "
                    f"{total} bytes free and buffers of at most {limit}"
                )

    def check_graph(self, graph: Graph, elsewhere: dict[ggml_tensor, Any]) -> States:
        """The split states of a graph's nodes; see mirrored.check_graph."""
        return check_graph(graph, elsewhere, len(self.devices), trust=self.trust_upstream)

    @staticmethod
    def rehearse(graph: Graph, states: States, function: str, taker: Any) -> None:
        """Let a child allocate a graph with nodes of which pyggml does not know the split state.

        Args:
            function: `function(taker, graph)` allocates.

        Raises:
            PyggmlError: that ends the process; with upstream's text.
        """
        if None not in states.values() or not can_rehearse():
            return
        text = rehearse(function, taker, graph.raw)
        if text is not None:
            raise PyggmlError(
                f"upstream cannot split {graph.label} over the devices: {text.rpartition('/')[2]}",
                "Choose splits that fit, or assign the operation to another backend.",
            )

    def forget(self, states: dict[ggml_tensor, SplitState]) -> None:
        """The tensors are gone; other tensors may get their addresses."""
        for raw, state in states.items():
            if self._decided.get(raw) is state:
                del self._decided[raw]

    def _state_for(self, tensor: Tensor) -> SplitState:
        if tensor.op != "NONE":
            raise PyggmlError(
                f"{tensor.described()} is a result, which gets its memory on a MetaDevice with its graph",
                "Make operations in another context than the tensors that are given.",
            )
        state = _decide(self._split, tensor, len(self.devices))
        lengths, axis, nb = state.lengths(len(self.devices)), int(state.axis), tensor.nb
        if lengths is not None and axis < 3 and 0 in lengths and nb[axis + 1] == nb[axis]:
            raise PyggmlError(
                f"{tensor.described()} is one {'block' if tensor.type.block > 1 else 'element'} long along axis "
                f"{axis} and split as {lengths}: upstream gives the devices without a part the stride of one",
                "Mirror it, or split it along another axis.",
            )
        return state

    def _check_shares(
        self, context: TensorPool, buffer_type: BufferType, states: dict[ggml_tensor, SplitState]
    ) -> None:
        count = len(self.devices)
        totals = [0] * count
        alignments = [one.buffer_type.alignment for one in self.devices]
        for raw, state in states.items():
            for number, size in enumerate(_slice_bytes(Tensor(context, raw), state, count)):
                totals[number] += -(-size // alignments[number]) * alignments[number]
        for one, size in zip(self.devices, totals, strict=True):
            if size > min(one.memory[0], one.buffer_type.max_size):
                raise PyggmlError(too_little(context, list(states), size, one.buffer_type))


def _decide(split: Callable[[Tensor], SplitState], tensor: Tensor, devices: int) -> SplitState:
    state = split(tensor)
    if not isinstance(state, SplitState):
        raise PyggmlError(
            f"the split function returned {state!r:.80} for {tensor.described()}; a SplitState is needed"
        )
    state.check(tensor, devices)
    return state


class MetaBuffer(Buffer, SplitMemory):
    """A buffer on a MetaDevice."""

    def __init__(
        self,
        raw: ggml_backend_buffer,
        buffer_type: BufferType,
        device: MetaDevice,
        states: dict[ggml_tensor, SplitState],
        own: set[ggml_tensor],
    ) -> None:
        super().__init__(raw, buffer_type)
        self._device = device
        self._states = self.split_states = states
        # compute_headroom in ggml_backend_meta_alloc_ctx_tensors_from_buft; half of it, to be on the safe side.
        self.graph_views = GraphViews(self, own, 8 * (len(states) + len(own)))

    def _release(self) -> None:
        super()._release()
        self._device.forget(self._states)


def _slice_bytes(tensor: Tensor, state: SplitState, devices: int) -> list[int]:
    """Bytes of a tensor on each device."""
    lengths = state.lengths(devices)
    if lengths is None:
        return [tensor.nbytes] * devices
    return [tensor.nbytes * length // tensor.ne[state.axis] for length in lengths]
