"""The way through a rebase: stop, report, go on, publish, take back, replay."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

from rebase_helpers import RESOLVED, TwoPins

from pyggml.project import Project


def stopped(box: TwoPins, *args: str) -> dict:
    """Begin a rebase that must stop; the JSON document."""
    done = box.pyggml("patch", "rebase", *(args or ("--onto", "two")), "--json")
    assert done.code == 3, done.out + done.err
    return done.json


def finish(box: TwoPins) -> dict:
    stopped(box)
    box.resolve("a.c", RESOLVED)
    return box.ok("patch", "rebase", "--continue", "--json").json


def back_to_one(box: TwoPins) -> dict[str, bytes]:
    """Take the rebase back but for its resolutions, as in a fresh clone of them; gives what it had written."""
    first = box.new_files()
    box.ok("undo")
    for name, data in first.items():
        if "/" in name:
            (box.new / name).parent.mkdir(parents=True, exist_ok=True)
            (box.new / name).write_bytes(data)
    return first


def test_verdicts_and_offsets(four: TwoPins) -> None:
    found = finish(four)
    assert [patch["verdict"] for patch in found["patches"]] == ["clean", "merged", "conflict", "clean"]
    assert [move["offset"] for move in found["patches"][1]["moves"]] == [2]
    assert found["moved"] and found["default"]


def test_nothing_of_the_users_changes_until_all_is_done(four: TwoPins) -> None:
    before = four.everything()
    stopped(four)
    assert four.everything() == before
    four.resolve("a.c", RESOLVED)
    four.ok("patch", "rebase", "--continue")
    status = four.status()
    assert (status["pin"], status["state"], status["applied"]) == ("two", "applied", 4)
    assert (four.tree / "a.c").read_text() == RESOLVED
    assert (four.tree / "README.md").read_text() == "mine\n"
    assert four.ok("patch", "verify").code == 0
    four.ok("undo")
    assert four.everything() == before
    assert four.status()["rebase"] is None


def test_the_report_says_all_that_is_needed(four: TwoPins) -> None:
    dossier = stopped(four)["dossier"]
    assert (dossier["patch"], dossier["number"], dossier["total"]) == ("conflicts", 3, 4)
    (file,) = dossier["files"]
    assert (file["path"], file["kind"]) == ("a.c", "content")
    assert file["hunks"] == [
        {"line": 7, "ours": "line five upstream\n", "base": "line 5\n", "theirs": "line five mine\n"}
    ]
    assert "-line 5\n+line five upstream\n" in file["upstream"]
    assert dossier["worktree"] == str(four.private)
    assert "Why: because." in dossier["message"]
    assert any("--continue" in command for command in dossier["commands"])
    text = (four.root / ".pyggml/rebase/dossier.md").read_text()
    assert "line five upstream" in text and str(four.private) in text


def test_the_worktree_is_one_in_which_git_works(four: TwoPins) -> None:
    import subprocess

    stopped(four)
    told = subprocess.run(
        ["git", "status", "--porcelain"], cwd=four.private, capture_output=True, text=True, check=True
    ).stdout
    assert told == "UU a.c\n"
    subprocess.run(["git", "checkout", "--theirs", "a.c"], cwd=four.private, check=True, capture_output=True)
    four.resolve("a.c", RESOLVED)
    subprocess.run(["git", "add", "a.c"], cwd=four.private, check=True)
    four.ok("patch", "rebase", "--continue")


def test_abort_leaves_every_byte_as_before(four: TwoPins) -> None:
    before = four.everything()
    stopped(four)
    four.resolve("a.c", "half done\n")
    four.ok("patch", "rebase", "--abort")
    assert four.everything() == before
    assert not four.private.exists() and four.status()["rebase"] is None
    assert "no rebase is under way" in four.refused("patch", "rebase", "--abort")
    assert "no rebase is under way" in four.refused("patch", "rebase", "--continue")


def test_a_rebase_done_once_replays_anywhere_byte_for_byte(four: TwoPins, tmp_path: Path) -> None:
    finish(four)
    first = back_to_one(four)
    assert sorted(four.new_files()) == ["resolutions/conflicts.patch", "resolutions/rebase.toml"]
    shutil.copytree(four.root.parent, tmp_path / "else where", symlinks=True)
    four = TwoPins(Project(tmp_path / "else where" / "project"))
    found = four.ok("patch", "rebase", "--onto", "two", "--json").json
    assert four.new_files() == first
    assert found["patches"][2]["resolution"] == "replayed"
    # Once more from where it is now: nothing to write.
    before = four.everything()
    again = four.ok("patch", "rebase", "--from", "one", "--onto", "two", "--json").json
    assert again["written"] == [] and four.everything() == before


def test_a_resolution_is_kept_where_another_file_changed(four: TwoPins) -> None:
    """A lower patch that changes elsewhere gives another mechanical tree; the conflict is the same."""
    finish(four)
    back_to_one(four)
    four.ok("patch", "edit", "clean")
    four.replace("b.c", "line seven\n", "line SEVEN\n")
    four.ok("patch", "continue")
    found = four.ok("patch", "rebase", "--onto", "two", "--json").json
    assert found["patches"][2]["resolution"] == "replayed"
    assert (four.tree / "a.c").read_text() == RESOLVED
    assert "line SEVEN\n" in (four.tree / "b.c").read_text()


def test_a_resolution_that_does_not_fit_any_more_stops(four: TwoPins) -> None:
    finish(four)
    back_to_one(four)
    four.ok("patch", "edit", "conflicts")
    four.replace("a.c", "line five mine\n", "line five mine, really\n")
    four.ok("patch", "continue")
    dossier = stopped(four)["dossier"]
    assert dossier["patch"] == "conflicts" and "does not apply" in dossier["note"]


def test_skip_leaves_the_patch_out_and_remembers_why(four: TwoPins) -> None:
    stopped(four)
    found = four.ok(
        "patch", "rebase", "--skip", "--upstream", "--reason", "line five is theirs", "--json"
    ).json
    assert found["patches"][2]["verdict"] == "already upstream"
    assert found["patches"][2]["reason"] == "line five is theirs"
    assert sorted(name for name in four.new_files() if "/" not in name and name.endswith("patch")) == [
        "0001-clean.patch",
        "0002-moves.patch",
        "0003-after.patch",
    ]
    record = tomllib.loads(four.new_files()["resolutions/rebase.toml"].decode())
    assert record["patch"][2]["action"] == "upstream"
    first = back_to_one(four)
    four.ok("patch", "rebase", "--onto", "two")
    assert four.new_files() == first


def test_a_patch_is_left_out_only_for_what_it_changed_then(four: TwoPins) -> None:
    stopped(four)
    four.ok("patch", "rebase", "--skip", "--reason", "not worth it")
    back_to_one(four)
    four.ok("patch", "edit", "conflicts")
    four.replace("a.c", "line 6\n", "line six\n")
    four.ok("patch", "continue")
    assert stopped(four)["dossier"]["patch"] == "conflicts"


def editor(box: TwoPins, script: str) -> dict[str, str]:
    path = box.root / "edit.sh"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return {"EDITOR": str(path), "VISUAL": str(path)}


def test_the_plan_can_be_edited_and_a_fix_up_after_a_clean_merge_replays(four: TwoPins) -> None:
    stopped(four)
    four.ok("patch", "rebase", "--edit-todo", env=editor(four, 'sed -i "s/^pick after/edit after/" "$1"\n'))
    four.resolve("a.c", RESOLVED)
    done = four.pyggml("patch", "rebase", "--continue", "--json")
    assert done.code == 3 and done.json["dossier"]["kind"] == "edit"
    assert done.json["dossier"]["patch"] == "after"
    four.resolve("README.md", "mine, adapted\n")
    found = four.ok("patch", "rebase", "--continue", "--json").json
    assert (four.tree / "README.md").read_text() == "mine, adapted\n"
    assert found["patches"][3]["resolution"] == "replayed"
    first = back_to_one(four)
    assert "resolutions/after.patch" in first
    four.ok("patch", "rebase", "--onto", "two")
    assert four.new_files() == first


def test_an_invalid_plan_is_refused(four: TwoPins) -> None:
    before = four.everything()
    stopped(four)
    for script, told in (
        ('sed -i "s/^pick/squeeze/" "$1"\n', "has no known action"),
        ('sed -i "/^pick/d" "$1"\n', "name each patch once"),
        ('echo "pick after" >> "$1"\n', "name each patch once"),
    ):
        assert told in four.refused("patch", "rebase", "--edit-todo", env=editor(four, script))
    (four.root / "edit.sh").unlink()
    four.ok("patch", "rebase", "--abort")
    assert four.everything() == before


def test_the_order_can_be_changed_in_the_beginning(four: TwoPins) -> None:
    script = 'grep -v "^pick clean" "$1" > "$1.n"; echo "pick clean" >> "$1.n"; mv "$1.n" "$1"\n'
    done = four.pyggml("patch", "rebase", "--onto", "two", "--edit-todo", "--json", env=editor(four, script))
    assert [patch["name"] for patch in done.json["patches"]] == ["moves"]
    four.resolve("a.c", RESOLVED)
    four.ok("patch", "rebase", "--continue")
    assert sorted(four.new_files())[:4] == [
        "0001-moves.patch",
        "0002-conflicts.patch",
        "0003-after.patch",
        "0004-clean.patch",
    ]


def test_hand_made_changes_on_the_new_pin_are_not_overwritten_but_can_be_recorded(four: TwoPins) -> None:
    finish(four)
    four.ok("patch", "edit", "moves")
    four.replace("a.c", "line thirty\n", "line XXX\n")
    four.ok("patch", "continue")
    adapted = four.new_files()
    told = four.refused("patch", "rebase", "--from", "one", "--onto", "two", code=3)
    assert "already has another series" in told and "0002-moves.patch" in told
    assert four.new_files() == adapted
    four.ok("patch", "rebase", "--abort")
    written = four.ok("patch", "rebase", "--record", "--from", "one", "--onto", "two", "--json").json
    assert "patches/two/resolutions/moves.patch" in written["written"]
    again = four.ok("patch", "rebase", "--from", "one", "--onto", "two", "--json").json
    assert again["written"] == []
    assert {k: v for k, v in four.new_files().items() if "/" not in k} == {
        k: v for k, v in adapted.items() if "/" not in k
    }


def test_record_keeps_messages_and_fields(four: TwoPins) -> None:
    finish(four)
    listing = four.new / "series.toml"
    text = listing.read_text().replace('purpose = ""', 'purpose = "adapted"', 1)
    listing.write_text(text.replace("proof = []", 'proof = ["tests/x.py::test"]', 1))
    four.git("commit", "--amend", "-q", "-m", "after : another message")
    four.ok("patch", "refresh")
    four.ok("patch", "rebase", "--record", "--from", "one", "--onto", "two")
    files = four.new_files()
    four.ok("patch", "apply", "--pin", "one")
    for name in files:
        if "/" not in name:
            (four.new / name).unlink()
    four.ok("patch", "rebase", "--from", "one", "--onto", "two")
    assert four.new_files() == files


def test_record_says_which_line_a_rebase_would_write_differently(four: TwoPins) -> None:
    finish(four)
    four.git("commit", "--amend", "-q", "--no-edit", "--date", "2001-02-03T04:05:06Z")
    four.ok("patch", "refresh")
    told = four.refused("patch", "rebase", "--record", "--from", "one", "--onto", "two")
    assert (
        "a rebase would give another patches/two/0004-after.patch: line 3 is 'Date: Sat, 3 Feb 2001" in told
    )


def test_replace_overwrites_and_undo_brings_back(four: TwoPins) -> None:
    finish(four)
    four.ok("patch", "drop", "after")
    before = four.everything()
    four.refused("patch", "rebase", "--from", "one", "--onto", "two", code=3)
    assert "--replace" in four.refused("patch", "rebase", "--continue", code=3)
    four.ok("patch", "rebase", "--continue", "--replace")
    assert "0004-after.patch" in four.new_files()
    assert four.status()["state"] == "applied" and four.status()["applied"] == 4
    four.ok("undo")
    assert four.everything() == before


def test_a_partly_applied_series_stays_partly_applied(four: TwoPins) -> None:
    four.ok("patch", "unapply", "--to", "2")
    finish(four)
    assert (four.status()["applied"], four.status()["state"]) == (2, "partial")


def test_status_and_the_reading_commands_say_that_it_is_under_way(four: TwoPins) -> None:
    stopped(four)
    assert "stopped at patch conflicts (3 of 4)" in four.status()["rebase"]
    assert "rebase --continue" in four.ok("patch", "status").out
    assert "under way" in four.ok("patch", "list").err
    for command in (["apply"], ["unapply"], ["edit", "1"], ["refresh"], ["drop", "1"], ["new", "x"]):
        assert "a rebase of pin one onto two is under way" in four.refused("patch", *command)
    for command in (["patch", "continue"], ["patch", "abort"], ["undo"]):
        assert "a rebase of pin one onto two is under way" in four.refused(*command)
