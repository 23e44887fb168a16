"""Calls that keep the interpreter's lock: letting go of it and taking it back costs more than they do.

cffi lets go of it around every call (cffi's docs, "API mode"), which is half of what a trivial call costs. The
functions of ggml.h describe tensors and graphs: they take nanoseconds and wait for nobody. Those of its
functions that may take long, wait or call back stay as cffi makes them, and so does every other header.
"""

from __future__ import annotations

import re

from pyggml.native.declarations import Declarations

HEADER = "ggml.h"
RULE = (
    r"ggml_(init|free|reset|set_zero|abort|.*_callback|log_.*|print_.*|time_.*|sleep.*|cycles.*|fopen|numa_.*|"
    r"critical_.*|threadpool_.*|quantize_.*|.*_row|.*compute.*|custom.*|map_custom.*|.*_load|.*_save|.*_export|"
    r"graph_dump.*|graph_print)"
)
"""The functions of ggml.h that are no quick ones."""

_WAIT = re.compile(
    r"  Py_BEGIN_ALLOW_THREADS\n  _cffi_restore_errno\(\);\n(  \{ [^\n]* \}\n)  _cffi_save_errno\(\);\n"
    r"  Py_END_ALLOW_THREADS\n"
)
_FUNCTION = re.compile(r"^_cffi_f_(\w+)\(PyObject \*self, .*?^\}$", re.MULTILINE | re.DOTALL)


def quick_functions(declarations: Declarations) -> frozenset[str]:
    """The names of the functions that keep the lock."""
    slow = re.compile(RULE)
    return frozenset(
        f.name for f in declarations.functions if f.header == HEADER and not slow.fullmatch(f.name)
    )


def keep_lock(source: str, names: frozenset[str]) -> str:
    """cffi's C source with the calls of `names` made without letting go of the interpreter's lock.

    Their errno is not kept for `ffi.errno`: they set none.
    """

    def one(match: re.Match[str]) -> str:
        return _WAIT.sub(r"\1", match[0], count=1) if match[1] in names else match[0]

    return _FUNCTION.sub(one, source)
