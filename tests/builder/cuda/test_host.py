"""Host compilers that nvcc refuses, by the toolkit's own header."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyggml.builder.cuda.host import Limits, choose_host, identify, read_limits
from pyggml.errors import PyggmlError
from tests.builder.cuda.conftest import HOST_CONFIG, script

LIMITS = Limits(gcc_newest=13, clang_newest=17, clang_oldest=3)


def gcc(path: Path, major: int) -> Path:
    return script(path, f"print('#define __GNUC__ {major}')\nprint('#define __GNUC_MINOR__ 2')")


def clang(path: Path, major: int) -> Path:
    return script(path, f"print('#define __GNUC__ 4')\nprint('#define __clang_major__ {major}')")


def test_limits_are_those_of_the_header() -> None:
    assert read_limits(HOST_CONFIG) == LIMITS
    assert read_limits("") == Limits()
    assert read_limits("#if __GNUC__ > 11 || (__clang_major__ > 14)").clang_newest == 14


def test_compilers_say_what_they_are(tmp_path: Path) -> None:
    assert (identify(gcc(tmp_path / "a", 12)).family, identify(tmp_path / "a").major) == ("gcc", 12)
    assert (identify(clang(tmp_path / "b", 18)).family, identify(tmp_path / "b").major) == ("clang", 18)
    assert identify(tmp_path / "nowhere").major == 0


def test_the_builds_own_compiler_is_taken_when_it_can_be(tmp_path: Path) -> None:
    own = gcc(tmp_path / "c++", 13)
    assert choose_host(own, LIMITS, "12.4.131", "").path == own


def test_another_one_on_path_is_taken_for_one_that_is_refused(tmp_path: Path) -> None:
    own = gcc(tmp_path / "c++", 15)
    gcc(tmp_path / "g++-11", 11)
    newest = gcc(tmp_path / "g++-12", 12)
    # A name promises nothing.
    gcc(tmp_path / "g++-13", 14)
    assert choose_host(own, LIMITS, "12.4.131", str(tmp_path)).path == newest


def test_refused_compiler_is_told_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        PyggmlError, match=r"nvcc 12\.4\.131 refuses c\+\+ \(gcc 15\).*gcc up to 13"
    ) as caught:
        choose_host(gcc(tmp_path / "c++", 15), LIMITS, "12.4.131", str(tmp_path))
    assert "apt install g++-13" in str(caught.value.hint)
    with pytest.raises(PyggmlError, match="clang 3 to 17"):
        choose_host(clang(tmp_path / "clang++", 18), LIMITS, "12.4.131", str(tmp_path))


def test_compiler_that_does_not_say_is_not_refused(tmp_path: Path) -> None:
    own = script(tmp_path / "c++", "pass")
    assert choose_host(own, LIMITS, "12.4.131", "").path == own
