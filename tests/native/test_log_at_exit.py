"""Patch log-at-exit: what a program has logged is written before it exits, however slow its output is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyggml.builder.record import Build
from pyggml.native.preprocess import source_of

pytestmark = pytest.mark.native

ROOT = Path(__file__).parents[2]
LINES = 100
# Every write to stdout takes 2 ms, so that the logger's thread is far behind when the program exits.
PROGRAM = r"""
#include "log.h"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <unistd.h>

static bool exit_on_write = false;

static ssize_t write_slowly(void *, const char * data, size_t size) {
    if (exit_on_write) {
        exit_on_write = false;
        exit(3);
    }
    usleep(2000);
    return write(STDOUT_FILENO, data, size);
}

int main(int, char ** argv) {
    const char * how = argv[1];
    const bool exit_in_logger = strcmp(how, "exit in the logger's thread") == 0;
    exit_on_write = exit_in_logger;
    stdout = fopencookie(nullptr, "w", { nullptr, write_slowly, nullptr, nullptr });
    for (int i = 0; i < 100; i++) {
        LOG("line %d\n", i);
    }
    if (exit_in_logger) {
        sleep(60);
    }
    if (strcmp(how, "exit in another thread") == 0) {
        std::thread([]() { exit(0); }).join();
    }
    if (strcmp(how, "pause and return") == 0) {
        common_log_pause(common_log_main());
    }
    if (strcmp(how, "free and return") == 0) {
        common_log_free(common_log_main());
    }
    if (strcmp(how, "abort") == 0) {
        abort();
    }
    return 0;
}
"""


@pytest.fixture(scope="module")
def program(pyggml_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("log")
    (place / "program.cpp").write_text(PROGRAM)
    source, bin_dir = source_of(pyggml_build), pyggml_build.bin_dir
    command = [
        pyggml_build.record.tools["cxx"], "-std=c++17", "-pthread", "-I", source / "common",
        "-I", source / "ggml" / "include", place / "program.cpp", "-o", place / "program",
        bin_dir / "libllama-common.so", f"-Wl,-rpath,{bin_dir}", "-Wl,--allow-shlib-undefined",
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return place / "program"


def run(program: Path, how: str) -> tuple[int, str]:
    done = subprocess.run([program, how], stdout=subprocess.PIPE, text=True, timeout=30, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("how", ["return", "exit in another thread", "pause and return", "free and return"])
def test_all_lines_are_written_before_the_program_exits(program: Path, how: str) -> None:
    status, text = run(program, how)
    lines = text.splitlines()
    assert status == 0
    assert lines == [f"line {number}" for number in range(LINES)], (
        f"{len(lines)} of {LINES} lines were written"
    )


def test_exit_in_the_loggers_own_thread_does_not_wait_for_itself(program: Path) -> None:
    status, text = run(program, "exit in the logger's thread")
    assert status == 3
    assert len(text.splitlines()) < LINES


def test_abort_writes_nothing_more(program: Path) -> None:
    status, text = run(program, "abort")
    assert status == -6
    assert len(text.splitlines()) < LINES


@pytest.mark.slow
@pytest.mark.patch("log-at-exit")
def test_a_hundred_checks_beside_two_busy_loops_lose_nothing(pyggml_build: Build) -> None:
    command = [sys.executable, ROOT / "tools" / "lost_rows.py", "--variant", pyggml_build.record.variant]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed, 0 runs lost output" in done.stdout
