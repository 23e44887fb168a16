"""Shapes and types that ggml's operations assert, checked before C does (ggml.c and the CPU backend)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pyggml.errors import PyggmlError
from pyggml.ggml.tensor import Tensor
from pyggml.ggml.types import tensor_type

_FLOATS = ("f32", "f16", "bf16")
_INDICES = ("i32", "i64")
_LARGEST = 1 << 46


def _fail(op: str, why: str, *tensors: Tensor | None) -> NoReturn:
    of = ", ".join(one.described() for one in tensors if one is not None)
    raise PyggmlError(f"{op} of {of}: {why}")


def _repeats(part: Tensor, whole: Tensor) -> bool:
    return all(long % short == 0 for short, long in zip(part.ne, whole.ne, strict=True))


def _rows_together(tensor: Tensor) -> bool:
    return tensor.nb[0] == tensor.type.block_bytes


def _packed(tensor: Tensor) -> bool:
    """Contiguous, also where a length of 1 hides a stride; some operations look at that (ggml_is_padded_1d)."""
    ne, nb = tensor.ne, tensor.nb
    row = tensor.type.row_bytes(ne[0])
    return _rows_together(tensor) and nb[1:] == (row, row * ne[1], row * ne[1] * ne[2])


def _transposed(tensor: Tensor) -> bool:
    return tensor.nb[0] > tensor.nb[1]


def _mul_mat(op: str, a: Tensor, b: Tensor) -> None:
    if a.ne[0] != b.ne[0]:
        _fail(op, f"their rows have {a.ne[0]} and {b.ne[0]} elements", a, b)
    if b.ne[2] % a.ne[2] or b.ne[3] % a.ne[3]:
        _fail(op, f"ne[2:] of the second, {b.ne[2:]}, is no multiple of the first's, {a.ne[2:]}", a, b)
    if _transposed(a) or not _rows_together(a) or not _rows_together(b):
        _fail(op, "elements of a row are not adjacent", a, b)
    if b.type.name != "f32" and b.type != a.type:
        _fail(op, "the second must be f32, or of the first's type", a, b)


def _binary(op: str, a: Tensor, b: Tensor) -> None:
    if not _repeats(b, a):
        _fail(op, f"ne {a.ne} is no multiple of ne {b.ne}", a, b)
    if a.type.name not in _FLOATS or (b.type != a.type and b.type.name != "f32"):
        _fail(op, "the first must be f32, f16 or bf16, the second of that type or f32", a, b)
    if not _rows_together(a) or not _rows_together(b):
        _fail(op, "elements of a row are not adjacent", a, b)


def _unary(op: str, a: Tensor, *_: Any) -> None:
    if a.type.name not in _FLOATS:
        _fail(op, "it must be f32, f16 or bf16", a)
    if not _packed(a):
        _fail(op, f"it must be contiguous (strides {a.nb})", a)


def _f32(op: str, a: Tensor, *_: Any) -> None:
    if a.type.name != "f32":
        _fail(op, "it must be f32", a)
    if not _packed(a):
        _fail(op, f"it must be contiguous (strides {a.nb})", a)


def _reshape(op: str, a: Tensor, *ne: int) -> None:
    if not a.contiguous:
        _fail(op, f"it must be contiguous (strides {a.nb})", a)
    _lengths(op, a, ne)


def _cont(op: str, a: Tensor, *ne: int) -> None:
    if a.type.dtype is None and not a.contiguous:
        _fail(op, f"blocks of {a.type} are not put in another order (strides {a.nb})", a)
    if ne:
        _lengths(op, a, ne)


def _lengths(op: str, a: Tensor, ne: tuple[int, ...]) -> None:
    total, wanted = 1, 1
    for length in a.ne:
        total *= length
    for length in ne:
        wanted *= length
    if any(length < 1 for length in ne) or wanted != total:
        _fail(op, f"ne {ne} has {wanted} elements, not {total}", a)
    if ne[0] % a.type.block:
        _fail(op, f"a row of {ne[0]} elements cuts blocks of {a.type.block}", a)


def _reshape_like(op: str, a: Tensor, b: Tensor) -> None:
    _reshape(op, a, *b.ne)


def _view(op: str, a: Tensor, *numbers: int) -> None:
    dimensions = int(op[-2])
    ne = numbers[:dimensions]
    nb = (a.type.block_bytes, *numbers[dimensions:-1])
    offset = numbers[-1]
    if any(not 1 <= length < 1 << 40 for length in ne) or any(not 0 < stride < _LARGEST for stride in nb):
        _fail(op, f"lengths {ne} and strides {nb[1:]} must be at least 1", a)
    if ne[0] % a.type.block or offset % a.type.block_bytes or any(one % a.type.block_bytes for one in nb):
        _fail(op, f"ne {ne}, strides {nb[1:]} and offset {offset} must be whole elements or blocks", a)
    row = a.type.row_bytes(ne[0])
    end = offset + row + sum((length - 1) * stride for length, stride in zip(ne[1:], nb[1:], strict=True))
    tight = row
    for length in ne[1:]:
        tight *= length
    whole, start = a.nbytes, 0
    if a.raw.view_src:
        root = Tensor(a.context, a.raw.view_src)
        whole, start = root.nbytes, a.raw.view_offs
    if max(end, offset + tight) + start > whole:
        _fail(op, f"ne {ne}, strides {nb[1:]} and offset {offset} reach byte {max(end, offset + tight)}", a)


def _permute(op: str, a: Tensor, *axes: int) -> None:
    if sorted(axes) != [0, 1, 2, 3]:
        _fail(op, f"the axes must be 0, 1, 2, 3 in some order, not {axes}", a)
    if max(a.nb) >= 1 << 31 or max(a.ne) >= 1 << 31:
        # ggml_permute keeps them in ints.
        _fail(op, f"ggml permutes lengths and strides below 2**31 (ne {a.ne}, strides {a.nb})", a)


def _transpose(op: str, a: Tensor) -> None:
    a.context.check()


def _cpy(op: str, a: Tensor, b: Tensor) -> None:
    count = [one.ne[0] * one.ne[1] * one.ne[2] * one.ne[3] for one in (a, b)]
    if count[0] != count[1]:
        _fail(op, f"they have {count[0]} and {count[1]} elements", a, b)
    known = {*_FLOATS, "i32"}
    names = {a.type.name, b.type.name}
    if len(names) > 1 and not names <= known and "f32" not in names:
        _fail(op, "one of them must be f32", a, b)
    quantised = a.type.dtype is None or b.type.dtype is None
    if quantised and (a.ne != b.ne or not a.contiguous or not b.contiguous):
        _fail(op, "blocks are copied only between contiguous tensors of one shape", a, b)


def _cast(op: str, a: Tensor, kind: Any) -> None:
    wanted = tensor_type(kind)
    if a.ne[0] % wanted.block:
        _fail(op, f"a row of {a.ne[0]} elements cuts blocks of {wanted}, {wanted.block}", a)


def _get_rows(op: str, a: Tensor, b: Tensor) -> None:
    if b.type.name != "i32":
        _fail(op, "the indices must be i32", a, b)
    if a.ne[2] != b.ne[1] or a.ne[3] != b.ne[2] or b.ne[3] != 1:
        _fail(op, f"ne {b.ne} of the indices does not fit ne {a.ne}", a, b)
    if not _rows_together(a) or not b.contiguous:
        _fail(op, "elements of a row are not adjacent", a, b)


def _set_rows(op: str, a: Tensor, b: Tensor, c: Tensor) -> None:
    if c.type.name not in _INDICES or b.type.name != "f32":
        _fail(op, "the rows must be f32 and the indices i32 or i64", a, b, c)
    if a.ne[0] != b.ne[0] or a.ne[2:] != b.ne[2:]:
        _fail(op, f"rows of ne {b.ne} do not fit ne {a.ne}", a, b, c)
    if b.ne[1] != c.ne[0] or b.ne[2] % c.ne[1] or b.ne[3] % c.ne[2] or c.ne[3] != 1:
        _fail(op, f"indices of ne {c.ne} do not fit rows of ne {b.ne}", a, b, c)
    if not _rows_together(a) or not _rows_together(b):
        _fail(op, "elements of a row are not adjacent", a, b, c)


def _concat(op: str, a: Tensor, b: Tensor, axis: int) -> None:
    if not 0 <= axis < 4:
        _fail(op, f"the axis is 0 to 3, not {axis}", a, b)
    if a.type != b.type or a.type.dtype is None:
        _fail(op, "they must have one type, and no quantised one", a, b)
    if any(a.ne[one] != b.ne[one] for one in range(4) if one != axis):
        _fail(op, f"ne {a.ne} and {b.ne} differ in another axis than {axis}", a, b)


def _soft_max_ext(op: str, a: Tensor, mask: Tensor | None, scale: float, max_bias: float) -> None:
    _f32(op, a)
    if mask is None:
        if max_bias > 0:
            _fail(op, "a bias needs a mask", a)
        return
    if mask.type.name not in ("f16", "f32") or not mask.contiguous:
        _fail(op, "the mask must be contiguous f16 or f32", a, mask)
    if mask.ne[0] != a.ne[0] or mask.ne[1] < a.ne[1] or a.ne[2] % mask.ne[2] or a.ne[3] % mask.ne[3]:
        _fail(op, f"a mask of ne {mask.ne} does not fit ne {a.ne}", a, mask)


def _rope(op: str, a: Tensor, b: Tensor, *rest: Any) -> None:
    factors, rest = (rest[0], rest[1:]) if "ext" in op else (None, rest)
    dimensions, mode = rest[0], rest[1]
    if a.type.name not in ("f32", "f16") or b.type.name != "i32" or not _rows_together(a):
        _fail(op, "it must be f32 or f16 with adjacent rows, the positions i32", a, b)
    if b.ne[1:] != (1, 1, 1) or b.ne[0] != a.ne[2] * (4 if mode & 8 else 1):
        _fail(op, f"positions of ne {b.ne} do not fit ne {a.ne} (ne[2] of them, or four times that)", a, b)
    if not 2 <= dimensions <= a.ne[0] or dimensions % 2 or mode not in (0, 2):
        _fail(
            op, f"{dimensions} dimensions in mode {mode} of rows of {a.ne[0]} (modes 0 and 2 are checked)", a
        )
    if factors is not None and (factors.type.name != "f32" or factors.ne[0] < dimensions // 2):
        _fail(op, f"{dimensions // 2} factors in f32 are needed", a, factors)


def _flash_attn(op: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: float) -> None:
    if q.type.name != "f32" or q.ne[0] != k.ne[0] or q.ne[2] % k.ne[2] or q.ne[2] % v.ne[2]:
        _fail(
            op, f"ne {q.ne}, {k.ne}, {v.ne}: heads or head sizes do not fit, or queries are not f32", q, k, v
        )
    if not q.ne[3] == k.ne[3] == v.ne[3] or k.ne[1] != v.ne[1] or k.ne[2] != v.ne[2]:
        _fail(op, f"ne {q.ne}, {k.ne}, {v.ne}: numbers of keys and values or of sequences differ", q, k, v)
    if not (_rows_together(q) and _rows_together(k) and _rows_together(v)):
        _fail(op, "elements of a row are not adjacent", q, k, v)
    if mask is None:
        if rest[1] > 0:
            _fail(op, "a bias needs a mask", q, k, v)
    elif (
        mask.type.name != "f16"
        or not mask.contiguous
        or mask.ne[0] < k.ne[1]
        or mask.ne[1] < q.ne[1]
        or q.ne[2] % mask.ne[2]
        or q.ne[3] % mask.ne[3]
    ):
        _fail(op, f"a mask of {mask.type} and ne {mask.ne} does not fit ne {q.ne} and {k.ne}", q, k, v, mask)


CHECKS: dict[str, Callable[..., None]] = {
    "mul_mat": _mul_mat,
    **{name + end: _binary for name in ("add", "sub", "mul", "div") for end in ("", "_inplace")},
    **dict.fromkeys(("neg", "abs", "sqr", "sqrt", "relu", "silu", "gelu", "tanh", "sigmoid", "exp"), _unary),
    **dict.fromkeys(("scale", "rms_norm", "norm", "sum_rows", "mean", "soft_max", "scale_bias"), _f32),
    "reshape": _reshape_like,
    **{f"reshape_{number}d": _reshape for number in range(1, 5)},
    "cont": _cont,
    **{f"cont_{number}d": _cont for number in range(1, 5)},
    **{f"view_{number}d": _view for number in range(1, 5)},
    "permute": _permute,
    "transpose": _transpose,
    "cpy": _cpy,
    "cast": _cast,
    "get_rows": _get_rows,
    "set_rows": _set_rows,
    "concat": _concat,
    "soft_max_ext": _soft_max_ext,
    "rope": _rope,
    "rope_ext": _rope,
    "flash_attn_ext": _flash_attn,
}
