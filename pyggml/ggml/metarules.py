"""What upstream's meta backend can and cannot do, checked where it would end the process.

Mirrors the assertions of ggml-backend-meta.cpp; how results are spread is in spread.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load
from pyggml.ggml.memory import Owner, stamp_of
from pyggml.ggml.split import Axis, SplitState
from pyggml.ggml.spread import MIRRORED, Spread, derive
from pyggml.ggml.tensor import Tensor

if TYPE_CHECKING:
    from pyggml.ggml.context import Context
    from pyggml.ggml.graph import Graph

Spreads = dict[Any, Spread | None]
"""Raw tensor to how it is spread, None where nothing is known."""


def check_transfer(tensor: Tensor, owner: Owner, offset: int, size: int, *, writing: bool) -> None:
    """Raise if reading or writing these bytes would end the process.

    Args:
        owner: whose memory the tensor has.

    Raises:
        PyggmlError: see Tensor.read; the message names the numbers.
    """
    from pyggml.ggml.buffer import Buffer

    what = f"{tensor.described()} on a MetaDevice"
    state = owner.split_states.get(tensor.raw) if isinstance(owner, Buffer) else None
    if state is None:
        spread = spread_of(tensor.context, tensor.raw, {}, synced=False)
        axis = None if spread is None else spread.axis
        if axis == Axis.PARTIAL:
            raise PyggmlError(
                f"{what} is a sum whose summands are still on the devices",
                "Upstream adds them up when something follows in the graph: read that.",
            )
        if axis == Axis.MIRRORED:
            return
    elif state.axis == Axis.MIRRORED:
        return
    if not tensor.contiguous:
        raise PyggmlError(
            f"{what} has gaps or another order (strides {tensor.nb}); it can be moved only whole"
        )
    if state is None:
        if offset or size != tensor.nbytes:
            raise PyggmlError(f"{what} is a result and can be moved only whole")
        return
    if state.axis == Axis.PARTIAL:
        _check_partial(tensor, what, offset, size, writing)
    else:
        _check_slices(tensor, what, state, offset, size)


def check_fill(tensor: Tensor, owner: Owner, value: int) -> None:
    """Raise if filling a tensor would end the process.

    Raises:
        PyggmlError: the build's meta buffers have no memset_tensor, or it cannot fill this one.
    """
    from pyggml.ggml.buffer import Buffer

    if not tensor.raw.buffer.iface.memset_tensor:
        raise PyggmlError(f"{tensor.described()} is on a MetaDevice, which cannot fill", "Use set().")
    check_transfer(tensor, owner, 0, tensor.nbytes, writing=True)
    state = owner.split_states.get(tensor.raw) if isinstance(owner, Buffer) else None
    if value and state is not None and state.axis == Axis.PARTIAL:
        raise PyggmlError(
            f"{tensor.described()} on a MetaDevice is a sum over devices: it can be filled with 0 only",
            "Use set() for another value.",
        )


def _check_partial(tensor: Tensor, what: str, offset: int, size: int, writing: bool) -> None:
    if not writing:
        raise PyggmlError(f"{what} is a sum whose summands are on the devices: it cannot be read")
    if tensor.type.name != "f32":
        raise PyggmlError(f"{what} is a sum over devices: only f32 can be written")
    if offset or size != tensor.nbytes:
        raise PyggmlError(f"{what} is a sum over devices: it can be written only whole")


def _check_slices(tensor: Tensor, what: str, state: SplitState, offset: int, size: int) -> None:
    ne, nb, axis = tensor.ne, tensor.nb, int(state.axis)
    if axis == 3:
        raise PyggmlError(f"{what} is split along axis 3 of ne, which upstream neither reads nor writes")
    if not state.plain and (axis == 2 or ne[3] != 1 or (axis == 0 and ne[2] != 1)):
        raise PyggmlError(
            f"{what} is split in segments along axis {axis} of ne {ne}: upstream moves such tensors only "
            "along axis 0 of matrices and axis 1 of 3-D tensors"
        )
    step = nb[axis + 1]
    if offset % step or size % step:
        raise PyggmlError(
            f"{what} is split along axis {axis} of ne {ne}: offset {offset} and size {size} must be multiples "
            f"of {step} bytes"
        )


def check_graph(graph: Graph, elsewhere: dict[Any, Any], devices: int, *, trust: bool) -> Spreads:
    """How a graph's nodes are spread.

    Args:
        elsewhere: raw tensors that were assigned to another backend.
        devices: how many they are spread over.
        trust: leave to upstream what would be refused.

    Raises:
        PyggmlError: a node cannot be computed on slices, or it is not known here whether it can.
    """
    spreads: Spreads = dict.fromkeys(elsewhere, MIRRORED)
    for raw in graph.raw_nodes():
        try:
            spread = spread_of(graph.context, raw, spreads)
        except PyggmlError:
            if not trust:
                raise
            spread = spreads[raw] = None
        if spread is None and not trust:
            tensor = Tensor(graph.context, raw)
            raise PyggmlError(
                f"{tensor.described()}: pyggml does not know how a MetaDevice computes {tensor.op} of "
                f"{', '.join(one.described() for one in tensor.sources)}, and upstream ends the process if it cannot",
                "MetaDevice(..., trust_upstream=True) leaves it to upstream.",
            )
        if spread is not None and spread.lengths is not None and len(spread.lengths) != devices:
            raise PyggmlError(
                f"{Tensor(graph.context, raw).described()} is spread over {len(spread.lengths)} devices, not {devices}"
            )
    return spreads


def spread_of(context: Context, raw: Any, spreads: Spreads, *, synced: bool = True) -> Spread | None:
    """How a tensor is spread; None if that is not known here.

    Args:
        spreads: what is known already; filled.
        synced: sums over devices have been added up (so it is for whatever follows).

    Raises:
        PyggmlError: it cannot be computed on slices.
    """
    pending = [raw]
    while pending:
        one = pending[-1]
        ahead = [source for source in _sources(one) if source not in spreads]
        if ahead and one not in spreads:
            pending.extend(ahead)
            continue
        pending.pop()
        if one not in spreads:
            spreads[one] = _derive(context, one, spreads, synced=True)
    return spreads[raw] if synced else _derive(context, raw, spreads, synced=False)


def _sources(raw: Any) -> list[Any]:
    if raw.op == 0:
        return []
    return [one for one in load().ffi.unpack(raw.src, 10) if one and one != raw]


def _derive(context: Context, raw: Any, spreads: Spreads, *, synced: bool) -> Spread | None:
    from pyggml.ggml.buffer import Buffer

    stamp = stamp_of(context, raw)
    if not raw.view_src and stamp is not None and isinstance(stamp.owner, Buffer):
        state = stamp.owner.split_states.get(raw)
        return MIRRORED if state is None else Spread.of(state)
    if raw.op == 0:
        return MIRRORED
    sources = _sources(raw)
    known = [spread for spread in (spreads.get(one) for one in sources) if spread is not None]
    if len(known) < len(sources):
        return None
    return derive(Tensor(context, raw), [Tensor(context, one) for one in sources], known, synced=synced)


def is_host_view(raw: Any) -> bool:
    """Whether a node only describes given data of the host."""
    root = raw.view_src
    return bool(root and root.op == 0 and root.buffer and load().lib.ggml_backend_buffer_is_host(root.buffer))


def wrong_view(nodes: list[Any]) -> str | None:
    """What is wrong with nodes that a MetaDevice computes in one go, None if nothing is.

    Views stay where they stand in the graph, wherever their memory is.
    """
    lib = load().lib
    for raw in nodes:
        root = raw.view_src
        if (
            root
            and root.buffer
            and not lib.ggml_backend_buffer_is_meta(root.buffer)
            and not is_host_view(raw)
        ):
            return "has a view of memory elsewhere in it"
    return "ends in a view of host memory" if is_host_view(nodes[-1]) else None
