"""Projects whose patches break at known rungs of a ladder of twelve trees, as commits and as sdists."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "series"))

from rebase_helpers import write_upstream
from series_helpers import Sandbox

from pyggml.project import Project
from tests.frontier.ladders import PROOF, RUNGS, seven_more, three_patches, write_checkout, write_sdists
from tests.hermetic import own_user


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def own_machine(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with own_user(home, "PYTEST_", "PIP_"):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path / "cache"))
        yield


@pytest.fixture(scope="session")
def with_three(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    from pyggml.upstream.new_pin import NewPin, add_pin, directory_source

    directory = tmp_path_factory.mktemp("frontier") / "box"
    root = directory / "project"
    (root / "vendor").mkdir(parents=True)
    (root / "patches").mkdir()
    (root / "proofs").mkdir()
    (root / "proofs" / "test_up.py").write_text(PROOF)
    (root / "vendor" / "pins.toml").write_text('upstream = "up"\n')
    project = Project(root)
    with own_user(home, "PYTEST_"):
        write_upstream(directory / "upstream", RUNGS[0])
        with project.lock("test"):
            source = directory_source(project, directory / "upstream")
            add_pin(project, NewPin("one", source, make_default=True))
        three_patches(Sandbox(project))
        write_checkout(directory / "checkout")
    write_sdists(directory / "sdists")
    return directory


@pytest.fixture
def three(tmp_path: Path, with_three: Path) -> Sandbox:
    """Three patches, of which two break; beside the project lie `checkout` and `sdists`."""
    shutil.copytree(with_three, tmp_path / "box", symlinks=True)
    return Sandbox(Project(tmp_path / "box" / "project"))


@pytest.fixture
def ten(three: Sandbox) -> Sandbox:
    """Ten patches: one for each thing that can happen to it."""
    seven_more(three)
    return three
