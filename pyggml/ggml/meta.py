"""Several devices as one: tensors are spread over them as a Python function says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyggml.errors import PyggmlError
from pyggml.ggml.buffer import Buffer, too_little
from pyggml.ggml.device import BufferType, Device
from pyggml.ggml.library import load
from pyggml.ggml.memory import GraphViews
from pyggml.ggml.split import SplitState
from pyggml.ggml.tensor import Loan, Tensor, is_view_op

if TYPE_CHECKING:
    from pyggml.ggml.context import Context

MOST_DEVICES = 16
"""GGML_BACKEND_META_MAX_DEVICES."""


class MetaDevice(Device):
    """A device for tensor parallelism over others (`ggml_backend_meta_device`).

    `split(tensor)` is asked once for every tensor of a context that is allocated on it and answers with a
    SplitState. It runs before C does, so its exceptions and mistakes change nothing. Results of operations
    are spread as upstream derives it from their sources (ggml-backend-meta.cpp,
    ggml_backend_meta_get_split_state; the rules that pyggml knows are in spread.py).

    Not to be had at this upstream: reading a product that is still a sum over devices (do something after it),
    views of split tensors, memory that an injected fault refuses (it asserts).

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
            trust_upstream: allow graphs of which pyggml does not know whether upstream can spread their
                operations, or knows that the upstream that it was written for cannot; where that cannot
                either, it ends the process.

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
            raise PyggmlError(f"a device comes twice: {', '.join(one.name for one in devices)}")
        if not callable(split):
            raise PyggmlError(f"the split must be a function, not a {type(split).__name__}")
        bindings = load()
        self.devices = devices
        self.trust_upstream = trust_upstream
        self._split = split
        self._decided: dict[Any, SplitState] = {}
        ffi, count = bindings.ffi, len(devices)
        # Not self: the callback is kept by it.
        decided = self._decided

        def answer(raw: Any) -> Any:
            state = decided.get(raw)
            if state is None:
                with Loan("a tensor that upstream asks about") as loan:
                    state = _decide(split, Tensor(cast(Any, loan), raw), count)
            return state.to_c(ffi, count)

        self._callback = bindings.callbacks.make("split", answer)
        super().__init__(
            bindings.lib.ggml_backend_meta_device(
                [one.raw for one in devices], count, self._callback.pointer, self._callback.data
            )
        )

    def decide(self, tensor: Tensor) -> SplitState:
        """What the split function says about a tensor, checked.

        Raises:
            PyggmlError: it is no SplitState, or none for that tensor.
        """
        return _decide(self._split, tensor, len(self.devices))

    def remember(self, states: dict[Any, SplitState]) -> None:
        """What C will ask for."""
        self._decided.update(states)

    def forget(self, states: dict[Any, SplitState]) -> None:
        """The tensors are gone; their addresses may be others' by now."""
        for raw, state in states.items():
            if self._decided.get(raw) is state:
                del self._decided[raw]


def _decide(split: Callable[[Tensor], SplitState], tensor: Tensor, devices: int) -> SplitState:
    state = split(tensor)
    if not isinstance(state, SplitState):
        raise PyggmlError(
            f"the split function returned {state!r:.80} for {tensor.described()}; a SplitState is needed"
        )
    state.check(tensor, devices)
    return state


class MetaBuffer(Buffer):
    """A buffer on a MetaDevice.

    Attributes:
        views: those that graphs have of its tensors.
        own_views: raw views that were allocated together with their tensors.
        most_views: how many upstream has room for between two computations.
    """

    def __init__(
        self, raw: Any, buffer_type: BufferType, states: dict[Any, SplitState], own: set[Any]
    ) -> None:
        super().__init__(raw, buffer_type, states)
        self.own_views = own
        # compute_headroom in ggml_backend_meta_alloc_ctx_tensors_from_buft, half of it to be on the safe side.
        self.most_views = 8 * (len(states) + len(own))
        self.views = GraphViews(f"views of {self.label}", self)

    def _release(self) -> None:
        super()._release()
        device = self.type.device
        assert isinstance(device, MetaDevice)  # noqa: S101
        device.forget(self.split_states)


def allocate_meta(
    context: Context,
    buffer_type: BufferType,
    roots: list[Any],
    without: list[Any],
    states: dict[Any, SplitState],
) -> Buffer:
    """See Context.allocate; upstream's function takes all tensors of the context or none."""
    device = buffer_type.device
    if not isinstance(device, MetaDevice):
        raise PyggmlError(f"{buffer_type.name} is not memory of a MetaDevice that pyggml made")
    bindings = load()
    if len(without) != sum(1 for _ in context._all_raw()):
        raise PyggmlError(f"tensors of {context.label} have memory already; a MetaDevice takes all or none")
    for raw in roots:
        if raw.op != 0:
            raise PyggmlError(
                f"{Tensor(context, raw).described()} is a result, which gets its memory on a MetaDevice with its graph",
                "Make operations in another context than the tensors that are given.",
            )
        states[raw] = device.decide(Tensor(context, raw))
        _check_thin(Tensor(context, raw), states[raw], len(device.devices))
    context.check()
    if [raw for raw in context._all_raw() if not raw.data and not raw.buffer] != without:
        raise PyggmlError(f"the split function changed {context.label} while that was allocated")
    for raw in without:
        if raw.view_src:
            tensor = Tensor(context, raw)
            state = states.get(raw.view_src)
            if state is None or state.is_split or not is_view_op(tensor.op):
                raise PyggmlError(
                    f"{tensor.described()} is made of another tensor of {context.label}, which upstream does not "
                    "spread over devices unless it is mirrored",
                    "Make it in the context of the graph that needs it.",
                )
    _check_shares(context, buffer_type, device, states)
    device.remember(states)
    raw_buffer = bindings.guarded(
        bindings.lib.ggml_backend_alloc_ctx_tensors_from_buft, context.raw, buffer_type.raw
    )
    return MetaBuffer(raw_buffer, buffer_type, states, {raw for raw in without if raw.view_src})


def _check_thin(tensor: Tensor, state: SplitState, devices: int) -> None:
    lengths, axis = state.lengths(devices), int(state.axis)
    if lengths is not None and axis < 3 and 0 in lengths and tensor.nb[axis + 1] == tensor.nb[axis]:
        raise PyggmlError(
            f"{tensor.described()} is one {'block' if tensor.type.block > 1 else 'element'} long along axis {axis} "
            f"and split as {lengths}: upstream gives the devices with nothing a stride as if they had it",
            "Mirror it, or split it along another axis.",
        )


def check_memory(buffer_type: BufferType, size: int, held: int = 0) -> None:
    """Raise unless every device of a MetaDevice has that many bytes; upstream asserts it.

    Args:
        held: bytes that are given back first.
    """
    device = buffer_type.device
    if not isinstance(device, MetaDevice):
        raise PyggmlError(f"{buffer_type.name} is not memory of a MetaDevice that pyggml made")
    for one in device.devices:
        free, total = one.memory
        limit = one.buffer_type.max_size
        if size > free + held or size > limit:
            raise PyggmlError(
                f"{size} bytes on each of {len(device.devices)} devices are not to be had: {one.name} has "
                f"{free} of {total} bytes free and buffers of at most {limit}"
            )


def slice_bytes(tensor: Tensor, state: SplitState, devices: int) -> list[int]:
    """Bytes of a tensor on each device."""
    lengths = state.lengths(devices)
    if lengths is None:
        return [tensor.nbytes] * devices
    return [tensor.nbytes * length // tensor.ne[state.axis] for length in lengths]


def _check_shares(
    context: Context, buffer_type: BufferType, device: MetaDevice, states: dict[Any, SplitState]
) -> None:
    count = len(device.devices)
    totals = [0] * count
    alignments = [one.buffer_type.alignment for one in device.devices]
    for raw, state in states.items():
        for number, size in enumerate(slice_bytes(Tensor(context, raw), state, count)):
            totals[number] += -(-size // alignments[number]) * alignments[number]
    for one, size in zip(device.devices, totals, strict=True):
        if size > min(one.memory[0], one.buffer_type.max_size):
            raise PyggmlError(too_little(context, list(states), size, one.buffer_type))
