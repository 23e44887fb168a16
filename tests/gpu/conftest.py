"""Tests on CUDA devices: `pytest -m gpu`. One GPU will do, it is divided (GGML_CUDA_DEVICES).

They are skipped, with the reason, where there is no GPU or no build with CUDA. PYGGML_GPU_REHEARSAL=1 runs them
on virtual devices of the CPU build instead, which tests the tests and says nothing about CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyggml.builder.record import Build
from pyggml.errors import PyggmlError
from pyggml.ggml import Device, VirtualDevices
from pyggml.matrix.cases import Grid
from pyggml.matrix.run import MatrixResult, run_matrix
from pyggml.native.cuda import BACKEND, find_cuda_build, open_cuda, why_no_device
from pyggml.native.load import active_build, build_in, load
from pyggml.native.programs import seen_devices
from pyggml.project import Project
from tests.ggml.conftest import rng
from tests.matrix.conftest import lively

__all__ = ["lively", "rng"]

REHEARSAL = "PYGGML_GPU_REHEARSAL"
# Found by the process that collects, so that isolated tests need not look for it again.
BUILD = "PYGGML_GPU_TESTS_BUILD"
TIMEOUT = 180
"""Seconds: a process begins by loading CUDA's code, and several may do so at once."""


def rehearsal() -> bool:
    return os.environ.get(REHEARSAL, "0") not in ("", "0")


def find_runnable(root: Path) -> tuple[Build | None, str]:
    """The build to test, or why there is none."""
    try:
        if rehearsal():
            return active_build(root), ""
        build = find_cuda_build(Project(root))
        if any(one.backend == BACKEND for one in seen_devices(build, os.environ)):
            return build, ""
    except PyggmlError as error:
        return None, str(error).replace("\n", ". ")
    return None, f"{build.record.variant} sees no CUDA device: {why_no_device(build)}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Look once, after `-m` has deselected; each test that can run gets a process, for CUDA counts its devices once."""
    wanted = [item for item in items if item.get_closest_marker("gpu")]
    if not wanted or config.option.collectonly:
        return
    if not os.environ.get(BUILD):
        build, reason = find_runnable(config.rootpath)
        if build is None:
            for item in wanted:
                # A skipped test needs no process.
                item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "isolated"]
                item.add_marker(pytest.mark.skip(reason=f"no GPU tests: {reason}"))
            return
        os.environ[BUILD] = str(build.directory)
    for item in wanted:
        item.add_marker(pytest.mark.isolated(timeout=TIMEOUT), append=False)


class CudaDevices(tuple[Device, ...]):
    """What a test needs of pyggml.ggml.VirtualDevices; CUDA has no ledger."""

    __slots__ = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self)


@pytest.fixture(scope="session")
def pyggml_build() -> Build:
    return build_in(Path(os.environ[BUILD]))


@pytest.fixture
def devices(pyggml_build: Build, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`devices(4)`: once in a test, that many devices; the settings of virtual ones do not count."""
    from pyggml.ggml.device import device

    monkeypatch.setenv("PYGGML_CUDA", "0")
    bindings = load(pyggml_build)
    opened: list[VirtualDevices] = []

    def make(count: int, **settings: Any) -> Any:
        if rehearsal():
            opened.append(VirtualDevices(count, **settings).open())
            return opened[-1]
        return CudaDevices(device(name) for name in open_cuda(count, bindings))

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def matrix(pyggml_build: Build) -> Callable[..., MatrixResult]:
    """`matrix(model, devices=(2,), ...)` on CUDA devices, two cases at a time."""

    def run(*models: Path, timeout: float = 120, **options: Any) -> MatrixResult:
        grid = Grid(build="this", cuda=not rehearsal(), **options)
        return run_matrix(grid, models, {"this": pyggml_build}, 2, timeout)

    return run
