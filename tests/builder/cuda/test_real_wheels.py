"""The NVIDIA wheels themselves, where they are installed: a program with a kernel, cub and cuBLAS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import Driver
from pyggml.builder.cuda.parts import inspect, known_numbers
from pyggml.builder.cuda.root import assemble
from pyggml.builder.cuda.toolkit import Toolkit, choose_toolkit
from pyggml.builder.cuda.wheels import Wheels, find_wheels
from pyggml.errors import PyggmlError

WHEELS = find_wheels()
pytestmark = [
    pytest.mark.skipif(not WHEELS.complete, reason="the NVIDIA wheels (extra `cuda`) are not installed"),
    pytest.mark.skipif(shutil.which("cc") is None or shutil.which("c++") is None, reason="needs cc and c++"),
]

PROGRAM = r"""
#include <cub/cub.cuh>
#include <cublas_v2.h>
#include <cuda.h>
#include <cstdio>
__global__ void twice(float * x) { x[threadIdx.x] *= 2; }
int main() {
    float * x = nullptr;
    size_t bytes = 0;
    cub::DeviceReduce::Sum(nullptr, bytes, x, x, 32);
    cublasHandle_t handle;
    CUmemGenericAllocationHandle memory;
    const char * text = nullptr;
    cuGetErrorString(cuMemCreate(&memory, 1, nullptr, 0), &text);
    twice<<<1, 32>>>(x);
    std::printf("%d %d\n", int(cudaGetLastError()), int(cublasCreate(&handle)));
}
"""


@pytest.fixture(scope="module", params=["wheels", "system and cuBLAS wheel"])
def toolkit(request: pytest.FixtureRequest) -> Toolkit:
    if request.param == "wheels":
        return choose_toolkit(None, Driver("absent"), roots=[], wheels=WHEELS)
    # As beside PyTorch: libraries are installed as wheels, a compiler is not.
    versions = {name: WHEELS.versions[name] for name in ("nvidia-cublas", "nvidia-cuda-runtime")}
    missing = tuple(name for name in WHEELS.versions if name not in versions)
    try:
        found = choose_toolkit(None, Driver("absent"), wheels=Wheels(WHEELS.root, versions, missing))
    except PyggmlError as error:
        pytest.skip(f"no system toolkit that cuBLAS's wheel completes: {error.message}")
    if found.completed_by is None:
        pytest.skip(f"the system toolkit {found.root} is complete")
    return found


@pytest.fixture(scope="module")
def root(toolkit: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("build ü") / "toolkit"
    roots = toolkit.roots
    assert assemble(made, roots[0], toolkit.key, Path(str(shutil.which("cc"))), completed_by=roots[1:])
    return made


def test_it_is_complete_but_for_links(toolkit: Toolkit) -> None:
    assert toolkit.raw
    assert 90 in known_numbers(toolkit.root / "bin" / "nvcc")


def test_assembled_root_needs_nothing_more(root: Path) -> None:
    found = inspect(root)
    assert found.missing == ()
    assert not found.raw


def test_program_links_and_needs_only_the_driver(toolkit: Toolkit, root: Path, tmp_path: Path) -> None:
    (tmp_path / "x.cu").write_text(PROGRAM)
    command = [str(root / "bin" / "nvcc"), "-arch=sm_90", "x.cu", "-o", "x", "-cudart=shared"]
    command += ["-lcublas", "-lcuda"]
    # PATH has no nvcc: everything comes from the root.
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    needed = subprocess.run(
        ["ldd", "x"],
        cwd=tmp_path,
        env={**env, "LD_LIBRARY_PATH": str(root / "lib")},
        capture_output=True,
        text=True,
    ).stdout
    missing = set(re.findall(r"^\s*(\S+) => not found", needed, re.MULTILINE))
    # A machine with a driver lacks nothing.
    assert missing <= {"libcuda.so.1"}
    libraries = re.findall(r"^\s*(libcu(?:dart|blas)\S*) => (.+) \(0x", needed, re.MULTILINE)
    assert {name.partition(".")[0] for name, _ in libraries} == {"libcudart", "libcublas", "libcublasLt"}
    assert all(Path(path).parent == root / "lib" for _, path in libraries)
    places = tuple(os.path.realpath(place) for place in toolkit.roots)
    assert all(os.path.realpath(path).startswith(places) for _, path in libraries)
