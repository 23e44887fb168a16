"""Why a build sees no CUDA device."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pyggml.build.cuda import driver as driver_module
from pyggml.build.cuda.driver import Driver, Gpu
from pyggml.build.record import Build, BuildRecord
from pyggml.native.cuda import has_cuda, why_no_device

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
