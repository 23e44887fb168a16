"""A linked CUDA backend is loaded, the stub in the driver's place; what is undefined or lost is told."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.builder.cuda.loadable import LIBRARY, check_loadable, driver_stub, load_problem
from pyggml.builder.cuda.stub import make_stub
from pyggml.builder.record import Build, BuildRecord
from pyggml.errors import PyggmlError
from tests.builder.cuda.conftest import CUDA_H, write

CC = Path(shutil.which("cc") or "/nonexistent")
pytestmark = pytest.mark.skipif(not CC.is_file(), reason="needs cc")
RECORD = BuildRecord("p1-cuda", "p1", "done", "h", "t", False, "f", "x86_64", (), {}, (), {})


@pytest.fixture
def build(tmp_path: Path) -> Build:
    (tmp_path / "build ü" / "bin").mkdir(parents=True)
    record = replace(RECORD, tools={"command": "pyggml build --cuda --arch 90"})
    return Build(tmp_path / "build ü", record)


@pytest.fixture
def root(build: Build) -> Path:
    """A toolkit with a runtime and the driver's stub."""
    made = build.directory / "toolkit"
    (made / "lib" / "stubs").mkdir(parents=True)
    make_stub(write(made / "include" / "cuda.h", CUDA_H), made / "lib" / "stubs" / "libcuda.so", CC)
    link(made / "lib" / "libfakert.so", "int cudaMalloc(void) { return 0; }")
    return made


def link(library: Path, code: str, *arguments: object) -> None:
    source = write(library.with_suffix(".c"), code + "\n")
    command = [str(CC), "-shared", "-fPIC", "-w", str(source), "-o", str(library), *map(str, arguments)]
    subprocess.run(command, check=True)


def backend(build: Build, root: Path, calls: str, rpath: str = "$ORIGIN/../toolkit/lib") -> None:
    """A backend that needs the driver and the runtime, and calls these functions."""
    body = " ".join(f"extern int {name}(void);" for name in calls.split())
    body += " int ggml_backend_init(void) { return " + " + ".join(f"{n}()" for n in calls.split()) + "; }"
    places = [f"-L{root / 'lib'}", f"-L{root / 'lib' / 'stubs'}", f"-Wl,-rpath,{rpath}"]
    link(build.bin_dir / LIBRARY, body, *places, "-Wl,--no-as-needed", "-lfakert", "-lcuda")


def test_only_the_driver_is_left_to_the_machine(build: Build, root: Path) -> None:
    backend(build, root, "cudaMalloc cuDeviceGet")
    check_loadable(build, root)
    # Without anything in the driver's place, as on a machine that has none.
    absent = load_problem(build.bin_dir / LIBRARY, None)
    assert "libcuda.so.1" in absent or absent == ""


def test_undefined_symbol_is_named_with_what_to_do(build: Build, root: Path) -> None:
    backend(build, root, "cudaMalloc cuDeviceGet ggml_cuda_op_new")
    with pytest.raises(
        PyggmlError, match=f"{LIBRARY} needs ggml_cuda_op_new, which no library has"
    ) as caught:
        check_loadable(build, root)
    assert "pyggml build --cuda --arch 90 --clean" in str(caught.value.hint)
    assert len(str(caught.value).splitlines()) == 2


def test_a_function_that_the_toolkits_driver_does_not_have_is_undefined(build: Build, root: Path) -> None:
    backend(build, root, "cuDeviceGet cuOfAnotherVersion")
    with pytest.raises(PyggmlError, match="cuOfAnotherVersion"):
        check_loadable(build, root)


def test_runtime_is_found_by_the_builds_own_path_and_by_no_variable(
    build: Build, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root / "lib"))
    backend(build, root, "cudaMalloc cuDeviceGet", rpath="$ORIGIN/../elsewhere")
    with pytest.raises(PyggmlError, match=r"libfakert\.so: cannot open") as caught:
        check_loadable(build, root)
    assert "--clean" in str(caught.value.hint)


def test_library_that_ends_the_process(build: Build, root: Path) -> None:
    link(build.bin_dir / LIBRARY, "__attribute__((constructor)) void f(void) { __builtin_trap(); }")
    with pytest.raises(PyggmlError, match="ended the process"):
        check_loadable(build, root)


def test_build_of_other_targets_has_nothing_to_check(build: Build, root: Path, tmp_path: Path) -> None:
    check_loadable(build, root)
    assert driver_stub(root) == root / "lib" / "stubs" / "libcuda.so"
    assert driver_stub(tmp_path / "none") is None
