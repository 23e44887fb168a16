"""Asking upstream in a forked child what would end the process here.

The child makes one call and ends; an assertion's text comes back over a pipe (pyggml_rehearse in glue.c). It must
not compute: threads do not survive a fork. And it must not touch a driver that does not survive one either, so
this is done only where every device that ggml knows is the CPU or a virtual one.
"""

from __future__ import annotations

from typing import Any

from pyggml.ggml.library import load

_SECONDS = 20
_SAFE = ("CPU", "VDEV")
_TEXT_BYTES = 2048


def can_rehearse() -> bool:
    """Whether a child can be forked safely: no backend with a driver is registered."""
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    names = (
        ffi.string(lib.ggml_backend_reg_name(lib.ggml_backend_reg_get(number))).decode()
        for number in range(lib.ggml_backend_reg_count())
    )
    return all(name in _SAFE for name in names)


def rehearse(function: str, first: Any, second: Any) -> str | None:
    """What ends the process that calls `function(first, second)`, None if nothing does.

    Args:
        function: of the library; takes two pointers and returns a bool.
    """
    bindings = load()
    ffi, lib = bindings.ffi, bindings.lib
    text = ffi.new("char[]", _TEXT_BYTES)
    pointer = ffi.cast("bool (*)(void *, void *)", ffi.addressof(lib, function))
    result = lib.pyggml_rehearse(pointer, first, second, text, _TEXT_BYTES, _SECONDS)
    return None if result <= 0 else ffi.string(text).decode("utf-8", "replace")
