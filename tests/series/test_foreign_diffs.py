"""Diffs of other tools: prefixes are found out or asked about, and new and deleted files need no git header."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from series_helpers import Sandbox

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import header_names, parse_diff
from pyggml.series.patchfile.foreign import read_foreign
from pyggml.series.patchfile.placement import place_all
from pyggml.series.patchfile.prefixes import find_strip

FILES = {"src/scale.c", "src/named.c", "README.md", "a/deep/x.c", "deep/x.c"}


def kind(path: str) -> str | None:
    if path in FILES:
        return "blob"
    return "tree" if any(file.startswith(f"{path}/") for file in FILES) else None


def git_diff(old: str, new: str, *lines: str, body: str = "") -> str:
    return f"diff --git {old} {new}\n" + "".join(f"{line}\n" for line in lines) + body


NEW, SAME = "new file mode 100644", "similarity index 100%"
CHANGE = "@@ -2,3 +2,3 @@\n line 2\n-line 3\n+line three\n line 4\n"
MAKE = "@@ -0,0 +1 @@\n+int one;\n"
KILL = "@@ -1 +0,0 @@\n-int one;\n"


def moved(how: str, old: str, new: str) -> tuple[str, ...]:
    return SAME, f"{how} from {old}", f"{how} to {new}"


def sides(old: str, new: str, hunks: str) -> str:
    return f"--- {old}\n+++ {new}\n{hunks}"


STRIPS = {
    "git": (git_diff("a/src/n.c", "b/src/n.c", NEW, body=sides("/dev/null", "b/src/n.c", MAKE)), 1),
    "git, no prefix, new": (
        git_diff("src/n.c", "src/n.c", NEW, body=sides("/dev/null", "src/n.c", MAKE)), 0),
    "git, no prefix, new directory": (
        git_diff("lib/n.c", "lib/n.c", NEW, body=sides("/dev/null", "lib/n.c", MAKE)), 0),
    "git, no prefix, deleted": (
        git_diff("src/x.c", "src/x.c", "deleted file mode 100644", body=sides("src/x.c", "/dev/null", KILL)), 0),
    "git, no prefix, changed": (
        git_diff("src/scale.c", "src/scale.c", body=sides("src/scale.c", "src/scale.c", CHANGE)), 0),
    "git, no prefix, at the top": (git_diff("n.c", "n.c", NEW, body=sides("/dev/null", "n.c", MAKE)), 0),
    "git, no prefix, renamed": (
        git_diff("src/scale.c", "src/s.c", *moved("rename", "src/scale.c", "src/s.c")), 0),
    "git, no prefix, renamed from a/ to b/": (
        git_diff("a/deep/x.c", "b/deep/x.c", *moved("rename", "a/deep/x.c", "b/deep/x.c")), 0),
    "git, no prefix, copied": (
        git_diff("src/scale.c", "src/s.c", *moved("copy", "src/scale.c", "src/s.c")), 0),
    "git, no prefix, only a mode": (git_diff("src/scale.c", "src/scale.c", "old mode 100644", "new mode 100755"), 0),
    "git, no prefix, empty and new": (git_diff("src/n.c", "src/n.c", NEW), 0),
    "git, no prefix, blanks": (git_diff("src/a b.c", "src/a b.c", NEW), 0),
    "git, blanks": (git_diff("a/src/a b.c", "b/src/a b.c", NEW), 1),
    "git, quoted": (git_diff('"a/src/\\303\\244.c"', '"b/src/\\303\\244.c"', NEW), 1),
    "git, no prefix, quoted": (git_diff('"src/\\303\\244.c"', '"src/\\303\\244.c"', NEW), 0),
    "git, renamed": (
        git_diff("a/src/scale.c", "b/src/s.c", *moved("rename", "src/scale.c", "src/s.c")), 1),
    "git, renamed with blanks": (
        git_diff("a/src/a b.c", "b/src/c d.c", *moved("rename", "src/a b.c", "src/c d.c")), 1),
    "git, two components, renamed": (
        git_diff("x/a/src/scale.c", "x/b/src/s.c", *moved("rename", "src/scale.c", "src/s.c")), 2),
    "mnemonic": (git_diff("i/src/n.c", "w/src/n.c", NEW, body=sides("/dev/null", "w/src/n.c", MAKE)), 1),
    "mnemonic, commit": (
        git_diff("c/src/scale.c", "i/src/scale.c", body=sides("c/src/scale.c", "i/src/scale.c", CHANGE)), 1),
    "prefixes of one's own": (git_diff("upstream/src/n.c", "ours/src/n.c", NEW), 1),
    "plain": (sides("a/src/scale.c", "b/src/scale.c", CHANGE), 1),
    "plain, other names": (sides("up-1.0.orig/src/scale.c", "up-1.0/src/scale.c", CHANGE), 1),
    "plain, no prefix": (sides("src/scale.c", "src/scale.c", CHANGE), 0),
    "plain, no prefix, at the top": (sides("README.md", "README.md", CHANGE), 0),
    "plain, one new and one with no prefix": (
        sides("/dev/null", "src/n.c", MAKE) + sides("src/scale.c", "src/scale.c", CHANGE), 0),
    "plain, new": (sides("/dev/null", "b/src/n.c", MAKE), 1),
    "plain, new directory": (sides("/dev/null", "b/lib/n.c", MAKE), 1),
    "svn": (sides("src/scale.c\t(revision 1)", "src/scale.c\t(working copy)", CHANGE), 0),
    "plain, file.orig": (sides("src/scale.c.orig", "src/scale.c", CHANGE), 0),
}  # fmt: skip


@pytest.mark.parametrize("case", STRIPS)
def test_prefixes_are_found_out(case: str) -> None:
    diff, strip = STRIPS[case]
    assert find_strip(diff.encode(), kind) == strip
    assert parse_diff(diff.encode(), strip)


UNCERTAIN = {
    "a new file": sides("/dev/null", "src/n.c", MAKE),
    "a new file in a new directory": sides("/dev/null", "lib/src/n.c", MAKE),
    "a new file dated to the epoch": sides(
        "src/n.c\t1970-01-01 00:00:00 +0000", "src/n.c\t2026-01-01 00:00:00 +0000", MAKE
    ),
    "a new file of svn": sides("src/n.c\t(revision 0)", "src/n.c\t(revision 0)", MAKE),
    "a file that is there twice": sides("a/deep/x.c", "a/deep/x.c", CHANGE),
    "a/ is a directory": sides("/dev/null", "a/deep/n.c", MAKE),
}


@pytest.mark.parametrize("case", UNCERTAIN)
def test_prefixes_that_cannot_be_found_out_are_asked_about(case: str) -> None:
    with pytest.raises(PyggmlError, match="with a prefix and without one") as refused:
        find_strip(UNCERTAIN[case].encode(), kind)
    assert "-p 1" in (refused.value.hint or "") and "-p 0" in (refused.value.hint or "")
    assert find_strip(UNCERTAIN[case].encode(), kind, 1) == 1


def test_a_patch_of_both_kinds_is_refused() -> None:
    both = STRIPS["git"][0] + STRIPS["git, no prefix, changed"][0]
    with pytest.raises(PyggmlError, match="some of its paths have a prefix"):
        find_strip(both.encode(), kind)


def test_what_git_writes_with_every_prefix_comes_back(box: Sandbox, tmp_path: Path) -> None:
    """New, changed, deleted, renamed, executable, with blanks: with each option, the same tree."""
    box.write("src/new file.c", "int one;\n")
    box.write("lib/ä.c", "int two;\n")
    box.replace("src/scale.c", "line 3\n", "line three\n")
    box.git("add", "-A")
    box.git("mv", "src/named.c", "src/renamed.c")
    box.git("rm", "-q", "README.md")
    (box.tree / "src/scale.c").chmod(0o755)
    box.git("commit", "-qam", "all kinds")
    tree = box.git("rev-parse", "HEAD^{tree}")
    options = ["--no-prefix"], ["--src-prefix=x/", "--dst-prefix=y/"], ["--no-renames", "--no-prefix"]
    for number, option in enumerate(([], *options)):
        (tmp_path / f"{number}.patch").write_text(box.git("format-patch", "--stdout", *option, "-1") + "\n")
    box.git("reset", "-q", "--hard", "HEAD~")
    for number in range(4):
        box.ok("patch", "import", str(tmp_path / f"{number}.patch"))
        assert box.git("rev-parse", "HEAD^{tree}") == tree
        box.ok("undo")


def test_the_user_has_the_last_word(box: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "new.diff"
    file.write_text(UNCERTAIN["a new file"])
    told = box.refused("patch", "import", str(file))
    assert "-p 0" in told and "src/n.c" in told
    box.ok("patch", "import", "-p", "0", str(file))
    assert (box.tree / "src/n.c").read_text() == "int one;\n"
    box.ok("undo")
    box.ok("patch", "import", "-p", "1", str(file))
    assert (box.tree / "n.c").read_text() == "int one;\n"


def test_a_mixed_series(box: Sandbox, tmp_path: Path) -> None:
    """Each patch has a prefix of its own, and the second changes what the first makes."""
    bare = git_diff("src/n.c", "src/n.c", NEW, body=sides("/dev/null", "src/n.c", MAKE))
    more = sides("old/src/n.c", "new/src/n.c", "@@ -1 +1 @@\n-int one;\n+int two;\n")
    last = sides("src/n.c", "src/n.c", "@@ -1 +1 @@\n-int two;\n+int three;\n")
    for name, text in (("1.diff", bare), ("2.diff", more), ("3.diff", last)):
        (tmp_path / name).write_text(text)
    box.ok("patch", "import", *(str(tmp_path / f"{n}.diff") for n in (1, 2, 3)))
    assert (box.tree / "src/n.c").read_text() == "int three;\n"


EPOCHS = [
    "1970-01-01 01:00:00.000000000 +0100",
    "1970-01-01 00:00:00.000000000 +0000",
    "1969-12-31 16:00:00.000000000 -0800",
    "1970-01-01 05:30:00 +0530",
    "Thu Jan  1 01:00:00 1970",
    "Wed Dec 31 16:00:00 1969",
]
NOW = "2026-11-02 10:00:00.000000000 +0100"
HEADINGS = [
    "",
    "diff -Nur old/{0} new/{0}\n",
    "Index: new/{0}\n=====\n",
    "Only in new: other.o\ndiff -Nur old/{0} new/{0}\n",
]


@pytest.mark.parametrize("heading", HEADINGS, ids=["bare", "diff", "Index", "Only in"])
@pytest.mark.parametrize("epoch", EPOCHS)
def test_plain_diffs_with_new_and_deleted_files(epoch: str, heading: str) -> None:
    made = heading.format("src/n.c") + sides(f"old/src/n.c\t{epoch}", f"new/src/n.c\t{NOW}", MAKE)
    killed = heading.format("src/x.c") + sides(f"old/src/x.c\t{NOW}", f"new/src/x.c\t{epoch}", KILL)
    changed = heading.format("src/scale.c") + sides(
        f"old/src/scale.c\t{NOW}", f"new/src/scale.c\t{NOW}", CHANGE
    )
    data = (made + killed + changed).encode()
    assert [(f.old, f.new) for f in parse_diff(data, find_strip(data, kind))] == [
        (None, b"src/n.c"),
        (b"src/x.c", None),
        (b"src/scale.c", b"src/scale.c"),
    ]


def test_plain_diffs_give_what_git_apply_gives(box: Sandbox, tmp_path: Path) -> None:
    """What `diff -Nur` itself writes, in several time zones."""
    for zone in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "XXX+11:30"):
        old, new = tmp_path / zone[:3] / "old", tmp_path / zone[:3] / "new"
        for root in (old, new):
            (root / "src").mkdir(parents=True)
            (root / "src/scale.c").write_text((box.tree / "src/scale.c").read_text())
            (root / "README.md").write_text("upstream\n")
        (new / "README.md").unlink()
        (new / "src/n.c").write_text("int n;\n")
        (new / "src/scale.c").write_text((old / "src/scale.c").read_text().replace("line 9\n", "line nine\n"))
        done = subprocess.run(
            ["diff", "-Nur", "old", "new"],
            cwd=old.parent,
            env={**os.environ, "TZ": zone},
            capture_output=True,
        )
        (old.parent / "x.diff").write_bytes(done.stdout)
        box.ok("patch", "import", str(old.parent / "x.diff"))
        assert not (box.tree / "README.md").exists()
        assert (box.tree / "src/n.c").read_text() == "int n;\n"
        assert "line nine\n" in (box.tree / "src/scale.c").read_text()
        box.ok("patch", "verify")
        box.ok("undo")


PLACED = {
    "no date at all": sides("a/src/n.c", "b/src/n.c", MAKE),
    "svn": sides("src/n.c\t(nonexistent)", "src/n.c\t(working copy)", MAKE),
    "a date behind a blank": sides("a/src/n.c 2026-01-01 10:00:00", "b/src/n.c 2026-01-01 10:00:01", MAKE),
}


@pytest.mark.parametrize("case", PLACED)
def test_a_plain_diff_of_a_file_that_is_not_there_makes_it(case: str) -> None:
    diffs = parse_diff(PLACED[case].encode(), 0 if case == "svn" else 1)
    exact, _ = place_all(diffs, lambda path: None)
    assert exact == b"--- /dev/null\n+++ b/src/n.c\n" + MAKE.replace("+1 @@", "+1,1 @@").encode()


def test_a_new_file_that_is_there_already_is_refused(box: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "x.diff"
    file.write_text(sides(f"old/README.md\t{EPOCHS[0]}", f"new/README.md\t{NOW}", MAKE))
    assert "already exists" in box.refused("patch", "import", str(file))


def test_what_git_applies_is_what_was_checked() -> None:
    """A header with two sets of names, and words between: only the names that were checked reach git."""
    data = (
        git_diff(
            "a/src/scale.c",
            "b/src/scale.c",
            "rename nothing",
            body=sides("a/src/scale.c", "b/src/scale.c", CHANGE),
        )
        + "--- a/../outside\n+++ b/../outside\nwords\n"
    ).encode()
    (diff,) = parse_diff(data)
    assert (
        b"".join(diff.exact_lines())
        == git_diff(
            "a/src/scale.c", "b/src/scale.c", body=sides("a/src/scale.c", "b/src/scale.c", CHANGE)
        ).encode()
    )


def test_names_with_blanks_and_letters_of_other_scripts() -> None:
    data = sides('"a/s rc/\\303\\244.c"', '"b/s rc/\\303\\244.c"', CHANGE).encode()
    (diff,) = parse_diff(data)
    assert diff.new == "s rc/ä.c".encode()
    assert b"".join(diff.exact_lines()) == data
    assert header_names(data)[0].new == b"b/s rc/" + "ä.c".encode()


ODD_NAMES = [
    "src/sp ace.c",
    "src/tab\tname.c",
    'src/quo"te.c',
    "src/ä ö.c",
    "src/back\\slash.c",
    "trail ",
    " lead",
]


def test_odd_names_in_diffs_of_git_and_of_gnu_diff(box: Sandbox, tmp_path: Path) -> None:
    roots = tmp_path / "old", tmp_path / "new"
    for root, text in zip(roots, ("one\n", "two\n"), strict=True):
        for name in ODD_NAMES:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(f"int {text}")
    base = box.git("rev-parse", "HEAD")
    made = []
    for root in roots:
        shutil.copytree(root, box.tree, dirs_exist_ok=True)
        box.git("add", "-A")
        box.git("commit", "-qm", root.name)
        made.append(box.git("rev-parse", "HEAD^{tree}"))
    diffs = box.git("diff", base, "HEAD~"), box.git("diff", "HEAD~", "HEAD")
    plain = subprocess.run(["diff", "-ur", "old", "new"], cwd=tmp_path, capture_output=True, text=True).stdout
    box.git("reset", "-q", "--hard", base)
    for name, text in (("1", diffs[0]), ("2", diffs[1]), ("3", plain)):
        (tmp_path / f"{name}.diff").write_text(text.removesuffix("\n") + "\n")
    for second in "23":
        box.ok("patch", "import", *(str(tmp_path / f"{n}.diff") for n in ("1", second)))
        assert [box.git("rev-parse", f"{commit}^{{tree}}") for commit in ("HEAD~", "HEAD")] == made
        box.ok("undo")


def edited_copy(box: Sandbox) -> None:
    """The copy comes first in the diff, then its source changes."""
    shutil.copy(box.tree / "src/odd.c", box.tree / "src/copy.c")
    box.replace("src/copy.c", "odd 9\n", "odd nine\n")
    box.replace("src/odd.c", "odd 9\n", "odd IX\n")


def edited_swap(box: Sandbox) -> None:
    """Each file is renamed onto the other and changed."""
    box.git("mv", "src/odd.c", "x")
    box.git("mv", "src/even.c", "src/odd.c")
    box.git("mv", "x", "src/even.c")
    box.replace("src/even.c", "odd 9\n", "odd nine\n")
    box.replace("src/odd.c", "even 8\n", "even eight\n")


def edited_chain(box: Sandbox) -> None:
    box.git("mv", "src/even.c", "src/a.c")
    box.git("mv", "src/odd.c", "src/even.c")
    box.replace("src/even.c", "odd 9\n", "odd nine\n")
    box.replace("src/a.c", "even 8\n", "even eight\n")


@pytest.mark.parametrize("option", ["--src-prefix=a/", "--no-prefix"])
@pytest.mark.parametrize("edit", [edited_copy, edited_swap, edited_chain])
def test_copies_and_renames_that_also_change(
    box: Sandbox, tmp_path: Path, edit: Callable[[Sandbox], None], option: str
) -> None:
    base = box.git("rev-parse", "HEAD")
    for name, first in (("odd", 1), ("even", 2)):
        box.write(f"src/{name}.c", "".join(f"{name} {n}\n" for n in range(first, 200, 2)))
    diffs = []
    for change in (lambda box: None, edit):
        change(box)
        box.git("add", "-A")
        box.git("commit", "-qm", "x")
        diffs.append(box.git("diff", "-B", "-M", "-C", "--find-copies-harder", option, "HEAD~", "HEAD"))
    assert diffs[1].count("rename to") + diffs[1].count("copy to") == (1 if edit is edited_copy else 2)
    tree = box.git("rev-parse", "HEAD^{tree}")
    box.git("reset", "-q", "--hard", base)
    for number, diff in enumerate(diffs):
        (tmp_path / f"{number}.diff").write_text(f"{diff}\n")
    box.ok("patch", "import", str(tmp_path / "0.diff"), str(tmp_path / "1.diff"))
    assert box.git("rev-parse", "HEAD^{tree}") == tree


NEW_N = git_diff("a/n.c", "b/n.c", NEW)
NEW_QUOTED = git_diff('"a/{0}.c"', '"b/{0}.c"', NEW, body=sides("/dev/null", '"b/{0}.c"', MAKE))
DELETED = git_diff("a/README.md", "b/README.md", "deleted file mode 100644")
REFUSED = {
    "a new file with old lines": (
        NEW_N + sides("/dev/null", "b/n.c", "@@ -1 +1,2 @@\n x\n+y\n"), "has old lines of it"),
    "a new file with two hunks": (NEW_N + sides("/dev/null", "b/n.c", MAKE + MAKE), "has old lines of it"),
    "a removed file with new lines": (
        DELETED + sides("a/README.md", "/dev/null", "@@ -1 +1 @@\n-upstream\n+x\n"), "leaves lines in it"),
    "an octal number over 255": (NEW_QUOTED.format("\\777"), "not quoted as git does it"),
    "an unknown escape": (NEW_QUOTED.format("\\q"), "not quoted as git does it"),
    "no newline at the end of the file": (
        sides("a/README.md", "b/README.md", "@@ -1 +1 @@\n-upstream\n+x"), "its last line has no newline"),
    "lines added without context": (
        sides("a/src/scale.c", "b/src/scale.c", "@@ -20,0 +21 @@\n+x\n"), "no line of context says where"),
    "the same, by git": (
        git_diff("a/src/scale.c", "b/src/scale.c", body=sides(
            "a/src/scale.c", "b/src/scale.c", "@@ -2000,0 +2001 @@\n+x\n")), "no line of context says where"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_git_refuses_is_refused(box: Sandbox, tmp_path: Path, case: str) -> None:
    diff, reason = REFUSED[case]
    (tmp_path / "x.diff").write_text(diff)
    before = box.state()
    assert reason in box.refused("patch", "import", str(tmp_path / "x.diff"))
    assert box.state() == before


@pytest.mark.parametrize("header", ["", "diff --git a/src/scale.c b/src/scale.c\n"])
def test_a_changed_line_without_context_is_found_by_itself(box: Sandbox, tmp_path: Path, header: str) -> None:
    text = header + sides("a/src/scale.c", "b/src/scale.c", "@@ -5 +5 @@\n-line 3\n+line three\n")
    (tmp_path / "x.diff").write_text(text)
    box.ok("patch", "import", str(tmp_path / "x.diff"))
    assert box.git("diff", "HEAD~", "HEAD", "-U0").splitlines()[-2:] == ["-line 3", "+line three"]


@pytest.mark.parametrize("old", ["./src/scale.c", "./src/scale.c.orig"])
def test_a_dot_is_a_prefix(old: str) -> None:
    assert find_strip(sides(old, "./src/scale.c", CHANGE).encode(), kind) == 1
    assert find_strip(sides("/dev/null", "./src/n.c", MAKE).encode(), kind) == 1


CONTEXT = (
    "*** a/src/scale.c\t2026-11-02\n--- b/src/scale.c\t2026-11-02\n***************\n*** 2,4 ****\n"
    "  line 2\n! line 3\n  line 4\n--- 2,4 ----\n  line 2\n! line three\n  line 4\n"
)
COMBINED = (
    "diff --cc src/scale.c\nindex 1111111,2222222..3333333\n--- a/src/scale.c\n+++ b/src/scale.c\n"
    "@@@ -2,3 -2,3 +2,3 @@@\n  line 2\n- line 3\n -line 33\n++line three\n  line 4\n"
)
UNIFIED = git_diff(
    "a/README.md", "b/README.md", body=sides("a/README.md", "b/README.md", "@@ -1 +1 @@\n-upstream\n+x\n")
)


@pytest.mark.parametrize("shape", ["{}", "{}" + UNIFIED, UNIFIED + "{}"], ids=["alone", "first", "last"])
@pytest.mark.parametrize(
    "headers", ["", "From: A <a@example.com>\nSubject: [PATCH] x\n\nWhy.\n---\n x | 2 +-\n\n"]
)
@pytest.mark.parametrize(
    ("diff", "kind"),
    [(CONTEXT, "context"), (COMBINED, "combined"), (COMBINED.replace("--cc", "--combined"), "combined")],
    ids=["context", "cc", "combined"],
)
def test_diffs_of_other_kinds_are_refused(
    tmp_path: Path, diff: str, kind: str, headers: str, shape: str
) -> None:
    """Beside a unified diff, too: git would leave them out without a word."""
    (tmp_path / "x.diff").write_text(headers + shape.format(diff))
    with pytest.raises(PyggmlError, match=kind):
        read_foreign((tmp_path / "x.diff",))


def test_a_file_with_such_lines_in_it_is_none_of_these(tmp_path: Path) -> None:
    text = "".join(f"+{line}\n" for line in (CONTEXT + COMBINED).splitlines())
    count = text.count("\n")
    (tmp_path / "x.diff").write_text(UNIFIED + sides("/dev/null", "b/n.c", f"@@ -0,0 +1,{count} @@\n{text}"))
    assert len(read_foreign((tmp_path / "x.diff",))) == 1
