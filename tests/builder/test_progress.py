"""Reading Ninja's output."""

from __future__ import annotations

import time

import pytest

from pyggml.builder.progress import NinjaOutput, Step
from pyggml.cli.build import Meter


def fed(text: str, report: list[Step] | None = None) -> NinjaOutput:
    output = NinjaOutput(report.append if report is not None else None)
    for line in text.splitlines(keepends=True):
        output.feed(line)
    return output


FAILING = """\
ninja: Entering directory `/b'
[1/5] Building C object a.o
FAILED: b.o
/usr/bin/c++ -Werror=error -o b.o -c b.cpp
In file included from b.cpp:1:
b.cpp: In function 'int main()':
b.cpp:3:9: error: 'x' was not declared in this scope
    3 |     x = 1;
[2/5] Building C object c.o
c.c:1: warning: unused
FAILED: d.o
/usr/bin/cc -c d.c
d.c:1: error: a later one
ninja: build stopped: subcommand failed.
"""


def test_steps_are_reported_and_counted() -> None:
    steps: list[Step] = []
    output = fed("[1/2] Building C object a.o\nwarning: [3/4] not a status\n[2/2] Linking b\n", steps)
    assert steps == [Step(1, 2, "Building C object a.o"), Step(2, 2, "Linking b")]
    assert (output.steps, output.failed) == (2, False)


def test_cmake_run_by_ninja_is_not_a_step() -> None:
    assert fed("[0/1] Re-running CMake...\n-- Configuring done\nninja: no work to do.\n").steps == 0


def test_first_error_is_the_first_failing_step_from_its_error_on() -> None:
    output = fed(FAILING)
    assert output.failed
    assert output.first_error() == [
        "b.cpp:3:9: error: 'x' was not declared in this scope",
        "    3 |     x = 1;",
    ]


def test_newer_ninja_writes_the_exit_code_into_the_failed_line() -> None:
    output = fed(FAILING.replace("FAILED: b.o", "FAILED: [code=1] b.o"))
    assert output.first_error()[0].startswith("b.cpp:3:9: error")


def test_first_error_is_at_most_eight_lines() -> None:
    text = "FAILED: a.o\ncc\n" + "".join(f"a.c:{n}: error: e{n}\n" for n in range(50))
    assert len(fed(text).first_error()) == 8
    assert len(fed("FAILED: a\ncc\nx: error: " + "y" * 5000).first_error()[0]) == 300


def test_linker_error() -> None:
    text = (
        "[9/9] x\nFAILED: bin/p\nc++ -o p\n/usr/bin/ld: p.o: in function `main':\n"
        "p.cpp:(.text+0x5): undefined reference to `f'\n"
    )
    assert fed(text).first_error() == ["p.cpp:(.text+0x5): undefined reference to `f'"]


def test_error_of_a_rerun_cmake_is_found_before_the_failed_line() -> None:
    text = (
        "[0/1] Re-running CMake...\nCMake Error at CMakeLists.txt:3 (add_library):\n  Cannot find source file:\n\n"
        "    gone.c\n-- Configuring incomplete\nFAILED: build.ninja\ncmake -S x\n"
        "ninja: error: rebuilding 'build.ninja': subcommand failed\n"
    )
    assert fed(text).first_error()[:3] == [
        "CMake Error at CMakeLists.txt:3 (add_library):",
        "  Cannot find source file:",
        "    gone.c",
    ]


def test_unknown_target_is_ninjas_own_message() -> None:
    text = "ninja: Entering directory `/b'\nninja: error: unknown target 'x'\n"
    assert fed(text).first_error() == ["ninja: error: unknown target 'x'"]


def test_full_disk_and_killed_compiler_are_recognised() -> None:
    full = fed("FAILED: a.o\ncc\na.s: fatal error: can't write: No space left on device\n")
    assert (full.disk_full, full.out_of_memory) == (True, False)
    killed = fed("FAILED: a.o\ncc\nc++: fatal error: Killed signal terminated program cc1plus\n")
    assert (killed.disk_full, killed.out_of_memory) == (False, True)
    helper = fed("FAILED: a.o\nnvcc\nnvcc error   : 'cicc' died due to signal 9 (Kill signal)\n")
    assert (helper.disk_full, helper.out_of_memory) == (False, True)
    command = fed("FAILED: a.o\ncc -DTEXT='Killed signal'\na.c:1: error: no\n")
    assert not command.out_of_memory


def test_a_piped_build_is_never_silent_for_long(capfd: pytest.CaptureFixture[str]) -> None:
    with Meter(silent=0.2) as meter:
        meter.step(Step(1, 100, "Building CXX object a/slow.cpp.o"))
        time.sleep(0.7)
        meter.step(Step(10, 100, "Building CXX object b.cpp.o"))
    lines = capfd.readouterr().err.splitlines()
    waiting = [line for line in lines if "so far" in line]
    assert 1 <= len(waiting) <= 4
    assert waiting[0].startswith("building: 1 of 100 steps, 0.") and waiting[0].endswith("after slow.cpp")
    assert lines[-1] == "building: 10 of 100 steps"
