"""The matrix on 2, 4 and 8 CUDA devices, and the CUDA backend beside the rest of a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pyggml.builder.record import Build
from pyggml.matrix.report import line_of
from pyggml.matrix.run import MatrixResult
from pyggml.native.cuda import BACKEND
from pyggml.native.programs import seen_devices
from tests.gpu.conftest import rehearsal

pytestmark = pytest.mark.gpu

Lively = Callable[[str], Path]
Matrix = Callable[..., MatrixResult]


def check(result: MatrixResult) -> None:
    bad = [line_of(record) for record in result.records if record.bad]
    assert not bad, "\n".join(bad)
    assert any(record.verdict in ("within", "identical") for record in result.records)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("arch", ["llama", "gemma2", "gpt2", "qwen35"])
def test_tensor_split(lively: Lively, matrix: Matrix, arch: str, count: int) -> None:
    """Within upstream's bound of the CPU with the cache on the devices; with it on the host the same bits."""
    check(matrix(lively(arch), devices=(count,)))


@pytest.mark.parametrize("count", [2, 4])
def test_several_sequences_and_layer_split(lively: Lively, matrix: Matrix, count: int) -> None:
    streams: dict[str, Any] = {"streams": (1, 3), "unified": (True, False)}
    check(matrix(lively("llama"), devices=(count,), split_modes=("layer", "tensor"), **streams))


def test_uneven_shares_and_a_quantised_cache(lively: Lively, matrix: Matrix) -> None:
    check(matrix(lively("llama"), splits=((55.0, 45.0),), kv_types=("f16", "q8_0")))


@pytest.mark.parametrize("count", [2, 4, 8])
def test_one_gpu_is_as_many_devices_as_asked_for(pyggml_build: Build, count: int) -> None:
    if rehearsal():
        pytest.skip("a rehearsal has no CUDA devices")
    found = seen_devices(pyggml_build, {**os.environ, "GGML_CUDA_DEVICES": str(count)})
    assert [one.name for one in found if one.backend == BACKEND] == [f"CUDA{n}" for n in range(count)]


def test_cuda_stays_out_of_a_process_that_does_not_want_it(pyggml_build: Build) -> None:
    env = {**os.environ, "PYGGML_CUDA": "0", "PYGGML_BUILD": str(pyggml_build.directory)}
    assert not any(one.backend == BACKEND for one in seen_devices(pyggml_build, env))
    code = "import pyggml, pyggml.ggml as g; print([one.name for one in g.devices()])"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['CPU']"
