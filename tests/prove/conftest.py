"""A project with patches whose proofs are real pytest files, on an upstream that is one small C program."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyggml.project import Project
from tests.hermetic import own_user

sys.path.insert(0, str(Path(__file__).parents[1] / "series"))
from series_helpers import Sandbox

CMAKE = """\
cmake_minimum_required(VERSION 3.14)
project(up C)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
add_executable(test-alloc main.c)
"""
MAIN = """\
#include <stdio.h>
int main(void) {
    printf("one %d\\n", 0);
    printf("-\\n-\\n-\\n-\\n-\\n");
    printf("-\\n-\\n-\\n-\\n-\\n");
    printf("-\\n-\\n-\\n-\\n-\\n");
    printf("two %d\\n", 0);
    return 0;
}
"""
PROOFS = """\
import os
import pathlib
import signal
import subprocess

import pytest

SOURCE = pathlib.Path(os.environ["PYGGML_SOURCE"])


def said():
    if "PYGGML_BUILD" in os.environ:
        return subprocess.run([os.environ["PYGGML_BUILD"] + "/bin/test-alloc"], capture_output=True, text=True).stdout
    return (SOURCE / "main.c").read_text().replace('%d\\\\n", ', "").replace(");", "")


def test_one():
    assert "one 1" in said(), "one is wrong"


def test_two():
    assert "two 2" in said(), "two is wrong"


def test_always():
    pass


def test_never():
    assert False, "never"


def test_skipped():
    pytest.skip("no reason to run")


def test_dies():
    if "one 1" not in said():
        print("assertion in C", flush=True)
        os.kill(os.getpid(), signal.SIGABRT)


@pytest.fixture
def needs_one():
    if "one 1" not in said():
        raise RuntimeError("the fixture needs one")


def test_fixture(needs_one):
    pass


def test_only_below():
    assert "two 2" not in said()
"""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", autouse=True)
def own_machine(home: Path) -> Iterator[None]:
    with own_user(home, "PYTEST_"):
        yield


@pytest.fixture(scope="session")
def with_proofs(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    with own_user(home, "PYTEST_"):
        return make_project_with_proofs(tmp_path_factory.mktemp("proofs") / "box")


def make_project_with_proofs(directory: Path) -> Path:
    from pyggml.upstream.new_pin import NewPin, add_pin, directory_source

    source, root = directory / "upstream", directory / "project"
    for path, text in (("CMakeLists.txt", CMAKE), ("main.c", MAIN), ("README.md", "x\n")):
        source.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(text)
    (root / "vendor").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "proofs").mkdir()
    (root / "proofs/test_up.py").write_text(PROOFS)
    (root / "vendor/pins.toml").write_text('upstream = "up"\n')
    project = Project(root)
    with project.lock("test"):
        add_pin(project, NewPin("one", directory_source(project, source), make_default=True))
    box = Sandbox(project)
    box.patch("first", "main.c", 'one %d\\n", 0', 'one %d\\n", 1')
    box.patch("middle", "README.md", "x\n", "y\n")
    box.patch("second", "main.c", 'two %d\\n", 0', 'two %d\\n", 2')
    return directory


@pytest.fixture
def box(tmp_path: Path, with_proofs: Path) -> Sandbox:
    """Three patches, all applied: `first` makes test_one pass, `second` test_two, `middle` nothing."""
    shutil.copytree(with_proofs, tmp_path / "box", symlinks=True)
    return Sandbox(Project(tmp_path / "box" / "project"))
