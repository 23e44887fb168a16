"""What upstream's meta backend can and cannot do, checked where it would end the process.

Mirrors the assertions of ggml-backend-meta.cpp. Operations that are not named here are left to upstream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml.memory import Owner, stamp_of
from pyggml.ggml.split import Axis, SplitState
from pyggml.ggml.tensor import Tensor
from pyggml.native.load import load

if TYPE_CHECKING:
    from pyggml.ggml.context import Context
    from pyggml.ggml.graph import Graph

MIRRORED, PARTIAL = int(Axis.MIRRORED), int(Axis.PARTIAL)
_BINARY = ("ADD", "SUB", "MUL", "DIV")
_ALIKE = (
    "SQR",
    "SQRT",
    "LOG",
    "SIN",
    "COS",
    "SCALE",
    "CLAMP",
    "UNARY",
    "LEAKY_RELU",
    "GLU",
    "SOFT_MAX",
    "FILL",
)
_BY_ROW = ("NORM", "RMS_NORM", "L2_NORM", "GROUP_NORM", "SUM_ROWS", "MEAN", "ARGMAX", "ARGSORT", "CUMSUM")

Axes = dict[Any, int | None]
"""Raw tensor to axis, None where nothing is known."""


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
        axis = axis_of(tensor.context, tensor.raw, {}, synced=False)
        if axis == PARTIAL:
            raise PyggmlError(
                f"{what} is a sum whose summands are still on the devices",
                "Upstream adds them up when something follows in the graph: read that.",
            )
        if axis == MIRRORED:
            return
    elif state.axis == MIRRORED:
        return
    if not tensor.contiguous:
        raise PyggmlError(
            f"{what} has gaps or another order (strides {tensor.nb}); it can be moved only whole"
        )
    if state is None:
        if offset or size != tensor.nbytes:
            raise PyggmlError(f"{what} is a result and can be moved only whole")
        return
    if state.axis == PARTIAL:
        _check_partial(tensor, what, offset, size, writing)
    else:
        _check_slices(tensor, what, state, offset, size)


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


def check_graph(graph: Graph, elsewhere: dict[Any, Any]) -> Axes:
    """How a graph's nodes are spread, as far as known.

    Args:
        elsewhere: raw tensors that were assigned to another backend.

    Raises:
        PyggmlError: a node cannot be computed on slices; the message says why.
    """
    axes: Axes = dict.fromkeys(elsewhere, MIRRORED)
    for raw in graph.raw_nodes():
        axis_of(graph.context, raw, axes)
    return axes


def axis_of(context: Context, raw: Any, axes: Axes, *, synced: bool = True) -> int | None:
    """The axis along which a tensor is spread; None if that is not known here.

    Args:
        axes: what is known already; filled.
        synced: sums over devices have been added up (so it is for whatever follows).
    """
    if raw in axes and synced:
        return axes[raw]
    pending = [raw]
    while pending:
        one = pending[-1]
        ahead = [source for source in _sources(one) if source not in axes]
        if ahead and one not in axes:
            pending.extend(ahead)
            continue
        pending.pop()
        if one not in axes:
            axes[one] = _derive(context, one, axes, synced=True)
    return axes[raw] if synced else _derive(context, raw, axes, synced=False)


def _sources(raw: Any) -> list[Any]:
    if raw.op == 0:
        return []
    return [one for one in load().ffi.unpack(raw.src, 10) if one and one != raw]


def _derive(context: Context, raw: Any, axes: Axes, *, synced: bool) -> int | None:
    from pyggml.ggml.buffer import Buffer

    stamp = stamp_of(context, raw)
    if not raw.view_src and stamp is not None and isinstance(stamp.owner, Buffer):
        state = stamp.owner.split_states.get(raw)
        return MIRRORED if state is None else int(state.axis)
    if raw.op == 0:
        return MIRRORED
    sources = _sources(raw)
    known = [axes.get(one) for one in sources]
    if not sources or all(axis == MIRRORED for axis in known):
        return MIRRORED
    if None in known:
        return None
    tensor = Tensor(context, raw)
    return _rule(tensor, [Tensor(context, one) for one in sources], [axis or 0 for axis in known], synced)


def _rule(tensor: Tensor, sources: list[Tensor], axes: list[int], synced: bool) -> int | None:
    op = tensor.op
    if op == "MUL_MAT":
        if axes[0] == 0 and axes[1] == 0:
            return MIRRORED if synced else PARTIAL
        if axes[0] == 1 and axes[1] == MIRRORED:
            return 0
        if axes[0] == MIRRORED and axes[1] == 1:
            return 1
        raise _impossible(tensor, sources, axes)
    if op in _BINARY:
        if axes[0] < 4 and axes[1] == MIRRORED and sources[1].ne[axes[0]] == 1:
            return axes[0]
        if axes[0] == axes[1]:
            return axes[0]
        raise _impossible(tensor, sources, axes)
    if op in _ALIKE:
        if len(set(axes)) > 1:
            raise _impossible(tensor, sources, axes)
        return axes[0]
    if op in _BY_ROW:
        if axes[0] == 0:
            raise _impossible(tensor, sources, axes)
        return axes[0]
    if op in ("CONT", "RESHAPE") and (axes[0] >= 4 or tensor.ne == sources[0].ne):
        return axes[0]
    return None


def _impossible(tensor: Tensor, sources: list[Tensor], axes: list[int]) -> PyggmlError:
    parts = ", ".join(
        f"{source.described()} {f'along axis {axis}' if axis < 4 else Axis(axis).name.lower()}"
        for source, axis in zip(sources, axes, strict=True)
    )
    return PyggmlError(
        f"{tensor.described()}: a MetaDevice cannot compute {tensor.op} of {parts}",
        "Choose splits that fit (ggml-backend-meta.cpp, ggml_backend_meta_get_split_state).",
    )
