"""Each kind of bad input: one or two lines, the right exit code, and nothing changed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from series_helpers import Sandbox


def mutate(name: str, change: Callable[[bytes], bytes]) -> Callable[[Sandbox], None]:
    def apply(box: Sandbox) -> None:
        path = box.patches / name
        path.write_bytes(change(path.read_bytes()))

    return apply


def edit_listing(old: str, new: str) -> Callable[[Sandbox], None]:
    def apply(box: Sandbox) -> None:
        path = box.patches / "series.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return apply


def swap_entries(box: Sandbox) -> None:
    path = box.patches / "series.toml"
    head, one, two, three = path.read_text().split("[[patch]]")
    path.write_text("[[patch]]".join([head, two, one, three]))


def double_entry(box: Sandbox) -> None:
    path = box.patches / "series.toml"
    head, one, two, three = path.read_text().split("[[patch]]")
    path.write_text("[[patch]]".join([head, one, one.replace("0001-", "0002-"), two, three]))


def copy_file(box: Sandbox) -> None:
    (box.patches / "0002-copy.patch").write_bytes((box.patches / "0001-first.patch").read_bytes())


HOSTILE = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: Eve <eve@example.org>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] hostile

---
diff --git a/{path} b/{path}
new file mode {mode}
--- /dev/null
+++ b/{path}
@@ -0,0 +1 @@
+{line}
"""
SUBMODULE_LINE = "Subproject commit " + "1" * 40


def hostile(path: str, mode: str = "100644", line: str = "owned") -> Callable[[Sandbox], None]:
    return mutate("0001-first.patch", lambda _: HOSTILE.format(path=path, mode=mode, line=line).encode())


# the first patch adds nothing but is cut in the middle of its hunk
CUT = mutate("0001-first.patch", lambda data: data[: data.index(b"+line three")])
CASES: dict[str, tuple[Callable[[Sandbox], None], str]] = {
    "a patch file missing": (
        lambda box: (box.patches / "0002-second.patch").unlink(),
        "listed in series.toml but missing",
    ),
    "a patch file duplicated": (copy_file, "0002-copy.patch is not listed"),
    "a patch listed twice": (double_entry, "listed twice"),
    "patches out of order": (swap_entries, "out of order"),
    "a patch file unlisted": (lambda box: (box.patches / "0004-more.patch").write_bytes(b"x"), "not listed"),
    "a patch file empty": (mutate("0001-first.patch", lambda _: b""), "is empty"),
    "a patch file truncated": (CUT, "cut off"),
    "a patch file truncated before its diff": (
        mutate("0001-first.patch", lambda data: data[: data.index(b"diff --git")]),
        "no diff",
    ),
    "a patch file converted to CRLF": (
        mutate("0001-first.patch", lambda data: data.replace(b"\n", b"\r\n")),
        "CRLF",
    ),
    "a patch reaching outside the tree": (hostile("../outside"), "outside the tree"),
    "a patch with an absolute path": (hostile("/etc/owned"), "outside the tree"),
    "a patch into .git": (hostile(".git/hooks/post-checkout"), ".git"),
    "a patch into .GIT": (hostile("sub/.GIT/config"), ".git"),
    "a link out of the tree": (hostile("link", "120000", "../../etc/passwd"), "link out of the tree"),
    "a submodule": (hostile("sub", "160000", SUBMODULE_LINE), "submodule"),
    "a patch changed by hand": (
        mutate("0001-first.patch", lambda data: data.replace(b"+line three", b"+line zzz")),
        "changed by hand",
    ),
    "series.toml malformed": (edit_listing("[[patch]]", "[[patch"), "not valid TOML"),
    "series.toml of another pin": (
        edit_listing('pin = "one"', 'pin = "two"'),
        "this is the series of pin 'two'",
    ),
    "another base recorded": (edit_listing('base = "', 'base = "0'), "recorded on base tree"),
    "a file name that is a path": (
        edit_listing("0001-first.patch", "../0001-first.patch"),
        "does not match name",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_series_is_refused(three: Sandbox, case: str) -> None:
    three.ok("patch", "unapply")
    spoil, expected = CASES[case]
    spoil(three)
    before = three.state()
    told = three.refused("patch", "apply")
    assert expected in told
    assert three.state() == before
    assert not (three.root / "vendor" / "outside").exists()


def test_a_hunk_that_fits_in_more_than_one_place(box: Sandbox) -> None:
    # The four blocks of twins.c are alike, so only the line number says which is meant.
    text = (box.tree / "src/twins.c").read_text()
    blocks = text.split("\n\n")
    blocks[2] = blocks[2].replace("x += 1;", "x += 2;")
    box.write("src/twins.c", "\n\n".join(blocks))
    box.ok("patch", "new", "third-twin", "-m", "twins : the third")
    path = box.patches / "0001-third-twin.patch"
    good = path.read_bytes()
    box.ok("patch", "unapply")
    # Exactly at its line the hunk is good, with one block more above it no place is certain any more.
    box.ok("patch", "apply")
    assert (box.tree / "src/twins.c").read_text().split("\n\n")[2].count("x += 2;") == 1
    box.ok("patch", "unapply")
    import re

    moved = re.sub(rb"@@ -(\d+),", lambda m: b"@@ -%d," % (int(m[1]) + 1), good)
    assert moved != good
    foreign = box.root / "foreign.patch"
    foreign.write_bytes(moved)
    box.ok("patch", "drop", "1")
    before = box.state()
    told = box.refused("patch", "import", str(foreign))
    assert "fits in 2 places" in told or "fits in 3 places" in told or "fits in 4 places" in told
    assert box.state() == before


def test_a_hunk_that_moved_to_one_certain_place_is_taken(box: Sandbox) -> None:
    box.patch("one", "src/scale.c", "line 30\n", "line thirty\n")
    data = (box.patches / "0001-one.patch").read_bytes()
    box.ok("patch", "drop", "1")
    (box.root / "moved.patch").write_bytes(data.replace(b"@@ -27,", b"@@ -17,").replace(b" +27,", b" +17,"))
    box.ok("patch", "import", str(box.root / "moved.patch"))
    assert (box.tree / "src/scale.c").read_text().splitlines()[29] == "line thirty"
    assert b"@@ -27,7 +27,7 @@" in (box.patches / "0001-moved.patch").read_bytes()


SUBJECTS = {
    "non-ASCII letters": "größe : 修正 the sïze",
    "brackets in front": "[CUDA] fix",
    "PATCH-like brackets inside": "fix [PATCH 2/3] of it",
    "a very long subject": "x : " + "word " * 60 + "end",
    "a colon and quotes": "a : \"b\" 'c' \\ d",
}


@pytest.mark.parametrize("case", SUBJECTS)
def test_subjects_come_back_as_they_were(box: Sandbox, case: str) -> None:
    subject = SUBJECTS[case]
    box.patch("p", "README.md", "upstream\n", "x\n", subject)
    box.ok("patch", "unapply")
    box.ok("patch", "apply")
    assert box.git("log", "-1", "--format=%s") == subject
    assert box.ok("patch", "list", "--json").json["patches"][0]["subject"] == subject


def test_a_from_line_in_the_message_comes_back(box: Sandbox) -> None:
    message = "p : subject\n\nFrom: x <x@y.z>\n\nFrom the top.\n>From below"
    box.patch("p", "README.md", "upstream\n", "x\n", message)
    box.ok("patch", "unapply")
    box.ok("patch", "apply")
    assert box.git("log", "-1", "--format=%an|%B").rstrip() == f"Ada|{message}"


def test_a_rule_in_the_message_is_refused_because_git_am_would_cut_there(box: Sandbox) -> None:
    box.replace("README.md", "upstream\n", "x\n")
    before = box.state()
    told = box.refused("patch", "new", "p", "-m", "p : subject\n\nbefore\n---\nafter")
    assert "'---'" in told and "git am" in told
    assert box.state() == before


def test_a_patch_in_latin_1_keeps_its_bytes(box: Sandbox) -> None:
    (box.tree / "latin.txt").write_bytes("Größe\n".encode("latin-1"))
    box.git("add", "latin.txt")
    box.ok("patch", "new", "latin", "-m", "latin : bytes")
    box.ok("patch", "unapply")
    box.ok("patch", "apply")
    assert (box.tree / "latin.txt").read_bytes() == "Größe\n".encode("latin-1")
    foreign = box.root / "l1.patch"
    data = (box.patches / "0001-latin.patch").read_bytes()
    foreign.write_bytes(data.replace(b"Subject: [PATCH] latin", "Subject: [PATCH] größe".encode("latin-1")))
    box.ok("patch", "drop", "1")
    box.ok("patch", "import", str(foreign))
    assert box.git("log", "-1", "--format=%s") == "größe : bytes"


def test_local_edits_are_refused_with_the_way_out(three: Sandbox) -> None:
    three.write("src/named.c", "mine\n")
    before = three.state()
    for command in (["unapply"], ["edit", "1"], ["drop", "1"], ["move", "1", "2"]):
        told = three.refused("patch", *command)
        assert "src/named.c" in told and "patch refresh" in told
    assert three.state() == before
    assert three.status()["state"] == "dirty"


@pytest.mark.parametrize("ignored", [False, True])
def test_untracked_files_in_the_way_are_not_overwritten(box: Sandbox, ignored: bool) -> None:
    name = "thing.o" if ignored else "thing.txt"
    box.write(name, "from the patch\n")
    box.git("add", "-f", name)
    box.ok("patch", "new", "adds", "-m", "adds : a file")
    box.ok("patch", "unapply")
    box.write(name, "mine, precious\n")
    before = box.state()
    assert f"{name} is in the way" in box.refused("patch", "apply")
    assert box.state() == before


def test_a_directory_in_the_way_is_not_overwritten(box: Sandbox) -> None:
    box.write("new/file.txt", "x\n")
    box.git("add", "new")
    box.ok("patch", "new", "adds", "-m", "adds : a directory")
    box.ok("patch", "unapply")
    box.write("new", "a file where the patch needs a directory\n")
    assert "is in the way" in box.refused("patch", "apply")
    (box.tree / "new").unlink()
    (box.tree / "elsewhere").mkdir()
    (box.tree / "new").symlink_to("elsewhere")
    assert "is in the way" in box.refused("patch", "apply")
    assert list((box.tree / "elsewhere").iterdir()) == []


def test_a_half_finished_git_operation_is_refused(three: Sandbox) -> None:
    (three.tree / ".git" / "MERGE_HEAD").write_text(three.git("rev-parse", "HEAD") + "\n")
    assert "a merge is half finished" in three.refused("patch", "unapply")
    (three.tree / ".git" / "MERGE_HEAD").unlink()
    (three.tree / ".git" / "rebase-apply").mkdir()
    assert "half finished" in three.refused("patch", "apply")


def test_another_git_at_work_is_refused_and_its_lock_stays(three: Sandbox) -> None:
    lock = three.tree / ".git" / "index.lock"
    lock.write_bytes(b"")
    before = three.state()
    assert "index.lock exists" in three.refused("patch", "unapply")
    assert lock.exists() and three.state() == before


def test_an_unknown_pin_and_a_pin_not_fetched(three: Sandbox) -> None:
    assert "one" in three.refused("patch", "apply", "--pin", "nope")
    three.git("tag", "-d", "pin/one")
    assert "vendor fetch one" in three.refused("patch", "apply")


def test_a_pin_whose_recorded_tree_differs(three: Sandbox) -> None:
    path = three.project.pins_file
    tree = three.git("rev-parse", "pin/one^{tree}")
    path.write_text(path.read_text().replace(tree, "1" * 40))
    before = three.state()
    assert "imported with tree" in three.refused("patch", "apply")
    assert three.state() == before


def test_no_project_here(tmp_path: Path, box: Sandbox) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    told = box.refused("patch", "status", cwd=empty, code=2)
    assert "no pyggml project" in told and "pyggml init" in told


def test_usage_errors_have_code_2(box: Sandbox) -> None:
    for args in (
        ["patch", "nonsense"],
        ["patch", "apply", "--to", "x"],
        ["--project", str(box.root / "src"), "undo"],
    ):
        assert box.pyggml(*args).code == 2
    assert "no position 9" in box.refused("patch", "apply", "--to", "9")


def test_a_lock_keeps_two_processes_apart(three: Sandbox) -> None:
    from pyggml.errors import PyggmlError

    with (
        three.project.lock("test"),
        pytest.raises(PyggmlError, match="another pyggml is working"),
        three.project.lock("second", patience=0.2),
    ):
        pass


def test_two_processes_at_once_both_end_well(three: Sandbox) -> None:
    import sys

    commands = [
        ["patch", "unapply"],
        ["patch", "apply"],
        ["patch", "unapply", "--to", "1"],
        ["patch", "apply"],
    ]
    running = [
        subprocess.Popen([sys.executable, "-m", "pyggml", *args], cwd=three.root, stderr=subprocess.PIPE)
        for args in commands
    ]
    for process in running:
        assert process.communicate(timeout=60)[1] == b""
        assert process.returncode == 0
    assert three.status()["state"] in ("clean", "partial", "applied")
    assert three.git("status", "--porcelain") == ""


HOSTILE_CONFIG = """
[user]
    name = Mallory
    email = mallory@example.org
    useConfigOnly = true
    signingKey = none
[commit]
    gpgSign = true
    template = /nonexistent
[core]
    hooksPath = {hooks}
    autocrlf = true
    quotePath = true
    editor = false
    pager = false
    whitespace = trailing-space,cr-at-eol
    fsmonitor = /nonexistent
    attributesFile = {attributes}
    excludesFile = {excludes}
[apply]
    whitespace = fix
    ignoreWhitespace = change
[diff]
    noprefix = true
    mnemonicPrefix = true
    context = 0
    external = /bin/false
    renames = copies
    algorithm = histogram
    orderFile = /nonexistent
[format]
    signOff = true
    attach = true
    numbered = true
    subjectPrefix = EVIL
    coverLetter = true
    thread = deep
    pretty = raw
    noprefix = true
    suffix = .evil
[i18n]
    commitEncoding = ISO-8859-1
    logOutputEncoding = ISO-8859-1
[merge]
    renames = false
    conflictStyle = diff3
[mailinfo]
    scissors = true
[alias]
    apply = !false
[gc]
    auto = 1
"""


def test_hostile_git_configuration_and_hooks_change_nothing(three: Sandbox, tmp_path: Path) -> None:
    """A series with trailing blanks and odd names, made and applied under a configuration that spoils both."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in (
        "post-checkout",
        "reference-transaction",
        "post-index-change",
        "pre-commit",
        "applypatch-msg",
    ):
        (hooks / hook).write_text("#!/bin/sh\ntouch " + str(tmp_path / "hook-ran") + "\nexit 1\n")
        (hooks / hook).chmod(0o755)
    (tmp_path / "attributes").write_text("* text eol=crlf diff=evil\n")
    (tmp_path / "excludes").write_text("*\n")
    config = tmp_path / "gitconfig"
    config.write_text(
        HOSTILE_CONFIG.format(hooks=hooks, attributes=tmp_path / "attributes", excludes=tmp_path / "excludes")
    )
    three.write("ä b.txt", "trailing \t \n\n\n")
    three.git("add", "ä b.txt")
    three.ok("patch", "new", "blanks", "-m", "blanks : keep them")
    expected = (three.files(), three.git("rev-parse", "HEAD"))
    env = {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_SYSTEM": str(config)}
    home = tmp_path / "evil home"
    home.mkdir()
    (home / ".gitconfig").write_bytes(config.read_bytes())
    env["HOME"] = str(home)
    three.ok("patch", "unapply", env=env)
    three.ok("patch", "apply", env=env)
    assert (three.files(), three.git("rev-parse", "HEAD")) == expected
    three.ok("patch", "edit", "1", env=env)
    three.ok("patch", "continue", env=env)
    three.ok("patch", "move", "4", "1", env=env)
    three.ok("patch", "move", "1", "4", env=env)
    assert three.git("rev-parse", "HEAD") == expected[1]
    assert {k: v for k, v in three.files().items() if k != "series.toml"} == {
        k: v for k, v in expected[0].items() if k != "series.toml"
    }
    three.ok("patch", "export", str(tmp_path / "out"), env=env)
    assert b"EVIL" not in b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())
    assert not (tmp_path / "hook-ran").exists()


def test_started_from_inside_a_git_hook(three: Sandbox, tmp_path: Path) -> None:
    other = tmp_path / "other repository"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    env = {
        "GIT_DIR": str(other / ".git"),
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": str(other / ".git/index"),
        "GIT_OBJECT_DIRECTORY": str(other / ".git/objects"),
        "GIT_PREFIX": "sub/",
        "GIT_CONFIG_PARAMETERS": "'core.bare=true'",
        "GIT_AUTHOR_DATE": "1 +0000",
    }
    head = three.git("rev-parse", "HEAD")
    three.ok("patch", "unapply", env=env)
    three.ok("patch", "apply", env=env)
    assert three.git("rev-parse", "HEAD") == head
    three.replace("README.md", "downstream\n", "from a hook\n")
    three.ok("patch", "refresh", env=env)
    three.ok("undo", env=env)
    assert three.git("rev-parse", "HEAD") == head
    assert sorted(p.name for p in other.iterdir()) == [".git"]
    assert not any((other / ".git/objects").rglob("??/*"))


def test_from_a_directory_of_another_repository(three: Sandbox, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(three.root)], check=True)
    below = three.root / "deep" / "down"
    below.mkdir(parents=True)
    three.ok("patch", "unapply", cwd=below)
    assert three.status()["state"] == "clean"
    other = tmp_path / "foreign"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    three.ok("--project", str(three.root), "patch", "apply", cwd=other)
    assert three.status()["state"] == "applied"


def test_spaces_and_non_ascii_letters_in_every_path(three: Sandbox, tmp_path: Path) -> None:
    place = tmp_path / "Äpfel und Birnen\n" / "プロジェクト"
    place.parent.mkdir()
    three.root.rename(place)
    from pyggml.project import Project

    moved = Sandbox(Project(place))
    moved.ok("patch", "unapply")
    moved.ok("patch", "apply")
    moved.replace("README.md", "downstream\n", "x\n")
    moved.ok("patch", "refresh")
    moved.ok("patch", "export", str(place / "für oben"))
    moved.ok("undo")
    assert moved.status()["state"] == "dirty"


@pytest.mark.skipif(
    os.geteuid() == 0 and not Path("/dev/full").exists(), reason="no /dev/full on this system"
)
def test_a_full_disk_leaves_everything_as_it_was(three: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write of a file fails once, one after the other; after each failure all is as before."""
    from pyggml.errors import PyggmlError
    from pyggml.series.editing.reorder import drop_patch
    from pyggml.series.worktree import transaction

    before = three.state()
    real = transaction.write_atomic
    count, failing = 0, 1

    def write(path: Path, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == failing:
            raise PyggmlError(f"cannot write {path}: No space left on device", "Nothing was changed there.")
        real(path, data)

    monkeypatch.setattr(transaction, "write_atomic", write)
    while True:
        count = 0
        try:
            drop_patch(three.project, "first")
        except PyggmlError as error:
            assert "No space left on device" in error.message
            assert three.state() == before
            assert three.status()["interrupted"] is None
            failing += 1
            continue
        break
    assert failing >= 4
    assert three.status()["state"] == "applied"


def test_a_work_tree_that_cannot_be_written_is_rolled_back(
    three: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyggml.errors import PyggmlError
    from pyggml.series.worktree import transaction
    from pyggml.series.worktree.apply import unapply_series

    before = three.state()
    real = transaction.write_paths
    calls = 0

    def write(index: object, changes: tuple) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            real(index, changes[:1])
            raise PyggmlError("git checkout-index: unable to write file: No space left on device")
        real(index, changes)

    monkeypatch.setattr(transaction, "write_paths", write)
    with pytest.raises(PyggmlError, match="No space left"):
        unapply_series(three.project)
    assert three.state() == before
    assert three.git("status", "--porcelain") == ""
    assert three.status()["interrupted"] is None


def test_a_git_that_is_missing_or_too_old(
    box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyggml.errors import PyggmlError
    from pyggml.git.runner import require_git

    tools = tmp_path / "bin"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(PyggmlError, match="git is not on PATH"):
        require_git()
    (tools / "git").write_text("#!/bin/sh\necho git version 2.34.1\n")
    (tools / "git").chmod(0o755)
    with pytest.raises(PyggmlError, match=r"git 2.34.1 is too old"):
        require_git()
