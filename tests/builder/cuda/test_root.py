"""The root of links over the wheels, and the stub of the driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pyggml.builder.cuda.parts import inspect
from pyggml.builder.cuda.root import assemble
from pyggml.builder.cuda.stub import driver_functions, make_stub
from pyggml.errors import PyggmlError
from tests.builder.cuda.conftest import CUDA_H, make_toolkit, make_wheels, script, write

CC = Path(shutil.which("cc") or "/nonexistent")
pytestmark = pytest.mark.skipif(not CC.is_file(), reason="needs cc")


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in sorted(root.rglob("*"))}


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return make_wheels(tmp_path / "venv é" / "site-packages") / "nvidia" / "cu13"


def test_root_is_complete_and_the_wheels_are_untouched(wheels: Path, tmp_path: Path) -> None:
    before = snapshot(wheels)
    assert inspect(wheels).raw
    assert assemble(tmp_path / "build dir" / "toolkit", wheels, "13.0.88", CC)
    root = tmp_path / "build dir" / "toolkit"
    assert inspect(root).missing == ()
    assert not inspect(root).raw
    assert snapshot(wheels) == before
    assert (root / "lib64" / "libcudart.so").resolve() == wheels / "lib" / "libcudart.so.12"
    # nvcc goes to `..` from where it was started: its own directory must be a real one.
    for name in ("bin", "lib", "nvvm", "nvvm/bin"):
        assert not (root / name).is_symlink()


def test_two_toolkits_make_one_root(wheels: Path, tmp_path: Path) -> None:
    system = make_toolkit(tmp_path / "usr" / "cuda", "13.0.88", without=["cublas", "stubs"])
    root = tmp_path / "build" / "toolkit"
    assert assemble(root, system, "13.0.88", CC, completed_by=[wheels])
    found = inspect(root)
    assert (found.missing, found.raw) == ((), False)
    assert (root / "bin" / "nvcc").resolve() == (system / "bin" / "nvcc").resolve()
    assert (root / "lib" / "libcublas.so").resolve().parent == (wheels / "lib").resolve()
    assert (root / "include" / "cublas_v2.h").resolve().parent == (wheels / "include").resolve()
    assert not assemble(root, system, "13.0.88", CC, completed_by=[wheels])
    assert assemble(root, wheels, "13.0.88", CC)


def test_links_survive_moving_project_and_environment_together(wheels: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.move(tmp_path / "venv é", home / "venv")
    moved = home / "venv" / "site-packages" / "nvidia" / "cu13"
    assemble(home / "project" / "toolkit", moved, "13.0.88", CC)
    home.rename(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "project" / "toolkit" / "lib" / "libcublas.so").is_file()


def test_build_directory_behind_a_link(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "short").symlink_to(tmp_path / "a" / "b" / "c")
    assemble(tmp_path / "short" / "toolkit", wheels, "13.0.88", CC)
    assert inspect(tmp_path / "a" / "b" / "c" / "toolkit").missing == ()


def test_second_time_changes_nothing_and_damage_is_repaired(wheels: Path, tmp_path: Path) -> None:
    root = tmp_path / "toolkit"
    assert assemble(root, wheels, "13.0.88", CC)
    before = snapshot(root)
    assert not assemble(root, wheels, "13.0.88", CC)
    assert snapshot(root) == before
    (root / "lib" / "libcudart.so").unlink()
    (root / "lib" / "libcudart.so").symlink_to("nowhere")
    assert assemble(root, wheels, "13.0.88", CC)
    assert inspect(root).missing == ()
    # Another version, another directory, NCCL in addition: made anew.
    assert assemble(root, wheels, "13.0.96", CC)
    other = make_toolkit(tmp_path / "other", raw=True)
    assert assemble(root, other, "13.0.96", CC)
    assert (root / "bin" / "nvcc").resolve() == other / "bin" / "nvcc"


def test_killed_while_assembling_is_finished_by_the_next(wheels: Path, tmp_path: Path) -> None:
    (tmp_path / "toolkit.new" / "bin").mkdir(parents=True)
    (tmp_path / "toolkit" / "bin").mkdir(parents=True)
    assert assemble(tmp_path / "toolkit", wheels, "13.0.88", CC)
    assert inspect(tmp_path / "toolkit").missing == ()
    assert not (tmp_path / "toolkit.new").exists()


def test_nccl_is_linked_with_a_name_for_the_linker(wheels: Path, tmp_path: Path) -> None:
    nccl = tmp_path / "nccl"
    write(nccl / "include" / "nccl.h")
    write(nccl / "lib" / "libnccl.so.2")
    assemble(tmp_path / "toolkit", wheels, "13.0.88", CC, nccl)
    assert (tmp_path / "toolkit" / "nccl" / "lib" / "libnccl.so").resolve() == nccl / "lib" / "libnccl.so.2"
    assert (tmp_path / "toolkit" / "nccl" / "include" / "nccl.h").is_file()


def test_stub_has_every_function_of_the_header_and_its_renamed_ones() -> None:
    assert driver_functions(CUDA_H) == (
        "cuDeviceGet", "cuDeviceTotalMem_v2", "cuGetErrorString", "cuMemAlloc_v2", "cuMemCreate",
        "cuStreamWait",
    )  # fmt: skip


def test_stub_links_under_the_drivers_name_and_never_works(tmp_path: Path) -> None:
    header = write(tmp_path / "cuda.h", CUDA_H)
    make_stub(header, tmp_path / "libcuda.so", CC)
    assert ctypes.CDLL(str(tmp_path / "libcuda.so")).cuMemCreate() == 34
    program = write(tmp_path / "x.c", "int cuMemCreate(void); int main(void) { return cuMemCreate(); }\n")
    linked = subprocess.run([CC, program, "-L", tmp_path, "-lcuda", "-o", tmp_path / "x"], check=False)
    assert linked.returncode == 0
    needed = subprocess.run(["ldd", tmp_path / "x"], capture_output=True, text=True, check=False).stdout
    assert "libcuda.so.1" in needed
    # The stub lies there under another name, so that no program can run into it.
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    assert (
        str(tmp_path)
        not in subprocess.run(["ldd", tmp_path / "x"], capture_output=True, text=True, check=False, env=env)
        .stdout.partition("libcuda.so.1 =>")[2]
        .partition("\n")[0]
    )


def test_failing_compiler_and_empty_header_are_one_error(wheels: Path, tmp_path: Path) -> None:
    broken = script(tmp_path / "bad-cc", "import sys; sys.exit('no room for an a.out')")
    with pytest.raises(PyggmlError, match="stub of the CUDA driver cannot be compiled: no room"):
        assemble(tmp_path / "toolkit", wheels, "13.0.88", broken)
    assert not (tmp_path / "toolkit").exists()
    (wheels / "include" / "cuda.h").write_text("")
    with pytest.raises(PyggmlError, match="declares no function"):
        assemble(tmp_path / "toolkit", wheels, "13.0.88", CC)
