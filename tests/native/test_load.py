"""Loading: what is checked before, callbacks and their exceptions, logs, and the last words of an abort."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from pyggml.builder.record import Build, write_record
from pyggml.errors import PyggmlError
from pyggml.native.declarations import make_declarations
from pyggml.native.extension import Compiled, Inputs, compile_extension, write_state
from pyggml.native.load import active_build, build_in, layout_message
from pyggml.native.preprocess import Compiler, source_of
from pyggml.native.python_side import make_python_side
from pyggml.native.symbols import build_libraries, exported

from .conftest import Run
from .tiny_upstream import link, tiny_record

PRELUDE = """\
import sys
from pathlib import Path
from pyggml.errors import PyggmlError
from pyggml.native.load import build_in, load
def loading(directory):
    try:
        return load(build_in(Path(directory)))
    except PyggmlError as error:
        print(f"REFUSED {error.message} | {error.hint}")
        sys.exit(1)
b = loading(sys.argv[1])
ffi, lib = b.ffi, b.lib
"""


make_side = functools.partial(make_python_side, virtual_devices=False)


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout.strip()


# Loading and what it refuses


def test_functions_constants_and_structs_of_the_build(tiny: Build, python: Run) -> None:
    code = """
out = ffi.new("char[20]")
lib.ggml_format(out, 20, b"%d-%s", ffi.cast("int", 42), ffi.new("char[]", b"x"))
print(lib.ggml_tensor_overhead(), ffi.sizeof("struct ggml_tensor"), lib.GGML_TENSOR_SIZE)
print(lib.GGML_NEGATIVE, lib.GGML_FLAG_C, lib.ggml_old(), ffi.string(out))
"""
    size = 8 + 32 + 64 + 8 + 64
    assert ok(python(PRELUDE + code, tiny.directory)) == f"{size} {size} {size}\n-1 9 7 b'42-x'"


def test_the_package_level_names_load_the_active_build(tiny: Build, python: Run) -> None:
    code = "import pyggml; print(pyggml.lib.ggml_old(), pyggml.ffi.sizeof('ggml_bf16_t'), hasattr(pyggml, 'nothing'))"
    assert ok(python(code, PYGGML_BUILD=str(tiny.directory))) == "7 2 False"


def test_one_build_in_a_process(tiny: Build, own_tiny: Build, python: Run) -> None:
    code = """
assert load(build_in(Path(sys.argv[1]))) is b
assert load() is b
loading(sys.argv[2])
"""
    told = refused(python(PRELUDE + code, tiny.directory, own_tiny.directory))
    assert f"cannot load {own_tiny.directory} as well | Use one process for each build." in told


@pytest.mark.parametrize("state", ["configured", "building", "failed"])
def test_an_unfinished_build_is_refused(state: str, own_tiny: Build, python: Run) -> None:
    write_record(own_tiny.directory, tiny_record(state=state))
    assert f"tiny-cpu is not finished ({state}) | Finish it" in refused(python(PRELUDE, own_tiny.directory))


def test_no_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PyggmlError, match="there is no build in"):
        build_in(tmp_path)


def test_another_instruction_set_is_refused_before_loading(own_tiny: Build, python: Run) -> None:
    write_record(own_tiny.directory, tiny_record(arch="s390x"))
    assert "is for s390x" in refused(python(PRELUDE, own_tiny.directory))


def test_a_sanitizer_that_would_end_the_process_is_refused(own_tiny: Build, python: Run) -> None:
    write_record(own_tiny.directory, tiny_record(options={"LLAMA_SANITIZE_ADDRESS": "ON"}))
    told = refused(python(PRELUDE, own_tiny.directory))
    assert "needs libasan" in told
    assert "LD_PRELOAD=" in told


def test_a_missing_python_side_says_how_to_make_it(own_tiny: Build, python: Run) -> None:
    shutil.rmtree(own_tiny.directory / "python")
    told = refused(python(PRELUDE, own_tiny.directory))
    assert "is missing for this Python" in told
    assert "pyggml build" in told


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 99}'])
def test_a_broken_state_file_is_refused(content: str, own_tiny: Build, python: Run) -> None:
    (state,) = (own_tiny.directory / "python").glob("extension*.json")
    state.write_text(content)
    assert refused(python(PRELUDE, own_tiny.directory)).startswith("REFUSED the Python side of the build")


def test_an_extension_with_other_glue_is_refused(own_tiny: Build, python: Run) -> None:
    (state,) = (own_tiny.directory / "python").glob("extension*.json")
    state.write_text(json.dumps({**json.loads(state.read_text()), "format": "of an older glue.c"}))
    told = refused(python(PRELUDE, own_tiny.directory))
    assert "is of another version of pyggml" in told
    assert "pyggml build" in told


def test_libraries_newer_than_the_python_side_are_refused(own_tiny: Build, python: Run) -> None:
    make_side(own_tiny)
    ok(python(PRELUDE, own_tiny.directory))
    link(source_of(own_tiny), own_tiny.bin_dir)
    assert "is older than its libggml-base.so" in refused(python(PRELUDE, own_tiny.directory))


def test_a_lost_library_is_named(own_tiny: Build, python: Run) -> None:
    make_side(own_tiny)
    (own_tiny.bin_dir / "libllama.so").unlink()
    assert "no longer has libllama.so" in refused(python(PRELUDE, own_tiny.directory))


def test_an_extension_that_cannot_be_linked_says_why(own_tiny: Build, python: Run) -> None:
    side = make_side(own_tiny)
    side.extension.write_bytes(b"\x7fELF nonsense")
    told = refused(python(PRELUDE, own_tiny.directory))
    assert "the bindings of tiny-cpu cannot be loaded:" in told


def test_a_library_of_other_bindings_in_the_process_is_refused(
    tiny: Build, own_tiny: Build, python: Run
) -> None:
    foreign = own_tiny.bin_dir / "libggml-base.so"
    code = f"import ctypes; ctypes.CDLL({str(foreign)!r})\n" + PRELUDE
    assert f"loaded another libggml-base.so already ({foreign})" in refused(python(code, tiny.directory))


def test_the_builds_own_libraries_come_before_ld_library_path(
    tiny: Build, own_tiny: Build, python: Run
) -> None:
    code = PRELUDE + "print([line for line in open('/proc/self/maps') if sys.argv[2] in line])"
    done = python(code, tiny.directory, own_tiny.bin_dir, LD_LIBRARY_PATH=str(own_tiny.bin_dir))
    assert ok(done) == "[]"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (
            "int64_t ne[4];\n  int32_t op_params[16];",
            "int32_t op_params[16];\n  int64_t ne[4];",
            "struct ggml_tensor, field op_params: wrong offset: 4 in the declarations, 40 in the headers",
        ),
        (
            "int32_t type;\n  int64_t ne[4];",
            "int16_t type;\n  int64_t ne[4];",
            "struct ggml_tensor, field type: wrong size: 2 in the declarations, 4 in the headers",
        ),
        (
            "  void *data;\n  char name[64];",
            "  void *data;",
            "struct ggml_tensor: wrong total size: 112 in the declarations, 176 in the headers",
        ),
    ],
)
def test_a_struct_that_does_not_match_is_named_with_both_offsets(
    before: str, after: str, expected: str, own_tiny: Build, python: Run
) -> None:
    cc = Compiler(Path("cc"))
    source, libraries = source_of(own_tiny), build_libraries(own_tiny.bin_dir)
    declarations = make_declarations(cc, source, exported(cc, libraries))
    assert before in declarations.text
    altered = dataclasses.replace(declarations, text=declarations.text.replace(before, after))
    inputs = Inputs(cc, source, altered, libraries)
    directory = own_tiny.directory / "python"
    compiled: Compiled = compile_extension(inputs, directory)
    write_state(directory, compiled, inputs)
    assert expected in refused(python(PRELUDE, own_tiny.directory))


def test_a_complaint_of_cffi_that_is_not_understood_is_shown_as_it_is() -> None:
    assert "whatever it says" in layout_message("whatever it says")


def test_a_named_build_is_a_directory_or_a_variant(
    tiny: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYGGML_BUILD", str(tiny.directory))
    assert active_build(tmp_path).directory == tiny.directory.resolve()
    project = tmp_path / "project"
    (project / "vendor").mkdir(parents=True)
    (project / "patches").mkdir()
    (project / "vendor" / "pins.toml").write_text("")
    shutil.copytree(tiny.directory, project / ".pyggml" / "build" / "tiny-cpu")
    monkeypatch.setenv("PYGGML_BUILD", "tiny-cpu")
    assert active_build(project).directory == project / ".pyggml" / "build" / "tiny-cpu"
    monkeypatch.setenv("PYGGML_BUILD", "other-cpu")
    with pytest.raises(PyggmlError, match="there is no build other-cpu"):
        active_build(project)


# Callbacks


def test_an_eval_callback_that_raises_ends_the_computation_and_comes_out(tiny: Build, python: Run) -> None:
    code = """
calls = []
def node(tensor, ask):
    calls.append((tensor.ne[0], ask))
    if tensor.ne[0] == 2:
        raise ZeroDivisionError(f"at {tensor.ne[0]}")
    return True
keep = b.callbacks.make("eval", node)
try:
    b.guarded(lib.ggml_nodes_computed, keep.pointer, keep.data, 100)
except ZeroDivisionError as error:
    print(error, calls)
calls.clear()
print(b.guarded(lib.ggml_nodes_computed, keep.pointer, keep.data, 2), len(calls))
"""
    expected = "at 2 [(0, True), (0, False), (1, True), (1, False), (2, True)]\n2 4"
    assert ok(python(PRELUDE + code, tiny.directory)) == expected


@pytest.mark.parametrize("answer", ["1/0", "None", "7", "[]", "ffi.new('struct ggml_tensor *')[0]"])
def test_a_split_callback_without_an_answer_is_mirrored_with_one_segment(
    answer: str, tiny: Build, python: Run
) -> None:
    code = f"""
seen = []
def wrong(tensor):
    seen.append(1)
    return {answer}
keep = b.callbacks.make("split", wrong)
try:
    with b.guard():
        # tiny: 1000 * axis + 100 * segments + nr[0] for each of 2 calls
        result = lib.ggml_ask_split(keep.pointer, keep.data, 2)
except (TypeError, ZeroDivisionError) as error:
    print(result, len(seen), type(error).__name__)
"""
    kind = "ZeroDivisionError" if answer == "1/0" else "TypeError"
    assert ok(python(PRELUDE + code, tiny.directory)) == f"20202 1 {kind}"


def test_a_split_callback_returns_a_struct_by_value(tiny: Build, python: Run) -> None:
    code = """
def split(tensor):
    state = ffi.new("struct ggml_backend_meta_split_state *")
    state.axis, state.n_segments, state.ne[1] = 0, 2, 30
    return state[0]
keep = b.callbacks.make("split", split)
print(b.guarded(lib.ggml_ask_split, keep.pointer, keep.data, 1))
"""
    assert ok(python(PRELUDE + code, tiny.directory)) == "230"


def test_progress_stops_the_load_by_false_and_by_an_exception(tiny: Build, python: Run) -> None:
    code = """
keep = b.callbacks.make("progress", lambda fraction: fraction < 0.35)
print(b.guarded(lib.llama_load, keep.pointer, keep.data))
def bad(fraction): raise KeyError("stop")
keep = b.callbacks.make("progress", bad)
try:
    with b.guard():
        result = lib.llama_load(keep.pointer, keep.data)
        if result != 100:
            raise RuntimeError("the load failed")
except KeyError as error:
    print("cause", error)
keep = b.callbacks.make("progress", lambda fraction: None)
try:
    b.guarded(lib.llama_load, keep.pointer, keep.data)
except TypeError as error:
    print(error)
"""
    out = ok(python(PRELUDE + code, tiny.directory)).splitlines()
    assert out == ["4", "cause 'stop'", "the progress callback returned None; it must return True or False"]


def test_a_callback_whose_owner_is_gone_is_refused_not_run(tiny: Build, python: Run) -> None:
    code = """
import gc
class Owner:
    def __init__(self):
        self.keep = b.callbacks.make("eval", self.node)   # a cycle
    def node(self, tensor, ask):
        print("ran")
        return True
owner = Owner()
pointer, data = owner.keep.pointer, owner.keep.data
del owner
gc.collect()
closed = b.callbacks.make("eval", lambda tensor, ask: True)
closed.close()
for pointer, data in ((pointer, data), (closed.pointer, closed.data), (pointer, ffi.NULL)):
    try:
        b.guarded(lib.ggml_nodes_computed, pointer, data, 3)
    except PyggmlError as error:
        print(error.message)
"""
    told = "C called a Python callback whose owner is closed"
    assert ok(python(PRELUDE + code, tiny.directory)).splitlines() == [told] * 3


def test_without_a_guard_an_exception_is_reported_and_with_nested_ones_the_inner_gets_it(
    tiny: Build, python: Run
) -> None:
    code = """
def bad(tensor, ask): raise ValueError("oops")
keep = b.callbacks.make("eval", bad)
seen = []
sys.unraisablehook = lambda what: seen.append(repr(what.exc_value))
lib.ggml_nodes_computed(keep.pointer, keep.data, 1)
print(seen)
with b.guard():
    try:
        b.guarded(lib.ggml_nodes_computed, keep.pointer, keep.data, 1)
    except ValueError as error:
        print("inner", error)
print("outer done")
"""
    out = ok(python(PRELUDE + code, tiny.directory)).splitlines()
    # Asked whether it wants the node, and then about the node.
    assert out == [str(["ValueError('oops')"] * 2), "inner oops", "outer done"]


def test_an_exception_on_a_thread_that_c_made_comes_out_of_the_call(tiny: Build, python: Run) -> None:
    code = """
def bad(tensor, ask): raise ValueError("on a thread")
keep = b.callbacks.make("eval", bad)
try:
    b.guarded(lib.ggml_on_thread, keep.pointer, keep.data)
except ValueError as error:
    print(error)
"""
    assert ok(python(PRELUDE + code, tiny.directory)) == "on a thread"


def test_threads_get_their_own_exceptions(tiny: Build, python: Run) -> None:
    code = """
import threading
results = {}
def work(number):
    def bad(tensor, ask): raise ValueError(number)
    keep = b.callbacks.make("eval", bad)
    for _ in range(200):
        try:
            b.guarded(lib.ggml_nodes_computed, keep.pointer, keep.data, 3)
        except ValueError as error:
            results.setdefault(number, set()).add(error.args[0])
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(results == {n: {n} for n in range(4)})
"""
    assert ok(python(PRELUDE + code, tiny.directory)) == "True"


def test_ctrl_c_in_a_callback_comes_out_as_keyboard_interrupt(tiny: Build, python: Run) -> None:
    code = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background, it is ignored
def node(tensor, ask):
    if tensor.ne[0] == 5:
        os.kill(os.getpid(), signal.SIGINT)
    return True
keep = b.callbacks.make("eval", node)
try:
    b.guarded(lib.ggml_nodes_computed, keep.pointer, keep.data, 1000000)
except KeyboardInterrupt:
    print("interrupted")
"""
    assert ok(python(PRELUDE + code, tiny.directory)) == "interrupted"


def test_an_unknown_kind_and_a_thing_that_cannot_be_called_are_refused(tiny: Build, python: Run) -> None:
    code = """
for arguments in (("nonsense", print), ("eval", 3)):
    try:
        b.callbacks.make(*arguments)
    except (PyggmlError, TypeError) as error:
        print(error)
"""
    out = ok(python(PRELUDE + code, tiny.directory))
    assert "no nonsense callback" in out
    assert "It knows: log, eval, split, progress, abort." in out
    assert "a callback must be callable, not int" in out


# Logs


def test_lines_levels_and_pieces_of_lines_reach_logging(tiny: Build, python: Run) -> None:
    code = """
import logging
records = []
class Keep(logging.Handler):
    def emit(self, record): records.append((record.name, record.levelname, record.getMessage()))
logging.getLogger("pyggml").addHandler(Keep())
logging.getLogger("pyggml").setLevel(logging.DEBUG)
logging.getLogger("pyggml").propagate = False
N, D, I, W, E, C = range(6)
for level, text in ((W, b"a "), (C, b"b "), (C, b"c\\n"), (E, b"one\\ntwo\\n"), (I, b"no end"), (D, b"x %s %d\\n"),
                    (N, b"plain\\n"), (W, b"bad \\xff\\n"), (I, b"\\n"), (I, b"late")):
    lib.ggml_say(level, text)
import atexit
atexit.register(lambda: None)
for record in records: print(record)
"""
    name = "pyggml.ggml"
    assert ok(python(PRELUDE + code, tiny.directory)).splitlines() == [
        str((name, "WARNING", "a b c")),
        str((name, "ERROR", "one")),
        str((name, "ERROR", "two")),
        str((name, "INFO", "no end")),
        str((name, "DEBUG", "x %s %d")),
        str((name, "INFO", "plain")),
        str((name, "WARNING", "bad \ufffd")),
    ]


def test_an_unconfigured_logging_shows_warnings_only(tiny: Build, python: Run) -> None:
    done = python(PRELUDE + 'lib.ggml_say(2, b"chatty\\n"); lib.ggml_say(3, b"careful\\n")', tiny.directory)
    assert ok(done) == ""
    assert done.stderr == "careful\n"


def test_a_log_handler_that_raises_comes_out_of_the_call(tiny: Build, python: Run) -> None:
    code = """
import logging
class Bad(logging.Handler):
    def emit(self, record): raise ValueError("handler")
logging.getLogger("pyggml.ggml").addHandler(Bad())
try:
    b.guarded(lib.ggml_say, 4, b"text\\n")
except ValueError as error:
    print(error)
"""
    assert ok(python(PRELUDE + code, tiny.directory)) == "handler"


def test_a_log_after_the_interpreters_end_is_harmless(tiny: Build, python: Run) -> None:
    code = """
import atexit
class Late:
    def __del__(self, say=lib.ggml_say): say(4, b"too late\\n")
sys.modules["late"] = Late()
"""
    done = python(PRELUDE + code, tiny.directory)
    assert ok(done) == ""


# Aborts


def test_an_abort_says_its_message_and_the_python_line(tiny: Build, python: Run, tmp_path: Path) -> None:
    script = tmp_path / "dying.py"
    script.write_text(
        PRELUDE + "def innocent():\n    lib.ggml_die(b'a.c:7: GGML_ASSERT(x) failed')\ninnocent()\n"
    )
    done = python("import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0])", script, tiny.directory)
    assert done.returncode == -signal.SIGABRT
    lines = done.stderr.splitlines()
    assert lines[0] == "a.c:7: GGML_ASSERT(x) failed"
    assert "Python stack (most recent call last):" in lines[1]
    assert "lib.ggml_die(b'a.c:7: GGML_ASSERT(x) failed')" in done.stderr
    assert "in innocent" in done.stderr


def test_last_words_go_to_the_named_descriptor(tiny: Build) -> None:
    import sys

    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + "lib.ggml_die(b'the end')", str(tiny.directory)],
            env={**os.environ, "PYGGML_ABORT_FD": str(writing)},
            pass_fds=(writing,),
            capture_output=True,
            check=False,
        )
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            told = pipe.read()
    finally:
        for descriptor in (writing, reading):
            if descriptor != reading or not told:
                try:
                    os.close(descriptor)
                except OSError:
                    continue
    assert done.returncode == -signal.SIGABRT
    assert told.startswith(b"the end\nPython stack")
    assert done.stderr == b""


def test_an_abort_on_a_thread_that_c_made_shows_who_called(tiny: Build, python: Run) -> None:
    code = """
def node(tensor, ask):
    lib.ggml_die(b"on a thread")
keep = b.callbacks.make("eval", node)
def caller():
    lib.ggml_on_thread(keep.pointer, keep.data)
caller()
"""
    done = python(PRELUDE + code, tiny.directory)
    assert done.returncode == -signal.SIGABRT
    assert "Python stack of thread MainThread" in done.stderr
    assert "in caller" in done.stderr


@pytest.mark.parametrize("value", ["nonsense", "987", ""])
def test_a_wrong_descriptor_is_refused(value: str, tiny: Build, python: Run) -> None:
    told = refused(python(PRELUDE, tiny.directory, PYGGML_ABORT_FD=value))
    assert f"PYGGML_ABORT_FD is {value!r}" in told


# The real thing


@pytest.mark.native
def test_the_projects_build_loads_and_computes(project_build: Build, python: Run) -> None:
    code = """
import time, logging
n = ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "mem_buffer": ffi.NULL, "no_alloc": False})
ctx = lib.ggml_init(n[0])
a = lib.ggml_new_tensor_1d(ctx, lib.GGML_TYPE_F32, 4)
lib.ggml_set_name(a, b"a")
ffi.buffer(a.data, 16)[:] = bytes(ffi.buffer(ffi.new("float[4]", [1, 2, 3, 4])))
graph = lib.ggml_new_graph(ctx)
total = lib.ggml_sum(ctx, lib.ggml_sqr(ctx, a))
lib.ggml_build_forward_expand(graph, total)
status = lib.ggml_graph_compute_with_ctx(ctx, graph, 1)
print(status, ffi.cast("float *", total.data)[0], ffi.string(lib.ggml_get_name(a)))
lib.ggml_free(ctx)
"""
    assert ok(python(PRELUDE + code, project_build.directory)) == "0 30.0 b'a'"


@pytest.mark.native
def test_a_split_function_that_raises_comes_out_of_the_allocation(project_build: Build, python: Run) -> None:
    code = """
assert lib.pyggml_vdev_register() == ffi.NULL
devices = [lib.pyggml_vdev_device(number) for number in range(lib.pyggml_vdev_count())]
def split(tensor): raise ValueError("no split of " + ffi.string(lib.ggml_get_name(tensor)).decode())
keep = b.callbacks.make("split", split)
meta = lib.ggml_backend_meta_device(devices, len(devices), keep.pointer, keep.data)
backend = lib.ggml_backend_dev_init(meta, ffi.NULL)
ctx = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})[0])
lib.ggml_set_name(lib.ggml_new_tensor_2d(ctx, lib.GGML_TYPE_F32, 64, 64), b"weight")
buft = lib.ggml_backend_get_default_buffer_type(backend)
try:
    b.guarded(lib.ggml_backend_alloc_ctx_tensors_from_buft, ctx, buft)
except ValueError as error:
    print(error)
"""
    assert ok(python(PRELUDE + code, project_build.directory)) == "no split of weight"


@pytest.mark.native
def test_an_assertion_of_ggml_names_its_file_and_line(project_build: Build, python: Run) -> None:
    code = """
ctx = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20})[0])
tensor = lib.ggml_new_tensor_1d(ctx, lib.GGML_TYPE_F32, 4)
tensor.data = ffi.NULL
lib.ggml_backend_tensor_set(tensor, ffi.new("float[4]"), 0, 16)
"""
    done = python(PRELUDE + code, project_build.directory)
    assert done.returncode == -signal.SIGABRT
    first = done.stderr.splitlines()[0]
    assert "ggml-backend.cpp:" in first
    assert "GGML_ASSERT(" in first
    assert "Python stack" in done.stderr


@pytest.mark.native
def test_an_assertion_in_a_plain_c_function_of_ggml_h_is_an_exception(
    project_build: Build, python: Run
) -> None:
    code = """
ctx = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 1 << 20, "no_alloc": True})[0])
tensor = lib.ggml_new_tensor_1d(ctx, lib.GGML_TYPE_F32, 4)
for _ in range(3):
    try:
        lib.ggml_reshape_2d(ctx, tensor, 3, 3)
    except AssertionError as error:
        print(error)
import faulthandler
for _ in range(2):
    try:
        lib.ggml_conv_1d(ctx, tensor, tensor, 0, 0, 1)
    except AssertionError as error:
        print(error)
    faulthandler.enable()
print(lib.ggml_nelements(lib.ggml_reshape_2d(ctx, tensor, 2, 2)))
"""
    lines = ok(python(PRELUDE + code, project_build.directory)).splitlines()
    assert len(lines) == 6 and lines[3:] == ["division by zero", "division by zero", "4"]
    assert all(re.search(r"ggml\.c:\d+: GGML_ASSERT\(ggml_nelements\(a\) ==", line) for line in lines[:3])


@pytest.mark.native
def test_a_log_handler_in_a_plain_function_is_not_left_by_its_way_back(
    project_build: Build, python: Run
) -> None:
    """A full context logs before it asserts; what the handler does has nothing to do with that."""
    code = """
import logging
ctx = lib.ggml_init(ffi.new("struct ggml_init_params *", {"mem_size": 600, "no_alloc": True})[0])
tensor = lib.ggml_new_tensor_1d(ctx, lib.GGML_TYPE_F32, 4)
class Handler(logging.Handler):
    def emit(self, record):
        try:
            lib.ggml_reshape_2d(ctx, tensor, 3, 3)
        except AssertionError as error:
            print("inner", error)
        if len(sys.argv) > 2:
            tensor.data = ffi.NULL
            lib.ggml_backend_tensor_set(tensor, ffi.new("float[4]"), 0, 16)
logging.getLogger("pyggml.ggml").addHandler(Handler())
try:
    while True:
        lib.ggml_new_tensor_1d(ctx, lib.GGML_TYPE_F32, 4)
except AssertionError as error:
    print("outer", error)
"""
    lines = ok(python(PRELUDE + code, project_build.directory)).splitlines()
    assert "GGML_ASSERT(ggml_nelements(a) ==" in lines[0] and lines[0].startswith("inner ")
    assert "GGML_ASSERT(obj_new)" in lines[-1] and lines[-1].startswith("outer ")
    dead = python(PRELUDE + code, project_build.directory, "die")
    assert dead.returncode == -signal.SIGABRT and "tensor buffer not set" in dead.stderr


@pytest.mark.native
def test_a_division_by_zero_elsewhere_still_ends_the_process(project_build: Build, python: Run) -> None:
    """The handler is taken away, and the one before it gets the signal."""
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGFPE)\n"
    assert python(PRELUDE + code, project_build.directory).returncode == -signal.SIGFPE


@pytest.mark.native
def test_a_file_that_is_no_model_is_an_error_in_the_log(
    project_build: Build, python: Run, tmp_path: Path
) -> None:
    model = tmp_path / "no model.gguf"
    model.write_bytes(b"not a model at all")
    code = """
import logging
logging.basicConfig(format="%(name)s %(levelname)s %(message)s", level=logging.ERROR)
model = lib.llama_model_load_from_file(sys.argv[2].encode(), lib.llama_model_default_params())
print(model == ffi.NULL)
"""
    done = python(PRELUDE + code, project_build.directory, model)
    assert ok(done) == "True"
    assert "pyggml.llama ERROR" in done.stderr
