from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pyggml.project import Project
from pyggml.upstream.pins import read_pins
from tests.upstream.helpers import GOOD, Upstream, git, leftovers, pyggml, tree_id, write_project
from tests.upstream.index_server import Index, serving


def test_fetch_then_fetch_again(project: Project) -> None:
    first = pyggml(project, "vendor", "fetch")
    assert first.returncode == 0, first.stderr
    assert "pin one imported as" in first.stdout
    again = pyggml(project, "vendor", "fetch", "one")
    assert again.returncode == 0 and "already imported" in again.stdout


def test_fetch_json_is_one_document(tmp_path: Path, upstream: Upstream) -> None:
    newer = Upstream(tmp_path / "newer", {**GOOD, "new.txt": ("100644", b"new\n")})
    project = write_project(tmp_path / "project", one=upstream.pin(), two=newer.pin())
    done = pyggml(project, "vendor", "fetch", "--all", "--json")
    rows = json.loads(done.stdout)["pins"]
    assert [(row["pin"], row["tree"], row["changed"], row["created"]) for row in rows] == [
        ("one", tree_id(GOOD), True, True),
        ("two", tree_id(newer.files), True, False),
    ]


def test_fetch_of_an_unknown_pin(project: Project) -> None:
    done = pyggml(project, "vendor", "fetch", "nope")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["pyggml: there is no pin nope", "Known pins: one (vendor/pins.toml)."]


def test_use_chooses_a_pin_for_this_checkout(tmp_path: Path, upstream: Upstream) -> None:
    newer = Upstream(tmp_path / "newer", {**GOOD, "new.txt": ("100644", b"new\n")})
    project = write_project(tmp_path / "project", one=upstream.pin(), two=newer.pin())
    before = project.pins_file.read_bytes()
    default = json.loads(pyggml(project, "vendor", "list", "--json").stdout)["default"]
    other = "two" if default == "one" else "one"

    def listed() -> tuple[str, bool]:
        document = json.loads(pyggml(project, "vendor", "list", "--json").stdout)
        return document["default"], document["chosen"]

    assert pyggml(project, "vendor", "use", other).returncode == 0
    assert listed() == (other, True)
    assert json.loads(pyggml(project, "vendor", "fetch", "--json").stdout)["pins"][0]["pin"] == other
    assert pyggml(project, "vendor", "use", "--default").returncode == 0
    assert listed() == (default, False)
    assert project.pins_file.read_bytes() == before

    assert "there is no pin nope" in pyggml(project, "vendor", "use", "nope").stderr
    assert pyggml(project, "vendor", "use").returncode == 2
    assert pyggml(project, "vendor", "use", "one", "--default").returncode == 2
    (project.state_dir / "pin").write_bytes(b"\xffgone\n")
    gone = pyggml(project, "vendor", "list")
    assert gone.returncode == 1 and len(gone.stderr.splitlines()) == 2
    assert pyggml(project, "vendor", "use", "--default").returncode == 0
    assert listed() == (default, False)


def test_fetch_takes_a_pin_or_all(project: Project) -> None:
    assert pyggml(project, "vendor", "fetch", "one", "--all").returncode == 2


def test_list_status_and_verify_before_and_after(project: Project) -> None:
    assert "not fetched" in pyggml(project, "vendor", "list").stdout
    assert "absent" in pyggml(project, "vendor", "status").stdout
    before = pyggml(project, "vendor", "verify")
    assert before.returncode == 1 and "pyggml vendor fetch one" in before.stderr
    pyggml(project, "vendor", "fetch")
    listed = json.loads(pyggml(project, "vendor", "list", "--json").stdout)
    assert listed["default"] == "one"
    assert [(row["name"], row["state"], row["source"]["kind"]) for row in listed["pins"]] == [
        ("one", "fetched", "archive")
    ]
    status = json.loads(pyggml(project, "vendor", "status", "--json").stdout)
    assert (status["repository"], status["pins"]) == ("present", {"one": "fetched"})
    verified = json.loads(pyggml(project, "vendor", "verify", "--json").stdout)["verified"]
    assert verified == {"one": git(project.root / "vendor" / "up", "rev-parse", "HEAD")}


def test_add_sdist_from_an_index(tmp_path: Path, project: Project) -> None:
    newer = Upstream(tmp_path / "newer", {**GOOD, "new.txt": ("100644", b"new\n")})
    with serving(Index({"up-2.0.tar.gz": newer.path.read_bytes()})) as index:
        done = pyggml(
            project, "vendor", "add", "two", "--sdist", "up==2.0", "--subdir", "inner", "--exclude", "docs", "--json",
            "--commit", "d" * 40, PIP_NO_INDEX="0", PIP_INDEX_URL=index.url,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tree"] == tree_id(newer.files)
    pin = read_pins(project).get("two")
    assert (pin.tree, pin.commit, pin.exclude) == (tree_id(newer.files), "d" * 40, ("docs",))
    assert "# a comment that stays" in project.pins_file.read_text()
    assert read_pins(project).default == "one"
    commit = json.loads(done.stdout)["commit"]
    fetched = write_project(tmp_path / "elsewhere")
    fetched.pins_file.write_bytes(project.pins_file.read_bytes())
    again = json.loads(pyggml(fetched, "vendor", "fetch", "two", "--json").stdout)
    assert again["pins"][0]["commit"] == commit


@pytest.mark.parametrize("kind", ["archive", "directory", "git"])
def test_add_the_first_pin_then_fetch_it_elsewhere(tmp_path: Path, kind: str) -> None:
    project = write_project(tmp_path / "project")
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a file").write_bytes(b"a\n")
    files = {"sub/a file": ("100644", b"a\n")}
    args = ["--directory", str(folder)]
    if kind == "git":
        git(tmp_path, "init", "-q", str(folder))
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", "x")
        args = ["--git", str(folder), "--commit", git(folder, "rev-parse", "HEAD")]
    elif kind == "archive":
        args = ["--archive", str(Upstream(tmp_path / "up", files).path), "--subdir", "inner"]
    done = pyggml(project, "vendor", "add", "first", *args)
    assert done.returncode == 0, done.stderr
    assert read_pins(project).get(None).name == "first"
    assert read_pins(project).get(None).tree == tree_id(files)
    other = write_project(tmp_path / "other")
    other.pins_file.write_bytes(project.pins_file.read_bytes())
    fetched = pyggml(other, "vendor", "fetch")
    assert fetched.returncode == 0, fetched.stderr
    heads = [git(one.root / "vendor" / "up", "rev-parse", "HEAD") for one in (project, other)]
    assert heads[0] == heads[1]


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (["one", "--directory", "."], 1, "already a pin one"),
        (["a/b", "--directory", "."], 2, "is not a valid pin name"),
        (["x"], 2, "exactly one of"),
        (["x", "--directory", ".", "--archive", "y"], 2, "exactly one of"),
        (["x", "--git", "u"], 2, "--git needs --commit"),
        (["x", "--git", "u", "--commit", "main"], 2, "not a full commit id"),
        (["x", "--sdist", "up"], 2, "does not name one sdist"),
        (["x", "--directory", "gone"], 1, "is not a directory"),
        (["x", "--archive", "gone.tar"], 1, "cannot read"),
        (["x", "--directory", ".", "--exclude", "../x"], 2, "not a relative path"),
    ],
)
def test_refused_add_changes_nothing(project: Project, args: list[str], code: int, told: str) -> None:
    before = project.pins_file.read_bytes()
    done = pyggml(project, "vendor", "add", *args)
    assert (done.returncode, told in done.stderr) == (code, True), done.stderr
    assert project.pins_file.read_bytes() == before
    assert leftovers(project) == [] and not (project.root / "vendor" / "up").exists()


def test_started_from_inside_a_hook_of_another_repository(project: Project, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    git(tmp_path, "init", "-q", str(foreign))
    env = {"GIT_DIR": str(foreign / ".git"), "GIT_INDEX_FILE": str(foreign / ".git" / "index")}
    done = pyggml(project, "vendor", "fetch", **env)
    assert done.returncode == 0, done.stderr
    assert not os.path.exists(foreign / ".git" / "index")  # noqa: PTH110
    assert git(foreign, "for-each-ref") == ""
