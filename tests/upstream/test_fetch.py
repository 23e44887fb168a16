from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.upstream import store
from pyggml.upstream.pins import read_pins
from tests.upstream.helpers import (
    EXCLUDE,
    GOOD,
    Upstream,
    archive_pin,
    fetch,
    git,
    leftovers,
    on_disk,
    tree_id,
    write_project,
)

BASE_TEXT = """tree {tree}
author pyggml <pyggml@users.noreply.github.com> 1577836800 +0000
committer pyggml <pyggml@users.noreply.github.com> 1577836800 +0000

up one

Source: archive, sha256 {sha256}"""


def test_first_fetch_checks_out_exactly_the_files_of_the_archive(project: Project) -> None:
    result = fetch(project)
    assert (result.changed, result.created) == (True, True)
    expected = {path: value for path, value in GOOD.items() if not path.startswith("docs/")}
    assert on_disk(project) == expected
    assert leftovers(project) == []


def test_imported_commit_is_the_one_that_its_parts_define(project: Project, upstream: Upstream) -> None:
    result = fetch(project)
    work = project.root / "vendor" / "up"
    assert git(work, "cat-file", "commit", result.commit) == BASE_TEXT.format(
        tree=tree_id(GOOD), sha256=upstream.sha256
    )
    assert git(work, "symbolic-ref", "HEAD") == "refs/heads/series"
    assert git(work, "rev-parse", "HEAD", "refs/tags/pin/one").split() == [result.commit] * 2
    assert git(work, "cat-file", "-t", "refs/tags/pin/one") == "commit"
    assert git(work, "config", "--local", "gc.auto") == "0"
    assert not (work / ".git" / "hooks").exists()
    assert git(work, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/series",
        "refs/tags/pin/one",
    ]


def test_work_tree_is_clean_for_a_user_with_autocrlf_and_for_plain_git(project: Project) -> None:
    fetch(project)
    work = project.root / "vendor" / "up"
    assert git(work, "status", "--porcelain", "--untracked-files=all") == ""
    assert git(work, "-c", "core.autocrlf=true", "status", "--porcelain") == ""
    assert git(work, "diff-files", "--name-only") == ""


def test_second_fetch_changes_nothing(project: Project) -> None:
    first = fetch(project)
    before = {path: path.stat().st_mtime_ns for path in (project.root / "vendor" / "up").rglob("*")}
    again = fetch(project)
    assert (again.commit, again.changed, again.created) == (first.commit, False, False)
    assert before == {path: path.stat().st_mtime_ns for path in (project.root / "vendor" / "up").rglob("*")}


def test_same_commit_on_another_machine_with_hostile_git_configuration(
    tmp_path: Path, project: Project, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch(project)
    moved = Upstream(tmp_path / "another place", GOOD)
    other = write_project(tmp_path / "sp ace\n\u00e4", one=moved.pin())
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("reference-transaction", "post-checkout", "post-index-change"):
        (hooks / hook).write_text(f"#!/bin/sh\ntouch '{tmp_path}/hook-ran'\nexit 1\n")
        (hooks / hook).chmod(0o755)
    template = tmp_path / "template"
    template.mkdir()
    (template / "planted").write_text("x")
    Path(os.environ["HOME"], ".gitconfig").write_text(
        "[core]\nautocrlf = true\neol = crlf\nquotePath = true\nfileMode = false\nsymlinks = false\n"
        f"hooksPath = {hooks}\nattributesFile = {tmp_path}/attributes\n"
        "[user]\nname = Somebody\nemail = else@example.org\nuseConfigOnly = true\n[commit]\ngpgSign = true\n"
        f"[init]\ndefaultBranch = trunk\ntemplateDir = {template}\ndefaultObjectFormat = sha256\n"
        "[i18n]\ncommitEncoding = latin1\n[fastimport]\nunpackLimit = 1000\n[transfer]\nfsckObjects = true\n"
    )
    (tmp_path / "attributes").write_text("* text eol=crlf ident filter=none\n")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    subprocess.run(["git", "init", "-q", str(foreign)], check=True)
    before = sorted(str(path) for path in foreign.rglob("*"))
    monkeypatch.setenv("GIT_DIR", str(foreign / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(foreign))
    monkeypatch.setenv("GIT_INDEX_FILE", str(foreign / "index"))
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01")
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(foreign / "objects"))
    second = fetch(other)
    assert second.commit == first.commit
    assert on_disk(other) == on_disk(project)
    assert before == sorted(str(path) for path in foreign.rglob("*"))
    assert not (tmp_path / "hook-ran").exists()
    assert not (other.root / "vendor" / "up" / ".git" / "planted").exists()


def test_later_pin_touches_objects_and_its_tag_only(tmp_path: Path, upstream: Upstream) -> None:
    newer = Upstream(tmp_path / "newer", {**GOOD, "new.txt": ("100644", b"new\n")})
    project = write_project(tmp_path / "project", one=upstream.pin(), two=newer.pin())
    fetch(project, "one")
    work = project.root / "vendor" / "up"
    (work / "CMakeLists.txt").write_text("the user's own change\n")
    (work / "untracked").write_text("mine\n")

    def rest() -> dict[str, bytes]:
        return {
            str(path.relative_to(work)): path.read_bytes()
            for path in work.rglob("*")
            if path.is_file() and "objects" not in path.parts and path.name != "two"
        }

    before = rest()
    result = fetch(project, "two")
    assert (result.changed, result.created) == (True, False)
    assert rest() == before
    assert git(work, "rev-parse", "pin/two^{tree}") == tree_id(newer.files)
    assert git(work, "fsck", "--full", "--strict") == ""
    assert not (work / ".git" / "objects" / "info" / "alternates").exists()
    assert leftovers(project) == []


def test_recorded_tree_that_differs_leaves_nothing(tmp_path: Path, upstream: Upstream) -> None:
    project = write_project(tmp_path / "project", one=upstream.pin(tree="1" * 40))
    with pytest.raises(PyggmlError, match=tree_id(GOOD)) as error:
        fetch(project)
    assert "1" * 40 in error.value.message
    assert not (project.root / "vendor" / "up").exists()
    assert leftovers(project) == []


def test_recorded_tree_that_differs_makes_no_tag_in_an_existing_repository(
    tmp_path: Path, upstream: Upstream
) -> None:
    project = write_project(tmp_path / "project", one=upstream.pin(), two=upstream.pin(tree="1" * 40))
    fetch(project, "one")
    with pytest.raises(PyggmlError, match="two"):
        fetch(project, "two")
    assert git(project.root / "vendor" / "up", "tag").split() == ["pin/one"]


def test_base_commit_of_a_pin_that_is_not_fetched_names_the_command(project: Project) -> None:
    pins = read_pins(project)
    with pytest.raises(PyggmlError, match="one is not fetched") as error:
        store.base_commit(project, pins, pins.get(None))
    assert error.value.hint is not None and "pyggml vendor fetch one" in error.value.hint


def test_changed_exclude_is_noticed_and_a_new_fetch_replaces_the_tag(
    tmp_path: Path, upstream: Upstream
) -> None:
    project = write_project(tmp_path / "project", one=upstream.pin())
    fetch(project)
    project = write_project(project.root, one=upstream.pin(exclude=["src"], tree=tree_id(GOOD, ["src"])))
    pins = read_pins(project)
    with pytest.raises(PyggmlError, match=tree_id(GOOD)[:12]):
        store.base_commit(project, pins, pins.get(None))
    assert [one.state for one in store.pin_states(project, pins)] == ["differs"]
    result = fetch(project)
    assert store.base_commit(project, pins, pins.get(None)) == result.commit
    assert git(project.root / "vendor" / "up", "rev-parse", "pin/one^{tree}") == tree_id(GOOD, ["src"])


def test_wrong_checksum_is_found_before_the_archive_is_opened(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.tar.gz"
    bomb.write_bytes(b"not an archive at all")
    pin = archive_pin(bomb)
    pin["source"]["sha256"] = "0" * 64
    project = write_project(tmp_path / "project", one=pin)
    with pytest.raises(PyggmlError, match="has sha256"):
        fetch(project)
    assert leftovers(project) == []


@pytest.mark.parametrize("kind", ["file", "directory", "repository", "symlink"])
def test_foreign_thing_in_the_way_is_refused_and_kept(project: Project, tmp_path: Path, kind: str) -> None:
    place = project.root / "vendor" / "up"
    if kind == "file":
        place.write_text("mine")
    elif kind == "symlink":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.mkdir()
        (place / "mine").write_text("mine")
        if kind == "repository":
            subprocess.run(["git", "init", "-q", str(place)], check=True)
    with pytest.raises(PyggmlError, match="is in the way") as error:
        fetch(project)
    assert error.value.hint is not None and "Move it away" in error.value.hint
    assert kind == "symlink" or "mine" in (
        place.read_text() if kind == "file" else (place / "mine").read_text()
    )
    assert store.store_status(project, read_pins(project)).repository == "foreign"


def test_empty_directory_is_not_in_the_way(project: Project) -> None:
    (project.root / "vendor" / "up").mkdir()
    assert fetch(project).created


def test_leftovers_of_a_killed_fetch_go_with_the_next_one(project: Project) -> None:
    left = project.root / "vendor" / ".up.fetch-abc"
    (left / "deep").mkdir(parents=True)
    (left / "deep" / "file").write_text("half")
    fetch(project)
    assert leftovers(project) == []


def test_verify_notices_a_missing_object_and_fetch_restores_it(project: Project) -> None:
    fetch(project)
    pins = read_pins(project)
    pin = pins.get(None)
    commit = store.verify(project, pins, pin)
    objects = project.root / "vendor" / "up" / ".git" / "objects"
    packs = list(objects.glob("pack/pack-*.pack"))
    loose = project.root / "loose.pack"
    shutil.move(packs[0], loose)
    for index in objects.glob("pack/*"):
        index.unlink()
    with loose.open("rb") as stream:
        work = project.root / "vendor" / "up"
        subprocess.run(["git", "-C", str(work), "unpack-objects", "-q"], stdin=stream, check=True)
    victim = git(work, "rev-parse", "HEAD:CMakeLists.txt")
    assert store.verify(project, pins, pin) == commit
    (objects / victim[:2] / victim[2:]).unlink()
    with pytest.raises(PyggmlError, match="objects are missing"):
        store.verify(project, pins, pin)
    assert fetch(project).changed
    assert store.verify(project, pins, pin) == commit


def test_lost_pack_is_reported_as_damage_and_fetched_again(project: Project) -> None:
    commit = fetch(project).commit
    for file in (project.root / "vendor" / "up" / ".git" / "objects" / "pack").iterdir():
        file.unlink()
    pins = read_pins(project)
    assert [one.state for one in store.pin_states(project, pins)] == ["damaged"]
    with pytest.raises(PyggmlError, match="objects are missing"):
        store.base_commit(project, pins, pins.get(None))
    assert fetch(project).commit == commit
    assert git(project.root / "vendor" / "up", "status", "--porcelain") == ""


def test_unknown_pin_lists_the_known_ones(project: Project) -> None:
    with pytest.raises(PyggmlError, match="no pin nope") as error:
        read_pins(project).get("nope")
    assert error.value.hint is not None and "one" in error.value.hint


def test_directory_source(tmp_path: Path) -> None:
    folder = tmp_path / "project" / "fo\nlder"
    for path, (mode, data) in GOOD.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            file.symlink_to(os.fsdecode(data))
        else:
            file.write_bytes(data)
            file.chmod(0o755 if mode == "100755" else 0o600)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("not a part of it")
    os.mkfifo(folder / "docs" / "excluded-fifo")
    pin = {"tree": tree_id(GOOD), "exclude": EXCLUDE, "source": {"kind": "directory", "path": "fo\nlder"}}
    project = write_project(tmp_path / "project", one=pin)
    fetch(project)
    assert on_disk(project) == {path: value for path, value in GOOD.items() if not path.startswith("docs/")}
    os.mkfifo(folder / "fifo")
    project = write_project(
        tmp_path / "other", one={**pin, "source": {"kind": "directory", "path": str(folder)}}
    )
    with pytest.raises(PyggmlError, match="fifo"):
        fetch(project)


def test_directory_source_that_is_missing(tmp_path: Path) -> None:
    pin = {"tree": "0" * 40, "source": {"kind": "directory", "path": "gone"}}
    with pytest.raises(PyggmlError, match="gone is not a directory"):
        fetch(write_project(tmp_path / "project", one=pin))


@pytest.fixture
def bare(tmp_path: Path) -> tuple[Path, str]:
    """A bare repository whose wanted commit is not at the tip of any branch."""
    work = tmp_path / "work"
    subprocess.run(["git", "init", "-q", "-b", "main", str(work)], check=True)
    for path, (mode, data) in GOOD.items():
        file = work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            file.symlink_to(os.fsdecode(data))
        else:
            file.write_bytes(data)
            file.chmod(0o755 if mode == "100755" else 0o644)
    # Conversions that an export through `git archive` or a checkout would apply.
    (work / ".gitattributes").write_bytes(GOOD[".gitattributes"][1])
    git(work, "-c", "core.attributesFile=/dev/null", "config", "core.autocrlf", "false")
    (work / ".git" / "info").mkdir(exist_ok=True)
    (work / ".git" / "info" / "attributes").write_text("* -text\n")
    git(work, "add", "-f", ".")
    git(work, "commit", "-q", "-m", "wanted")
    commit = git(work, "rev-parse", "HEAD")
    git(work, "commit", "-q", "--allow-empty", "-m", "later")
    where = tmp_path / "bare repo.git"
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(where)], check=True)
    return where, commit


@pytest.mark.parametrize("by_id", ["true", "false"])
def test_git_source(tmp_path: Path, bare: tuple[Path, str], by_id: str) -> None:
    where, commit = bare
    git(where, "config", "uploadpack.allowAnySHA1InWant", by_id)
    git(where, "config", "uploadpack.allowReachableSHA1InWant", by_id)
    git(where, "config", "protocol.version", "0")
    Path(os.environ["HOME"], ".gitconfig").write_text("[protocol]\nversion = 0\n[core]\nautocrlf = true\n")
    source = {"kind": "git", "url": where.as_uri()}
    pin = {"commit": commit, "tree": tree_id(GOOD), "exclude": EXCLUDE, "source": source}
    project = write_project(tmp_path / "project", one=pin)
    fetch(project)
    assert on_disk(project) == {path: value for path, value in GOOD.items() if not path.startswith("docs/")}
    assert not (project.root / "vendor" / "up" / ".git" / "incoming.git").exists()


def test_git_source_uses_the_users_own_network_configuration(tmp_path: Path, bare: tuple[Path, str]) -> None:
    where, commit = bare
    Path(os.environ["HOME"], ".gitconfig").write_text(f'[url "{where.as_uri()}"]\ninsteadOf = mirror:up\n')
    source = {"kind": "git", "url": "mirror:up", "subdir": "src"}
    inner = {path.removeprefix("src/"): v for path, v in GOOD.items() if path.startswith("src/")}
    inner.pop("link")
    pin = {"commit": commit, "tree": tree_id(inner), "exclude": ["link"], "source": source}
    project = write_project(tmp_path / "project", one=pin)
    fetch(project)
    assert on_disk(project) == inner


def test_git_source_without_the_commit(tmp_path: Path, bare: tuple[Path, str]) -> None:
    source = {"kind": "git", "url": bare[0].as_uri()}
    project = write_project(
        tmp_path / "project", one={"commit": "1" * 40, "tree": "0" * 40, "source": source}
    )
    with pytest.raises(PyggmlError, match="no commit 1111"):
        fetch(project)
    assert leftovers(project) == []


def test_git_source_that_is_not_there(tmp_path: Path) -> None:
    source = {"kind": "git", "url": (tmp_path / "gone").as_uri()}
    project = write_project(
        tmp_path / "project", one={"commit": "1" * 40, "tree": "0" * 40, "source": source}
    )
    with pytest.raises(PyggmlError, match="cannot fetch"):
        fetch(project)
