"""What lies outside the series: the machine, the user's name, other line ends, a configured repository, other files."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rebase_helpers import LINES, make_two_pins
from series_helpers import Sandbox

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import parse_diff
from pyggml.series.patchfile.placement import place

ADDS = "Adds a line.\n--- a/README.md\n+++ b/README.md\n@@ -1 +1,2 @@\n upstream\n+more\n"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_what_the_system_refuses_is_no_bug(
    three: Sandbox, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A full disk or a directory without write access, where the index is copied."""

    def copy(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(target))

    before = three.state()
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copy2", copy)
        told = three.refused("patch", "refresh")
    assert os.strerror(code) in told and "index" in told and "bug" not in told
    assert len(told.splitlines()) == 2
    assert three.state() == before


def test_a_working_directory_that_is_gone(three: Sandbox, tmp_path: Path) -> None:
    script = "import os, sys; os.rmdir(os.getcwd()); from pyggml.cli.main import main; main()"
    for more, code in (([], 2), (["--project", str(three.root)], 0)):
        gone = tmp_path / "gone"
        gone.mkdir()
        command = [sys.executable, "-c", script, *more, "patch", "list"]
        done = subprocess.run(command, cwd=gone, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert code == 0 or done.stderr.startswith("pyggml: the working directory does not exist any more")


def test_a_terminal_of_another_encoding(box: Sandbox) -> None:
    box.patch("p", "README.md", "upstream\n", "x\n", "größe : 修正")
    for encoding in ("ascii", "latin-1", "utf-8"):
        done = box.start_pyggml("patch", "list", env={"PYTHONIOENCODING": encoding})
        assert done.code == 0 and done.err == ""
        done = box.start_pyggml("patch", "list", "--json", env={"PYTHONIOENCODING": encoding})
        assert done.json["patches"][0]["subject"] == "größe : 修正"


def test_a_file_name_that_is_no_text(box: Sandbox) -> None:
    with open(os.fsencode(box.tree) + b"/\xff.txt", "w"):  # noqa: PTH123
        pass
    done = box.start_pyggml("patch", "status", env={"PYTHONIOENCODING": "utf-8"})
    assert done.code == 0 and "\\udcff.txt" in done.out


def test_a_plan_that_is_not_utf_8(three: Sandbox, tmp_path: Path) -> None:
    from pyggml.cli.rebase import _editor

    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf "pick gr\\366sse\\n" > "$1"\n')
    editor.chmod(0o755)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("EDITOR", str(editor))
        monkeypatch.setenv("VISUAL", str(editor))
        with pytest.raises(PyggmlError, match="not UTF-8: byte 0xf6 at 7"):
            _editor("pick a\n")


def test_the_author_of_the_environment(box: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    nobody = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    named = {
        "GIT_AUTHOR_NAME": "Grace",
        "GIT_AUTHOR_EMAIL": "g@example.org",
        "GIT_AUTHOR_DATE": "1700000000 +0100",
    }
    box.replace("README.md", "upstream\n", "x\n")
    box.ok("patch", "new", "p", "-m", "p : x", env={**nobody, **named})
    assert (
        box.git("log", "-1", "--format=%an <%ae> %ad", "--date=raw")
        == "Grace <g@example.org> 1700000000 +0100"
    )


WRONG_ENDS = {
    "CRLF file": (b"one\r\ntwo\r\n", b"one\ntwo\n", "of the file end in CRLF and those of the patch in LF"),
    "CRLF patch": (b"one\ntwo\n", b"one\r\ntwo\r\n", "of the file end in LF and those of the patch in CRLF"),
    "no newline in the file": (b"one\ntwo", b"one\ntwo\n", "the file has no newline at its end"),
    "no newline in the patch": (b"one\ntwo\n", b"one\ntwo", "the file ends with a newline"),
}


@pytest.mark.parametrize("case", WRONG_ENDS)
def test_lines_that_differ_in_their_ends_only(case: str) -> None:
    here, wanted, expected = WRONG_ENDS[case]
    lines = b"".join(b"-" + line for line in wanted.splitlines(keepends=True))
    if not wanted.endswith(b"\n"):
        lines += b"\n\\ No newline at end of file\n"
    (diff,) = parse_diff(b"--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n" + lines + b"+x\n")
    with pytest.raises(PyggmlError, match=expected):
        place(diff, here)


@pytest.mark.parametrize(("old", "new"), [("\n", "\r\n"), ("\r\n", "\n")], ids=["to CRLF", "to LF"])
def test_a_conflict_because_upstream_changed_the_line_ends(tmp_path: Path, old: str, new: str) -> None:
    texts = ["".join(LINES).replace("\n", ends) for ends in (old, new)]
    pins = make_two_pins(tmp_path, {"a.c": texts[0]}, {"a.c": texts[1]})
    path = pins.tree / "a.c"
    path.write_bytes(path.read_bytes().replace(b"line 5" + old.encode(), b"line five" + old.encode()))
    pins.ok("patch", "new", "five", "-m", "five : change")
    told = pins.pyggml("patch", "rebase", "--onto", "two").err
    assert (
        f"upstream changed the line ends of a.c from {'LF to CRLF' if old == chr(10) else 'CRLF to LF'}"
        in told
    )


def test_an_export_of_crlf_lines_says_how_to_apply_it(box: Sandbox, tmp_path: Path) -> None:
    (box.tree / "dos.txt").write_bytes(b"one\r\ntwo\r\n")
    box.git("add", "dos.txt")
    box.ok("patch", "new", "dos", "-m", "dos : add")
    assert "git am --keep-cr" in box.ok("patch", "export", str(tmp_path / "out")).out
    assert b"git am --keep-cr" in (tmp_path / "out/0000-cover-letter.patch").read_bytes()
    fresh = tmp_path / "fresh"
    subprocess.run(["git", "clone", "-q", "-b", "pin/one", str(box.tree), str(fresh)], check=True)
    subprocess.run(
        ["git", "am", "-q", "--keep-cr", str(tmp_path / "out/0001-dos.patch")], cwd=fresh, check=True
    )
    assert (fresh / "dos.txt").read_bytes() == b"one\r\ntwo\r\n"


def test_an_export_without_them_says_nothing(three: Sandbox, tmp_path: Path) -> None:
    assert "keep-cr" not in three.ok("patch", "export", str(tmp_path / "out")).out
    assert b"keep-cr" not in (tmp_path / "out/0000-cover-letter.patch").read_bytes()


@pytest.mark.parametrize("command", [("drop", "1"), ("move", "2", "1"), ("edit", "1")])
def test_conflicts_are_shown_by_git_with_names(box: Sandbox, command: tuple[str, ...]) -> None:
    box.patch("first", "src/scale.c", "line 3\n", "line three\n")
    box.patch("second", "src/scale.c", "line three\n", "line drei\n")
    before = box.state()
    if command[0] == "edit":
        box.ok("patch", "edit", "1")
        box.replace("src/scale.c", "line three\n", "line trois\n")
        told = box.refused("patch", "continue", code=3)
    else:
        told = box.refused("patch", *command, code=3)
    assert "conflicts in src/scale.c" in told
    text = (box.tree / "src/scale.c").read_text()
    assert "<<<<<<< the series so far\n" in text and ">>>>>>> patch second\n" in text
    assert "||||||| before the change\n" in text
    assert ">>>>>>> patch second" in box.git("diff")
    assert box.git("status", "--porcelain") == "UU src/scale.c"
    if command[0] != "edit":
        box.ok("patch", "abort")
        assert box.state() == before and box.git("status", "--porcelain") == ""
        return
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    box.write("src/scale.c", text[:start] + "line vier\n" + text[end:])
    box.ok("patch", "continue")
    assert box.status()["state"] == "applied" and box.git("status", "--porcelain") == ""


LOCAL = {
    "core.bigFileThreshold": "1",
    "diff.orderFile": "order",
    "diff.relative": "true",
    "diff.renameLimit": "1",
    "diff.noprefix": "true",
    "diff.context": "9",
    "format.headers": "X-Evil: 1",
}


def test_the_configuration_of_the_vendored_repository_does_not_reach_the_files(
    three: Sandbox, tmp_path: Path
) -> None:
    three.write("z.txt", "new\n")
    three.replace("run.sh", "exit 0\n", "exit 1\n")
    three.git("add", "z.txt")
    three.ok("patch", "new", "both", "-m", "both : two files")
    expected = three.files()
    (three.tree / ".git/order").write_text("z.txt\nrun.sh\n")
    for key, value in LOCAL.items():
        value = str(three.tree / ".git/order") if value == "order" else value
        three.git("config", "--local", key, value)
    three.ok("patch", "move", "4", "1")
    three.ok("patch", "move", "1", "4")
    assert {k: v for k, v in three.files().items() if k != "series.toml"} == {
        k: v for k, v in expected.items() if k != "series.toml"
    }
    assert b"GIT binary" not in b"".join(three.files().values())
    three.ok("patch", "export", str(tmp_path / "out"))
    assert b"X-Evil" not in b"".join(p.read_bytes() for p in (tmp_path / "out").iterdir())


def test_the_same_patch_twice(box: Sandbox, tmp_path: Path) -> None:
    """A line added at the end of a file would be there twice."""
    quilt = tmp_path / "quilt"
    quilt.mkdir()
    (quilt / "series").write_text("adds.patch\n")
    (quilt / "adds.patch").write_text(ADDS)
    box.ok("patch", "import", str(quilt))
    before = box.state()
    told = box.refused("patch", "import", str(quilt))
    assert "it is in the series already, as adds" in told and "pyggml patch drop adds" in told
    assert box.state() == before
    # The same lines with another message are another patch.
    (quilt / "adds.patch").write_text(
        "Once more.\n" + ADDS.replace("@@ -1 +1,2 @@\n upstream", "@@ -2 +2,2 @@\n more")
    )
    box.ok("patch", "import", str(quilt))
    assert (box.tree / "README.md").read_text() == "upstream\nmore\nmore\n"


def test_an_import_that_changes_nothing_says_leave_it_out(box: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "nothing.diff"
    file.write_text("--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-upstream\n+upstream\n")
    told = box.refused("patch", "import", str(file))
    assert "changes nothing" in told and "Leave it out" in told and "drop" not in told


def test_files_that_are_not_tracked_are_mentioned(three: Sandbox) -> None:
    three.write("src/forgotten.c", "int x;\n")
    three.write("ignored.o", "")
    three.replace("README.md", "downstream\n", "x\n")
    done = three.ok("patch", "refresh")
    assert "src/forgotten.c" in done.err and "add" in done.err and "ignored.o" not in done.err
    three.replace("README.md", "x\n", "y\n")
    assert "src/forgotten.c" in three.ok("patch", "new", "p", "-m", "p : y").err
    three.git("add", "src/forgotten.c")
    assert three.ok("patch", "refresh").err == ""
