"""The active build's bindings, initialised for llama.cpp."""

from __future__ import annotations

import os
from typing import Any

from pyggml.native.load import Bindings, load

_initialized = False


def library() -> Bindings:
    """The active build's bindings; the first call loads backends that are separate files.

    Raises:
        PyggmlError: see pyggml.native.load.load.
    """
    global _initialized
    bindings = load()
    if not _initialized:
        if bindings.lib.ggml_backend_reg_count() == 0:
            bindings.lib.ggml_backend_load_all_from_path(os.fsencode(bindings.build.bin_dir))
        bindings.lib.llama_backend_init()
        _initialized = True
    return bindings


def text_of(bindings: Bindings, call: Any, *arguments: Any) -> str | None:
    """What a function of the form `length f(..., char * buf, size_t size)` writes; None if it fails.

    Bytes that are not UTF-8 are replaced: the text comes from a model file.
    """
    size = 256
    while True:
        buffer = bindings.ffi.new("char[]", size)
        length = call(*arguments, buffer, size)
        if length < 0:
            return None
        if length < size:
            return bytes(bindings.ffi.buffer(buffer, length)).decode("utf-8", "replace")
        size = length + 1
