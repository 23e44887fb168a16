"""Random contexts and memory operations; see memory_walk.py, whose walks are the same for the same seed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pyggml.builder.record import Build
from pyggml.models.scaled_weights import scaled_models
from pyggml.models.tiny import tiny_models
from tests.tested_build import ROOT, remembered

pytestmark = [pytest.mark.native, pytest.mark.slow]

ARCHS = (
    "llama", "gemma3", "cohere2", "gpt-oss", "mimo2", "gpt2", "deepseek2",
    "qwen3next", "qwen35", "lfm2", "falcon-h1", "jamba", "mamba",
)  # fmt: skip
"""Plain, with windows, with sinks, with V heads of another size, with a fused QKV, with MLA, hybrid, recurrent."""
MENDED_BY = {
    "keep": "keep-and-empty-states",
    "empty": "keep-and-empty-states",
    "memory": "meta-alloc-failure",
    "neighbour": "meta-view-slices",
    "hybrids": "complete-splits",
}
"""What upstream does wrong, as memory_walk.py calls it, and the patch that mends it; without that it is left out."""


@pytest.fixture(scope="session")
def without(pyggml_build: Build) -> tuple[str, ...]:
    described, pin = remembered(), pyggml_build.record.pin
    table = tomllib.loads((ROOT / "patches" / pin / "series.toml").read_text("utf-8"))
    applied = {patch["name"] for patch in table["patch"]} - set(described.missing if described else ())
    return tuple(word for word, patch in MENDED_BY.items() if patch not in applied)


@pytest.fixture(scope="session")
def lively_models(pyggml_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("walk")
    made = tiny_models(pyggml_build, f"^({'|'.join(ARCHS)})$", place=place)
    return scaled_models(made.files)[0].parent


def walk(models: Path, first: int, count: int, steps: int, without: tuple[str, ...]) -> None:
    program = Path(__file__).with_name("memory_walk.py")
    numbers = [str(number) for number in (first, count, steps)]
    done = subprocess.run(
        [sys.executable, program, models, *numbers, *without],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=600 + 10 * count,
        check=False,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )
    print(done.stdout.splitlines()[-1] if done.stdout else done.stderr[-2000:])
    if done.returncode != 0:
        pytest.fail(
            f"exit status {done.returncode}:\n{done.stdout[-8000:]}\n{done.stderr[-2000:]}", pytrace=False
        )


def test_random_contexts_compute_what_others_do(
    lively_models: Path, without: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    options = request.config.option
    walk(lively_models, options.context_seed, options.contexts, 6, without)


def test_random_operations_leave_what_was_never_touched(
    lively_models: Path, without: tuple[str, ...], request: pytest.FixtureRequest
) -> None:
    options = request.config.option
    walk(lively_models, 1_000_000 + options.context_seed, options.operations, 25, without)
