"""undo, step by step through every kind of command, and redo; `abort` after a `continue` that was killed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from series_helpers import Sandbox

Step = Callable[[Sandbox], object]


def edit(box: Sandbox) -> None:
    box.ok("patch", "edit", "1")
    box.replace("src/scale.c", "line three\n", "line III\n")
    box.ok("patch", "continue")


def conflict(box: Sandbox) -> None:
    box.ok("patch", "edit", "1")
    box.replace("src/scale.c", "line 20\n", "line zwanzig\n")
    box.refused("patch", "continue", code=3)
    text = (box.tree / "src/scale.c").read_text()
    start, end = text.index("<<<<<<<"), text.index("\n", text.index(">>>>>>>")) + 1
    (box.tree / "src/scale.c").write_text(text[:start] + "line twenty\n" + text[end:])
    box.ok("patch", "continue")


def later(box: Sandbox) -> None:
    box.ok("patch", "new", "later", "-m", "later")
    box.replace("src/named.c", "twin_a(", "twin_z(")
    box.ok("patch", "continue")


def refresh(box: Sandbox) -> None:
    box.replace("README.md", "downstream\n", "downstream\nrefreshed\n")
    box.ok("patch", "refresh")


def commit(box: Sandbox) -> None:
    box.replace("src/named.c", "twin_b(", "twin_y(")
    box.git("commit", "-qam", "own : a commit")
    box.ok("patch", "refresh")


def imported(box: Sandbox) -> None:
    mail = box.root / "mail.patch"
    mail.write_bytes((box.patches / "0003-third.patch").read_bytes())
    box.ok("patch", "drop", "third")
    box.ok("patch", "import", str(mail))


def aborted(box: Sandbox) -> None:
    box.ok("patch", "edit", "1")
    box.replace("src/scale.c", "line 30\n", "line given up\n")
    box.ok("patch", "abort")


STEPS: dict[str, Step] = {
    "new": lambda box: box.patch("fourth", "run.sh", "exit 0\n", "exit 1\n"),
    "later": later,
    "edit": edit,
    "conflict": conflict,
    "refresh": refresh,
    "commit": commit,
    "drop": lambda box: box.ok("patch", "drop", "2"),
    "move": lambda box: box.ok("patch", "move", "3", "1"),
    "rename": lambda box: box.ok("patch", "rename", "1", "uno"),
    "import": imported,
    "unapply": lambda box: box.ok("patch", "unapply", "--to", "1"),
    "apply": lambda box: (box.ok("patch", "unapply"), box.ok("patch", "apply")),
    "abort": aborted,
}
LONG = [
    "new",
    "unapply",
    "refresh-low",
    "apply-all",
    "edit",
    "later",
    "commit",
    "rename",
    "conflict",
    "refresh",
]
STEPS["refresh-low"] = lambda box: (
    box.replace("src/scale.c", "line 40\n", "line forty\n"),
    box.ok("patch", "refresh"),
)
STEPS["apply-all"] = lambda box: box.ok("patch", "apply")


def doings(box: Sandbox) -> list[str]:
    return [row["doing"] for row in box.ok("undo", "--list", "--json").json]


def check_back_and_forth(box: Sandbox, first: list[str]) -> None:
    """Undo until only `first` is left to be taken back, then make everything again."""
    states = [box.state()]
    taken = doings(box)
    taken = taken[: len(taken) - len(first)]
    for doing in taken:
        assert box.ok("undo", "--json").json["undone"] == doing
        states.append(box.state())
        status = box.status()
        assert status["interrupted"] is None
    assert doings(box) == first
    end = states.pop()
    for doing in reversed(taken):
        assert box.ok("undo", "--redo", "--json").json["redone"] == doing
        assert box.state() == states.pop()
    assert "no undo to take back" in box.refused("undo", "--redo")
    for _ in taken:
        box.ok("undo")
    assert box.state() == end


@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("refresh-low", "apply-all")])
def test_undo_goes_on_after_every_kind_of_command(three: Sandbox, name: str) -> None:
    before, first = three.files(), doings(three)
    STEPS[name](three)
    refresh_on_top = three.status()["applied"] > 0
    if refresh_on_top:
        three.write("run.sh", "more\n")
        three.ok("patch", "refresh")
    check_back_and_forth(three, first)
    # What the user did before the command, an edit or a commit, is there again.
    assert three.files() == before
    assert three.status()["applied"] == 3


def test_undo_goes_back_through_a_long_story(three: Sandbox) -> None:
    before, first = three.files(), doings(three)
    for name in LONG:
        STEPS[name](three)
    check_back_and_forth(three, first)
    assert three.files() == before


def test_undo_says_what_it_puts_aside(three: Sandbox) -> None:
    three.replace("README.md", "downstream\n", "precious\n")
    three.ok("patch", "refresh")
    three.ok("undo")
    assert (three.tree / "README.md").read_text() == "precious\n"
    told = three.ok("undo").out
    assert "took back `patch new third`" in told
    assert "put aside: README.md; `pyggml undo --redo` brings that back" in told
    assert (three.tree / "README.md").read_text() == "downstream\n"
    three.ok("undo", "--redo")
    assert (three.tree / "README.md").read_text() == "precious\n"


def test_undo_says_that_it_puts_commits_aside(three: Sandbox) -> None:
    commit(three)
    three.ok("undo")
    mine = three.git("rev-parse", "HEAD")
    assert "put aside: 1 of your commits" in three.ok("undo").out
    three.ok("undo", "--redo")
    assert three.git("rev-parse", "HEAD") == mine


def test_edits_made_after_an_undo_are_in_no_record(three: Sandbox) -> None:
    refresh(three)
    three.ok("undo")
    three.write("run.sh", "just now\n")
    before = three.state()
    told = three.refused("undo")
    assert "edited since `undo of patch refresh`" in told and "stash" in told
    assert "edited since" in three.refused("undo", "--redo")
    assert three.state() == before
    three.git("stash", "-q")
    three.ok("undo")


def test_a_change_after_an_undo_ends_redo_but_not_undo(three: Sandbox) -> None:
    three.ok("patch", "rename", "1", "uno")
    three.ok("undo")
    three.ok("patch", "rename", "1", "due")
    assert "The last change was no undo" in three.refused("undo", "--redo")
    assert doings(three)[:2] == ["patch rename first due", "patch new third"]
    three.ok("undo")
    three.ok("undo", "--redo")
    assert "0001-due.patch" in three.files()


def test_the_steps_of_one_command_have_different_names(three: Sandbox) -> None:
    first = doings(three)
    conflict(three)
    later(three)
    assert doings(three)[: -len(first)] == [
        "end of patch new later",
        "begin of patch new later",
        "end of patch edit first",
        "stop of patch edit first",
        "begin of patch edit first",
    ]


def test_going_back_does_not_shorten_the_way_back(three: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyggml.series.worktree import transaction

    monkeypatch.setattr(transaction, "UNDO_DEPTH", 6)
    for to in ("1", "2", "0", "3", "1", "2"):
        three.ok("patch", "apply") if to == "3" else None
        three.pyggml("patch", "unapply", "--to", to)
        three.pyggml("patch", "apply", "--to", to)
    taken = doings(three)
    assert len(taken) == 6
    for doing in taken:
        assert three.ok("undo", "--json").json["undone"] == doing
    assert "To make the last one again: pyggml undo --redo" in three.refused("undo")


def stop(box: Sandbox) -> None:
    box.ok("patch", "edit", "1")
    box.replace("src/scale.c", "line 20\n", "line zwanzig\n")
    box.refused("patch", "continue", code=3)


def unmerged(box: Sandbox) -> list[str]:
    return [row for row in box.git("status", "--porcelain").splitlines() if row.startswith("UU")]


@pytest.mark.parametrize("command", ["continue", "abort"])
def test_back_at_a_conflict_its_paths_are_unmerged_again(three: Sandbox, command: str) -> None:
    stop(three)
    stages = three.git("ls-files", "--unmerged")
    assert unmerged(three) == ["UU src/scale.c"]
    if command == "continue":
        three.write("src/scale.c", "resolved\n")
    three.ok("patch", command)
    assert unmerged(three) == []
    three.ok("undo")
    assert unmerged(three) == ["UU src/scale.c"]
    assert three.git("ls-files", "--unmerged") == stages
    three.ok("undo", "--redo")
    assert unmerged(three) == []
    three.ok("undo")
    three.ok("undo")
    assert unmerged(three) == []
    assert "line zwanzig\n" in (three.tree / "src/scale.c").read_text()
    three.ok("undo", "--redo")
    assert three.git("ls-files", "--unmerged") == stages


def test_a_conflict_that_is_resolved_for_git_stays_so_after_undo(three: Sandbox) -> None:
    stop(three)
    three.write("src/scale.c", "resolved\n")
    three.git("add", "src/scale.c")
    three.ok("patch", "continue")
    three.ok("undo")
    assert three.git("status", "--porcelain") == "M  src/scale.c"
    assert "is under way, stopped at a conflict" in three.status()["operation"]
