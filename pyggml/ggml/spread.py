"""How the result of an operation is spread over devices (ggml_backend_meta_get_split_state, as far as mirrored).

Upstream's rules have grown: the rules that a newer tree has on top are marked by `mirrors_attention()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load
from pyggml.ggml.split import Axis, SplitState
from pyggml.ggml.tensor import Tensor


@dataclass(frozen=True)
class Spread:
    """A split state without its segments.

    Attributes:
        axis: of ne, or Axis.MIRRORED, or Axis.PARTIAL.
        lengths: elements of the axis on each device, None if each has all.
        plain: one slice for each device.
    """

    axis: int
    lengths: tuple[int, ...] | None = None
    plain: bool = True

    @classmethod
    def of(cls, state: SplitState) -> Spread:
        """The spread of a given tensor."""
        if not state.is_split or state.segments is None:
            return cls(int(state.axis))
        return cls(int(state.axis), tuple(state.lengths(state.segments.shape[1]) or ()), state.plain)

    @property
    def split(self) -> bool:
        """Whether every device has a slice."""
        return self.axis < 4


MIRRORED = Spread(int(Axis.MIRRORED))
PARTIAL = Spread(int(Axis.PARTIAL))

Rule = Callable[[Tensor, list[Tensor], list[Spread]], Spread | None]


def mirrors_attention() -> bool:
    """Whether the loaded build has the rules that came with attention over mirrored K and V.

    They arrived together with `ggml_backend_meta_buffer_set_usage`, which the library then exports: products
    along axis 2 and 3, FlashAttention over mirrored K and V, the lightning indexer, and reshapes that move
    a whole row to the next axis.
    """
    return hasattr(load().lib, "ggml_backend_meta_buffer_set_usage")


def derive(tensor: Tensor, sources: list[Tensor], spreads: list[Spread], *, synced: bool) -> Spread | None:
    """How a result is spread; None if that is not known here.

    Args:
        spreads: of the sources.
        synced: a sum over devices has been added up.

    Raises:
        PyggmlError: upstream asserts that this does not happen.
    """
    op = tensor.op
    rule = _RULES.get(op)
    if rule is None:
        known = op not in _NEVER or mirrors_attention()
        return MIRRORED if known and all(one == MIRRORED for one in spreads) else None
    result = rule(tensor, sources, spreads)
    return MIRRORED if result == PARTIAL and synced and op in _PRODUCTS and PARTIAL not in spreads else result


def _impossible(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> NoReturn:
    def how(spread: Spread) -> str:
        if not spread.split:
            return Axis(spread.axis).name.lower()
        return f"along axis {spread.axis} as {list(spread.lengths or ())}"

    parts = ", ".join(
        f"{one.described()} {how(spread)}" for one, spread in zip(sources, spreads, strict=True)
    )
    raise PyggmlError(
        f"{tensor.described()}: a MetaDevice cannot compute {tensor.op} of {parts}",
        "Choose splits that fit (ggml-backend-meta.cpp, ggml_backend_meta_get_split_state).",
    )


def _scaled(tensor: Tensor, source: Tensor, spread: Spread, axis: int, repeats: int = 1) -> Spread | None:
    """The slices of `source` in proportion, along an axis of `tensor`; None if they are not whole."""
    if spread.lengths is None:
        return spread
    whole = source.ne[spread.axis] * repeats
    numbers = [length * tensor.ne[axis] for length in spread.lengths]
    if any(number % whole for number in numbers):
        return None
    return Spread(axis, tuple(number // whole * repeats for number in numbers), repeats == 1)


def _product(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    first, second = spreads[0], spreads[1]
    if any(one != MIRRORED for one in spreads[2:]) or PARTIAL in (first, second):
        _impossible(tensor, sources, spreads)
    if first == second == MIRRORED:
        return MIRRORED
    if first.axis == 1 and second == MIRRORED:
        return Spread(0, first.lengths)
    if first == MIRRORED and second.axis == 1:
        return second
    if first.axis == second.axis == 0 and first.lengths == second.lengths:
        return PARTIAL
    # Upstream also lets the second be mirrored, and its kernel then asserts that there are as many matrices.
    if first.axis in (2, 3) and mirrors_attention() and second == first:
        return first
    _impossible(tensor, sources, spreads)


def _binary(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    first, second = spreads[0], spreads[1]
    if first.split and second == MIRRORED and sources[1].ne[first.axis] == 1:
        return first
    return _alike(tensor, sources, spreads)


def _alike(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    first = spreads[0]
    if any((one.axis, one.lengths) != (first.axis, first.lengths) for one in spreads):
        _impossible(tensor, sources, spreads)
    if len(spreads) > 1 and not all(one.plain for one in spreads):
        return None
    return _scaled(tensor, sources[0], first, first.axis)


def _by_row(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    if spreads[0].axis == 0:
        _impossible(tensor, sources, spreads)
    return spreads[0] if all(one == MIRRORED for one in spreads[1:]) else None


def _reshape(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    source, spread = sources[0], spreads[0]
    if not spread.split:
        return spread
    if not spread.plain:
        return None
    dimensions = load().lib.ggml_n_dims
    if spread.axis == dimensions(source.raw) - 1:
        return _scaled(tensor, source, spread, dimensions(tensor.raw) - 1)
    if _whole_rows(tensor, source, spread):
        return _scaled(tensor, source, spread, 1)
    inner = 1
    for length in source.ne[: spread.axis + 1]:
        inner *= length
    whole = 1
    for axis, length in enumerate(tensor.ne):
        whole *= length
        if whole % inner == 0:
            return _scaled(tensor, source, spread, axis, whole // inner)
        if whole > inner:
            return _scaled(tensor, source, spread, axis)
    _impossible(tensor, sources, spreads)


def _whole_rows(tensor: Tensor, source: Tensor, spread: Spread) -> bool:
    """Whether one device has all of axis 0, which then moves to the axis of length 1 after it."""
    return (
        mirrors_attention()
        and spread.axis == 0
        and tensor.ne[:2] == (source.ne[0], 1)
        and all(length in (0, source.ne[0]) for length in spread.lengths or ())
    )


def _permute(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    spread = spreads[0]
    if not spread.split:
        return spread
    return Spread(tensor.raw.op_params[spread.axis], spread.lengths) if spread.plain else None


def _transpose(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    spread = spreads[0]
    if spread.axis > 1:
        return spread
    return Spread(spread.axis ^ 1, spread.lengths) if spread.plain else None


def _get_rows(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    if spreads[1] != MIRRORED or spreads[0].axis not in (0, MIRRORED.axis):
        _impossible(tensor, sources, spreads)
    return spreads[0]


def _set_rows(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    # The rows come first, then the indices, then what is written into.
    rows, indices, target = spreads
    if rows.axis == 1 or indices != MIRRORED or (rows.axis, rows.lengths) != (target.axis, target.lengths):
        _impossible(tensor, sources, spreads)
    return rows if rows.plain and target.plain else None


def _rope(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    if any(one != MIRRORED for one in spreads[1:]):
        _impossible(tensor, sources, spreads)
    return spreads[0]


def _concat(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    along = tensor.raw.op_params[0]
    splits = [one for one in spreads if one != MIRRORED]
    if not splits:
        return MIRRORED
    first = splits[0]
    if not first.split or first.axis == along or any(one != first for one in splits):
        _impossible(tensor, sources, spreads)
    return first if first.plain else None


def _attention(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    query = spreads[0]
    if mirrors_attention():
        if all(one == MIRRORED for one in spreads):
            return MIRRORED
        # With more than one KV head the queries of a device would meet the keys of others.
        alone = all(source.ne[2] == 1 for source in sources[1:3])
        if query.axis == 2 and alone and all(one == MIRRORED for one in spreads[1:]):
            return Spread(1, query.lengths) if query.plain else None
    if any(one.axis != 2 for one in spreads[:3]) or any(one != MIRRORED for one in spreads[3:]):
        _impossible(tensor, sources, spreads)
    heads = [source.ne[2] for source in sources[:3]]
    for lengths, count in ((spreads[1].lengths, heads[1]), (spreads[2].lengths, heads[2])):
        if [one * count for one in query.lengths or ()] != [one * heads[0] for one in lengths or ()]:
            _impossible(tensor, sources, spreads)
    return Spread(1, query.lengths) if all(one.plain for one in spreads[:3]) else None


def _add_id(tensor: Tensor, sources: list[Tensor], spreads: list[Spread]) -> Spread | None:
    first, bias, picks = spreads
    fits = (first.axis, first.lengths) == (bias.axis, bias.lengths) or (first == MIRRORED and bias == PARTIAL)
    if picks != MIRRORED or not fits:
        _impossible(tensor, sources, spreads)
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
