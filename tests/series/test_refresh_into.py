"""patch refresh -p NAME and patch refresh PATH: edits reach the patch that is named, and other edits stay."""

from __future__ import annotations

from series_helpers import Sandbox
from test_edit import texts


def content(box: Sandbox) -> dict[str, bytes]:
    return box.state()[0]


def test_edits_go_into_the_patch_that_is_named(three: Sandbox) -> None:
    three.replace("src/scale.c", "line three\n", "line drei\n")
    three.write("new.c", "new\n")
    three.git("add", "new.c")
    before, files = content(three), three.files()
    done = three.ok("patch", "refresh", "-p", "first")
    assert "3 of 3 patches applied" in done.out
    assert texts(three)["0001-first.patch"] == "+new\n-line 3\n+line drei\n"
    assert texts(three)["0002-second.patch"] == "-line 20\n+line twenty\n"
    assert three.files()["0003-third.patch"] == files["0003-third.patch"]
    assert content(three) == before and three.status()["state"] == "applied"
    assert three.ok("patch", "verify").code == 0
    three.ok("undo")
    assert three.files() == files and content(three) == before


def test_a_conflict_stops_and_goes_on(three: Sandbox) -> None:
    three.replace("src/scale.c", "line twenty\n", "line zwanzig\n")
    before, files = content(three), three.files()
    assert "patch first conflicts" in three.refused("patch", "refresh", "-p", "1", code=3)
    assert three.files() == files
    three.ok("patch", "abort")
    assert (content(three), three.files()) == (before, files)
    three.refused("patch", "refresh", "-p", "1", code=3)
    text = (three.tree / "src/scale.c").read_text()
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    three.write("src/scale.c", text[:start] + "line 2-0\n" + text[end:])
    assert "patch second conflicts" in three.refused("patch", "continue", code=3)
    text = (three.tree / "src/scale.c").read_text()
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    three.write("src/scale.c", text[:start] + "line zwanzig\n" + text[end:])
    three.ok("patch", "continue")
    assert texts(three)["0001-first.patch"] == "-line 3\n+line three\n-line 20\n+line 2-0\n"
    assert texts(three)["0002-second.patch"] == "-line 2-0\n+line zwanzig\n"
    assert content(three) == before and three.status()["state"] == "applied"


def test_edits_that_a_later_patch_would_take_back_are_refused(three: Sandbox) -> None:
    """Back to upstream's line: the patch below has that line already, and the patch above changes it again."""
    three.replace("src/scale.c", "line twenty\n", "line 20\n")
    before = three.state()
    assert "take the edits back" in three.refused("patch", "refresh", "-p", "1")
    assert three.state() == before


def test_only_the_edits_of_a_path(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "downstream\nmore\n")
    three.replace("src/scale.c", "line three\n", "line drei\n")
    three.replace("src/named.c", "twin_a(", "twin_z(")
    three.git("add", "src/named.c")
    three.write("untracked.c", "mine\n")
    before = content(three)
    three.ok("patch", "refresh", "README.md")
    assert texts(three)["0003-third.patch"] == "-upstream\n+downstream\n+more\n"
    assert content(three) == before
    assert three.git("status", "--porcelain").splitlines() == [
        "M  src/named.c",
        " M src/scale.c",
        "?? untracked.c",
    ]
    three.ok("patch", "refresh", "-p", "first", "scale.c", cwd=three.tree / "src")
    assert texts(three)["0001-first.patch"] == "-line 3\n+line drei\n"
    assert content(three) == before
    assert three.git("status", "--porcelain").splitlines() == ["M  src/named.c", "?? untracked.c"]
    three.ok("undo")
    three.ok("undo")
    assert texts(three)["0003-third.patch"] == "-upstream\n+downstream\n"
    assert content(three) == before
    assert " M README.md" in three.git("status", "--porcelain")


def test_a_path_whose_edits_conflict_leaves_the_others_alone(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "downstream\nmore\n")
    three.replace("src/scale.c", "line twenty\n", "line zwanzig\n")
    before = three.state()
    told = three.refused("patch", "refresh", "-p", "1", "src")
    assert "patch first would conflict in src/scale.c" in told and "stash" in told
    assert three.state() == before


def test_what_is_refused(three: Sandbox) -> None:
    assert "nothing is edited" in three.refused("patch", "refresh", "-p", "1")
    three.replace("README.md", "downstream\n", "downstream\nmore\n")
    before = three.state()
    assert "nothing is edited in src" in three.refused("patch", "refresh", "src")
    assert "no patch" in three.refused("patch", "refresh", "-p", "ninth")
    assert "neither" in three.refused("patch", "refresh", "-p", "1", "--from-files", code=2)
    assert three.state() == before
    three.git("commit", "-qam", "own : a commit")
    assert "commits of yours" in three.refused("patch", "refresh", "-p", "1")
    three.git("reset", "-q", "--hard", "HEAD~1")
    three.ok("patch", "unapply", "--to", "1")
    three.replace("README.md", "upstream\n", "edited\n")
    assert "third is not applied" in three.refused("patch", "refresh", "-p", "third")
