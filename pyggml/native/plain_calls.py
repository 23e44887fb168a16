"""Calls of ggml.h's plain C functions: they keep the interpreter's lock and come back from a failed assertion.

cffi releases the lock around every call (cffi's docs, "API mode"), which is half of what a trivial call costs.
The functions of ggml.h describe tensors and graphs: they take nanoseconds and wait for nobody. They are C
functions in ggml/src, with no C++ frame below the wrapper, so that an assertion in one of them can be left by
longjmp: it raises AssertionError with upstream's text (PYGGML_COME_BACK in glue.c). Functions that may take long,
wait or call back stay as cffi makes them, and so do those of the other headers.
"""

from __future__ import annotations

import re

from pyggml.native.declarations import Declarations

HEADER = "ggml.h"
NOT_PLAIN = (
    r"ggml_(init|free|reset|set_zero|abort|.*_callback|log_[gs]et|print_.*|time_.*|sleep.*|cycles.*|fopen|numa_.*|"
    r"critical_.*|threadpool_.*|quantize_.*|.*_row|.*compute.*|custom.*|map_custom.*|.*_load|.*_save|.*_export|"
    r"graph_dump.*|graph_print)"
)
"""The functions of ggml.h that are not called this way."""

_CALL = re.compile(
    r"  Py_BEGIN_ALLOW_THREADS\n  _cffi_restore_errno\(\);\n  \{ ([^\n]*) \}\n  _cffi_save_errno\(\);\n"
    r"  Py_END_ALLOW_THREADS\n"
)
_FUNCTION = re.compile(r"^_cffi_f_(\w+)\(PyObject \*self, .*?^\}$", re.MULTILINE | re.DOTALL)
_CLEAN_UP = "if (large_args_free != NULL) _cffi_free_array_arguments(large_args_free);"


def plain_functions(declarations: Declarations) -> frozenset[str]:
    """The names of the functions that are called this way."""
    other = re.compile(NOT_PLAIN)
    return frozenset(
        f.name for f in declarations.functions if f.header == HEADER and not other.fullmatch(f.name)
    )


def rewrite_calls(source: str, names: frozenset[str]) -> str:
    """cffi's C source with the calls of `names` made with the interpreter's lock and through PYGGML_COME_BACK.

    Their errno is not kept for `ffi.errno`: they set none.
    """

    def rewritten(function: re.Match[str]) -> str:
        if function[1] not in names:
            return function[0]
        clean_up = _CLEAN_UP if _CLEAN_UP in function[0] else ""
        return _CALL.sub(
            lambda call: f"  PYGGML_COME_BACK({{ {call[1]} }}, {clean_up});\n",
            function[0],
            count=1,
        )

    return _FUNCTION.sub(rewritten, source)
