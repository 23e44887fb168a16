"""ggml's operations by name: arguments as the build declares them, shapes and types as its constructors do."""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any, NoReturn

from pyggml.errors import PyggmlError
from pyggml.ggml.library import load
from pyggml.ggml.mirrored import KERNEL_RULES
from pyggml.ggml.ownership import TensorPool
from pyggml.ggml.tensor import Tensor
from pyggml.ggml.types import TensorType, tensor_type

_NOT_OPERATIONS = (
    "backend_",
    "new_",
    "get_first_",
    "get_next_",
    "get_tensor",
    "set_zero",
    "set_i32",
    "set_f32",
    "map_",
    "custom",
)
_NOT_OPERATION = (
    "dup_tensor",
    "view_tensor",
    "set_name",
    "format_name",
    "init",
    "free",
    "set_no_alloc",
    "reset",
)
# cffi does not know the names of parameters: these are the positions of optional tensors after the context.
_OPTIONAL = {
    "soft_max_ext": (1,),
    "soft_max_ext_inplace": (1,),
    "flash_attn_ext": (3,),
    "rope_ext": (2,),
    "rope_ext_inplace": (2,),
    "rope_multi": (2,),
    "rope_multi_inplace": (2,),
    "soft_max_add_sinks": (1,),
    "flash_attn_ext_add_sinks": (1,),
}
_MOST_BYTES = 1 << 46
_SHAPED = re.compile(r"(reshape|view|cont|repeat)_(\d)d")

Convert = Callable[[TensorPool, Any], Any]


class Ops:
    """`context.ops.NAME(…)` calls ggml_NAME(context, …): every function of ggml.h that makes a tensor.

    Numbers are checked against the C types; tensors must be of this context or of one that it can use, and
    their memory must not be gone. What ggml.h's constructor asserts raises PyggmlError with upstream's own text.
    What only the CPU's kernels assert is checked when a graph gets its memory or is computed, for the
    operations in `checked` (names as in Tensor.op); in the others it ends the process when they are computed.

    Views count in ggml's order and bytes, as C does: `ops.view_2d(a, ne0, ne1, nb1, offset)`.
    """

    checked: frozenset[str] = frozenset(KERNEL_RULES)

    def __init__(self, context: TensorPool) -> None:
        self._context = context

    def __dir__(self) -> list[str]:
        return list(_names())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        operation = _operation(name)
        if operation is None:
            raise AttributeError(f"ggml of this build has no operation {name!r}")
        call = operation.on(self._context)
        # The next time the attribute is there.
        self.__dict__[name] = call
        return call


class _Operation:
    """One function of ggml.h."""

    def __init__(self, name: str, function: Any, signature: Any) -> None:
        self._name = name
        self._function = function
        self._with_context = signature.args[0].cname == "struct ggml_context *"
        self._kinds = signature.args[1:] if self._with_context else signature.args
        self._convert = [_converter(name, number, kind) for number, kind in enumerate(self._kinds)]
        self._check = _lengths_check(name)

    def on(self, pool: TensorPool) -> Callable[..., Any]:
        """The function that calls it on tensors of a context."""
        converters = [
            (_quick(kind), convert) for kind, convert in zip(self._kinds, self._convert, strict=True)
        ]
        check, count = self._check, len(converters)
        function, with_context = self._function, self._with_context
        use, uses = pool.using(), pool.uses
        acquire, release = use.lock.acquire, use.lock.release

        def call(*arguments: Any) -> Tensor | None:
            if len(arguments) != count:
                self._wrong_count(len(arguments))
            # What `with use` does, in a fifth of the time.
            if not acquire(False):
                use.refuse()
            try:
                fresh = pool.ready(with_context)
                values = [pool.raw] if with_context else []
                for (quick, convert), value in zip(converters, arguments):  # noqa: B905 (counted above)
                    given = type(value)
                    if quick is not given:
                        values.append(convert(pool, value))
                    elif quick is not Tensor:
                        values.append(value)
                    elif fresh and (value.context is pool or value.context in uses):
                        values.append(value.raw)
                    else:
                        values.append(convert(pool, value))
                if check is not None:
                    check(*arguments)
                if with_context:
                    return Tensor(pool, function(*values))
                function(*values)
            except AssertionError as error:
                self._refused(arguments, str(error))
            finally:
                release()
            return None

        return call

    def _wrong_count(self, count: int) -> NoReturn:
        kinds = ", ".join(kind.cname for kind in self._kinds)
        raise PyggmlError(f"{self._name} takes {len(self._convert)} arguments ({kinds}), not {count}")

    def _refused(self, arguments: tuple[Any, ...], assertion: str) -> NoReturn:
        given = ", ".join(
            value.described() if isinstance(value, Tensor) else str(value) for value in arguments
        )
        raise PyggmlError(
            f"{self._name} of {given}: {assertion.rpartition('/')[2] if '.c:' in assertion else assertion}",
            "That is ggml's own check; its ne is the shape in reverse.",
        ) from None


def _lengths_check(name: str) -> Callable[..., None] | None:
    """What the constructor leaves unchecked (in a build without assert()) about the lengths it is given."""
    if name in ("cast", "reshape"):
        return functools.partial(_check_cast if name == "cast" else _check_reshape_like, name)
    if name == "permute":
        return functools.partial(_check_permute, name)
    shaped = _SHAPED.fullmatch(name)
    if shaped is None:
        return None
    check = _check_view if shaped[1] == "view" else _check_lengths
    return functools.partial(check, name, int(shaped[2]))


def _check_cast(op: str, a: Tensor, kind: Any) -> None:
    _check_blocks(op, a, a.ne[0], tensor_type(kind))


def _check_reshape_like(op: str, a: Tensor, b: Tensor) -> None:
    _check_blocks(op, a, b.ne[0], a.type)


def _check_permute(op: str, a: Tensor, *axes: int) -> None:
    if max(a.nb) >= 1 << 31 or max(a.ne) >= 1 << 31:
        raise PyggmlError(
            f"{op} of {a.described()}: ggml_permute keeps lengths and strides as int, below 2**31 "
            f"(ne {a.ne}, strides {a.nb})"
        )


def _check_lengths(op: str, dimensions: int, a: Tensor, *numbers: int) -> None:
    lengths = numbers[:dimensions]
    if any(not 1 <= length < 1 << 40 for length in lengths):
        raise PyggmlError(f"{op} of {a.described()}: every length is at least 1 (below 2**40), not {lengths}")
    _check_blocks(op, a, lengths[0], a.type)


def _check_blocks(op: str, a: Tensor, row: int, kind: TensorType) -> None:
    if row % kind.block:
        raise PyggmlError(
            f"{op} of {a.described()}: a row of {row} elements cuts blocks of {kind}, {kind.block} elements each"
        )


def _check_view(op: str, dimensions: int, a: Tensor, *numbers: int) -> None:
    """ggml_view_impl compares the bytes of the elements with the tensor's, not where the strides lead."""
    _check_lengths(op, dimensions, a, *numbers)
    ne, size = numbers[:dimensions], a.type.block_bytes
    nb, offset = (size, *numbers[dimensions:-1]), numbers[-1]
    what = f"{op} of {a.described()}: ne {ne}, strides {nb[1:]} and offset {offset}"
    if any(not 0 < stride < _MOST_BYTES or stride % size for stride in nb) or offset % size:
        raise PyggmlError(
            f"{what} must be whole elements or blocks of {size} bytes, the strides at least one"
        )
    row = a.type.row_bytes(ne[0])
    last = offset + row + sum((length - 1) * stride for length, stride in zip(ne[1:], nb[1:], strict=True))
    last = max(last, offset + row * math.prod(ne[1:]))
    root, start = (Tensor(a.context, a.raw.view_src), a.raw.view_offs) if a.raw.view_src else (a, 0)
    if last + start > root.nbytes:
        raise PyggmlError(f"{what} reach byte {last}")


def _converter(name: str, number: int, kind: Any) -> Convert:
    what = f"{name}, argument {number + 1}"
    if kind.cname in ("struct ggml_tensor *", "const struct ggml_tensor *"):
        return _tensor_converter(what, number in _OPTIONAL.get(name, ()))
    if kind.cname == "enum ggml_type":
        return lambda pool, value: tensor_type(value).number
    if kind.kind == "enum":
        return _whole_converter(what, min(kind.elements), max(kind.elements))
    if kind.cname == "int *":
        return functools.partial(_sections, what)
    if kind.cname in ("float", "double"):
        return _real_converter(what)
    if kind.cname == "_Bool":
        return functools.partial(_switch, what)
    bits = 8 * load().ffi.sizeof(kind.cname)
    signed = not (kind.cname.startswith("uint") or kind.cname in ("size_t", "unsigned int"))
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return _whole_converter(what, least, most)


def _quick(kind: Any) -> type | None:
    """The Python type whose values are passed on as they are; every tensor of the context itself is."""
    if kind.cname in ("struct ggml_tensor *", "const struct ggml_tensor *"):
        return Tensor
    return {"float": float, "double": float, "_Bool": bool}.get(kind.cname)


def _tensor_converter(what: str, optional: bool) -> Convert:
    null = load().ffi.NULL

    def convert(pool: TensorPool, value: Any) -> Any:
        if value is None and optional:
            return null
        if not isinstance(value, Tensor):
            raise PyggmlError(f"{what}: a tensor is needed, not a {type(value).__name__}")
        value.check_usable()
        pool.use(value.context)
        return value.raw

    return convert


def _whole_converter(what: str, least: int, most: int) -> Convert:
    def convert(pool: TensorPool, value: Any) -> int:
        if type(value) is int and least <= value <= most:
            return value
        try:
            number = operator.index(value) if not isinstance(value, bool) else None
        except TypeError:
            number = None
        if number is None or not least <= number <= most:
            raise PyggmlError(f"{what}: a whole number from {least} to {most} is needed, not {value!r:.40}")
        return number

    return convert


def _real_converter(what: str) -> Convert:
    def convert(pool: TensorPool, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise PyggmlError(f"{what}: a number is needed, not {value!r:.40}")
        try:
            return float(value)
        except OverflowError:
            raise PyggmlError(f"{what}: {value!r:.40} does not fit into a float") from None

    return convert


def _switch(what: str, pool: TensorPool, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PyggmlError(f"{what}: True or False is needed, not {value!r:.40}")
    return value


def _sections(what: str, pool: TensorPool, value: Any) -> Any:
    if not isinstance(value, (tuple, list)) or len(value) != 4:
        raise PyggmlError(f"{what}: four whole numbers are needed, not {value!r:.40}")
    whole = _whole_converter(what, -(1 << 31), (1 << 31) - 1)
    return load().ffi.new("int[4]", [whole(pool, one) for one in value])


@functools.cache
def _operation(name: str) -> _Operation | None:
    bindings = load()
    function = getattr(bindings.lib, f"ggml_{name}", None)
    if function is None or name.startswith(_NOT_OPERATIONS) or name in _NOT_OPERATION:
        return None
    signature = bindings.ffi.typeof(function)
    if signature.kind != "function" or not signature.args or signature.ellipsis:
        return None
    first, result = signature.args[0].cname, signature.result.cname
    makes = first == "struct ggml_context *" and result == "struct ggml_tensor *"
    changes = first == "struct ggml_tensor *" and result == "void"
    if not makes and not changes:
        return None
    for kind in signature.args[1:]:
        plain = kind.kind in ("primitive", "enum") or kind.cname in ("int *", "struct ggml_tensor *")
        if not plain:
            return None
    return _Operation(name, function, signature)


@functools.cache
def _names() -> tuple[str, ...]:
    known = (name.removeprefix("ggml_") for name in dir(load().lib) if name.startswith("ggml_"))
    return tuple(name for name in known if _operation(name) is not None)
