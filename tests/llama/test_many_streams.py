"""256 sequences, 40 layers, a cache per stream: created, used and freed, also with the address sanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.builder.record import Build
from pyggml.native.load import BUILD
from pyggml.project import find_project

from .many_streams import LAYERS

pytestmark = pytest.mark.native
CHILD = Path(__file__).with_name("many_streams.py")
PLACES = ("cpu", "layer-device", "layer-host", "tensor-device", "tensor-host")
QUICK = ("cpu", "layer-host", "tensor-host")


@pytest.fixture(scope="session")
def model(made: Callable[..., Path]) -> Path:
    return made(layers=LAYERS, embd=32, heads=2, kv_heads=2, k_size=16, ff=32, vocab=64)


def run(build: Build, model: Path, place: str, **more: str) -> None:
    done = subprocess.run(
        [sys.executable, CHILD, model, place],
        env={**os.environ, BUILD: str(build.directory), "GGML_NO_BACKTRACE": "1", **more},
        capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "all is well" in done.stdout


def has_layout(build: Build) -> bool:
    """Read from the declarations, since this process may have loaded another build."""
    return "kv_per_stream" in (build.directory / "python" / "declarations.h").read_text("utf-8")


@pytest.mark.parametrize("place", QUICK)
def test_many_streams(pyggml_build: Build, model: Path, place: str) -> None:
    if not has_layout(pyggml_build):
        pytest.skip(f"the build {pyggml_build.record.variant} has no kv_per_stream: the patch is not in it")
    run(pyggml_build, model, place)


@pytest.mark.parametrize("place", PLACES)
def test_many_streams_under_the_address_sanitizer(model: Path, place: str) -> None:
    build = sanitized()
    if build is None:
        pytest.skip("no finished build has the address sanitizer: pyggml build --sanitize address")
    if not has_layout(build):
        pytest.skip(f"the build {build.record.variant} has no kv_per_stream: make it anew with the patch")
    compiler = str(build.record.tools.get("cc", "cc"))
    library = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # Leak detection is off, because Python itself never frees some memory; that of the devices is checked instead.
    run(build, model, place, LD_PRELOAD=library, ASAN_OPTIONS="detect_leaks=0:abort_on_error=0")


def sanitized() -> Build | None:
    """A finished build of this project with the address sanitizer and the Python side."""
    from pyggml.builder.record import read_record

    for directory in sorted((find_project(Path(__file__).parent).root / ".pyggml" / "build").glob("*")):
        record = read_record(directory)
        if record is None or record.state != "done":
            continue
        if (
            record.options.get("GGML_SANITIZE_ADDRESS") == "ON"
            and (directory / "python" / "declarations.h").exists()
        ):
            return Build(directory, record)
    return None
