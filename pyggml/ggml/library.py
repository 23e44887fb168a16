"""The bindings of this process, looked up once: native.load checks the build directory on every call."""

from __future__ import annotations

from pyggml.native import load as native
from pyggml.native.load import Bindings

_bindings: Bindings | None = None


def load() -> Bindings:
    """The bindings that this process has loaded, or those of the active build.

    Raises:
        PyggmlError: see pyggml.native.load.load.
    """
    global _bindings
    if _bindings is None:
        _bindings = native.load()
    return _bindings
