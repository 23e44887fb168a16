"""The rebases that this project has done, from each pin to the next, replayed in a fresh clone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from pyggml.project import Project
from pyggml.upstream.pins import read_pins
from pyggml.upstream.store import fetch

ROOT = Path(__file__).parent.parent
OLD, NEW = "0c1e57098", "b11549"
REBASES = [("4df29be4f", "0c1e57098", "v-head-size"), (OLD, NEW, "nan-without-work")]
"""From, onto, and a patch that upstream has taken."""
pytestmark = pytest.mark.native


class Clone:
    """A project of the same pins and patches, both pins fetched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "vendor").mkdir(parents=True)
        shutil.copy(ROOT / "vendor" / "pins.toml", root / "vendor")
        shutil.copytree(ROOT / "patches", root / "patches")
        project = Project(root)
        pins = read_pins(project)
        with project.lock("test"):
            for pin in reversed(pins.pins):
                fetch(project, pins, pin)

    def rebase(self, *args: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, JSON document and standard error."""
        command = [sys.executable, "-m", "pyggml", "patch", "rebase", *args, "--json"]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr

    def everything(self) -> dict[str, bytes]:
        """Every byte but for the repository's and pyggml's own state."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file() and not {".git", ".pyggml"} & set(path.relative_to(self.root).parts)
        }


def patches_in(file: Path) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["patch"]
    return entries


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("clone") / "project")


@pytest.fixture
def patches(clone: Clone) -> Clone:
    """As committed, whatever a test did before."""
    shutil.rmtree(clone.root / "patches")
    shutil.copytree(ROOT / "patches", clone.root / "patches")
    return clone


@pytest.mark.parametrize(("old", "new", "taken"), REBASES)
def test_the_recorded_resolutions_give_the_committed_series(
    patches: Clone, old: str, new: str, taken: str
) -> None:
    directory = patches.root / "patches" / new
    listing = directory / "series.toml"
    # What stands above the first patch is written by people: that a series is closed, for one.
    head = listing.read_text("utf-8").partition("\n[[patch]]")[0]
    for path in directory.glob("*.patch"):
        path.unlink()
    listing.write_text(f"{head}\n", "utf-8")
    code, told, error = patches.rebase("--from", old, "--onto", new)
    assert code == 0, error
    assert {one["name"]: one["verdict"] for one in told["patches"]}[taken] == "already upstream"
    committed = {p.relative_to(ROOT): p.read_bytes() for p in (ROOT / "patches").rglob("*") if p.is_file()}
    written = {
        p.relative_to(patches.root): p.read_bytes()
        for p in (patches.root / "patches").rglob("*")
        if p.is_file()
    }
    # Patches that were added on the newer pin afterwards are no part of the rebase; they come last.
    decided = {entry["name"] for entry in patches_in(directory / "resolutions" / "rebase.toml")}
    series = patches_in(ROOT / "patches" / new / "series.toml")
    added = [entry for entry in series if entry["name"] not in decided]
    assert patches_in(directory / "series.toml") == series[: len(series) - len(added)]
    assert sorted(written) == sorted(committed.keys() - {Path("patches", new, one["file"]) for one in added})
    listed = Path("patches", new, "series.toml")
    assert committed[listed].startswith(written[listed])
    assert [str(path) for path in written if path != listed and written[path] != committed[path]] == []


def test_without_them_it_stops_at_the_first_conflict_and_is_given_up_without_a_trace(patches: Clone) -> None:
    shutil.rmtree(patches.root / "patches" / NEW)
    before = patches.everything()
    code, told, error = patches.rebase("--from", OLD, "--onto", NEW)
    assert code == 3, error
    dossier = told["dossier"]
    assert (dossier["patch"], dossier["number"]) == ("name-truncation", 1)
    assert [(one["path"], one["kind"]) for one in dossier["files"]] == [
        ("tests/test-alloc.cpp", "content"),
    ]
    # Upstream added a test at the same place; its lines are in the dossier, and so is what to do next.
    assert "test_buft_get_alloc_size_n_does_not_allocate" in dossier["files"][0]["upstream"]
    assert "pyggml patch rebase --continue" in dossier["commands"]
    assert Path(dossier["worktree"]).is_dir() and "Edit " in error
    assert patches.everything() == before
    code, _, error = patches.rebase("--abort")
    assert code == 0, error
    assert patches.everything() == before
    assert not Path(dossier["worktree"]).exists()
