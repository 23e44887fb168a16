"""Bad input of a rebase: refused with one or two lines, and nothing changed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rebase_helpers import LINES, NEW, OLD, RESOLVED, TwoPins, make_two_pins
from test_bad_input import HOSTILE_CONFIG

ONTO = ("patch", "rebase", "--onto", "two")
CONTINUE = ("patch", "rebase", "--continue")


def in_private(box: TwoPins, *args: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *args],
        cwd=box.private,
        check=True,
        capture_output=True,
    )


def test_pins_that_cannot_be_the_new_base(four: TwoPins) -> None:
    before = four.everything()
    assert "already" in four.refused("patch", "rebase", "--onto", "one")
    assert "there is no pin nope" in four.refused("patch", "rebase", "--onto", "nope")
    assert "there is no pin nope" in four.refused(*ONTO, "--from", "nope")
    assert "is older than two" in four.refused("patch", "rebase", "--from", "two", "--onto", "one")
    four.git("tag", "-d", "pin/two")
    assert "vendor fetch two" in four.refused(*ONTO)
    assert four.everything() == before


def test_usage(four: TwoPins) -> None:
    for args in ((), ("--continue", "--skip"), ("--onto", "two", "--abort"), ("--confirm", "--onto", "two")):
        four.refused("patch", "rebase", *args, code=2)


def test_an_empty_series(tmp_path: Path) -> None:
    box = make_two_pins(tmp_path, OLD, NEW)
    assert "is empty: nothing to rebase" in box.refused(*ONTO)


def test_a_dirty_tree_at_the_beginning_and_at_the_end(four: TwoPins) -> None:
    four.write("b.c", "mine\n")
    before = four.everything()
    assert "b.c edited" in four.refused(*ONTO)
    assert four.everything() == before
    four.git("checkout", "b.c")
    four.pyggml(*ONTO)
    four.write("b.c", "mine\n")
    four.resolve("a.c", RESOLVED)
    assert "b.c edited" in four.refused(*CONTINUE)
    assert not four.new.exists() and (four.tree / "b.c").read_text() == "mine\n"
    four.git("checkout", "b.c")
    four.ok(*CONTINUE)


def test_commits_that_are_in_no_patch_file(four: TwoPins) -> None:
    four.write("b.c", "mine\n")
    four.git("commit", "-qam", "mine")
    assert "commits of yours" in four.refused(*ONTO)


def test_a_rebase_or_an_edit_already_under_way(four: TwoPins) -> None:
    four.pyggml(*ONTO)
    four.resolve("a.c", "half done\n")
    assert "is under way" in four.refused(*ONTO)
    assert (four.private / "a.c").read_text() == "half done\n"
    four.ok("patch", "rebase", "--abort")
    four.ok("patch", "edit", "1")
    assert "`patch edit clean` is under way" in four.refused(*ONTO)


def leave_marks(box: TwoPins) -> None:
    pass


def leave_a_rule(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED.replace("line 6\n", "=======\nline 6\n"))


def delete_the_file(box: TwoPins) -> None:
    (box.private / "a.c").unlink()


def git_rm(box: TwoPins) -> None:
    in_private(box, "rm", "-qf", "a.c")


def commit_by_hand(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "commit", "-qam", "mine")


def amend_by_hand(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "commit", "-qa", "--amend", "-m", "mine")


def detach(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "add", "a.c")
    in_private(box, "checkout", "-q", "--detach")


def rename_the_file(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "add", "a.c")
    in_private(box, "mv", "a.c", "z.c")


def empty_the_worktree(box: TwoPins) -> None:
    in_private(box, "rm", "-rqf", ".")


def begin_a_bisect(box: TwoPins) -> None:
    in_private(box, "bisect", "start")


def begin_a_merge(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "update-ref", "MERGE_HEAD", "HEAD")


def begin_an_am(box: TwoPins) -> None:
    (box.private / ".git/rebase-apply").mkdir()


def switch_branch(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "add", "a.c")
    in_private(box, "checkout", "-q", "-b", "other")


def stash(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    in_private(box, "add", "a.c")
    in_private(box, "stash")


def reset_hard(box: TwoPins) -> None:
    in_private(box, "reset", "-q", "--hard")


def leave_a_file(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    box.resolve("a.c.orig", "?\n")


def leave_a_lock(box: TwoPins) -> None:
    (box.private / ".git/index.lock").write_bytes(b"")


def edit_the_old_series(box: TwoPins) -> None:
    box.resolve("a.c", RESOLVED)
    path = box.patches / "series.toml"
    path.write_text(path.read_text() + "# more\n")


CASES: dict[Callable[[TwoPins], None], str] = {
    leave_marks: "a.c, line 7: a conflict mark is left",
    leave_a_rule: "a conflict mark is left",
    delete_the_file: "a.c is gone",
    git_rm: "a.c is gone",
    commit_by_hand: "HEAD was moved there",
    amend_by_hand: "HEAD was moved there",
    detach: "not on the branch `series`",
    rename_the_file: "a.c is gone",
    empty_the_worktree: "README.md is gone",
    begin_a_bisect: "a bisect is half finished",
    begin_a_merge: "a merge is half finished",
    begin_an_am: "half finished",
    switch_branch: "not on the branch `series`",
    stash: "stashed",
    reset_hard: "leaves nothing of patch conflicts",
    leave_a_file: "a.c.orig is not known to git",
    leave_a_lock: "another git is at work there",
    edit_the_old_series: "has changed since the rebase began",
}


@pytest.mark.parametrize("spoil", CASES, ids=lambda spoil: spoil.__name__)
def test_an_invalid_resolution_is_refused(four: TwoPins, spoil: Callable[[TwoPins], None]) -> None:
    four.pyggml(*ONTO)
    spoil(four)
    before = four.everything()
    told = four.refused(*CONTINUE)
    assert CASES[spoil] in told
    assert four.everything() == before
    assert "stopped at patch conflicts" in four.status()["rebase"]
    four.ok("patch", "rebase", "--abort")


def test_after_a_commit_by_hand_the_hint_helps(four: TwoPins) -> None:
    four.pyggml(*ONTO)
    commit_by_hand(four)
    told = four.refused(*CONTINUE)
    command = told.split("put HEAD back: ", 1)[1].split(";")[0]
    subprocess.run(command.split(), check=True, capture_output=True)
    four.ok(*CONTINUE)
    assert (four.tree / "a.c").read_text() == RESOLVED


def test_a_private_worktree_that_was_removed_is_made_anew(four: TwoPins) -> None:
    import shutil

    four.pyggml(*ONTO)
    shutil.rmtree(four.private)
    assert "is gone" in four.refused(*CONTINUE)
    assert four.pyggml(*CONTINUE).code == 3
    assert four.private.is_dir()


def test_a_private_worktree_without_its_git_is_not_thrown_away(four: TwoPins) -> None:
    import shutil

    four.pyggml(*ONTO)
    four.resolve("a.c", RESOLVED)
    shutil.rmtree(four.private / ".git")
    for _ in range(2):
        assert "its .git is gone" in four.refused(*CONTINUE)
        assert (four.private / "a.c").read_text() == RESOLVED
    four.private.rename(four.root / "saved")
    assert "is gone" in four.refused(*CONTINUE)
    assert four.pyggml(*CONTINUE).code == 3
    shutil.copy(four.root / "saved/a.c", four.private / "a.c")
    four.ok(*CONTINUE)
    assert (four.tree / "a.c").read_text() == RESOLVED


def test_a_damaged_state_file(four: TwoPins) -> None:
    four.pyggml(*ONTO)
    (four.root / ".pyggml/rebase/state.json").write_text('{"source": 1')
    assert "is damaged" in four.refused(*CONTINUE)
    assert "is damaged" in four.refused("patch", "apply")


def test_a_damaged_resolution(four: TwoPins) -> None:
    four.pyggml(*ONTO)
    four.resolve("a.c", RESOLVED)
    four.ok(*CONTINUE)
    path = four.new / "resolutions/conflicts.patch"
    good = path.read_bytes()
    again = ("patch", "rebase", "--from", "one", "--onto", "two")
    path.write_bytes(good[:-150])
    told = four.refused(*again, code=3)
    assert "its recorded resolution does not fit" in told and "hunk" in told
    path.write_bytes(good.replace(b"+line five of both", b"+line five of neither"))
    four.pyggml("patch", "rebase", "--abort")
    assert "its recorded resolution does not fit" in four.refused(*again, code=3)
    four.ok("patch", "rebase", "--abort")
    (four.new / "resolutions/rebase.toml").write_text("from = [")
    assert "not valid TOML" in four.refused(*again)


def test_a_file_that_upstream_renamed(tmp_path: Path) -> None:
    new = {("moved/b.c" if name == "b.c" else name): text for name, text in OLD.items()}
    box = make_two_pins(tmp_path, OLD, new)
    box.patch("one", "b.c", "line 7\n", "line seven\n")
    found = box.ok(*ONTO, "--json").json
    assert found["patches"][0]["verdict"] == "merged"
    assert found["patches"][0]["moves"][0]["after"]["path"] == "moved/b.c"
    assert "line seven\n" in (box.tree / "moved/b.c").read_text() and not (box.tree / "b.c").exists()


def test_a_file_that_upstream_deleted(tmp_path: Path) -> None:
    box = make_two_pins(tmp_path, OLD, {name: text for name, text in OLD.items() if name != "b.c"})
    box.replace("README.md", "upstream\n", "mine\n")
    box.patch("one", "b.c", "line 7\n", "line seven\n")
    done = box.pyggml(*ONTO, "--json")
    assert done.code == 3
    (file,) = done.json["dossier"]["files"]
    assert (file["path"], file["kind"]) == ("b.c", "deleted upstream")
    assert any("--remove b.c" in command for command in done.json["dossier"]["commands"])
    in_private(box, "rm", "-q", "b.c")
    assert "b.c is gone" in box.refused(*CONTINUE)
    box.ok(*CONTINUE, "--remove", "b.c")
    assert not (box.tree / "b.c").exists() and (box.tree / "README.md").read_text() == "mine\n"


def test_a_file_that_upstream_deleted_and_the_patch_keeps(tmp_path: Path) -> None:
    box = make_two_pins(tmp_path, OLD, {name: text for name, text in OLD.items() if name != "b.c"})
    box.patch("one", "b.c", "line 7\n", "line seven\n")
    assert box.pyggml(*ONTO).code == 3
    # Nothing was decided yet: without marks, only a word to git says that it is right.
    assert "b.c conflicts and is as the merge left it" in box.refused(*CONTINUE)
    in_private(box, "add", "b.c")
    box.ok(*CONTINUE)
    assert (box.tree / "b.c").read_text() == "".join(LINES).replace("line 7\n", "line seven\n")
    assert b"new file mode 100644" in box.new_files()["0001-one.patch"]
    first = box.new_files()
    assert box.ok("patch", "rebase", "--from", "one", "--onto", "two", "--json").json["written"] == []
    assert box.new_files() == first


def test_a_file_that_upstream_made_a_directory(tmp_path: Path) -> None:
    new = {**{name: text for name, text in OLD.items() if name != "b.c"}, "b.c/part.c": OLD["b.c"] + "more\n"}
    box = make_two_pins(tmp_path, OLD, {**new, "b.c/other.c": "other\n"})
    box.replace("README.md", "upstream\n", "mine\n")
    box.patch("one", "b.c", "line 7\n", "line seven\n")
    done = box.pyggml(*ONTO, "--json")
    if done.code == 3:
        box.ok("patch", "rebase", "--abort")
    else:
        assert "line seven\n" in (box.tree / "b.c/part.c").read_text()


def test_a_new_file_in_a_directory_that_upstream_moved(tmp_path: Path) -> None:
    old = {f"lib/{n}.c": f"file {n}\n" + "".join(LINES) for n in range(4)}
    new = {path.replace("lib/", "source/"): text for path, text in old.items()}
    box = make_two_pins(tmp_path, old, new)
    box.write("lib/mine.c", "mine\n")
    box.git("add", "lib/mine.c")
    box.ok("patch", "new", "mine", "-m", "mine : a file")
    found = box.ok(*ONTO, "--json").json["patches"][0]
    assert (box.tree / "lib/mine.c").read_text() == "mine\n"
    assert found["left_behind"] == [{"path": "lib/mine.c", "directory": "source"}]


def test_a_binary_file_that_both_changed(tmp_path: Path) -> None:
    """No marks show it, and git leaves upstream's version there: going on at once would lose the patch's."""
    box = make_two_pins(tmp_path, {"b.bin": "a\0b", "b.c": "1\n"}, {"b.bin": "a\0upstream", "b.c": "1\n"})
    box.write("b.bin", "a\0mine")
    box.replace("b.c", "1\n", "2\n")
    box.ok("patch", "new", "one", "-m", "one : both")
    assert box.pyggml(*ONTO).code == 3
    assert "b.bin conflicts and is as the merge left it" in box.refused(*CONTINUE)
    in_private(box, "checkout", "--theirs", "b.bin")
    in_private(box, "add", "b.bin")
    box.ok(*CONTINUE)
    assert (box.tree / "b.bin").read_text() == "a\0mine"
    first = box.new_files()
    assert box.ok("patch", "rebase", "--from", "one", "--onto", "two", "--json").json["written"] == []
    assert box.new_files() == first


def test_an_untracked_file_where_the_new_upstream_has_one(tmp_path: Path) -> None:
    box = make_two_pins(tmp_path, OLD, {**OLD, "extra.c": "upstream's\n"})
    box.patch("one", "b.c", "line 7\n", "line seven\n")
    box.write("extra.c", "mine\n")
    before = box.everything()
    assert "extra.c" in box.refused(*ONTO)
    assert box.everything() == before and not box.new.exists()
    (box.tree / "extra.c").unlink()
    again = ONTO if box.status()["rebase"] is None else CONTINUE
    box.ok(*again)
    assert (box.tree / "extra.c").read_text() == "upstream's\n"


def test_a_patch_that_became_a_no_op(tmp_path: Path) -> None:
    """The resolution of the first takes the second in; the second is empty then, and left out."""
    box = make_two_pins(tmp_path, OLD, NEW)
    box.patch("first", "a.c", "line 5\n", "line five mine\n")
    box.patch("second", "a.c", "line 30\n", "line thirty\n")
    box.pyggml(*ONTO)
    box.resolve("a.c", RESOLVED)
    found = box.ok(*CONTINUE, "--json").json
    assert [patch["verdict"] for patch in found["patches"]] == ["conflict", "empty"]
    assert "changes nothing" in found["patches"][1]["reason"]
    assert box.status()["total"] == 1


def test_hostile_git_configuration_changes_nothing(four: TwoPins, tmp_path: Path) -> None:
    four.pyggml(*ONTO)
    four.resolve("a.c", RESOLVED)
    four.ok(*CONTINUE)
    expected = four.everything()
    four.ok("undo")
    (tmp_path / "attributes").write_text("* text eol=crlf merge=union\n")
    (tmp_path / "excludes").write_text("*\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / hook).write_text(f"#!/bin/sh\ntouch {tmp_path / 'hook-ran'}\nexit 1\n")
        (hooks / hook).chmod(0o755)
    home = tmp_path / "evil home"
    home.mkdir()
    text = HOSTILE_CONFIG.format(
        hooks=hooks, attributes=tmp_path / "attributes", excludes=tmp_path / "excludes"
    )
    (home / ".gitconfig").write_text(text)
    env = {"HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / ".gitconfig"), "GIT_DIR": str(tmp_path)}
    assert four.pyggml(*ONTO, env=env).code == 3
    four.resolve("a.c", RESOLVED)
    four.ok(*CONTINUE, env=env)
    assert four.everything() == expected
    assert (
        four.ok("patch", "range-diff", "one", "two", env=env).out
        == four.ok("patch", "range-diff", "one", "two").out
    )
    assert not (tmp_path / "hook-ran").exists()


def two_at_once(box: TwoPins, command: Sequence[str]) -> list[tuple[str, int]]:
    """What each of two processes of the same command says on standard error, and its exit code."""
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "pyggml", *command],
            cwd=box.root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    return sorted((process.communicate(timeout=120)[1], process.returncode) for process in running)


def test_two_at_once(four: TwoPins) -> None:
    """One of them stops at the conflict; the other says that it is under way."""
    told = two_at_once(four, ONTO)
    assert [code for _, code in told] == [1, 3], told
    assert "under way" in told[0][0]
    assert "stopped at patch conflicts" in four.status()["rebase"]


def test_two_that_go_on_at_once(four: TwoPins) -> None:
    """One of them finishes it; the other waits for the lock and finds nothing under way, or takes no part."""
    four.pyggml(*ONTO)
    four.resolve("a.c", RESOLVED)
    told = two_at_once(four, CONTINUE)
    assert sorted(code for _, code in told) == [0, 1], told
    assert any("no rebase is under way" in text or "another pyggml" in text for text, _ in told), told
    assert (four.tree / "a.c").read_text() == RESOLVED
    assert four.ok("patch", "verify").code == 0


def test_paths_with_blanks_and_letters(tmp_path: Path) -> None:
    old = {"ä b\nc/f.c": "".join(LINES)}
    new = {"ä b\nc/f.c": "".join(LINES).replace("line 5\n", "line five\n")}
    box = make_two_pins(tmp_path / "Äpfel und\nBirnen", old, new)
    box.patch("one", "ä b\nc/f.c", "line 5\n", "line fünf\n", "one : ä\n\nWhy.")
    done = box.pyggml(*ONTO, "--json")
    assert [file["path"] for file in done.json["dossier"]["files"]] == ["ä b\nc/f.c"]
    box.resolve("ä b\nc/f.c", old["ä b\nc/f.c"].replace("line 5\n", "line 5 für alle\n"))
    box.ok(*CONTINUE)
    assert "line 5 für alle\n" in (box.tree / "ä b\nc/f.c").read_text()
