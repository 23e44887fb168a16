"""The CUDA backend as a plugin, in a tree shaped like upstream's, with a backend that needs no CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import pyggml.builder.cuda
from tests.builder.cuda.conftest import write

PROGRAMS = ("cmake", "ninja", "cc", "c++")
pytestmark = pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}")
OWN = Path(pyggml.builder.cuda.__file__).parent

# Upstream's functions and what they depend on: ggml/src/CMakeLists.txt.
LISTS = """\
cmake_minimum_required(VERSION 3.19)
project(fake C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_library(ggml SHARED registry.cpp)
target_include_directories(ggml PUBLIC .)
target_link_libraries(ggml PRIVATE ${CMAKE_DL_LIBS})
function(ggml_add_backend_library backend)
    if (GGML_BACKEND_DL)
        add_library(${backend} MODULE ${ARGN})
        target_compile_definitions(${backend} PRIVATE GGML_BACKEND_DL)
        add_dependencies(ggml ${backend})
    else()
        add_library(${backend} SHARED ${ARGN})
        target_link_libraries(ggml PUBLIC ${backend})
    endif()
    target_include_directories(${backend} PRIVATE ..)
endfunction()
function(ggml_add_backend backend)
    string(TOLOWER "ggml-${backend}" target)
    add_subdirectory(${target})
    if (NOT GGML_BACKEND_DL)
        target_compile_definitions(ggml PUBLIC GGML_USE_${backend})
    endif()
endfunction()
ggml_add_backend(CPU)
ggml_add_backend(CUDA)
add_executable(program program.cpp)
target_link_libraries(program PRIVATE ggml)
"""
HEADER = """\
#pragma once
extern "C" {
typedef const char * ggml_backend_reg_t;
ggml_backend_reg_t ggml_backend_cuda_reg(void);
ggml_backend_reg_t ggml_backend_cpu_reg(void);
const char * registered(void);
}
"""
FILES = {
    "CMakeLists.txt": LISTS,
    "ggml-backend.h": HEADER,
    "registry.cpp": """\
#include "ggml-backend.h"
#include <string>
static std::string names;
extern "C" const char * registered(void) {
#ifdef GGML_USE_CUDA
    if (ggml_backend_reg_t reg = ggml_backend_cuda_reg()) { names += reg; names += ' '; }
#endif
    names += ggml_backend_cpu_reg();
    return names.c_str();
}
""",
    "program.cpp": '#include "ggml-backend.h"\n#include <cstdio>\nint main() { std::puts(registered()); }\n',
    "ggml-cpu/CMakeLists.txt": 'include("@override@")\nggml_add_backend_library(ggml-cpu cpu.cpp)\n',
    "ggml-cpu/cpu.cpp": '#include "ggml-backend.h"\nggml_backend_reg_t ggml_backend_cpu_reg(void) { return "CPU"; }\n',
    "ggml-cuda/CMakeLists.txt": (
        'include("@override@")\nggml_add_backend_library(ggml-cuda cuda.cpp)\n'
        "add_library(driver SHARED driver.c)\nset_target_properties(driver PROPERTIES OUTPUT_NAME @driver@)\n"
        "target_link_libraries(ggml-cuda PRIVATE driver)\n"
    ),
    "ggml-cuda/driver.c": "int driver_function(void) { return 1; }\n",
    "ggml-cuda/cuda.cpp": """\
#include "ggml-backend.h"
extern "C" int driver_function(void);
ggml_backend_reg_t ggml_backend_cuda_reg(void) { return driver_function() ? "CUDA" : ""; }
#ifdef GGML_BACKEND_DL
extern "C" ggml_backend_reg_t ggml_backend_init(void);
ggml_backend_reg_t ggml_backend_init(void) { return ggml_backend_cuda_reg(); }
#endif
""",
}


def build(tmp_path: Path, driver: str = "cuda") -> Path:
    """The bin directory of the tree, its CUDA backend linked to lib<driver>.so."""
    made = tmp_path / "build ü"
    override = write(made / "pyggml-cuda.cmake", (OWN / "backend.cmake").read_text())
    write(made / "pyggml-cuda-plugin.cpp", (OWN / "plugin.cpp").read_text())
    for name, text in FILES.items():
        write(tmp_path / "src" / name, text.replace("@override@", str(override)).replace("@driver@", driver))
    command = [
        "cmake",
        "-S",
        str(tmp_path / "src"),
        "-B",
        str(made),
        "-G",
        "Ninja",
        "-DPYGGML_CUDA_RPATH=$ORIGIN/../rt",
    ]
    flags = ["-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wpedantic -Wmissing-declarations -Werror"]
    flags += ["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", "-DCMAKE_INSTALL_RPATH=$ORIGIN"]
    for step in ([*command, *flags], ["ninja", "-C", str(made)]):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return made / "bin"


def run(bin_dir: Path, **env: str) -> tuple[str, str]:
    done = subprocess.run(
        [bin_dir / "program"], capture_output=True, text=True, check=True, env={**os.environ, **env}, cwd="/"
    )
    return done.stdout.strip(), done.stderr.strip()


def test_cuda_registers_itself_first_and_can_be_kept_out(tmp_path: Path) -> None:
    bin_dir = build(tmp_path)
    assert run(bin_dir) == ("CUDA CPU", "")
    assert run(bin_dir, PYGGML_CUDA="0") == ("CPU", "")
    needed = subprocess.run(
        ["ldd", bin_dir / "libggml.so"], capture_output=True, text=True, check=True
    ).stdout
    assert "libggml-cpu.so" in needed and "libggml-cuda.so" not in needed
    dynamic = subprocess.run(
        ["readelf", "-d", bin_dir / "libggml-cuda.so"], capture_output=True, text=True, check=True
    ).stdout
    assert "[$ORIGIN:$ORIGIN/../rt]" in dynamic
    # What a program finds does not depend on where the build lies.
    moved = tmp_path / "moved"
    (tmp_path / "build ü").rename(moved)
    assert run(moved / "bin") == ("CUDA CPU", "")


def test_without_the_driver_everything_else_works_silently(tmp_path: Path) -> None:
    # The plugin needs a library that is called as the driver is, and it is not there.
    bin_dir = build(tmp_path, driver="cuda.so.1")
    (bin_dir / "libcuda.so.1.so").unlink()
    assert run(bin_dir) == ("CPU", "")
    (bin_dir / "libggml-cuda.so").unlink()
    assert run(bin_dir)[0] == "CPU"


def test_lost_runtime_is_told(tmp_path: Path) -> None:
    bin_dir = build(tmp_path, driver="cublas")
    (bin_dir / "libcublas.so").unlink()
    out, err = run(bin_dir)
    assert out == "CPU"
    assert err.startswith("pyggml: the CUDA backend cannot be loaded: libcublas.so")
