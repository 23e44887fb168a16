"""A clean environment for every test, the project's build if there is one, and how to run its programs."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyggml.builder.record import Build, check_instruction_set, find_build
from pyggml.errors import PyggmlError
from pyggml.project import find_project
from tests.upstream.conftest import own_machine  # noqa: F401 - applies to every test here

TEXT = "".join(
    f"Line {number}: the quick brown f\u00f6x jumps \u2014 {number * 7919 % 997}.\n" for number in range(90)
)

Bench = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def build() -> Build:
    """The project's finished build; nothing is written into it."""
    try:
        build = find_build(find_project(Path(__file__).parent))
        check_instruction_set(build)
    except PyggmlError as error:
        pytest.skip(f"needs the built llama.cpp of this project: {error.message}")
    return build


def run_program(build: Build, name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [build.bin_dir / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        timeout=120,
        check=False,
    )


@pytest.fixture
def bench(build: Build) -> Bench:
    """Load a model in llama-bench, read 16 tokens, write 4, and return its rows."""

    def run(model: Path, *arguments: object) -> list[dict[str, Any]]:
        done = run_program(
            build, "llama-bench", "-m", model, "-p", 16, "-n", 4, "-r", 1, "-t", 1, "-o", "jsonl", *arguments
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


@pytest.fixture
def perplexity(build: Build, tmp_path: Path) -> Callable[[Path], str]:
    """The perplexity of TEXT as llama-perplexity prints it."""

    def run(model: Path) -> str:
        text = tmp_path / "text.txt"
        text.write_text(TEXT, "utf-8")
        arguments = ("-m", model, "-f", text, "-c", 128, "-b", 128, "--chunks", 2, "-t", 1)
        # Upstream does not wait for its log's thread: a quick run may lose its last line.
        for _ in range(25):
            done = run_program(build, "llama-perplexity", *arguments)
            assert done.returncode == 0, done.stderr[-2000:]
            for line in (done.stdout + done.stderr).splitlines():
                if "Final estimate" in line:
                    return line.partition("PPL = ")[2].split()[0]
        raise AssertionError("llama-perplexity never printed its estimate")

    return run
