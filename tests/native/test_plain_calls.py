"""Which calls keep the interpreter's lock and come back from assertions, and that the others do not."""

from __future__ import annotations

import re
from pathlib import Path

import cffi
import pytest

from pyggml.ggml import Context
from pyggml.native.declarations import Declarations, Function
from pyggml.native.load import load
from pyggml.native.plain_calls import plain_functions, rewrite_calls
from pyggml.native.preprocess import source_of


def declared(*names: str, header: str = "ggml.h") -> Declarations:
    functions = tuple(Function(name, header, "void(void)") for name in names)
    return Declarations("", functions, (), (), (), (), ())


def test_only_what_describes_graphs_is_called_plainly() -> None:
    plain = (
        "ggml_row_size",
        "ggml_nbytes",
        "ggml_mul_mat",
        "ggml_build_forward_expand",
        "ggml_new_tensor_1d",
    )
    others = (
        "ggml_init", "ggml_free", "ggml_quantize_chunk", "ggml_fp32_to_fp16_row", "ggml_log_set", "ggml_abort",
        "ggml_set_abort_callback", "ggml_critical_section_start", "ggml_time_us", "ggml_graph_compute_with_ctx",
    )  # fmt: skip
    assert plain_functions(declared(*plain, *others)) == frozenset(plain)
    assert plain_functions(declared(*plain, header="ggml-backend.h")) == frozenset()


def test_the_lock_is_kept_in_the_named_functions_alone(tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef("size_t one(int a, int b); void two(void); int three(int a);")
    ffi.set_source("_x", "#include <stddef.h>\nsize_t one(int a, int b); void two(void); int three(int a);")
    ffi.emit_c_code(str(tmp_path / "x.c"))
    source = (tmp_path / "x.c").read_text("utf-8")
    changed = rewrite_calls(source, frozenset({"one", "two"}))
    assert source.count("Py_BEGIN_ALLOW_THREADS") - changed.count("Py_BEGIN_ALLOW_THREADS") == 2
    assert changed.count("Py_BEGIN_ALLOW_THREADS") == changed.count("Py_END_ALLOW_THREADS")
    three = changed[changed.index("_cffi_f_three(") :]
    assert "Py_BEGIN_ALLOW_THREADS" in three[: three.index("\n}\n")]
    for call in ("{ result = one(x0, x1); }", "{ two(); }", "{ result = three(x0); }"):
        assert changed.count(call) == source.count(call) == 1
    for call, made in (("{ result = one(x0, x1); }", 1), ("{ two(); }", 1), ("{ result = three(x0); }", 0)):
        assert changed.count(f"PYGGML_COME_BACK({call}, ") == made


def test_arguments_that_were_copied_are_freed_on_the_way_back(tmp_path: Path) -> None:
    ffi = cffi.FFI()
    ffi.cdef("int with_array(int *a); int without(int a);")
    ffi.set_source("_x", "int with_array(int *a); int without(int a);")
    ffi.emit_c_code(str(tmp_path / "x.c"))
    changed = rewrite_calls((tmp_path / "x.c").read_text("utf-8"), frozenset({"with_array", "without"}))
    free = "if (large_args_free != NULL) _cffi_free_array_arguments(large_args_free);"
    assert f"PYGGML_COME_BACK({{ result = with_array(x0); }}, {free});" in changed
    assert "PYGGML_COME_BACK({ result = without(x0); }, );" in changed


@pytest.mark.native
def test_every_plain_function_is_a_c_function_of_this_tree() -> None:
    """Nothing but C may be jumped over by longjmp."""
    build = load().build
    source = source_of(build) / "ggml" / "src"
    c = "\n".join(path.read_text("utf-8", "replace") for path in source.glob("*.c"))
    defined = set(re.findall(r"^(?:[\w][\w \t*]*?[ *])?(ggml_\w+)\([^;{]*\)\s*\{", c, re.MULTILINE))
    text = (build.directory / "python" / "declarations.h").read_text("utf-8")
    section = text[text.index("/* ggml.h */") : text.index("/* ggml-alloc.h */")]
    names = tuple(re.findall(r"^[^#\n(]*?\b(ggml_\w+)\([^\n]*\);$", section, re.MULTILINE))
    plain = plain_functions(declared(*names))
    assert len(plain) > 300
    assert plain - defined == set()
    assert {f"ggml_{name}" for name in dir(Context().ops)} - plain == set()


@pytest.mark.native
def test_the_build_answers_through_plain_calls() -> None:
    bindings = load()
    # q8_0: 32 values in 34 bytes (ggml-common.h, block_q8_0)
    assert bindings.lib.ggml_row_size(bindings.lib.GGML_TYPE_Q8_0, 4096) == 4096 // 32 * 34
    with pytest.raises(TypeError):
        bindings.lib.ggml_row_size("q8_0", 4096)
