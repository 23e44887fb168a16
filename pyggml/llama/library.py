"""The loaded build, ready for llama.cpp's calls."""

from __future__ import annotations

import os
from typing import Any

from pyggml.native.load import Bindings, load

_begun = False


def library() -> Bindings:
    """The active build's bindings; backends that are files of their own are loaded the first time.

    Raises:
        PyggmlError: see pyggml.native.load.load.
    """
    global _begun
    bindings = load()
    if not _begun:
        if bindings.lib.ggml_backend_reg_count() == 0:
            bindings.lib.ggml_backend_load_all_from_path(os.fsencode(bindings.build.bin_dir))
        bindings.lib.llama_backend_init()
        _begun = True
    return bindings


def text_of(bindings: Bindings, call: Any, *arguments: Any) -> str | None:
    """What a function of the kind `length f(..., char * buf, size_t size)` writes; None when it refuses.

    Text is UTF-8 with what is not replaced: it comes out of a model file.
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
