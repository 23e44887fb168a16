"""Applying and unapplying: recorded trees, same ids everywhere, no-ops, untouched times."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from series_helpers import Sandbox, make_sandbox


def plain_git_ids(box: Sandbox, directory: Path) -> list[str]:
    """Trees of the series by an independent way: plain `git am` on a fresh repository of the upstream files."""
    directory.mkdir()
    run = lambda *args: subprocess.run(  # noqa: E731
        ["git", "-c", "user.name=x", "-c", "user.email=x@x", *args],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    run("init", "-q")
    box.git("--work-tree", str(directory), "checkout", "pin/one", "--", ".")
    box.git("read-tree", "HEAD")
    run("add", "-A", "-f")
    run("commit", "-qm", "base")
    trees = [run("rev-parse", "HEAD^{tree}")]
    for file in sorted(box.patches.glob("*.patch")):
        run("am", "-q", str(file))
        trees.append(run("rev-parse", "HEAD^{tree}"))
    return trees


def test_apply_unapply_apply_gives_the_trees_that_git_am_gives(three: Sandbox, tmp_path: Path) -> None:
    expected = plain_git_ids(three, tmp_path / "independent")
    assert [row["tree"] for row in three.status()["patches"]] == expected[1:]
    three.ok("patch", "unapply")
    assert three.git("rev-parse", "HEAD^{tree}") == expected[0]
    assert three.status()["state"] == "clean"
    three.ok("patch", "apply", "--to", "2")
    assert three.git("rev-parse", "HEAD^{tree}") == expected[2]
    status = three.status()
    assert (status["state"], status["applied"], status["total"]) == ("partial", 2, 3)
    assert [row["state"] for row in status["patches"]] == ["applied", "applied", "unapplied"]
    three.ok("patch", "apply")
    assert three.git("rev-parse", "HEAD^{tree}") == expected[3]
    assert three.git("status", "--porcelain") == ""


def test_applying_again_is_a_no_op_that_says_so(three: Sandbox) -> None:
    before = three.state()
    done = three.ok("patch", "apply")
    assert "nothing to do" in done.out
    assert three.ok("patch", "apply", "--json").json["changed"] is False
    assert three.state() == before
    three.ok("patch", "unapply")
    assert "nothing to do" in three.ok("patch", "unapply").out


def test_two_machines_make_the_same_commits(three: Sandbox, tmp_path: Path) -> None:
    other = make_sandbox(tmp_path / "elsewhere")
    other.patches.mkdir()
    for name, data in three.files().items():
        (other.patches / name).write_bytes(data)
    other.ok("patch", "apply")
    assert other.git("log", "--format=%H %an %ae %ad %cn %cd %s") == three.git(
        "log", "--format=%H %an %ae %ad %cn %cd %s"
    )
    assert len(other.git("log", "--format=%H").splitlines()) == 4


def test_files_that_no_patch_touches_keep_their_times(three: Sandbox) -> None:
    watched = [p for p in three.tree.rglob("*") if p.is_file() and ".git" not in p.parts]
    for path in watched:
        os.utime(path, ns=(10**18, 10**18))
    three.git("update-index", "-q", "--refresh")
    three.ok("patch", "unapply", "--to", "2")
    three.ok("patch", "apply")
    moved = {p.relative_to(three.tree).as_posix() for p in watched if p.stat().st_mtime_ns != 10**18}
    assert moved == {"README.md"}


def test_the_series_is_applied_from_another_pin_and_back(three: Sandbox, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.mkdir()
    (newer / "README.md").write_text("upstream 2\n", "utf-8")
    three.ok("vendor", "add", "two", "--directory", str(newer))
    top = three.git("rev-parse", "HEAD")
    status = three.ok("patch", "status", "--pin", "two", "--json").json
    assert (status["state"], status["elsewhere"]) == ("diverged", "one")
    three.ok("patch", "apply", "--pin", "two")
    assert (three.tree / "README.md").read_text("utf-8") == "upstream 2\n"
    assert not (three.tree / "src").exists()
    three.ok("patch", "apply")
    assert three.git("rev-parse", "HEAD") == top


def test_renames_modes_links_binaries_and_odd_names_survive(box: Sandbox) -> None:
    box.git("mv", "src/named.c", "src/räumlich neu.c")
    box.write("tool.sh", "#!/bin/sh\n")
    (box.tree / "tool.sh").chmod(0o755)
    (box.tree / "link").symlink_to("src/scale.c")
    (box.tree / "blob.bin").write_bytes(bytes(range(256)) * 3)
    (box.tree / "no newline").write_bytes(b"last line without newline")
    (box.tree / "latin").write_bytes("M\xfcller\r\n".encode("latin-1"))
    box.write('tab\tand "quote"', "x\n")
    box.git("add", "-A")
    box.ok("patch", "new", "odd", "-m", "odd : everything git can hold")
    expected = box.git("rev-parse", "HEAD^{tree}")
    listing = box.git("ls-tree", "-r", "HEAD")
    box.ok("patch", "unapply")
    assert not (box.tree / "link").is_symlink()
    box.ok("patch", "apply")
    assert box.git("rev-parse", "HEAD^{tree}") == expected
    assert box.git("ls-tree", "-r", "HEAD") == listing
    assert box.git("status", "--porcelain") == ""
    assert (box.tree / "tool.sh").stat().st_mode & 0o111
    assert box.ok("patch", "verify").code == 0


def pulled(box: Sandbox) -> str:
    """Patch files from somewhere else, without the first patch, under a work tree that has all three applied."""
    import shutil

    before = box.root / "before"
    shutil.copytree(box.patches, before)
    box.ok("patch", "drop", "first")
    after = {path.name: path.read_bytes() for path in box.patches.iterdir()}
    box.ok("undo")
    box.ok("patch", "unapply")
    box.ok("patch", "apply")
    shutil.rmtree(before)
    for path in box.patches.iterdir():
        path.unlink()
    for name, content in after.items():
        (box.patches / name).write_bytes(content)
    return box.git("rev-parse", "HEAD")


def test_apply_follows_patch_files_that_a_pull_has_changed(three: Sandbox) -> None:
    head = pulled(three)
    assert "the patch files have changed since they were applied" in three.refused("patch", "edit", "second")
    three.ok("patch", "apply")
    assert three.status()["state"] == "applied"
    assert three.status()["total"] == 2
    subjects = three.git("log", "--format=%s", "pin/one..").splitlines()
    assert [subject.split()[0] for subject in subjects] == ["third", "second"]
    three.ok("undo")
    assert three.git("rev-parse", "HEAD") == head


def test_apply_follows_messages_that_a_pull_has_changed(three: Sandbox) -> None:
    """No tree changes, so no file of the work tree does: only the commits are made anew."""
    file = next(three.patches.glob("0002-*"))
    three.ok("patch", "unapply")
    three.ok("patch", "apply")
    text = file.read_text()
    subject = next(line for line in text.splitlines() if line.startswith("Subject: "))
    file.write_text(text.replace(subject, "Subject: [PATCH] second : another message"))
    times = {path: path.stat().st_mtime_ns for path in three.tree.rglob("*") if ".git" not in path.parts}
    # An edited file is not in the way, and stays.
    edited = three.tree / "src" / "scale.c"
    content = edited.read_text()
    edited.write_text(content + "// mine\n")
    assert "nothing to do" in three.ok("patch", "apply").out
    edited.write_text(content)
    os.utime(edited, ns=(times[edited], times[edited]))
    tree = three.git("rev-parse", "HEAD^{tree}")
    assert three.ok("patch", "apply", "--json").json["changed"] is True
    assert three.git("log", "-1", "--format=%s", "HEAD^") == "second : another message"
    assert three.git("rev-parse", "HEAD^{tree}") == tree
    assert times == {
        path: path.stat().st_mtime_ns for path in three.tree.rglob("*") if ".git" not in path.parts
    }
    assert "nothing to do" in three.ok("patch", "apply").out
    # A message that the user has amended in the work tree is kept, for `pyggml patch refresh`.
    three.git("commit", "--amend", "-qm", "third : mine")
    assert "nothing to do" in three.ok("patch", "apply").out
    assert three.git("log", "-1", "--format=%s") == "third : mine"


def test_commits_on_what_was_applied_are_not_left_behind(three: Sandbox) -> None:
    pulled(three)
    three.write("own.txt", "mine\n")
    three.git("add", "own.txt")
    three.git("commit", "-qm", "own: a commit")
    state = three.state()
    assert "it has commits of yours" in three.refused("patch", "apply")
    assert three.state() == state
