"""The whole of a CUDA build decided: plan, record, space, and what CMake is told."""

from __future__ import annotations

import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import Driver
from pyggml.builder.cuda.nccl import Nccl, find_nccl
from pyggml.builder.cuda.options import CudaOptions, parse_archs
from pyggml.builder.cuda.setup import CudaSetup, check_space, set_up
from pyggml.builder.cuda.toolkit import Toolkit, choose_toolkit
from pyggml.builder.cuda.wheels import find_wheels
from pyggml.builder.machine import Machine
from pyggml.builder.plan import (
    DEFAULT_TARGETS,
    BuildOptions,
    BuildPlan,
    command_line,
    make_plan,
    variant_name,
)
from pyggml.builder.tool_environment import tool_environment
from pyggml.builder.toolchain import Toolchain
from pyggml.errors import PyggmlError, UsageError
from tests.builder.cuda.conftest import H200, NO_DRIVER, MakeToolkit, make_wheel, make_wheels, script, write

GIB = 1 << 30
MACHINE = Machine("Linux", "x86_64", frozenset(), cores=16, memory=8 * GIB)
LISTS = """\
option(GGML_CUDA "" OFF)
option(GGML_CUDA_FA_ALL_QUANTS "" OFF)
option(GGML_CUDA_NCCL "" ON)
option(GGML_FATAL_WARNINGS "" OFF)
"""
PLAIN = CudaOptions()


@pytest.fixture
def compilers(tmp_path: Path) -> Toolchain:
    cxx = script(tmp_path / "bin" / "c++", "print('#define __GNUC__ 12')")
    return Toolchain(
        Path("/t/cmake"),
        "3.25.1",
        Path("/t/ninja"),
        "1.11.1",
        Path(shutil.which("cc") or "/t/cc"),
        "cc 12",
        cxx,
        "12",
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write(tmp_path / "src" / "CMakeLists.txt")
    write(tmp_path / "src" / "ggml" / "CMakeLists.txt", LISTS)
    return tmp_path / "src"


@pytest.fixture
def wheels(tmp_path: Path) -> Toolkit:
    found = find_wheels([str(make_wheels(tmp_path / "site"))])
    return choose_toolkit(None, NO_DRIVER, roots=[], wheels=found)


def decided(
    tools: Toolchain,
    toolkit: Toolkit,
    options: CudaOptions = PLAIN,
    said: list[str] | None = None,
    **env: str,
) -> CudaSetup:
    say = (said if said is not None else []).append
    return set_up(options, tools, say, env=env, driver=NO_DRIVER, toolkit=toolkit)


def plan(tree: Path, tools: Toolchain, setup: CudaSetup, **options: object) -> BuildPlan:
    asked = BuildOptions(cuda=setup.options, **options)  # type: ignore[arg-type]
    return make_plan(tree, tree.parent / "build", "p1", asked, MACHINE, tools, setup)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (CudaOptions(), "p1-cuda"),
        (CudaOptions(parse_archs("80,90")), "p1-cuda-80+90"),
        (CudaOptions(nccl=True, minimal=True), "p1-cuda-nccl-minimal"),
    ],
)
def test_variants_have_their_own_names(options: CudaOptions, name: str) -> None:
    assert variant_name("p1", BuildOptions(cuda=options)) == name
    assert variant_name("p1", BuildOptions(cuda=options, fatal_warnings=True)) == f"{name}-werror"


def test_plan_over_the_wheels(tree: Path, compilers: Toolchain, wheels: Toolkit) -> None:
    made = plan(tree, compilers, decided(compilers, wheels))
    root = tree.parent / "build" / "p1-cuda" / "toolkit"
    entries = dict(made.options)
    assert entries["GGML_CUDA"] == "ON"
    assert entries["CUDAToolkit_ROOT"] == str(root)
    assert entries["CMAKE_CUDA_COMPILER"] == str(root / "bin" / "nvcc")
    assert entries["CMAKE_CUDA_HOST_COMPILER"] == str(compilers.cxx)
    assert entries["CMAKE_CUDA_ARCHITECTURES"] == "80"
    assert entries["PYGGML_CUDA_RPATH"] == "$ORIGIN/../toolkit/lib"
    assert (entries["GGML_CUDA_FA_ALL_QUANTS"], entries["GGML_CUDA_NCCL"]) == ("ON", "OFF")
    assert "CMAKE_CUDA_FLAGS" not in entries
    assert made.targets == (*DEFAULT_TARGETS, "ggml-cuda")
    # 16 cores, but 8 GiB hold four of nvcc.
    assert made.jobs == 4


def test_plan_over_a_system_toolkit(tree: Path, compilers: Toolchain, toolkit: MakeToolkit) -> None:
    root = toolkit()
    setup = decided(
        compilers, Toolkit("system", root, "12.4.131", False), CudaOptions(minimal=True), CUDAFLAGS="-g"
    )
    entries = dict(plan(tree, compilers, setup, fatal_warnings=True).options)
    assert entries["CUDAToolkit_ROOT"] == str(root)
    assert entries["PYGGML_CUDA_RPATH"] == str(root / "lib64")
    assert entries["GGML_CUDA_FA_ALL_QUANTS"] == "OFF"
    assert entries["CMAKE_CUDA_FLAGS"].startswith("-g ")
    assert entries["GGML_FATAL_WARNINGS"] == "ON"


def test_record_and_words_say_choice_versions_and_reasons(
    tree: Path, compilers: Toolchain, toolkit: MakeToolkit, tmp_path: Path
) -> None:
    incomplete = toolkit("old", without=["cublas"])
    found = find_wheels([str(make_wheels(tmp_path / "site"))])
    chosen = choose_toolkit(None, NO_DRIVER, roots=[incomplete], wheels=found)
    said: list[str] = []
    record = dict(plan(tree, compilers, decided(compilers, chosen, said=said)).cuda)
    assert (record["cuda_version"], record["cuda_kind"]) == ("13.0.88", "wheels")
    assert record["cuda_rejected"] == f"{incomplete}: CUDA 12.4.131 has no cuBLAS"
    assert "nvidia-nvvm==13.0.88" in record["cuda_wheels"]
    assert record["cuda_architectures"] == "80"
    assert "gcc 12" in record["cuda_host"]
    assert said[0] == f"not {incomplete}: CUDA 12.4.131 has no cuBLAS"
    assert said[1].startswith("CUDA 13.0.88 from the NVIDIA wheels in ")


def test_fingerprint_follows_the_wheels_versions(tree: Path, compilers: Toolchain, wheels: Toolkit) -> None:
    first = plan(tree, compilers, decided(compilers, wheels))
    same = plan(tree, compilers, decided(compilers, replace(wheels, rejected=((Path("/x"), "why"),))))
    other = plan(tree, compilers, decided(compilers, replace(wheels, wheels={"nvidia-cublas": "13.0.9"})))
    assert first.fingerprint(compilers) == same.fingerprint(compilers) != other.fingerprint(compilers)


def test_upstream_without_cuda_and_sanitizers_are_refused(
    tree: Path, compilers: Toolchain, wheels: Toolkit
) -> None:
    setup = decided(compilers, wheels)
    with pytest.raises(UsageError, match="exclude each other"):
        plan(tree, compilers, setup, sanitize=("address",))
    write(tree / "ggml" / "CMakeLists.txt", "")
    with pytest.raises(UsageError, match="no option GGML_CUDA"):
        plan(tree, compilers, setup)


def test_prepare_writes_the_root_once_and_the_override(
    compilers: Toolchain, wheels: Toolkit, tmp_path: Path
) -> None:
    setup = decided(compilers, wheels)
    said: list[str] = []
    directory = tmp_path / "build"
    directory.mkdir()
    setup.prepare(directory, compilers.cc, said.append)
    setup.prepare(directory, compilers.cc, said.append)
    assert len(said) == 1 and "assembled a toolkit" in said[0]
    assert (directory / "toolkit" / "bin" / "nvcc").is_file()
    assert b"GGML_BACKEND_DL" in (directory / "pyggml-cuda.cmake").read_bytes()


def test_host_compiler_of_the_environment(compilers: Toolchain, wheels: Toolkit, tmp_path: Path) -> None:
    other = script(tmp_path / "bin" / "g++-11", "print('#define __GNUC__ 11')")
    setup = decided(compilers, wheels, PATH=str(tmp_path / "bin"), CUDAHOSTCXX="g++-11")
    assert setup.host.path == other
    with pytest.raises(PyggmlError, match="CUDAHOSTCXX is set to 'g\\+\\+-99'"):
        decided(compilers, wheels, CUDAHOSTCXX="g++-99")


def test_refused_host_compiler_is_told_before_anything_else(
    compilers: Toolchain, wheels: Toolkit, tmp_path: Path
) -> None:
    script(compilers.cxx, "print('#define __GNUC__ 16')")
    with pytest.raises(PyggmlError, match="refuses c\\+\\+"):
        decided(compilers, wheels)


def test_asking_for_architectures_means_another_machine(
    compilers: Toolchain, toolkit: MakeToolkit, tmp_path: Path
) -> None:
    old = Driver("ready", (11, 4), "470.57.02", (H200,))
    env = {"CUDA_HOME": str(toolkit()), "PATH": str(tmp_path / "bin")}
    with pytest.raises(PyggmlError, match="too new"):
        set_up(CudaOptions(toolkit=toolkit()), compilers, lambda text: None, env=env, driver=old)
    options = CudaOptions(parse_archs("80"), toolkit())
    assert set_up(options, compilers, lambda text: None, env=env, driver=old).archs.cmake == "80"


def test_no_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    free = {tmp_path: 10 * GIB, tmp_path / "tmp": 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage(0, 0, free[place]))
    with pytest.raises(PyggmlError, match="nvcc's temporary files") as caught:
        check_space(tmp_path, tmp_path / "tmp")
    assert "TMPDIR" in str(caught.value.hint)
    free[tmp_path] = GIB
    with pytest.raises(PyggmlError, match=r"1\.0 GiB free in .*; a CUDA build needs about 3\.0 GiB"):
        check_space(tmp_path, tmp_path / "tmp")


def test_nccl_of_the_wheel_of_the_system_and_missing(
    wheels: Toolkit, toolkit: MakeToolkit, tmp_path: Path
) -> None:
    with pytest.raises(PyggmlError, match="NCCL is not installed") as caught:
        find_nccl(wheels, find_wheels([str(tmp_path / "site")]))
    assert "cuda,nccl" in str(caught.value.hint)
    make_wheel(tmp_path / "site", "nvidia-nccl-cu13", "2.28.3")
    write(tmp_path / "site" / "nvidia" / "nccl" / "include" / "nccl.h")
    found = find_nccl(wheels, find_wheels([str(tmp_path / "site")]))
    assert (found.root, found.version) == (tmp_path / "site" / "nvidia" / "nccl", "2.28.3")
    system = Toolkit("system", toolkit(), "12.4.131", False)
    with pytest.raises(PyggmlError, match="NCCL is not installed beside"):
        find_nccl(system, places=[tmp_path / "usr"])
    header = "#define NCCL_MAJOR 2\n#define NCCL_MINOR 21\n#define NCCL_PATCH 5\n"
    write(tmp_path / "usr" / "include" / "nccl.h", header)
    write(tmp_path / "usr" / "lib" / "x86_64-linux-gnu" / "libnccl.so")
    assert find_nccl(system, places=[tmp_path / "usr"]).version == "2.21.5"


def test_nccl_is_found_where_it_lies(
    tree: Path, compilers: Toolchain, wheels: Toolkit, toolkit: MakeToolkit, tmp_path: Path
) -> None:
    """From the wheels by a relative path beside the toolkit's, from the system by the directory of its library."""
    system = Toolkit("system", toolkit(), "12.4.131", False)
    library = write(tmp_path / "nccl" / "lib" / "libnccl.so")
    found = Nccl(tmp_path / "nccl", "2.28.3")
    paths = {}
    for one in (wheels, system):
        setup = replace(decided(compilers, one), options=CudaOptions(nccl=True), nccl=found)
        entries = dict(plan(tree, compilers, setup).options)
        assert entries["GGML_CUDA_NCCL"] == "ON"
        paths[one.kind] = entries["PYGGML_CUDA_RPATH"].split(";")
    assert paths["wheels"] == ["$ORIGIN/../toolkit/lib", "$ORIGIN/../toolkit/nccl/lib"]
    assert paths["system"] == [str(system.root / "lib64"), str(library.parent)]


def test_settings_that_cmake_would_read_once_are_kept_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDACXX", "CUDAFLAGS", "CUDAARCHS", "CUDAHOSTCXX"):
        monkeypatch.setenv(name, "x")
    assert not {"CUDACXX", "CUDAFLAGS", "CUDAARCHS", "CUDAHOSTCXX"} & tool_environment().keys()


@pytest.mark.parametrize(
    ("options", "command"),
    [
        (BuildOptions(), "pyggml build"),
        (
            BuildOptions(cuda=CudaOptions(parse_archs("90,80"), Path("/opt/my cuda"), minimal=True)),
            "pyggml build --cuda --arch 80,90 --toolkit '/opt/my cuda' --minimal",
        ),
        (
            BuildOptions(("ggml", "llama"), 4, True, cuda=PLAIN, variant="fast"),
            "pyggml build --target ggml --target llama --fatal-warnings --variant fast --cuda",
        ),
        (BuildOptions(sanitize=("address", "undefined")), "pyggml build --sanitize address,undefined"),
    ],
)
def test_command_that_makes_a_build_again(options: BuildOptions, command: str) -> None:
    assert command_line(options) == command
