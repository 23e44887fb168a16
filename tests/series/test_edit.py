"""new, edit, continue, abort, refresh: edits reach the right patch, and nothing else changes."""

from __future__ import annotations

from series_helpers import Sandbox


def texts(box: Sandbox) -> dict[str, str]:
    """What each patch adds and removes: its own lines without context."""
    found = {}
    for name, data in box.files().items():
        if name.endswith(".patch"):
            lines = data.decode().split("\ndiff --git", 1)[1].splitlines()
            found[name] = "".join(f"{x}\n" for x in lines if x[:1] in "+-" and x[:3] not in ("+++", "---"))
    return found


def test_new_takes_the_edits_and_leaves_the_tree_clean(box: Sandbox) -> None:
    box.patch("first", "README.md", "upstream\n", "mine\n", "first : mine\n\nBody line.")
    assert texts(box) == {"0001-first.patch": "-upstream\n+mine\n"}
    assert box.git("log", "-1", "--format=%an|%B").rstrip() == "Ada|first : mine\n\nBody line."
    assert box.git("status", "--porcelain") == ""
    assert box.status()["state"] == "applied"


def test_new_without_edits_waits_for_them(three: Sandbox) -> None:
    done = three.ok("patch", "new", "later")
    assert "patch continue" in done.out
    assert "later" in (three.status()["operation"] or "")
    assert "nothing is edited yet" in three.refused("patch", "continue")
    assert "under way" in three.refused("patch", "unapply")
    three.replace("README.md", "downstream\n", "far downstream\n")
    three.ok("patch", "continue")
    assert texts(three)["0004-later.patch"] == "-downstream\n+far downstream\n"
    assert "Defect:" in three.git("log", "-1", "--format=%B")


def test_edit_folds_into_that_patch_and_puts_the_later_ones_back(three: Sandbox) -> None:
    before = three.files()
    three.ok("patch", "edit", "first")
    assert three.status()["applied"] == 1
    three.replace("src/scale.c", "line three\n", "line THREE\n")
    three.ok("patch", "continue")
    assert texts(three)["0001-first.patch"] == "-line 3\n+line THREE\n"
    assert texts(three)["0002-second.patch"] == "-line 20\n+line twenty\n"
    assert three.files()["0003-third.patch"] == before["0003-third.patch"]
    assert "line THREE\n" in (three.tree / "src/scale.c").read_text()
    assert "line twenty\n" in (three.tree / "src/scale.c").read_text()
    assert three.status()["state"] == "applied"
    assert three.ok("patch", "verify").code == 0


def test_edit_that_conflicts_stops_with_code_3_and_goes_on_after_the_resolution(three: Sandbox) -> None:
    files = three.files()
    three.ok("patch", "edit", "1")
    three.replace("src/scale.c", "line 20\n", "line zwanzig\n")
    told = three.refused("patch", "continue", code=3)
    assert "second" in told and "src/scale.c" in told
    assert three.files() == files
    status = three.status()
    assert status["operation"] is not None and "second" in status["operation"]
    assert "conflict marks" in three.refused("patch", "continue")
    text = (three.tree / "src/scale.c").read_text()
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    (three.tree / "src/scale.c").write_text(text[:start] + "line twenty\n" + text[end:])
    three.ok("patch", "continue")
    assert texts(three) == {
        "0001-first.patch": "-line 3\n+line three\n-line 20\n+line zwanzig\n",
        "0002-second.patch": "-line zwanzig\n+line twenty\n",
        "0003-third.patch": "-upstream\n+downstream\n",
    }
    assert three.status()["state"] == "applied"


def test_abort_goes_back_and_undo_brings_the_edits_back(three: Sandbox) -> None:
    before = three.state()
    three.ok("patch", "edit", "1")
    three.replace("src/scale.c", "line 20\n", "line zwanzig\n")
    three.refused("patch", "continue", code=3)
    three.ok("patch", "abort")
    assert three.state() == before
    assert three.status()["operation"] is None
    three.ok("undo")
    assert "<<<<<<<" in (three.tree / "src/scale.c").read_text()
    three.ok("patch", "abort")
    assert three.state() == before


def test_refresh_folds_edits_into_the_top_patch(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "downstream\nmore\n")
    assert three.status()["state"] == "dirty"
    three.ok("patch", "refresh")
    assert texts(three)["0003-third.patch"] == "-upstream\n+downstream\n+more\n"
    assert three.status()["state"] == "applied"


def test_refresh_turns_commits_into_patches_and_fixups_into_their_patch(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "downstream\nnew\n")
    three.git("commit", "-qam", "ggml : Ünïcode [CUDA] fix")
    three.replace("src/scale.c", "line three\n", "line drei\n")
    three.git("commit", "-qam", "fixup! first : change src/scale.c")
    status = three.status()
    assert (status["state"], status["applied"]) == ("diverged", 3)
    assert status["on_top"] == ["ggml : Ünïcode [CUDA] fix", "fixup! first : change src/scale.c"]
    three.ok("patch", "refresh")
    found = texts(three)
    assert found["0001-first.patch"] == "-line 3\n+line drei\n"
    assert [n for n in found if n.startswith("0004-")] == ["0004-n-code-cuda-fix.patch"]
    assert three.git("log", "-1", "--format=%s") == "ggml : Ünïcode [CUDA] fix"
    assert three.git("rev-list", "--count", "HEAD") == "5"
    assert three.status()["state"] == "applied"


def test_refresh_keeps_the_patch_of_an_amended_commit(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "amended\n")
    three.git("commit", "-qa", "--amend", "-m", "third : all of it is new")
    three.ok("patch", "refresh")
    assert texts(three)["0003-third.patch"] == "-upstream\n+amended\n"
    assert three.git("log", "-1", "--format=%s") == "third : all of it is new"


def test_refresh_in_the_middle_keeps_the_unapplied_patches(three: Sandbox) -> None:
    three.ok("patch", "unapply", "--to", "1")
    three.replace("src/scale.c", "line three\n", "line III\n")
    three.ok("patch", "refresh")
    assert (
        list(texts(three)) == ["0001-first.patch", "0002-second.patch", "0003-third.patch"]
        or len(texts(three)) == 3
    )
    assert three.status()["applied"] == 1
    three.ok("patch", "apply")
    assert "line III\n" in (three.tree / "src/scale.c").read_text()
    assert "line twenty\n" in (three.tree / "src/scale.c").read_text()


def test_refresh_refuses_to_lose_a_patch_that_was_rebased_away(three: Sandbox) -> None:
    top, second = three.git("rev-parse", "HEAD"), three.git("rev-parse", "HEAD~1")
    three.git("reset", "-q", "--hard", f"{second}~1")
    three.git("cherry-pick", top)
    before = three.state()
    told = three.refused("patch", "refresh")
    assert "second" in told
    assert three.state() == before


def test_refresh_with_nothing_to_do_changes_nothing(three: Sandbox) -> None:
    before = three.state()
    three.ok("patch", "refresh")
    assert three.state() == before


def test_refresh_from_files_accepts_a_hand_edited_file(three: Sandbox) -> None:
    path = three.patches / "0001-first.patch"
    path.write_bytes(path.read_bytes().replace(b"+line three\n", b"+line by hand\n"))
    told = three.refused("patch", "unapply", "--to", "1")
    assert "changed by hand" in told and "--from-files" in told
    three.ok("patch", "refresh", "--from-files")
    assert "line by hand\n" in (three.tree / "src/scale.c").read_text()
    assert three.ok("patch", "verify").code == 0


def test_merges_and_foreign_histories_are_refused(three: Sandbox) -> None:
    three.git("checkout", "-q", "-b", "side", "HEAD~1")
    three.write("side.txt", "side\n")
    three.git("add", "side.txt")
    three.git("commit", "-qm", "side")
    told = three.refused("patch", "refresh")
    assert "branch `series`" in told
    three.git("switch", "-q", "series")
    three.git("merge", "-q", "--no-edit", "side")
    assert "is a merge" in three.refused("patch", "refresh")


def test_an_edit_of_the_same_size_within_the_second_of_the_checkout_is_seen(three: Sandbox) -> None:
    """git compares whole seconds: only the index's own time tells that an entry may be stale."""
    import os
    import time

    three.ok("patch", "unapply", "--to", "2")
    three.ok("patch", "apply")
    second = int(time.time()) * 10**9
    for path in (three.tree / "README.md", three.tree / ".git" / "index"):
        os.utime(path, ns=(second, second))
    three.git("update-index", "--refresh", "-q")
    os.utime(three.tree / ".git" / "index", ns=(second, second))
    (three.tree / "README.md").write_text("downstreaM\n")
    os.utime(three.tree / "README.md", ns=(second, second))
    time.sleep(1.1)
    three.ok("patch", "refresh")
    assert "downstreaM" in (three.patches / "0003-third.patch").read_text()


def test_a_commit_made_while_a_new_patch_waits_is_the_patch(three: Sandbox) -> None:
    three.ok("patch", "unapply", "--to", "2")
    three.ok("patch", "new", "mine", "-m", "mine : as planned")
    three.replace("src/named.c", "twin_a(", "twin_z(")
    three.git("commit", "-qam", "mine : as it came out\n\nWhy: because.")
    made = three.ok("patch", "continue", "--json").json
    assert (made["applied"], made["total"]) == (3, 4)
    assert sorted(three.files())[2:4] == ["0003-mine.patch", "0004-third.patch"]
    assert three.git("log", "-1", "--format=%an %B") == "Ada mine : as it came out\n\nWhy: because.\n"
    three.ok("patch", "apply")
    assert "twin_z(" in (three.tree / "src/named.c").read_text()


def test_commits_and_edits_made_while_a_new_patch_waits_are_all_kept(three: Sandbox) -> None:
    three.ok("patch", "new", "mine", "-m", "mine : as planned")
    three.replace("src/named.c", "twin_a(", "twin_z(")
    three.git("commit", "-qam", "other : a commit")
    three.replace("src/named.c", "twin_b(", "twin_y(")
    three.ok("patch", "continue")
    assert sorted(three.files())[3:5] == ["0004-a-commit.patch", "0005-mine.patch"]
    assert three.git("log", "-2", "--format=%s").splitlines() == ["mine : as planned", "other : a commit"]
    assert three.status()["state"] == "applied"


def test_an_amended_patch_and_edits_while_a_new_patch_waits(three: Sandbox) -> None:
    three.ok("patch", "new", "mine", "-m", "mine : as planned")
    three.replace("src/named.c", "twin_a(", "twin_z(")
    three.git("commit", "-qa", "--amend", "--no-edit")
    assert "nothing is edited yet" in three.refused("patch", "continue")
    three.replace("src/named.c", "twin_b(", "twin_y(")
    three.ok("patch", "continue")
    assert sorted(three.files())[:4] == [
        "0001-first.patch",
        "0002-second.patch",
        "0003-third.patch",
        "0004-mine.patch",
    ]
    assert b"twin_z(" in three.files()["0003-third.patch"]
    assert b"+static int twin_y(" in three.files()["0004-mine.patch"]
