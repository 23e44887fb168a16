"""pyggml: maintain, build and prove your own patches on ggml and llama.cpp.

`pyggml.lib` and `pyggml.ffi` are the raw C level of the active build: the one of the project around the
working directory, or the one in PYGGML_BUILD. They are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyggml.version import __version__ as __version__

if TYPE_CHECKING:
    from pyggml.native.c_library import CLibrary

    lib: CLibrary
    ffi: Any


def __getattr__(name: str) -> Any:
    if name not in ("lib", "ffi"):
        raise AttributeError(f"module 'pyggml' has no attribute {name!r}")
    from pyggml.native.load import load

    return getattr(load(), name)
