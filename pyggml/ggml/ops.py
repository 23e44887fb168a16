"""ggml's operations by name, arguments checked against the declarations of the build."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyggml.errors import PyggmlError
from pyggml.ggml import shapes
from pyggml.ggml.library import load
from pyggml.ggml.tensor import Tensor
from pyggml.ggml.types import tensor_type

if TYPE_CHECKING:
    from pyggml.ggml.context import Context

_NO_OPS = (
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
_NO_OP = ("dup_tensor", "view_tensor", "set_name", "format_name", "init", "free", "set_no_alloc", "reset")
# cffi knows no names of parameters: these are where the optional ones stand, the context not counted.
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


class Ops:
    """`context.ops.NAME(…)` calls ggml_NAME(context, …): every function of ggml.h that makes a tensor.

    Numbers are checked against the C types; tensors must be of this context or of one that it can use, and
    their memory must not be gone. For the operations in `checked` wrong shapes and types raise before C sees
    them, saying which tensors and numbers. The others are left to ggml: a shape it does not accept is an
    assertion that ends the process.

    Views count in ggml's order and bytes, as C does: `ops.view_2d(a, ne0, ne1, nb1, offset)`.
    """

    checked: frozenset[str] = frozenset(shapes.CHECKS)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __dir__(self) -> list[str]:
        return list(_names())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        operation = _operation(name)
        if operation is None:
            raise AttributeError(f"ggml of this build has no operation {name!r}")
        context = self._context

        def call(*arguments: Any) -> Any:
            return operation(context, arguments)

        return call


class _Operation:
    """One function of ggml.h."""

    def __init__(self, name: str, function: Any, signature: Any) -> None:
        self._name = name
        self._function = function
        self._with_context = signature.args[0].cname == "struct ggml_context *"
        kinds = signature.args[1:] if self._with_context else signature.args
        self._kinds = kinds
        self._convert = [_converter(name, number, kind) for number, kind in enumerate(kinds)]
        self._check = shapes.CHECKS.get(name)
        self._makes = signature.result.kind == "pointer"

    def __call__(self, context: Context, arguments: tuple[Any, ...]) -> Any:
        if len(arguments) != len(self._convert):
            kinds = ", ".join(kind.cname for kind in self._kinds)
            raise PyggmlError(
                f"{self._name} takes {len(self._convert)} arguments ({kinds}), not {len(arguments)}"
            )
        with context.using():
            converted = [
                convert(context, argument) for convert, argument in zip(self._convert, arguments, strict=True)
            ]
            if self._check is not None:
                self._check(self._name, *arguments)
            if not self._with_context:
                self._function(*converted)
                return None
            context.room()
            return Tensor(context, self._function(context.raw, *converted))


def _converter(name: str, number: int, kind: Any) -> Callable[[Context, Any], Any]:
    what = f"{name}, argument {number + 1}"
    if kind.cname in ("struct ggml_tensor *", "const struct ggml_tensor *"):
        return functools.partial(_tensor, what, number in _OPTIONAL.get(name, ()))
    if kind.cname == "enum ggml_type":
        return lambda context, value: tensor_type(value).number
    if kind.kind == "enum":
        return functools.partial(_whole, what, min(kind.elements), max(kind.elements))
    if kind.cname == "int *":
        return functools.partial(_sections, what)
    if kind.cname in ("float", "double"):
        return functools.partial(_real, what)
    if kind.cname == "_Bool":
        return functools.partial(_switch, what)
    bits = 8 * load().ffi.sizeof(kind.cname)
    signed = not (kind.cname.startswith("uint") or kind.cname in ("size_t", "unsigned int"))
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return functools.partial(_whole, what, least, most)


def _tensor(what: str, optional: bool, context: Context, value: Any) -> Any:
    if value is None and optional:
        return load().ffi.NULL
    if not isinstance(value, Tensor):
        raise PyggmlError(f"{what}: a tensor is needed, not a {type(value).__name__}")
    value.check_usable()
    context.use(value.context)
    return value.raw


def _whole(what: str, least: int, most: int, context: Context, value: Any) -> int:
    try:
        number = operator.index(value) if not isinstance(value, bool) else None
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise PyggmlError(f"{what}: a whole number from {least} to {most} is needed, not {value!r:.40}")
    return number


def _real(what: str, context: Context, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PyggmlError(f"{what}: a number is needed, not {value!r:.40}")
    try:
        return float(value)
    except OverflowError:
        raise PyggmlError(f"{what}: {value!r:.40} is no float") from None


def _switch(what: str, context: Context, value: Any) -> bool:
    if not isinstance(value, bool):
        raise PyggmlError(f"{what}: True or False is needed, not {value!r:.40}")
    return value


def _sections(what: str, context: Context, value: Any) -> Any:
    if not isinstance(value, (tuple, list)) or len(value) != 4:
        raise PyggmlError(f"{what}: four whole numbers are needed, not {value!r:.40}")
    return load().ffi.new("int[4]", [_whole(what, -(1 << 31), (1 << 31) - 1, context, one) for one in value])


@functools.cache
def _operation(name: str) -> _Operation | None:
    bindings = load()
    function = getattr(bindings.lib, f"ggml_{name}", None)
    if function is None or name.startswith(_NO_OPS) or name in _NO_OP:
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
    found = (name.removeprefix("ggml_") for name in dir(load().lib) if name.startswith("ggml_"))
    return tuple(name for name in found if _operation(name) is not None)
