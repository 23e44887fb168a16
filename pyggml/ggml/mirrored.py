"""Rules of upstream that cannot be asked for, mirrored by hand: what would end the process is refused first.

Constructors of ggml.h are asked themselves (ops.py), and so are supports_op, supports_buft, and for graphs of a
trusted MetaDevice the allocation in a child process (rehearsal.py). What is left is asserted where nothing can
come back, in C++ or in a thread of the computation, and no function answers it beforehand. SOURCES names the
upstream functions that each rule follows; tests/ggml/test_mirrored_sources.py says when one of them changes on a pin.
A rule refuses what upstream asserts, lets through what is known to work, and says so of anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from pyggml.errors import PyggmlError
from pyggml.ggml.graph import Graph
from pyggml.ggml.graph_memory import GraphMemory
from pyggml.ggml.library import load
from pyggml.ggml.ownership import Owner, TensorPool
from pyggml.ggml.split_state import Axis, SplitState
from pyggml.ggml.tensor import Tensor, is_view_op, sources_of

if TYPE_CHECKING:
    from pyggml.native.c_library import ggml_tensor

SOURCES = {
    "kernels": {
        "ggml/src/ggml-cpu/ggml-cpu.c": ("ggml_compute_forward_mul_mat",),
        "ggml/src/ggml-cpu/binary-ops.cpp": ("apply_binary_op", "binary_op"),
        "ggml/src/ggml-cpu/unary-ops.cpp": ("apply_unary_op", "unary_op"),
        "ggml/src/ggml-cpu/ops.cpp": (
            "ggml_compute_forward_dup",
            "ggml_compute_forward_add",
            "ggml_compute_forward_sum_rows_f32",
            "ggml_compute_forward_mean",
            "ggml_compute_forward_norm_f32",
            "ggml_compute_forward_rms_norm_f32",
            "ggml_compute_forward_scale",
            "ggml_compute_forward_soft_max",
            "ggml_compute_forward_get_rows",
            "ggml_compute_forward_set_rows",
            "ggml_compute_forward_concat",
            "ggml_compute_forward_rope_flt",
            "ggml_compute_forward_flash_attn_ext_f16",
        ),
    },
    "split states of results": {
        "ggml/src/ggml-backend-meta.cpp": ("ggml_backend_meta_get_split_state",),
    },
    "transfers": {
        "ggml/src/ggml-backend-meta.cpp": (
            "ggml_backend_meta_buffer_set_tensor",
            "ggml_backend_meta_buffer_get_tensor",
        ),
    },
    "views in a graph": {"ggml/src/ggml-backend-meta.cpp": ("ggml_backend_meta_graph_compute",)},
    "memory of a MetaDevice (meta.py)": {
        "ggml/src/ggml-backend-meta.cpp": (
            "ggml_backend_meta_buffer_type_alloc_buffer",
            "ggml_backend_meta_alloc_ctx_tensors_from_buft|ggml_backend_meta_buffer_type_alloc_buffer_n",
        ),
    },
    "lengths and strides (ops.py)": {
        "ggml/src/ggml.c": ("ggml_new_tensor_impl", "ggml_view_impl", "ggml_permute", "ggml_row_size"),
    },
    "leaves and splits of a scheduler (scheduler_splits.py)": {
        "ggml/src/ggml-backend.cpp": ("ggml_backend_sched_split_graph",),
    },
}
"""Rule to the upstream files and functions that it follows; the file here, if it is not this one.

A function that upstream has renamed has its names in turn, separated by `|`.
"""

# Kernels of the CPU, which virtual devices compute with as well.

_FLOATS = ("f32", "f16", "bf16")
KernelRule = Callable[[Tensor, list[Tensor]], "str | None"]


def kernel_refusal(tensor: Tensor) -> str | None:
    """Why the CPU's kernel of an operation would end the process, None if it is not known to."""
    rule = KERNEL_RULES.get(tensor.op)
    return rule(tensor, list(tensor.sources)) if rule is not None else None


def _adjacent(tensor: Tensor) -> bool:
    return tensor.nb[0] == tensor.type.block_bytes


def _adjacent_rows(tensor: Tensor, sources: list[Tensor]) -> str | None:
    return None if all(map(_adjacent, sources)) else "elements of a row are not adjacent"


def _binary_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a, b = sources
    if tensor.op == "ADD" and a.type.dtype is None:
        if b.type.name != "f32" or a.ne != b.ne:
            return "to blocks only f32 of the same shape is added"
    elif a.type.name not in _FLOATS or (b.type != a.type and b.type.name != "f32"):
        return "the first must be f32, f16 or bf16, the second of that type or f32"
    return _adjacent_rows(tensor, sources)


def _unary_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a = sources[0]
    if a.type.name not in _FLOATS:
        return "it must be f32, f16 or bf16"
    contiguous = load().lib.ggml_is_contiguous_1(a.raw) and _adjacent(a)
    return None if contiguous else f"rows must be contiguous (strides {a.nb})"


def _f32_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a = sources[0]
    if a.type.name != "f32":
        return "it must be f32"
    return _adjacent_rows(tensor, [a])


def _scale_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a = sources[0]
    return _f32_kernel(tensor, sources) or (
        None if a.contiguous else f"it must be contiguous (strides {a.nb})"
    )


def _copy_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a, b = sources[0], tensor
    known = {*_FLOATS, "i32"}
    names = {a.type.name, b.type.name}
    if len(names) > 1 and not names <= known and "f32" not in names:
        return f"{a.type} is not converted to {b.type}"
    blocks = a.type.dtype is None or b.type.dtype is None
    same = a.type == b.type or a.ne == b.ne
    if blocks and not (same and a.contiguous and b.contiguous):
        return "blocks are copied only between contiguous tensors of one shape"
    return None


def _get_rows_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a, b = sources
    if a.type.dtype is not None and a.type.name not in {*_FLOATS, "i32"}:
        return f"rows of {a.type} are not picked"
    return None if _adjacent(a) and b.contiguous else "elements of a row are not adjacent"


def _set_rows_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    if sources[0].type.name != "f32":
        return "the rows must be f32"
    return _adjacent_rows(tensor, [sources[0], tensor])


def _concat_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    return "blocks are not joined" if sources[0].type.dtype is None else None


def _rope_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    a, dimensions, mode = sources[0], tensor.raw.op_params[1], tensor.raw.op_params[2]
    if a.type.name not in ("f32", "f16") or not _adjacent(a):
        return "it must be f32 or f16 with adjacent elements"
    if mode not in (0, 2):
        return None
    if not 2 <= dimensions <= a.ne[0] or dimensions % 2:
        return f"{dimensions} dimensions of rows of {a.ne[0]}"
    factors = sources[2] if len(sources) > 2 else None
    if factors is not None and (factors.type.name != "f32" or factors.ne[0] < dimensions // 2):
        return f"{dimensions // 2} factors in f32 are needed"
    return None


def _attention_kernel(tensor: Tensor, sources: list[Tensor]) -> str | None:
    q, k, v = sources[:3]
    if q.type.name != "f32" or q.ne[2] % k.ne[2] or q.ne[2] % v.ne[2]:
        return f"ne {q.ne}, {k.ne}, {v.ne}: heads do not fit, or queries are not f32"
    if not q.ne[3] == k.ne[3] == v.ne[3] or k.ne[1] != v.ne[1] or k.ne[2] != v.ne[2]:
        return f"ne {q.ne}, {k.ne}, {v.ne}: numbers of keys and values or of sequences differ"
    mask = sources[3] if len(sources) > 3 and sources[3].type.name == "f16" else None
    if mask is not None and (mask.ne[0] < k.ne[1] or mask.ne[1] < q.ne[1]):
        return f"a mask of ne {mask.ne} does not fit ne {q.ne} and {k.ne}"
    return _adjacent_rows(tensor, [q, k, v])


KERNEL_RULES: dict[str, KernelRule] = {
    "MUL_MAT": _adjacent_rows,
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), _binary_kernel),
    **dict.fromkeys(("UNARY", "SQR", "SQRT", "SIN", "COS", "LOG"), _unary_kernel),
    **dict.fromkeys(("RMS_NORM", "NORM", "SUM_ROWS", "MEAN", "SOFT_MAX"), _f32_kernel),
    "SCALE": _scale_kernel,
    **dict.fromkeys(("CPY", "CONT", "DUP"), _copy_kernel),
    "GET_ROWS": _get_rows_kernel,
    "SET_ROWS": _set_rows_kernel,
    "CONCAT": _concat_kernel,
    "ROPE": _rope_kernel,
    "FLASH_ATTN_EXT": _attention_kernel,
}
"""ggml's name of an operation to its rule."""


# How results are split over the devices of a MetaDevice.


@dataclass(frozen=True)
class ResultState:
    """The split state of a result, without its segments.

    Attributes:
        axis: of ne, or Axis.MIRRORED, or Axis.PARTIAL.
        lengths: elements of the axis on each device, None if each has all.
        plain: one slice for each device.
    """

    axis: int
    lengths: tuple[int, ...] | None = None
    plain: bool = True

    @classmethod
    def of(cls, state: SplitState) -> ResultState:
        """The state of a given tensor."""
        if not state.is_split or state.segments is None:
            return cls(int(state.axis))
        return cls(int(state.axis), tuple(state.lengths(state.segments.shape[1]) or ()), state.plain)

    @property
    def split(self) -> bool:
        """Whether every device has a slice."""
        return self.axis < 4


MIRRORED = ResultState(int(Axis.MIRRORED))
PARTIAL = ResultState(int(Axis.PARTIAL))

Rule = Callable[[Tensor, list[Tensor], list[ResultState]], ResultState | None]


def mirrors_attention() -> bool:
    """Whether the loaded build has the rules that came with attention over mirrored K and V.

    They arrived together with `ggml_backend_meta_buffer_set_usage`, which the library then exports: products
    along axis 2 and 3, FlashAttention over mirrored K and V, the lightning indexer, and reshapes that move
    a whole row to the next axis.
    """
    return hasattr(load().lib, "ggml_backend_meta_buffer_set_usage")


def derive(
    tensor: Tensor, sources: list[Tensor], states: list[ResultState], *, synced: bool
) -> ResultState | None:
    """The split state of a result; None if pyggml does not know it.

    Args:
        states: of the sources.
        synced: a sum over devices has been added up.

    Raises:
        PyggmlError: upstream asserts that this does not happen.
    """
    op = tensor.op
    rule = _RULES.get(op)
    if rule is None:
        known = op not in _NEVER or mirrors_attention()
        return MIRRORED if known and all(one == MIRRORED for one in states) else None
    result = rule(tensor, sources, states)
    return MIRRORED if result == PARTIAL and synced and op in _PRODUCTS and PARTIAL not in states else result


def _impossible(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> NoReturn:
    def how(state: ResultState) -> str:
        if not state.split:
            return Axis(state.axis).name.lower()
        return f"along axis {state.axis} as {list(state.lengths or ())}"

    parts = ", ".join(f"{one.described()} {how(state)}" for one, state in zip(sources, states, strict=True))
    raise PyggmlError(
        f"{tensor.described()}: a MetaDevice cannot compute {tensor.op} of {parts}",
        "Choose splits that fit (ggml-backend-meta.cpp, ggml_backend_meta_get_split_state).",
    )


def _scaled(
    tensor: Tensor, source: Tensor, state: ResultState, axis: int, repeats: int = 1
) -> ResultState | None:
    """The slices of `source` in proportion, along an axis of `tensor`; None if they are not whole."""
    if state.lengths is None:
        return state
    whole = source.ne[state.axis] * repeats
    numbers = [length * tensor.ne[axis] for length in state.lengths]
    if any(number % whole for number in numbers):
        return None
    return ResultState(axis, tuple(number // whole * repeats for number in numbers), repeats == 1)


def _product(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    first, second = states[0], states[1]
    if any(one != MIRRORED for one in states[2:]) or PARTIAL in (first, second):
        _impossible(tensor, sources, states)
    if first == second == MIRRORED:
        return MIRRORED
    if first.axis == 1 and second == MIRRORED:
        return ResultState(0, first.lengths)
    if first == MIRRORED and second.axis == 1:
        return second
    if first.axis == second.axis == 0 and first.lengths == second.lengths:
        return PARTIAL
    # Upstream also lets the second be mirrored, and its kernel then asserts that there are as many matrices.
    if first.axis in (2, 3) and mirrors_attention() and second == first:
        return first
    _impossible(tensor, sources, states)


def _binary(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    first, second = states[0], states[1]
    if first.split and second == MIRRORED and sources[1].ne[first.axis] == 1:
        return first
    return _alike(tensor, sources, states)


def _alike(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    first = states[0]
    if any((one.axis, one.lengths) != (first.axis, first.lengths) for one in states):
        _impossible(tensor, sources, states)
    if len(states) > 1 and not all(one.plain for one in states):
        return None
    return _scaled(tensor, sources[0], first, first.axis)


def _by_row(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    if states[0].axis == 0:
        _impossible(tensor, sources, states)
    return states[0] if all(one == MIRRORED for one in states[1:]) else None


def _reshape(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    source, state = sources[0], states[0]
    if not state.split:
        return state
    if not state.plain:
        return None
    dimensions = load().lib.ggml_n_dims
    if state.axis == dimensions(source.raw) - 1:
        return _scaled(tensor, source, state, dimensions(tensor.raw) - 1)
    if _whole_rows(tensor, source, state):
        return _scaled(tensor, source, state, 1)
    inner = 1
    for length in source.ne[: state.axis + 1]:
        inner *= length
    whole = 1
    for axis, length in enumerate(tensor.ne):
        whole *= length
        if whole % inner == 0:
            return _scaled(tensor, source, state, axis, whole // inner)
        if whole > inner:
            return _scaled(tensor, source, state, axis)
    _impossible(tensor, sources, states)


def _whole_rows(tensor: Tensor, source: Tensor, state: ResultState) -> bool:
    """Whether one device has all of axis 0, which then moves to the axis of length 1 after it."""
    return (
        mirrors_attention()
        and state.axis == 0
        and tensor.ne[:2] == (source.ne[0], 1)
        and all(length in (0, source.ne[0]) for length in state.lengths or ())
    )


def _permute(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    state = states[0]
    if not state.split:
        return state
    return ResultState(tensor.raw.op_params[state.axis], state.lengths) if state.plain else None


def _transpose(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    state = states[0]
    if state.axis > 1:
        return state
    return ResultState(state.axis ^ 1, state.lengths) if state.plain else None


def _get_rows(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    if states[1] != MIRRORED or states[0].axis not in (0, MIRRORED.axis):
        _impossible(tensor, sources, states)
    return states[0]


def _set_rows(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    # The rows come first, then the indices, then what is written into.
    rows, indices, target = states
    if rows.axis == 1 or indices != MIRRORED or (rows.axis, rows.lengths) != (target.axis, target.lengths):
        _impossible(tensor, sources, states)
    return rows if rows.plain and target.plain else None


def _rope(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    if any(one != MIRRORED for one in states[1:]):
        _impossible(tensor, sources, states)
    return states[0]


def _concat(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    along = tensor.raw.op_params[0]
    splits = [one for one in states if one != MIRRORED]
    if not splits:
        return MIRRORED
    first = splits[0]
    if not first.split or first.axis == along or any(one != first for one in splits):
        _impossible(tensor, sources, states)
    return first if first.plain else None


def _attention(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    query = states[0]
    if mirrors_attention():
        if all(one == MIRRORED for one in states):
            return MIRRORED
        # With more than one KV head the queries of a device would meet the keys of others.
        alone = all(source.ne[2] == 1 for source in sources[1:3])
        if query.axis == 2 and alone and all(one == MIRRORED for one in states[1:]):
            return ResultState(1, query.lengths) if query.plain else None
    if any(one.axis != 2 for one in states[:3]) or any(one != MIRRORED for one in states[3:]):
        _impossible(tensor, sources, states)
    heads = [source.ne[2] for source in sources[:3]]
    for lengths, count in ((states[1].lengths, heads[1]), (states[2].lengths, heads[2])):
        if [one * count for one in query.lengths or ()] != [one * heads[0] for one in lengths or ()]:
            _impossible(tensor, sources, states)
    return ResultState(1, query.lengths) if all(one.plain for one in states[:3]) else None


def _add_id(tensor: Tensor, sources: list[Tensor], states: list[ResultState]) -> ResultState | None:
    first, bias, picks = states
    fits = (first.axis, first.lengths) == (bias.axis, bias.lengths) or (first == MIRRORED and bias == PARTIAL)
    if picks != MIRRORED or not fits:
        _impossible(tensor, sources, states)
    return first


_PRODUCTS = ("MUL_MAT", "MUL_MAT_ID")
# Asserted to be split, or not in the switch of an upstream whose attention is never mirrored.
_NEVER = ("FLASH_ATTN_EXT", "LIGHTNING_INDEXER")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(("ADD", "SUB", "MUL", "DIV"), _binary),
    **dict.fromkeys(
        (
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
        ),
        _alike,
    ),
    **dict.fromkeys(
        ("NORM", "RMS_NORM", "L2_NORM", "SUM_ROWS", "MEAN", "ARGMAX", "ARGSORT", "CUMSUM"), _by_row
    ),
    "RESHAPE": _reshape,
    "CONT": _reshape,
    "PERMUTE": _permute,
    "TRANSPOSE": _transpose,
    "GET_ROWS": _get_rows,
    "SET_ROWS": _set_rows,
    "ROPE": _rope,
    "CONCAT": _concat,
    "FLASH_ATTN_EXT": _attention,
    "ADD_ID": _add_id,
}


States = dict["ggml_tensor", ResultState | None]
"""Raw tensor to how it is split, None where that is not known."""


def check_graph(graph: Graph, elsewhere: dict[ggml_tensor, Any], devices: int, *, trust: bool) -> States:
    """The split states of a graph's nodes.

    Args:
        elsewhere: raw tensors that were assigned to another backend.
        devices: how many the MetaDevice has.
        trust: leave to upstream what would be refused.

    Raises:
        PyggmlError: a node cannot be computed on slices, or pyggml does not know whether it can.
    """
    states: States = dict.fromkeys(elsewhere, MIRRORED)
    for raw in graph.raw_nodes():
        try:
            state = state_of(graph.context, raw, states)
        except PyggmlError:
            if not trust:
                raise
            state = states[raw] = None
        if state is None and not trust:
            tensor = Tensor(graph.context, raw)
            raise PyggmlError(
                f"{tensor.described()}: pyggml does not know how a MetaDevice computes {tensor.op} of "
                f"{', '.join(one.described() for one in tensor.sources)}, or whether it can",
                "MetaDevice(..., trust_upstream=True) asks upstream in a child process.",
            )
        if state is not None and state.lengths is not None and len(state.lengths) != devices:
            raise PyggmlError(
                f"{Tensor(graph.context, raw).described()} is split over {len(state.lengths)} devices, not {devices}"
            )
    return states


def state_of(
    context: TensorPool, raw: ggml_tensor, states: States, *, synced: bool = True
) -> ResultState | None:
    """The split state of a tensor; None if pyggml does not know it.

    Args:
        states: what is known already; filled.
        synced: sums over devices have been added up (so it is for whatever follows).

    Raises:
        PyggmlError: it cannot be computed on slices.
    """
    pending = [raw]
    while pending:
        one = pending[-1]
        ahead = [source for source in _inputs(one) if source not in states]
        if ahead and one not in states:
            pending.extend(ahead)
            continue
        pending.pop()
        if one not in states:
            states[one] = _derive(context, one, states, synced=True)
    return states[raw] if synced else _derive(context, raw, states, synced=False)


def _inputs(raw: ggml_tensor) -> list[ggml_tensor]:
    return [one for one in sources_of(raw) if one != raw] if raw.op != 0 else []


def _derive(context: TensorPool, raw: ggml_tensor, states: States, *, synced: bool) -> ResultState | None:
    stamp = context.stamp_of(raw)
    if not raw.view_src and stamp is not None and stamp.owner.permanent:
        given = stamp.owner.split_states.get(raw)
        return MIRRORED if given is None else ResultState.of(given)
    if raw.op == 0:
        return MIRRORED
    sources = _inputs(raw)
    known = [state for state in (states.get(one) for one in sources) if state is not None]
    if len(known) < len(sources):
        return None
    return derive(Tensor(context, raw), [Tensor(context, one) for one in sources], known, synced=synced)


# Transfers, and views in a graph.


class SplitMemory(Owner):
    """An owner whose memory may be on a MetaDevice: its transfers are checked by upstream's rules."""

    def check_transfer(
        self, pool: TensorPool, raw: ggml_tensor, offset: int, size: int, *, writing: bool
    ) -> None:
        """Raise if reading or writing these bytes would end the process.

        Raises:
            PyggmlError: see Tensor.read; the message names the numbers.
        """
        tensor = Tensor(pool, raw)
        what = f"{tensor.described()} on a MetaDevice"
        given = self.split_states.get(raw)
        axis = int(given.axis) if given is not None else self._result_axis(tensor, what)
        if axis == Axis.MIRRORED:
            return
        if not tensor.contiguous:
            raise PyggmlError(f"{what} has gaps or is permuted (strides {tensor.nb}); it is moved only whole")
        if given is None:
            if offset or size != tensor.nbytes:
                raise PyggmlError(f"{what} is a result; it is moved only whole")
        elif axis == Axis.PARTIAL:
            _check_partial(tensor, what, offset, size, writing)
        else:
            _check_slices(tensor, what, given, offset, size)

    def check_fill(self, pool: TensorPool, raw: ggml_tensor, value: int) -> None:
        """Raise if filling a tensor would end the process.

        Raises:
            PyggmlError: the build's meta buffers have no memset_tensor, or it cannot fill this one.
        """
        tensor = Tensor(pool, raw)
        if not raw.buffer.iface.memset_tensor:
            raise PyggmlError(f"{tensor.described()} is on a MetaDevice, which cannot fill", "Use set().")
        self.check_transfer(pool, raw, 0, tensor.nbytes, writing=True)
        given = self.split_states.get(raw)
        if value and given is not None and given.axis == Axis.PARTIAL:
            raise PyggmlError(
                f"{tensor.described()} on a MetaDevice is a sum over devices; it can be filled only with 0",
                "Use set() for another value.",
            )

    @staticmethod
    def _result_axis(tensor: Tensor, what: str) -> int | None:
        state = state_of(tensor.context, tensor.raw, {}, synced=False)
        if state is not None and state.axis == Axis.PARTIAL:
            raise PyggmlError(
                f"{what} is a sum whose summands are still on the devices",
                "Upstream adds them up when something follows in the graph: read that.",
            )
        return None if state is None else state.axis


def _check_partial(tensor: Tensor, what: str, offset: int, size: int, writing: bool) -> None:
    if not writing:
        raise PyggmlError(f"{what} is a sum whose summands are on the devices; it cannot be read")
    if tensor.type.name != "f32":
        raise PyggmlError(f"{what} is a sum over devices; only f32 can be written")
    if offset or size != tensor.nbytes:
        raise PyggmlError(f"{what} is a sum over devices; it is written only whole")


def _check_slices(tensor: Tensor, what: str, state: SplitState, offset: int, size: int) -> None:
    ne, nb, axis = tensor.ne, tensor.nb, int(state.axis)
    if axis == 3:
        raise PyggmlError(
            f"{what} is split along axis 3 of ne; upstream neither reads nor writes such tensors"
        )
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


def is_host_view(raw: ggml_tensor) -> bool:
    """Whether a node is a view of given data in host memory."""
    root = raw.view_src
    return bool(root and root.op == 0 and root.buffer and load().lib.ggml_backend_buffer_is_host(root.buffer))


def wrong_view(nodes: list[ggml_tensor]) -> str | None:
    """What a MetaDevice cannot compute of these nodes in one go, None if it can.

    A view stays at its place in the graph, wherever its memory is.
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
            return "contains a view of memory elsewhere"
    return "ends in a view of host memory" if is_host_view(nodes[-1]) else None


# Leaves of a graph that a scheduler takes.


def check_leaves(label: str, context: TensorPool, memory: GraphMemory, *, parallel: bool) -> None:
    """A leaf gets its backend from what reads it, but not through views (pass 4 of upstream's split).

    Args:
        label: of the scheduler.
        parallel: it keeps several copies of inputs.

    Raises:
        PyggmlError: nothing says where a leaf belongs; or with `parallel`, an input has memory of its own.
    """
    lib = load().lib
    without = set(memory.without)
    viewed: set[ggml_tensor] = set()
    read: set[ggml_tensor] = set()
    for raw, sources in zip(memory.nodes, memory.sources, strict=True):
        (viewed if is_view_op(Tensor(context, raw).op) else read).update(sources)
    for raw in memory.leaves:
        marked = raw.flags & lib.GGML_TENSOR_FLAG_INPUT
        if parallel and marked and raw not in without:
            # ggml_gallocr_needs_realloc does not look at leaves, and the copies change places.
            raise PyggmlError(
                f"{Tensor(context, raw).described()} is an input with memory of its own; {label} cannot keep "
                "copies of it",
                "Let the scheduler allocate it, or do not mark it as input.",
            )
        if raw in without and not marked and (raw in viewed or raw not in read):
            raise PyggmlError(
                f"{Tensor(context, raw).described()} has no memory and is read only through views, or not at "
                "all: upstream cannot tell where it belongs",
                "Mark it as input, or allocate its context.",
            )
