"""`pyggml vendor add` without --subdir and without a name: both are read from the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyggml.project import Project
from pyggml.upstream.pins import read_pins
from tests.upstream.helpers import leftovers, member, pyggml, tar_bytes, tree_id, write_project

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TREE = {"CMakeLists.txt": ("100644", b"project(up)\n"), "tests/t.c": ("100644", b"int main;\n")}


def package(
    path: Path, *folders: str, version: str = "1.2", without: str = "-", more: dict[str, bytes] | None = None
) -> Path:
    """An sdist with upstream's tree in each of the folders."""
    members = [member("p-1/PKG-INFO", f"Metadata-Version: 2.1\nVersion: {version}\n\ntext\n".encode())]
    for folder in folders:
        members += [
            member(f"p-1/{folder}/{name}", data) for name, (_, data) in TREE.items() if without not in name
        ]
    members += [member(f"p-1/{name}", data) for name, data in (more or {}).items()]
    path.write_bytes(tar_bytes(members))
    return path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path / "project")


def added(project: Project, archive: Path, *args: str) -> dict[str, Any]:
    done = pyggml(project, "vendor", "add", *args, "--archive", str(archive), "--json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(
    ("version", "name"), [("2026.10.11549", "b11549"), ("11434.0.0", "b11434"), ("0.0.9093.post2", "b9093")]
)
def test_the_directory_is_found_and_the_build_is_the_name(
    tmp_path: Path, project: Project, version: str, name: str
) -> None:
    told = added(project, package(tmp_path / "p.tar.gz", "third/up", version=version))
    assert (told["pin"], told["tree"], told["upstream_commit"]) == (name, tree_id(TREE), None)
    assert told["notes"] == ["p.tar.gz: up is in third/up"]
    assert read_pins(project).get(name).source.subdir == "third/up"  # type: ignore[union-attr]


SUBMODULE = {
    "vendor/up/.git": b"gitdir: ../../.git/modules/vendor/up\n",
    ".git/modules/vendor/up/HEAD": f"{COMMIT}\n".encode(),
    ".git/HEAD": b"ref: refs/heads/main\n",
}


def test_the_commit_of_the_submodule_is_taken(tmp_path: Path, project: Project) -> None:
    archive = package(tmp_path / "p.tar.gz", "vendor/up", more=SUBMODULE)
    told = added(project, archive)
    assert (told["pin"], told["upstream_commit"], told["tree"]) == (COMMIT[:9], COMMIT, tree_id(TREE))
    assert read_pins(project).get(None).commit == COMMIT


def test_a_tree_inside_the_tree_is_no_second_one(tmp_path: Path, project: Project) -> None:
    told = added(project, package(tmp_path / "p.tar.gz", "a/up", "a/up/more/up"), "mine")
    assert told["notes"] == ["p.tar.gz: up is in a/up"]


def test_without_such_a_directory_all_of_it_is_taken_and_that_is_said(
    tmp_path: Path, project: Project
) -> None:
    done = pyggml(project, "vendor", "add", "mine", "--archive", str(package(tmp_path / "p.tar.gz", "other")))
    assert done.returncode == 0
    assert "p.tar.gz has no directory up with a CMakeLists.txt: all of it is taken" in done.stderr


def test_a_tree_without_tests_is_named(tmp_path: Path, project: Project) -> None:
    told = added(project, package(tmp_path / "p.tar.gz", "up", without="tests"), "mine", "--subdir", "up")
    assert told["notes"] == ["the tree has no tests/: upstream's own tests cannot be built"]


@pytest.mark.parametrize(
    ("folders", "args", "told"),
    [
        (("a/up", "b/up"), ["x"], "has several directories up: a/up, b/up"),
        (("up",), [], "does not say which version of upstream it carries"),
        (("up",), ["b7777"], "carries b8888, not b7777"),
        (("vendor/up",), ["x", "--commit", "f" * 40], f"carries commit {COMMIT}, not {'f' * 40}"),
    ],
)
def test_what_is_refused_changes_nothing(
    tmp_path: Path, project: Project, folders: tuple[str, ...], args: list[str], told: str
) -> None:
    more = SUBMODULE if "--commit" in args else {}
    version = "1.8888" if args == ["b7777"] else "1.2"
    archive = package(tmp_path / "p.tar.gz", *folders, version=version, more=more)
    before = project.pins_file.read_bytes()
    done = pyggml(project, "vendor", "add", *args, "--archive", str(archive))
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert len(done.stderr.splitlines()) <= 2
    assert project.pins_file.read_bytes() == before and leftovers(project) == []


def test_a_git_source_needs_a_name(project: Project) -> None:
    done = pyggml(project, "vendor", "add", "--git", "u", "--commit", COMMIT)
    assert done.returncode == 2 and "the pin needs a name" in done.stderr
