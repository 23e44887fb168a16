"""The main job on real llama.cpp: fetched, patched, built and checked."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pyggml.project import Project
from pyggml.series.exchange.verify_files import verify_series
from pyggml.series.worktree.apply import apply_series, unapply_series
from pyggml.series.worktree.workspace import open_workspace
from pyggml.upstream.pins import read_pins
from pyggml.upstream.store import fetch
from tests.tested_build import remembered

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.native


def git(tree: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


def test_up_skips_what_is_done_and_the_check_passes() -> None:
    build = remembered()
    if build is not None and (build.missing or build.changed):
        pytest.skip("the work tree is not the whole series as it was built, and `pyggml up` would move it")
    done = subprocess.run(
        [sys.executable, "-m", "pyggml", "up", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["fetched"] is False and told["patches"]["changed"] is False
    assert told["patches"]["applied"] == told["patches"]["total"] >= 1
    assert told["check"]["ok"] is True
    names = {program["name"] for program in told["check"]["programs"]}
    assert names == {"test-alloc", "test-llama-archs"}
    assert all(program["passed"] > 0 and program["failed"] == 0 for program in told["check"]["programs"])


@pytest.mark.parametrize("pin", sorted(path.name for path in (ROOT / "patches").iterdir()))
def test_another_clone_has_the_same_commits_and_the_recorded_trees(tmp_path: Path, pin: str) -> None:
    """A second project of the same pins and series, from the cached source, without this one's objects.

    Of every pin, built or not.
    """
    clone = tmp_path / "clone"
    (clone / "vendor").mkdir(parents=True)
    shutil.copy(ROOT / "vendor" / "pins.toml", clone / "vendor")
    shutil.copytree(ROOT / "patches", clone / "patches")
    project = Project(clone)
    pins = read_pins(project)
    with project.lock("test"):
        fetch(project, pins, pins.get(pin))
    assert apply_series(project, pin).changed is True
    there = open_workspace(project, pin)
    trees = git(there.git.work_tree, "log", "--reverse", "--format=%T").splitlines()
    assert trees == list(there.series.trees)
    here = open_workspace(Project(ROOT))
    if here.pin.name == pin and git(here.git.work_tree, "rev-parse", "HEAD^{tree}") == trees[-1]:
        log = "--format=%H %T %s"
        assert git(there.git.work_tree, "log", log) == git(here.git.work_tree, "log", log)
    assert apply_series(project, pin).changed is False
    assert unapply_series(project, pin).changed is True
    assert git(there.git.work_tree, "rev-parse", "HEAD") == there.base
    assert git(there.git.work_tree, "status", "--porcelain") == ""


def test_every_patch_file_is_verified() -> None:
    report = verify_series(Project(ROOT))
    assert report.ok, report
