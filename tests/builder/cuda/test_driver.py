"""Asking the driver; drivers are small libraries that are compiled here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pyggml.builder.cuda.driver import Driver, Gpu, read_driver
from tests.builder.cuda.conftest import write

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc")

DRIVER = r"""
#include <stddef.h>
#include <string.h>
#include <stdlib.h>
int cuDriverGetVersion(int * version) { *version = 12020; return %(version_status)d; }
int cuInit(unsigned flags) { (void) flags; %(init)s }
int cuDeviceGetCount(int * count) { *count = %(count)d; return 0; }
int cuDeviceGet(int * device, int index) { *device = index; return 0; }
int cuDeviceGetName(char * name, int length, int device) { (void) device; strncpy(name, "Fake GPU", length); return 0; }
int cuDeviceGetAttribute(int * value, int attribute, int device) {
    *value = attribute == 75 ? 8 : attribute == 76 ? 6 + device : -1;
    return 0;
}
int cuDeviceTotalMem_v2(size_t * bytes, int device) { (void) device; *bytes = (size_t) 24 << 30; return 0; }
int cuGetErrorString(int error, const char ** text) { *text = error == 100 ? "no device" : "trouble"; return 0; }
"""


def ask(tmp_path: Path, init: str = "return 0;", count: int = 2, version_status: int = 0) -> Driver:
    source = write(
        tmp_path / "d.c", DRIVER % {"init": init, "count": count, "version_status": version_status}
    )
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        str(source),
        "-o",
        str(tmp_path / "libcuda.so.1"),
    ]
    subprocess.run(command, check=True)
    kernel = write(
        tmp_path / "version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6\n"
    )
    return read_driver({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}, kernel)


def test_version_and_gpus(tmp_path: Path) -> None:
    driver = ask(tmp_path)
    assert (driver.state, driver.cuda, driver.version) == ("ready", (12, 2), "535.54.03")
    assert driver.gpus == (Gpu("Fake GPU", (8, 6), 24 << 30), Gpu("Fake GPU", (8, 7), 24 << 30))
    assert driver.describe() == (
        "driver 535.54.03 for CUDA up to 12.2, 2 GPUs: Fake GPU (8.6), Fake GPU (8.7)"
    )


def test_no_gpu(tmp_path: Path) -> None:
    driver = ask(tmp_path, init="return 100;")
    assert (driver.state, driver.gpus) == ("no-gpu", ())
    assert "no GPU is visible" in driver.describe()
    assert "no GPU is visible" in ask(tmp_path, count=0).describe()


def test_driver_that_does_not_start(tmp_path: Path) -> None:
    driver = ask(tmp_path, init="return 803;")
    assert driver.state == "broken"
    assert driver.problem == "cuInit: error 803 (trouble)"
    assert ask(tmp_path, version_status=34).problem == "cuDriverGetVersion: error 34 (trouble)"


def test_driver_that_kills_the_process(tmp_path: Path) -> None:
    driver = ask(tmp_path, init="abort();")
    assert driver == Driver("broken", version="535.54.03", problem="asking it ended the process")


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a driver")
def test_no_driver(tmp_path: Path) -> None:
    driver = read_driver(kernel=tmp_path / "none")
    assert driver.state == "absent"
    assert "libcuda.so.1" in driver.describe()
