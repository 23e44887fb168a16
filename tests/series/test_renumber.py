"""Two branches' series merged by git with the merge driver, then `patch renumber`.

git is the oracle: the source afterwards is what git makes of the two branches' commits, picked one after the other.
"""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest
from series_helpers import Sandbox
from test_branch import by_name
from test_merge import git

from pyggml.project import Project

EDITS = {
    "of-main": ("run.sh", "exit 0\n", "exit 1\n"),
    "of-theirs": ("src/named.c", "twin_a(", "twin_z("),
    "more": ("src/scale.c", "line 30\n", "line xxx\n"),
}


def two_branches(box: Sandbox) -> None:
    """The project's repository with three patches on `main` and a branch `theirs`, and the driver."""
    assert git(box, "init", "-q", "-b", "main") == 0
    (box.root / ".gitignore").write_text(".pyggml\n/vendor/*/\n")
    told = box.ok("patch", "install-merge-driver").out
    assert ".gitattributes" in told and ".gitattributes" not in box.ok("patch", "install-merge-driver").out
    save(box, "three patches")
    assert git(box, "branch", "theirs") == 0


def save(box: Sandbox, message: str) -> None:
    assert git(box, "add", "-A") == 0
    assert git(box, "commit", "-qm", message) == 0


def switch(box: Sandbox, branch: str) -> None:
    assert git(box, "checkout", "-q", branch) == 0
    box.ok("patch", "apply")


def add(box: Sandbox, name: str, edit: str = "") -> None:
    box.patch(name, *EDITS[edit or name])


def check(box: Sandbox, *names: str) -> None:
    """All of these patches are there, in this order, applied, with true trees, and the source is git's."""
    status = box.status()
    assert [row["name"] for row in status["patches"]] == list(names)
    assert (status["state"], status["applied"], status["total"]) == ("applied", len(names), len(names))
    assert box.ok("patch", "verify").code == 0
    trees = [patch["tree"] for patch in tomllib.loads(box.files()["series.toml"].decode())["patch"]]
    assert trees == box.git("log", "--reverse", "--format=%T", "pin/one..").splitlines()
    box.git("checkout", "-q", "--detach", "pin/one")
    box.git("am", "-q", *(str(box.patches / row["file"]) for row in status["patches"]))
    assert box.git("rev-parse", "HEAD^{tree}") == trees[-1]
    box.git("checkout", "-q", "series")


@pytest.fixture
def fork(three: Sandbox) -> Sandbox:
    two_branches(three)
    return three


def test_a_patch_on_either_branch(fork: Sandbox) -> None:
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "of-theirs")
    add(fork, "more")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 0
    merged = fork.state()
    assert "pyggml patch renumber" in fork.refused("patch", "apply")
    done = fork.ok("patch", "renumber")
    assert "moved patches/one/0004-of-theirs.patch to 0005-of-theirs.patch" in done.out
    assert "6 of 6 patches applied" in done.out
    fork.ok("patch", "apply")
    check(fork, "first", "second", "third", "of-main", "of-theirs", "more")
    records = fork.ok("undo", "--list").out
    assert "6 of 6" in fork.ok("patch", "renumber").out  # once more changes nothing
    assert fork.ok("undo", "--list").out == records
    fork.ok("undo")
    assert fork.state() == merged
    fork.ok("undo", "--redo")
    check(fork, "first", "second", "third", "of-main", "of-theirs", "more")
    assert git(fork, "add", "patches") == git(fork, "commit", "-q", "--amend", "--no-edit") == 0
    assert git(fork, "diff", "--quiet", "HEAD") == 0


def test_removed_changed_and_moved(fork: Sandbox) -> None:
    fork.ok("patch", "drop", "second")
    fork.ok("patch", "move", "third", "1")
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    fork.ok("patch", "edit", "first")
    fork.replace("src/scale.c", "line three\n", "line drei\n")
    fork.ok("patch", "continue")
    add(fork, "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    git(fork, "merge", "-q", "--no-edit", "theirs")
    fork.ok("patch", "renumber")
    check(fork, "third", "first", "of-main", "of-theirs")
    assert by_name(fork)["first"] == "-line 3\n+line drei\n"


@pytest.mark.slow
def test_partly_applied(fork: Sandbox) -> None:
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    fork.ok("patch", "unapply", "--to", "1")
    add(fork, "of-theirs")  # the second of four
    save(fork, "theirs")
    fork.ok("patch", "unapply")
    switch(fork, "main")
    fork.ok("patch", "unapply", "--to", "3")
    git(fork, "merge", "-q", "--no-edit", "theirs")
    fork.ok("patch", "renumber")
    status = fork.status()
    assert [row["name"] for row in status["patches"]] == ["first", "of-theirs", "second", "third", "of-main"]
    assert (status["state"], status["applied"]) == ("partial", 4)
    fork.ok("patch", "apply")
    check(fork, "first", "of-theirs", "second", "third", "of-main")


def test_one_name_for_two_patches(fork: Sandbox) -> None:
    add(fork, "of-main")
    add(fork, "more")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "more", "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 0
    told = fork.ok("patch", "renumber").out
    assert "two patches were named more: the later one is more-2 now" in told
    check(fork, "first", "second", "third", "of-main", "more", "more-2")
    assert "twin_z" in by_name(fork)["more-2"] and "line xxx" in by_name(fork)["more"]


def test_the_same_patch_on_both_branches(fork: Sandbox) -> None:
    """Cherry-picked: it is there once, with what both sides say of it."""
    when = {"GIT_AUTHOR_DATE": "1700000000 +0000"}
    fork.replace(*EDITS["more"])
    fork.ok("patch", "new", "more", "-m", "more : the same", env=when)
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "of-theirs")
    fork.replace(*EDITS["more"])
    fork.ok("patch", "new", "more", "-m", "more : the same", env=when)
    save(fork, "theirs")
    switch(fork, "main")
    git(fork, "merge", "-q", "--no-edit", "theirs")
    assert "is gone" in fork.ok("patch", "renumber").out
    check(fork, "first", "second", "third", "more", "of-theirs")


def test_one_file_for_two_patches(fork: Sandbox) -> None:
    """git marks a conflict in the patch file itself; both patches are kept."""
    add(fork, "more")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "more", "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 1
    before = fork.state()
    assert "two patches were named more: the later one is more-2 now" in fork.ok("patch", "renumber").out
    check(fork, "first", "second", "third", "more", "more-2")
    assert "line xxx" in by_name(fork)["more"] and "twin_z" in by_name(fork)["more-2"]
    fork.ok("undo")
    assert fork.state() == before


def change(box: Sandbox, patch: str, old: str, new: str) -> None:
    box.ok("patch", "edit", patch)
    box.replace("src/scale.c", old, new)
    box.ok("patch", "continue")


def test_a_patch_that_both_sides_change(fork: Sandbox) -> None:
    change(fork, "second", "line twenty\n", "line XX\n")
    save(fork, "main")
    switch(fork, "theirs")
    change(fork, "second", "line twenty\n", "line zwanzig\n")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 1
    before = fork.state()
    told = fork.refused("patch", "renumber")
    assert "0002-second.patch:" in told and "both sides have changed the patch" in told
    assert fork.state() == before
    # The way out that is named works.
    command = told.split("whole: git ")[1].split(". Then")[0].replace("--ours (or --theirs)", "--theirs")
    assert git(fork, *command.split()) == 0
    fork.ok("patch", "renumber")
    check(fork, "first", "second", "third")
    assert by_name(fork)["second"] == "-line 20\n+line zwanzig\n"


def test_a_conflict_of_line_numbers_only(fork: Sandbox) -> None:
    """Both sides change what the second patch stands on, so git marks its blob ids; one changes it itself."""
    change(fork, "first", "line three\n", "line III\n")
    change(fork, "second", "line twenty\n", "line XX\n")
    save(fork, "main")
    switch(fork, "theirs")
    fork.ok("patch", "unapply")
    fork.patch("before", "src/scale.c", "line 39\n", "line xxxix\n")
    save(fork, "theirs")
    fork.ok("patch", "unapply")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 1
    fork.ok("patch", "renumber")
    check(fork, "before", "first", "second", "third")
    assert by_name(fork)["first"] == "-line 3\n+line III\n"
    assert by_name(fork)["second"] == "-line 20\n+line XX\n"


def test_a_merge_that_conflicted_without_the_driver(fork: Sandbox) -> None:
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    config = fork.root / ".git/config"
    driver = config.read_text()
    config.write_text(driver.split("[merge ")[0])
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 1
    assert "conflict marks" in fork.refused("patch", "renumber")
    fork.ok("patch", "install-merge-driver")
    assert git(fork, "checkout", "--merge", "patches/one/series.toml") == 0
    fork.ok("patch", "renumber")
    check(fork, "first", "second", "third", "of-main", "of-theirs")


@pytest.mark.slow
def test_two_clones(fork: Sandbox, tmp_path: Path) -> None:
    """As colleagues work: each in a clone, with a work tree of its own."""
    save_bare = tmp_path / "box" / "origin.git"
    assert git(fork, "clone", "-q", "--bare", ".", str(save_bare)) == 0
    assert git(fork, "remote", "add", "origin", str(save_bare)) == 0
    assert git(fork, "fetch", "-q") == 0 and git(fork, "branch", "-q", "-u", "origin/main") == 0
    shutil.copytree(fork.root, tmp_path / "box" / "other", symlinks=True)
    other = Sandbox(Project(tmp_path / "box" / "other"))
    add(fork, "of-main")
    save(fork, "main")
    assert git(fork, "push", "-q") == 0
    add(other, "of-theirs")
    save(other, "theirs")
    assert git(other, "pull", "-q", "--no-rebase", "--no-edit") == 0
    other.ok("patch", "renumber")
    check(other, "first", "second", "third", "of-theirs", "of-main")
    save(other, "renumber")
    assert git(other, "push", "-q") == 0
    assert git(fork, "pull", "-q", "--ff-only") == 0
    fork.ok("patch", "apply")
    check(fork, "first", "second", "third", "of-theirs", "of-main")
    assert fork.git("rev-parse", "HEAD") == other.git("rev-parse", "HEAD")


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_people_do_to_series_toml(three: Sandbox, ends: str) -> None:
    """Entries in another order, without trees, with line ends of another system, and comments."""
    text = three.files()["series.toml"].decode()
    head, *entries = text.split("[[patch]]\n")
    entries = [
        "".join(line for line in one.splitlines(True) if not line.startswith("tree")) for one in entries
    ]
    text = "# ours\n" + "[[patch]]\n".join([head, *entries[::-1]])
    (three.patches / "series.toml").write_bytes(text.replace("\n", ends).encode())
    three.ok("patch", "renumber")
    check(three, "third", "second", "first")
    assert three.files()["series.toml"].startswith(b"# ours")
    assert (b"\r" in three.files()["series.toml"]) == (ends == "\r\n")
    assert three.files()["series.toml"].count(b"\n") == three.files()["series.toml"].count(ends.encode())


def test_what_renumber_refuses(three: Sandbox) -> None:
    listing, third = three.patches / "series.toml", three.patches / "0003-third.patch"
    text, patch = listing.read_text(), third.read_bytes()

    def refused(told: str) -> None:
        before = three.state()
        assert told in three.refused("patch", "renumber")
        assert three.state() == before

    listing.write_text(text[: text.rindex("[[patch]]")])
    refused("0003-third.patch is not listed")
    listing.write_text(text)
    third.unlink()
    refused("0003-third.patch is listed in series.toml but missing")
    third.write_bytes(patch)
    listing.write_text(text + text[text.rindex("[[patch]]") :])
    refused("0003-third.patch is listed twice")
    listing.write_text(text)
    (three.patches / "0007-third.patch").write_bytes(patch.replace(b"downstream", b"elsewhere"))
    refused("0003-third.patch is another version of it")
    (three.patches / "0007-third.patch").write_bytes(patch)
    assert "0007-third.patch was a copy of 0003-third.patch" in three.ok("patch", "renumber").out
    assert sorted(three.files()) == [
        "0001-first.patch",
        "0002-second.patch",
        "0003-third.patch",
        "series.toml",
    ]
    third.write_bytes(patch.replace(b"-upstream", b"-nothing of the kind"))
    refused("0003-third.patch: ")
    third.write_bytes(patch)
    three.replace("README.md", "downstream\n", "edited\n")
    refused("README.md edited")
    three.git("commit", "-qam", "own : a commit")
    refused("commits of yours")
    three.git("reset", "-q", "--hard", "HEAD~1")
    three.ok("patch", "edit", "1")
    refused("is under way")


def test_commits_of_the_user(fork: Sandbox) -> None:
    """They are in the way; the way out that is named keeps them."""
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 0
    fork.replace(*EDITS["more"])
    fork.git("commit", "-qam", "own : more")
    told = fork.refused("patch", "renumber")
    for command in told.split("There: ")[1].split(". Then")[0].split("; "):
        tool, *words = command.split()
        fork.git(*words) if tool == "git" else fork.ok(*words)
    fork.ok("patch", "refresh")
    check(fork, "first", "second", "third", "of-main", "of-theirs", "more")


def test_two_patches_that_change_the_same_line(fork: Sandbox) -> None:
    fork.patch("mine", "src/scale.c", "line 30\n", "line A\n")
    save(fork, "main")
    switch(fork, "theirs")
    fork.patch("yours", "src/scale.c", "line 30\n", "line B\n")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 0
    before = fork.state()
    told = fork.refused("patch", "renumber")
    assert "0004-yours.patch: src/scale.c" in told and "make the change anew on top" in told
    assert fork.state() == before


@pytest.mark.slow
def test_both_sides_move_the_same_patch(fork: Sandbox) -> None:
    """git calls that rename/rename, and leaves the file under both names."""
    fork.ok("patch", "move", "third", "1")
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    fork.ok("patch", "move", "third", "2")
    add(fork, "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 1
    assert "0002-third.patch was a copy of 0001-third.patch" in fork.ok("patch", "renumber").out
    check(fork, "third", "first", "second", "of-main", "of-theirs")


@pytest.mark.slow
def test_a_rebase_of_the_project(fork: Sandbox) -> None:
    """As a merge: `git rebase` and `git cherry-pick` use the driver, and renumber knows their two sides."""
    add(fork, "of-main")
    change(fork, "first", "line three\n", "line III\n")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "of-theirs")
    change(fork, "second", "line twenty\n", "line XX\n")
    save(fork, "theirs")
    assert git(fork, "rebase", "-q", "main") == 1  # the blob ids of the second patch
    fork.ok("patch", "renumber")
    check(fork, "first", "second", "third", "of-main", "of-theirs")
    assert by_name(fork)["second"] == "-line 20\n+line XX\n"
    assert git(fork, "add", "-A") == 0
    assert git(fork, "-c", "core.editor=true", "rebase", "--continue") == 0


@pytest.mark.slow
def test_renamed_on_one_side_and_changed_on_the_other(fork: Sandbox) -> None:
    fork.ok("patch", "rename", "third", "drei")
    save(fork, "main")
    switch(fork, "theirs")
    fork.ok("patch", "edit", "third")
    fork.replace("README.md", "downstream\n", "downstream\nmore\n")
    fork.ok("patch", "continue")
    save(fork, "theirs")
    switch(fork, "main")
    git(fork, "merge", "-q", "--no-edit", "theirs")
    fork.ok("patch", "renumber")
    check(fork, "first", "second", "drei")
    assert by_name(fork)["drei"] == "-upstream\n+downstream\n+more\n"


def test_no_repository_for_the_driver(three: Sandbox) -> None:
    assert "is in no git repository" in three.refused("patch", "install-merge-driver")


def test_a_closed_series(three: Sandbox) -> None:
    listing = three.patches / "series.toml"
    listing.write_text(listing.read_text().replace('pin = "one"', 'pin = "one"\nclosed = "moved on"'))
    (three.patches / "0003-third.patch").rename(three.patches / "0004-third.patch")
    before = three.state()
    assert "closed: moved on" in three.refused("patch", "renumber")
    assert three.state() == before
    three.ok("patch", "renumber", "--reopen")
    check(three, "first", "second", "third")


def test_the_driver_that_is_gone(fork: Sandbox) -> None:
    """The Python that git's configuration names was removed: git merges line by line, with marks."""
    config = fork.root / ".git/config"
    text = config.read_text()
    import sys

    config.write_text(text.replace(sys.executable, "/nowhere/python"))
    add(fork, "of-main")
    save(fork, "main")
    switch(fork, "theirs")
    add(fork, "of-theirs")
    save(fork, "theirs")
    switch(fork, "main")
    assert git(fork, "merge", "-q", "--no-edit", "theirs") == 1
    assert "<<<<<<< ours" in (fork.patches / "series.toml").read_text()
