"""Builds for the raw level: a tiny one made here, and the project's own where it is finished."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pyggml.builder.record import Build, find_build, read_record
from pyggml.errors import PyggmlError
from pyggml.native.load import active_build
from pyggml.native.python_side import make_python_side
from pyggml.project import find_project

from .tiny_upstream import tiny_build

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A tiny build with its Python side; nobody may change it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler, cc, on PATH")
    build = tiny_build(tmp_path_factory.mktemp("tiny ünd space"))
    make_python_side(build, virtual_devices=False)
    return build


@pytest.fixture
def own_tiny(tiny: Build, tmp_path: Path) -> Build:
    """A copy of the tiny build that a test may break."""
    root = tmp_path / "copy"
    shutil.copytree(tiny.directory.parent, root, symlinks=True)
    cache = f"CMAKE_HOME_DIRECTORY:INTERNAL={root / 'source'}\n"
    (root / "build" / "CMakeCache.txt").write_text(cache, "utf-8")
    return Build(root / "build", tiny.record)


@pytest.fixture(scope="session")
def project_build() -> Build:
    """The project's own finished build."""
    try:
        return find_build(find_project(Path(__file__).parent))
    except PyggmlError as error:
        pytest.skip(f"needs the built llama.cpp of this project: {error.message}")


@pytest.fixture(scope="module")
def build() -> Build:
    """The build of the work tree (PYGGML_TEST_BUILD names the directory of another one)."""
    named = os.environ.get("PYGGML_TEST_BUILD")
    if named is None:
        return active_build(find_project(Path(__file__).parent).root)
    record = read_record(Path(named))
    assert record is not None, f"there is no build in {named}"
    return Build(Path(named), record)


@pytest.fixture
def python() -> Run:
    """Run Python code in a process of its own: a process loads one build only, and may die."""

    def run(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYGGML_")}
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            errors="replace",
            env={**env, **environment},
            timeout=120,
            check=False,
        )

    return run
