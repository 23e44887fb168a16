"""Rows made by hand, and the matrix on tiny models of the project's build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.builder.record import Build
from pyggml.matrix.cases import Case, Grid, Run
from pyggml.matrix.run import MatrixResult, run_matrix
from pyggml.matrix.run_outcome import RunOutcome
from pyggml.matrix.workload import Workload
from pyggml.models.scaled_weights import scaled_models
from pyggml.models.tiny import tiny_models

Floats = npt.NDArray[np.float32]

CPU = Run(
    build="this",
    model=Path("models/llama-dense.gguf"),
    devices=0,
    split_mode="none",
    split=None,
    kv="host",
    kv_type="f16",
    streams=1,
    unified=False,
    layout="one",
    flash_attn="auto",
    swa_full=False,
    poison=True,
    work=Workload(prompt=2, steps=1),
)
DEVICE = replace(CPU, devices=2, split_mode="tensor", kv="device")
HOST = replace(DEVICE, kv="host")
REFERENCE, ON_DEVICES, ON_HOST = Case(CPU), Case(DEVICE, cpu=CPU), Case(HOST, cpu=CPU, twin=DEVICE)

OWN_DEVICE, OWN_HOST = (replace(run, layout="per-stream") for run in (DEVICE, HOST))
OWN_ON_DEVICES = Case(OWN_DEVICE, cpu=CPU, one=DEVICE)
OWN_ON_HOST = Case(OWN_HOST, cpu=CPU, twin=OWN_DEVICE, one=HOST)

LOGITS = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], np.float32)
"""Of a prompt of two tokens and one step."""


class Stage:
    """Outcomes by run, and the logits that their files would hold."""

    def __init__(self) -> None:
        self.outcomes: dict[Run, RunOutcome] = {}
        self._logits: dict[Path, Floats] = {}

    def done(self, run: Run, logits: Floats = LOGITS, **about: Any) -> None:
        path = Path(f"{len(self._logits)}.npy")
        self._logits[path] = logits
        self.outcomes[run] = RunOutcome(run, "done", 0.1, logits=path, about=about)

    def ended(self, run: Run, kind: str, reason: str, supported: bool = True) -> None:
        self.outcomes[run] = RunOutcome(
            run, kind, 0.1, reason=reason, phase="step 1 of 1", supported=supported
        )

    def load(self, path: Path) -> Floats:
        return self._logits[path]


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture(scope="session")
def lively(pyggml_build: Build, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`lively(arch)`: the tiny model of an architecture, the dense one if there are two, with lively weights."""
    place = tmp_path_factory.mktemp("tiny")

    def path(arch: str) -> Path:
        return scaled_models(sorted(tiny_models(pyggml_build, arch, place=place).files)[:1])[0]

    return path


@pytest.fixture
def matrix(pyggml_build: Build) -> Callable[..., MatrixResult]:
    """`matrix(model, devices=(2,), ...)`: run it on one job."""

    def run(*models: Path, timeout: float = 120, **options: Any) -> MatrixResult:
        grid = Grid(build="this", **options)
        return run_matrix(grid, models, {"this": pyggml_build}, 1, timeout)

    return run
