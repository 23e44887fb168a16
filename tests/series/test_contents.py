"""patch files, diff and patches: what a patch contains, and what a file or a line comes from."""

from __future__ import annotations

import pytest
from series_helpers import Sandbox


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_files_of_a_patch(three: Sandbox) -> None:
    three.git("mv", "run.sh", "start.sh")
    three.git("rm", "-q", "src/twins.c")
    three.write("src/new.c", "new\n")
    three.git("add", "src/new.c")
    three.replace("README.md", "downstream\n", "downstream\nmore\n")
    three.ok("patch", "new", "all-kinds", "-m", "all kinds")
    assert lines(three.ok("patch", "files", "4").out) == [
        ["modified", "README.md"],
        ["added", "src/new.c"],
        ["deleted", "src/twins.c"],
        ["renamed", "start.sh", "(was", "run.sh)"],
    ]
    assert three.ok("patch", "files").out == three.ok("patch", "files", "all-kinds").out
    three.ok("patch", "unapply", "--to", "2")
    assert lines(three.ok("patch", "files").out) == [["modified", "src/scale.c"]]
    assert three.ok("patch", "files", "third", "--json").json == {
        "number": 3,
        "name": "third",
        "files": [{"path": "README.md", "kind": "modified", "old_path": None}],
    }
    three.ok("patch", "unapply")
    assert "no patch is applied" in three.refused("patch", "files")
    assert "no patch 'ninth'" in three.refused("patch", "files", "ninth")


def test_diff_of_a_patch_is_the_diff_of_its_file(three: Sandbox) -> None:
    data = three.files()["0001-first.patch"].decode()
    told = three.ok("patch", "diff", "first").out
    assert told.startswith("diff --git a/src/scale.c") and told in data
    three.ok("patch", "unapply")
    assert three.ok("patch", "diff", "first").out == told


def test_diff_without_a_name_is_what_refresh_would_write(three: Sandbox) -> None:
    assert three.ok("patch", "diff").out == ""
    three.replace("src/scale.c", "line 30\n", "line dreissig\n")
    three.git("commit", "-qam", "own : a commit")
    three.replace("README.md", "downstream\n", "downstream\nmore\n")
    told = three.ok("patch", "diff").out
    assert told == three.git("diff", "--full-index", "HEAD~1") + "\n"
    assert "+line dreissig" in told and "+more" in told
    only = three.ok("patch", "diff", "--path", "src").out
    assert "+line dreissig" in only and "+more" not in only
    three.ok("patch", "refresh")
    assert three.ok("patch", "diff").out == ""


def test_patches_that_touch_a_file(three: Sandbox) -> None:
    three.git("mv", "src/scale.c", "src/balance.c")
    three.ok("patch", "new", "moved", "-m", "moved")
    three.ok("patch", "unapply", "--to", "2")
    assert lines(three.ok("patch", "patches", "src/balance.c").out) == [
        ["+", "1", "first", "modified"],
        ["+", "2", "second", "modified"],
        ["-", "4", "moved", "renamed"],
    ]
    assert [row[2] for row in lines(three.ok("patch", "patches", "src").out)] == ["first", "second", "moved"]
    assert "no patch touches run.sh" in three.ok("patch", "patches", "run.sh").out
    relative = three.ok("patch", "patches", "scale.c", "--json", cwd=three.tree / "src").json
    assert relative["path"] == "src/scale.c"
    assert [row["number"] for row in relative["patches"]] == [1, 2, 4]


@pytest.mark.parametrize(
    ("line", "origin", "name"),
    [(3, "patch", "first"), (20, "patch", "second"), (21, "upstream", None), (31, "commit", None)],
)
def test_where_a_line_comes_from(three: Sandbox, line: int, origin: str, name: str | None) -> None:
    three.replace("src/scale.c", "line 31\n", "line einunddreissig\n")
    three.git("commit", "-qam", "own : a commit")
    found = three.ok("patch", "patches", f"src/scale.c:{line}", "--json").json
    assert (found["origin"], found["patch"] and found["patch"]["name"]) == (origin, name)
    said = three.ok("patch", "patches", f"src/scale.c:{line}").out
    assert (name or {"upstream": "upstream's", "commit": "own : a commit"}[origin]) in said


def test_a_line_is_counted_in_the_work_tree(three: Sandbox) -> None:
    three.replace("src/scale.c", "line 1\n", "zero\nline 1\n")
    assert "edited in the work tree" in three.ok("patch", "patches", "src/scale.c:1").out
    assert "first" in three.ok("patch", "patches", "src/scale.c:4").out
    assert "has only 41 lines" in three.refused("patch", "patches", "src/scale.c:42")
    assert "src/none.c" in three.refused("patch", "patches", "src/none.c:1")


def test_reading_changes_nothing(three: Sandbox) -> None:
    three.replace("src/scale.c", "line 30\n", "line dreissig\n")
    before = three.state()
    for args in (("files", "1"), ("diff",), ("diff", "2"), ("patches", "src"), ("patches", "README.md:1")):
        three.ok("patch", *args)
    assert three.state() == before
