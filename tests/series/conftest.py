"""A machine of their own for these tests: no home, no git configuration of the user's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from rebase_helpers import NEW, OLD, TwoPins, four_patches, make_two_pins
from series_helpers import Sandbox, make_sandbox

from pyggml.project import Project
from tests.hermetic import own_user


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module", autouse=True)
def own_machine(home: Path) -> Iterator[None]:
    """Until the end of the module only: other tests of this process have a home of their own."""
    with own_user(home):
        yield


@pytest.fixture(scope="session")
def fetched(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A project with its source fetched, made once and copied for every test."""
    directory = tmp_path_factory.mktemp("fetched")
    with own_user(home):
        make_sandbox(directory)
    return directory


@pytest.fixture
def box(tmp_path: Path, fetched: Path) -> Sandbox:
    """A project on a small upstream; nothing applied, no patches."""
    shutil.copytree(fetched, tmp_path / "box", symlinks=True)
    return Sandbox(Project(tmp_path / "box" / "project"))


@pytest.fixture(scope="session")
def with_three(tmp_path_factory: pytest.TempPathFactory, home: Path, fetched: Path) -> Path:
    directory = tmp_path_factory.mktemp("three") / "box"
    shutil.copytree(fetched, directory, symlinks=True)
    box = Sandbox(Project(directory / "project"))
    with own_user(home):
        box.patch("first", "src/scale.c", "line 3\n", "line three\n")
        box.patch("second", "src/scale.c", "line 20\n", "line twenty\n")
        box.patch("third", "README.md", "upstream\n", "downstream\n")
    return directory


@pytest.fixture
def three(tmp_path: Path, with_three: Path) -> Sandbox:
    """A project with three patches, all applied."""
    shutil.copytree(with_three, tmp_path / "box", symlinks=True)
    return Sandbox(Project(tmp_path / "box" / "project"))


@pytest.fixture(scope="session")
def with_two_pins(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    directory = tmp_path_factory.mktemp("pins") / "box"
    with own_user(home):
        four_patches(make_two_pins(directory, OLD, NEW))
    return directory


@pytest.fixture
def four(tmp_path: Path, with_two_pins: Path) -> TwoPins:
    """Four applied patches on pin `one`; the third conflicts on pin `two`."""
    shutil.copytree(with_two_pins, tmp_path / "box", symlinks=True)
    return TwoPins(Project(tmp_path / "box" / "project"))
