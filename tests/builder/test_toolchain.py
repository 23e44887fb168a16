"""Finding compilers, CMake and Ninja; the wheels when there are none."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from pyggml.builder.toolchain import Toolchain, find_toolchain, parse_version
from pyggml.errors import PyggmlError


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return path


def says(text: str) -> str:
    return f"print({text!r})"


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    (tmp_path / "bin dir ü").mkdir()
    return tmp_path / "bin dir ü"


def compilers(bin_dir: Path) -> None:
    program(bin_dir / "cc", says("cc 12.2"))
    program(bin_dir / "c++", says("c++ 12.2"))


def find(
    bin_dir: Path, tmp_path: Path, said: list[str] | None = None, python: Path | None = None, **env: str
) -> Toolchain:
    return find_toolchain(
        "x86_64",
        (said if said is not None else []).append,
        {"PATH": str(bin_dir), **env},
        tmp_path / "cache",
        python,
    )


def fake_pip(tmp_path: Path, *, cmake_version: str = "3.31.2", fails: str = "") -> Path:
    """An interpreter whose `-m pip install --target DIR` writes the programs as the wheels lay them out."""
    body = f"""\
import sys, pathlib
log = pathlib.Path({str(tmp_path / "pip.log")!r})
log.write_text((log.read_text() if log.exists() else "") + repr(sys.argv[1:]) + "\\n")
if {fails!r}:
    sys.exit({fails!r})
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
for name, text in (("cmake/data/bin/cmake", "cmake version {cmake_version}"), ("bin/ninja", "1.12.1")):
    path = target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!{sys.executable}\\nprint(" + repr(text) + ")\\n")
    path.chmod(0o755)
"""
    return program(tmp_path / "fake" / "python", body)


def test_empty_path_names_the_missing_c_compiler(bin_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(PyggmlError, match="no C compiler") as caught:
        find(bin_dir, tmp_path)
    assert "apt install" in str(caught.value.hint)


def test_c_without_cxx_names_the_missing_cxx_compiler(bin_dir: Path, tmp_path: Path) -> None:
    program(bin_dir / "gcc", says("gcc 12.2"))
    with pytest.raises(PyggmlError, match=r"C\+\+ compiler"):
        find(bin_dir, tmp_path)


def test_a_complete_pair_goes_before_half_of_a_better_one(bin_dir: Path, tmp_path: Path) -> None:
    for name in ("cc", "clang", "clang++"):
        program(bin_dir / name, says(name))
    found = find(bin_dir, tmp_path, python=fake_pip(tmp_path))
    assert (found.cc.name, found.cxx.name) == ("clang", "clang++")


def test_cc_that_does_not_exist_is_named(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    with pytest.raises(PyggmlError, match="CC is set to 'gcc-99'"):
        find(bin_dir, tmp_path, CC="gcc-99")


def test_cc_with_a_cache_and_flags(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    program(bin_dir / "ccache", says("ccache"))
    found = find(bin_dir, tmp_path, python=fake_pip(tmp_path), CC="ccache cc -m64", CFLAGS="-g")
    assert (found.cc, found.cc_flags, found.launcher) == (bin_dir / "cc", "-m64 -g", bin_dir / "ccache")


def test_a_compiler_cache_from_a_wheel_lies_beside_the_interpreter(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    python = fake_pip(tmp_path)
    cache = program(python.with_name("ccache"), says("ccache 4.14"))
    assert find(bin_dir, tmp_path, python=python).launcher == cache
    sccache = program(bin_dir / "sccache", says("sccache 0.8"))
    assert find(bin_dir, tmp_path, python=python).launcher == sccache
    program(bin_dir / "ccache", "raise SystemExit(127)")
    assert find(bin_dir, tmp_path, python=python).launcher == sccache


def test_tools_on_path_are_used_without_pip(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    program(bin_dir / "cmake", says("cmake version 3.25.1\n\nCMake suite"))
    program(bin_dir / "ninja", says("1.11.1"))
    said: list[str] = []
    found = find(bin_dir, tmp_path, said, python=fake_pip(tmp_path))
    assert (found.cmake, found.cmake_version, found.ninja_version) == (bin_dir / "cmake", "3.25.1", "1.11.1")
    assert said == []
    assert not (tmp_path / "pip.log").exists()


def test_too_old_cmake_is_replaced_by_the_wheel_once(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    program(bin_dir / "cmake", says("cmake version 3.10.2"))
    program(bin_dir / "ninja", says("1.11.1"))
    pip = fake_pip(tmp_path)
    said: list[str] = []
    first = find(bin_dir, tmp_path, said, python=pip)
    second = find(bin_dir, tmp_path, said, python=pip)
    assert first.cmake == second.cmake
    assert (first.cmake_version, first.ninja) == ("3.31.2", bin_dir / "ninja")
    assert len((tmp_path / "pip.log").read_text().splitlines()) == 1
    assert len(said) == 2
    assert "no usable CMake on PATH" in said[0]


def test_failing_pip_is_two_lines_and_leaves_nothing(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    with pytest.raises(PyggmlError, match="no matching distribution") as caught:
        find(bin_dir, tmp_path, python=fake_pip(tmp_path, fails="ERROR: no matching distribution"))
    assert "\n" not in caught.value.message
    assert list((tmp_path / "cache" / "tools").iterdir()) == []


def test_wheels_that_do_not_run_are_an_error(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    with pytest.raises(PyggmlError, match="do not run on this machine"):
        find(bin_dir, tmp_path, python=fake_pip(tmp_path, cmake_version="1.0"))


def test_interrupted_installation_is_repeated(bin_dir: Path, tmp_path: Path) -> None:
    compilers(bin_dir)
    tag = f"py{sys.version_info.major}{sys.version_info.minor}-{sys.platform}"
    (tmp_path / "cache" / "tools" / tag / "cmake").mkdir(parents=True)
    assert find(bin_dir, tmp_path, python=fake_pip(tmp_path)).cmake_version == "3.31.2"


@pytest.mark.skipif(shutil.which("cc") is None or shutil.which("c++") is None, reason="needs cc and c++")
def test_flags_that_the_compiler_refuses_are_left_out(bin_dir: Path, tmp_path: Path) -> None:
    refuse = "import sys; print('cc 1.0'); sys.exit('-mavxvnni' in sys.argv)"
    program(bin_dir / "cc", refuse)
    program(bin_dir / "c++", says("c++ 1.0"))
    flags = find(bin_dir, tmp_path, python=fake_pip(tmp_path)).flags
    assert "-mavxvnni" not in flags
    assert "-mavx2" in flags


@pytest.mark.parametrize(
    ("text", "version"), [("cmake version 3.25.1", (3, 25, 1)), ("1.11.1.git", (1, 11, 1)), ("none", ())]
)
def test_versions(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version
