"""Which calls keep the interpreter's lock, and that the others let go of it."""

from __future__ import annotations

from pathlib import Path

import cffi
import pytest

from pyggml.native.declarations import Declarations, Function
from pyggml.native.load import load
from pyggml.native.quick import keep_lock, quick_functions


def declared(*names: str, header: str = "ggml.h") -> Declarations:
    functions = tuple(Function(name, header, "void(void)") for name in names)
    return Declarations("", functions, (), (), (), (), ())


def test_only_what_describes_graphs_is_quick() -> None:
    quick = (
        "ggml_row_size",
        "ggml_nbytes",
        "ggml_mul_mat",
        "ggml_build_forward_expand",
        "ggml_new_tensor_1d",
    )
    slow = (
        "ggml_init", "ggml_free", "ggml_quantize_chunk", "ggml_fp32_to_fp16_row", "ggml_log_set", "ggml_abort",
        "ggml_set_abort_callback", "ggml_critical_section_start", "ggml_time_us", "ggml_graph_compute_with_ctx",
    )  # fmt: skip
    assert quick_functions(declared(*quick, *slow)) == frozenset(quick)
    assert quick_functions(declared(*quick, header="ggml-backend.h")) == frozenset()


def test_the_lock_is_kept_in_the_named_functions_alone(tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef("size_t one(int a, int b); void two(void); int three(int a);")
    ffi.set_source("_x", "#include <stddef.h>\nsize_t one(int a, int b); void two(void); int three(int a);")
    ffi.emit_c_code(str(tmp_path / "x.c"))
    source = (tmp_path / "x.c").read_text("utf-8")
    changed = keep_lock(source, frozenset({"one", "two"}))
    assert source.count("Py_BEGIN_ALLOW_THREADS") - changed.count("Py_BEGIN_ALLOW_THREADS") == 2
    assert changed.count("Py_BEGIN_ALLOW_THREADS") == changed.count("Py_END_ALLOW_THREADS")
    three = changed[changed.index("_cffi_f_three(") :]
    assert "Py_BEGIN_ALLOW_THREADS" in three[: three.index("\n}\n")]
    for call in ("{ result = one(x0, x1); }", "{ two(); }", "{ result = three(x0); }"):
        assert changed.count(call) == source.count(call) == 1


@pytest.mark.native
def test_the_build_answers_through_quick_calls() -> None:
    bindings = load()
    # q8_0: 32 values in 34 bytes (ggml-common.h, block_q8_0)
    assert bindings.lib.ggml_row_size(bindings.lib.GGML_TYPE_Q8_0, 4096) == 4096 // 32 * 34
    with pytest.raises(TypeError):
        bindings.lib.ggml_row_size("q8_0", 4096)
