"""From tree, request and machine to CMake arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.builder.features import choose
from pyggml.builder.machine import Machine, default_jobs, parse_available_memory, parse_cpuinfo
from pyggml.builder.plan import (
    DEFAULT_TARGETS,
    BuildOptions,
    BuildPlan,
    declared_options,
    make_plan,
    parse_sanitize,
    variant_name,
)
from pyggml.builder.toolchain import Toolchain
from pyggml.errors import PyggmlError, UsageError

GIB = 1024**3
TOOLS = Toolchain(
    Path("/t/cmake"), "3.25.1", Path("/t/ninja"), "1.11.1", Path("/t/cc"), "cc 12", Path("/t/c++"), "c++ 12",
    flags=frozenset({"-mavx", "-mavx2", "-mavx512f", "-mavx512cd", "-mavx512vl", "-mavx512dq", "-mavx512bw"}),
)  # fmt: skip
AVX512 = {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"}
MACHINE = Machine("Linux", "x86_64", frozenset({"avx", "avx2", "fma"} | AVX512), cores=8, memory=64 * GIB)

ROOT_LISTS = """\
option(BUILD_SHARED_LIBS "" OFF)
    option(LLAMA_OPENSSL "" ON)
option(LLAMA_BUILD_SERVER "" ON)
option(LLAMA_FATAL_WARNINGS "" OFF)
option(LLAMA_SANITIZE_ADDRESS "" OFF)
option(LLAMA_SANITIZE_UNDEFINED "" OFF)
"""
GGML_LISTS = """\
option(GGML_NATIVE "" ON)
option(GGML_CCACHE "" ON)
option(GGML_AVX "" OFF)
option(GGML_AVX2 "" OFF)
if (NOT MSVC)
    option(GGML_FMA "" OFF)
endif()
option(GGML_AVX512 "" OFF)
option(GGML_SANITIZE_ADDRESS "" OFF)
set(GGML_CPU_ARM_ARCH        "" CACHE STRING "ggml: CPU architecture for ARM")
set(GGML_NOT_AN_OPTION 1)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "ggml").mkdir(parents=True)
    (tmp_path / "src" / "CMakeLists.txt").write_text(ROOT_LISTS)
    (tmp_path / "src" / "ggml" / "CMakeLists.txt").write_text(GGML_LISTS)
    return tmp_path / "src"


def plan(tree: Path, tools: Toolchain = TOOLS, machine: Machine = MACHINE, **options: object) -> BuildPlan:
    return make_plan(tree, tree.parent / "build", "p1", BuildOptions(**options), machine, tools)  # type: ignore[arg-type]


def test_options_that_the_tree_does_not_declare_are_not_passed(tree: Path) -> None:
    entries = dict(plan(tree).options)
    assert entries["LLAMA_OPENSSL"] == "OFF"
    assert "LLAMA_CURL" not in entries
    assert "GGML_NOT_AN_OPTION" not in declared_options(tree)
    assert "GGML_CPU_ARM_ARCH" in declared_options(tree)


def test_instruction_set_is_explicit_and_native_is_off(tree: Path) -> None:
    made = plan(tree)
    entries = dict(made.options)
    assert entries["GGML_NATIVE"] == "OFF"
    assert (entries["GGML_AVX"], entries["GGML_AVX2"], entries["GGML_AVX512"]) == ("ON", "ON", "ON")
    # The processor has FMA, but this compiler does not take -mfma.
    assert entries["GGML_FMA"] == "OFF"
    assert set(made.features) == {"avx", "avx2"} | AVX512


def test_avx512_needs_every_one_of_its_parts(tree: Path) -> None:
    made = plan(tree, machine=replace(MACHINE, features=MACHINE.features - {"avx512vl"}))
    assert dict(made.options)["GGML_AVX512"] == "OFF"
    assert set(made.features) == {"avx", "avx2"}


def test_a_compiler_cache_may_come_and_go_without_another_configuration(tree: Path) -> None:
    without, with_cache = plan(tree), plan(tree, tools=replace(TOOLS, launcher=Path("/t/ccache")))
    assert without.options == with_cache.options
    assert dict(without.options)["GGML_CCACHE"] == "OFF"
    launchers = {name: value for name, value in without.options if "LAUNCHER" in name}
    script = str(without.directory / "pyggml-compile")
    assert launchers == {"CMAKE_C_COMPILER_LAUNCHER": script, "CMAKE_CXX_COMPILER_LAUNCHER": script}


def test_only_what_computes_is_optimised_unless_warnings_are_errors(tree: Path) -> None:
    directories = dict(plan(tree).options)["PYGGML_UNOPTIMIZED"].split(";")
    assert "common" in directories and not {"ggml", "src"} & set(directories)
    assert "PYGGML_UNOPTIMIZED" not in dict(plan(tree, fatal_warnings=True).options)


def test_commit_in_the_binaries_is_the_pin(tree: Path) -> None:
    entries = dict(plan(tree).options)
    assert entries["LLAMA_BUILD_COMMIT"] == "p1"
    assert entries["GIT_EXE:STRING"] == "OFF"


def test_sanitizers_and_werror_are_passed_to_both_projects_and_name_the_variant(tree: Path) -> None:
    made = plan(tree, sanitize=("address", "undefined"), fatal_warnings=True)
    entries = dict(made.options)
    assert made.variant == "p1-cpu-asan-ubsan-werror"
    on = (
        "LLAMA_SANITIZE_ADDRESS",
        "GGML_SANITIZE_ADDRESS",
        "LLAMA_SANITIZE_UNDEFINED",
        "LLAMA_FATAL_WARNINGS",
    )
    assert all(entries[name] == "ON" for name in on)
    assert "GGML_SANITIZE_UNDEFINED" not in entries
    # GCC 12 warns inside its own AVX-512 headers.
    assert entries["GGML_AVX512"] == "OFF"


def test_the_thread_sanitizer_is_without_openmp(tree: Path) -> None:
    declared = tree / "ggml/CMakeLists.txt"
    declared.write_text(
        declared.read_text() + "option(GGML_SANITIZE_THREAD x OFF)\noption(GGML_OPENMP x ON)\n"
    )
    assert dict(plan(tree, sanitize=("thread",)).options)["GGML_OPENMP"] == "OFF"
    assert "GGML_OPENMP" not in dict(plan(tree, sanitize=("address",)).options)


def test_sanitizer_that_the_tree_does_not_know_is_refused(tree: Path) -> None:
    with pytest.raises(UsageError, match="SANITIZE_THREAD"):
        plan(tree, sanitize=("thread",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, ()),
        ("", ()),
        ("undefined,address", ("address", "undefined")),
        (" address , address", ("address",)),
    ],
)
def test_sanitize_list(text: str | None, expected: tuple[str, ...]) -> None:
    assert parse_sanitize(text) == expected


@pytest.mark.parametrize("text", ["adress", "address,thread", "-fsanitize=address"])
def test_sanitize_list_that_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        parse_sanitize(text)


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "-x", "a\nb", "x" * 101])
def test_variant_stays_a_directory_name(name: str) -> None:
    with pytest.raises(UsageError):
        variant_name("p1", BuildOptions(variant=name))


def test_targets_default_and_asked(tree: Path) -> None:
    assert (plan(tree).targets, plan(tree).optional_targets) == (DEFAULT_TARGETS, True)
    asked = plan(tree, targets=("llama",))
    assert (asked.targets, asked.optional_targets) == (("llama",), False)


def test_fingerprint_changes_with_options_and_compilers_only(tree: Path) -> None:
    base = plan(tree).fingerprint(TOOLS)
    assert plan(tree, jobs=3, targets=("llama",)).fingerprint(TOOLS) == base
    assert plan(tree).fingerprint(replace(TOOLS, cc_version="cc 13")) != base
    assert plan(tree, fatal_warnings=True, variant="p1-cpu").fingerprint(TOOLS) != base


def test_user_flags_are_passed(tree: Path) -> None:
    entries = dict(plan(tree, tools=replace(TOOLS, cc_flags="-g1", link_flags="-Wl,-z,now")).options)
    assert entries["CMAKE_C_FLAGS"] == "-g1"
    assert entries["CMAKE_SHARED_LINKER_FLAGS"] == entries["CMAKE_EXE_LINKER_FLAGS"] == "-Wl,-z,now"


def test_tree_without_cmake_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PyggmlError, match=r"no CMakeLists\.txt"):
        plan(tmp_path)


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"), [(8, 64 * GIB, 8), (8, 3 * GIB, 2), (4, GIB, 1), (6, 0, 6)]
)
def test_jobs_are_capped_by_memory(cores: int, memory: int, jobs: int) -> None:
    assert default_jobs(replace(MACHINE, cores=cores, memory=memory)) == jobs


def test_features_are_those_that_all_processors_have() -> None:
    text = "processor : 0\nflags\t\t: fpu avx avx2\nbugs : avx512f\nprocessor : 1\nflags\t\t: fpu avx\n"
    assert parse_cpuinfo(text) == {"fpu", "avx"}
    assert parse_cpuinfo("Features\t: fp asimd\n") == {"fp", "asimd"}
    assert parse_cpuinfo("") == frozenset()


def test_available_memory() -> None:
    assert parse_available_memory("MemTotal: 9 kB\nMemAvailable:    2048 kB\n") == 2 * 1024 * 1024
    assert parse_available_memory("MemTotal: 9 kB\n") == 0


def test_arm_gets_one_architecture_string() -> None:
    made = choose("aarch64", {"fp", "asimdhp", "asimddp", "i8mm"}, {"GGML_CPU_ARM_ARCH"}, ())
    assert made.options == (("GGML_CPU_ARM_ARCH", "armv8.2-a+fp16+dotprod+i8mm"),)
    assert choose("aarch64", {"fp"}, {"GGML_CPU_ARM_ARCH"}, ()).options == ()
