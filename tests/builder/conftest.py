"""A tiny upstream that is configured and compiled for real, in about a second."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pyggml.builder.machine import Machine, read_machine
from pyggml.builder.source import Source
from pyggml.builder.toolchain import Toolchain, find_toolchain

LISTS = """\
cmake_minimum_required(VERSION 3.14)
project("fake" C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
option(BUILD_SHARED_LIBS "shared" OFF)
option(LLAMA_FATAL_WARNINGS "werror" OFF)
option(LLAMA_SANITIZE_ADDRESS "asan" OFF)
option(GGML_AVX2 "avx2" OFF)
option(GGML_CCACHE "ccache" ON)
add_subdirectory(common)
add_library(ggml lib.c)
if(LLAMA_FATAL_WARNINGS)
    target_compile_options(ggml PRIVATE -Wall -Werror)
endif()
add_executable(test-alloc alloc.cpp)
target_link_libraries(test-alloc PRIVATE ggml)
add_executable(test-llama-archs archs.cpp)
install(TARGETS ggml test-alloc)
"""

# As upstream's: configure anew when the git index changes.
COMMON = """\
if(EXISTS "${PROJECT_SOURCE_DIR}/.git")
    set(GIT_DIR "${PROJECT_SOURCE_DIR}/.git")
    if(EXISTS "${GIT_DIR}/index")
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${GIT_DIR}/index")
    endif()
endif()
"""

FILES = {
    "CMakeLists.txt": LISTS,
    "common/CMakeLists.txt": COMMON,
    "lib.c": "int fake_answer(void);\nint fake_answer(void) { return 42; }\n",
    "alloc.cpp": (
        '#include <cstdio>\nextern "C" int fake_answer(void);\n'
        'int main() { std::printf("test_answer %s\\n", fake_answer() == 42 ? "PASSED" : "");'
        " return fake_answer() == 42 ? 0 : 1; }\n"
    ),
    "archs.cpp": (
        "#include <cstdio>\n"
        'int main() { std::printf("|llama|CPU| Dense|  \\033[1;32mOK\\033[0m (0.00e+00)'
        '|  \\033[1;32mOK\\033[0m|\\n"); return 0; }\n'
    ),
}

# lib.c, alloc.cpp, archs.cpp compiled; library and two programs linked.
ALL_STEPS = 6


@pytest.fixture(autouse=True)
def plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME, cache, compiler settings or git of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    for name in list(os.environ):
        if name.startswith(("GIT_", "CCACHE_")) or name in (
            "CC",
            "CXX",
            "CFLAGS",
            "CXXFLAGS",
            "LDFLAGS",
            "PYGGML_CACHE_DIR",
        ):
            monkeypatch.delenv(name)


def write_upstream(root: Path) -> Path:
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    return write_upstream(tmp_path / "up stream ä" / "llama.cpp")


@pytest.fixture
def source(upstream: Path) -> Source:
    return Source(upstream, "p1", "a" * 40, "b" * 40, dirty=False)


@pytest.fixture
def machine() -> Machine:
    return read_machine()


@pytest.fixture
def tools(machine: Machine) -> Toolchain:
    if not all(shutil.which(name) for name in ("cmake", "ninja", "cc", "c++")):
        pytest.skip("needs cmake, ninja, cc and c++ on PATH")
    return find_toolchain(machine.arch, lambda text: None)
