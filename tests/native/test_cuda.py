"""Why a build sees no CUDA device."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyggml.builder.cuda import driver as driver_module
from pyggml.builder.cuda.driver import Driver, Gpu
from pyggml.builder.record import Build, BuildRecord, write_record
from pyggml.errors import PyggmlError
from pyggml.native import cuda
from pyggml.native.cuda import explain_absence, find_cuda_build, has_cuda, open_cuda, why_no_device
from pyggml.native.programs import SeenDevice
from pyggml.project import Project

READY = Driver("ready", (12, 2), "535.54.03", (Gpu("NVIDIA H200", (9, 0), 1 << 37),))


@pytest.fixture
def build(tmp_path: Path) -> Build:
    record = BuildRecord(
        "p1-cuda", "p1", "done", "h", "t", False, "f", "x86_64", (), {}, (), {"cuda_version": "13.0.88"}
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "libggml-cuda.so").touch()
    return Build(tmp_path, record)


def with_driver(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    monkeypatch.setattr(driver_module, "read_driver", lambda: driver)


def test_build_without_cuda(build: Build) -> None:
    (build.bin_dir / "libggml-cuda.so").unlink()
    assert not has_cuda(build)
    assert "pyggml build --cuda" in why_no_device(build)


def test_no_driver_and_no_gpu(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, Driver("absent"))
    assert why_no_device(build).startswith("no NVIDIA driver here")
    with_driver(monkeypatch, Driver("no-gpu", (13, 0), "580.65.06"))
    assert "no GPU is visible" in why_no_device(build)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")
def test_lost_runtime_and_old_driver(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_driver(monkeypatch, READY)
    assert "libggml-cuda.so" in why_no_device(build)
    source = tmp_path / "x.c"
    source.write_text("int x;\n")
    command = ["cc", "-shared", "-fPIC", source, "-o", build.bin_dir / "libggml-cuda.so"]
    subprocess.run(command, check=True)
    assert why_no_device(build).startswith(
        "built with CUDA 13.0.88, and driver 535.54.03 for CUDA up to 12.2"
    )


@pytest.fixture
def project(build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Three builds: one without CUDA, and two with it, the second newer."""
    monkeypatch.delenv("PYGGML_BUILD", raising=False)
    made = Project(tmp_path / "project")
    for age, variant in enumerate(("p1-cuda", "p1-cuda-80", "p1-cpu")):
        directory = made.build_dir / variant
        shutil.copytree(build.bin_dir, directory / "bin")
        if variant == "p1-cpu":
            (directory / "bin" / "libggml-cuda.so").unlink()
        write_record(directory, replace(build.record, variant=variant))
        os.utime(directory / "pyggml-build.json", (10**9 - age, 10**9 - age))
    return made


def test_absence_is_explained_by_the_build_that_has_cuda(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_driver(monkeypatch, Driver("absent"))
    monkeypatch.setattr(cuda, "seen_devices", lambda build, env: [])
    named = {one.record.variant: one for one in cuda.finished_builds(project)}
    assert str(explain_absence(project, named["p1-cuda-80"])).startswith("no NVIDIA driver here")
    other = "p1-cpu was built without CUDA, and p1-cuda, which has it, sees none: no NVIDIA driver here"
    assert str(explain_absence(project, named["p1-cpu"])).startswith(other)
    gpu = SeenDevice("CUDA0", "NVIDIA H200", "GPU", "CUDA", 1, 1)
    monkeypatch.setattr(cuda, "seen_devices", lambda build, env: [gpu])
    assert "pyggml devices --variant p1-cuda" in str(explain_absence(project, named["p1-cpu"]))
    for variant in ("p1-cuda", "p1-cuda-80"):
        shutil.rmtree(project.build_dir / variant)
    assert explain_absence(project, named["p1-cpu"]) is None
    with pytest.raises(PyggmlError, match="no finished build with CUDA"):
        find_cuda_build(project)


def test_the_newest_build_with_cuda_is_found(project: Project) -> None:
    assert find_cuda_build(project).record.variant == "p1-cuda"


class FakeBackend:
    """ggml's registry with a CUDA backend that counts its devices as upstream does, once; `lib` and `ffi` in one."""

    def __init__(self, build: Build, known: bool = True) -> None:
        self.build, self.ffi, self.lib, self._count = build, self, self, 0
        self._variable = "GGML_CUDA_DEVICES" if known else "UNHEARD_OF"

    def ggml_backend_reg_by_name(self, name: bytes) -> int:
        self._count = self._count or int(os.environ.get(self._variable, "1"))
        return int(name == b"CUDA")

    def ggml_backend_reg_dev_count(self, _registry: int) -> int:
        return self._count

    def ggml_backend_reg_dev_get(self, _registry: int, index: int) -> int:
        return index

    def ggml_backend_dev_name(self, device: int) -> bytes:
        return b"CUDA%d" % device

    def string(self, text: bytes) -> bytes:
        return text


def test_a_gpu_is_divided_into_the_devices_asked_for(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_CUDA_DEVICES", "3")
    backend: Any = FakeBackend(build)
    assert open_cuda(4, backend) == ("CUDA0", "CUDA1", "CUDA2", "CUDA3")
    # A second number comes too late, and so does one for a backend that does not know the variable.
    for late in (backend, FakeBackend(build, known=False)):
        with pytest.raises(PyggmlError, match=r"2 CUDA devices were requested, but the build has [14]"):
            open_cuda(2, late)
