"""A `git pull` brings other patch files under a work tree: no command writes the old ones back over them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from series_helpers import Sandbox

from pyggml.project import Project
from pyggml.series.worktree.workspace import Workspace

Step = Callable[[Sandbox], object]


def new(box: Sandbox) -> None:
    box.patch("fourth", "run.sh", "exit 0\n", "exit 1\n")


def edit(box: Sandbox) -> None:
    box.ok("patch", "edit", "third")
    box.replace("README.md", "downstream\n", "downstream\nby edit\n")
    box.ok("patch", "continue")


def refresh(box: Sandbox) -> None:
    box.replace("README.md", "downstream\n", "downstream\nby refresh\n")
    box.ok("patch", "refresh")


def drop(box: Sandbox) -> None:
    new(box)
    box.ok("patch", "drop", "fourth")


def move(box: Sandbox) -> None:
    new(box)
    box.ok("patch", "move", "fourth", "1")


def rename(box: Sandbox) -> None:
    new(box)
    box.ok("patch", "rename", "fourth", "four")


def aborted(box: Sandbox) -> None:
    box.ok("patch", "edit", "1")
    box.ok("patch", "abort")


def undone(box: Sandbox) -> None:
    box.ok("patch", "unapply", "--to", "1")
    box.ok("undo")


def imported(box: Sandbox) -> None:
    new(box)
    patch = box.root / "mail.patch"
    patch.write_bytes((box.patches / "0004-fourth.patch").read_bytes())
    box.ok("patch", "drop", "fourth")
    box.ok("patch", "import", str(patch))


def taken_up(box: Sandbox) -> None:
    box.ok("patch", "unapply", "--to", "1")
    box.ok("patch", "apply")


LAST = [new, edit, refresh, drop, move, rename, aborted, undone, imported, taken_up]


def change(box: Sandbox) -> None:
    box.ok("patch", "edit", "second")
    box.replace("src/scale.c", "line twenty\n", "line twenty, mended\n")
    box.ok("patch", "continue")


def add_below(box: Sandbox) -> None:
    box.ok("patch", "edit", "first")
    box.replace("src/scale.c", "line 40\n", "line forty\n")
    box.git("commit", "-qam", "colleague : below")
    box.ok("patch", "continue")


def remove_below(box: Sandbox) -> None:
    box.ok("patch", "drop", "first")


def renumber(box: Sandbox) -> None:
    box.ok("patch", "move", "first", "2")
    change(box)


def remove_all(box: Sandbox) -> None:
    for name in [row["name"] for row in box.status()["patches"]]:
        box.ok("patch", "drop", name)


PULLS = [change, add_below, remove_below, renumber, remove_all]


def clone(box: Sandbox, directory: Path) -> Sandbox:
    """A colleague who has the same series."""
    shutil.copytree(box.root.parent, directory / "colleague", symlinks=True)
    return Sandbox(Project(directory / "colleague" / box.root.name))


def take(box: Sandbox, colleague: Sandbox) -> None:
    """The patch files of `box` become those of the colleague."""
    shutil.rmtree(box.patches)
    shutil.copytree(colleague.patches, box.patches)


def pull(box: Sandbox, step: Step, directory: Path) -> Sandbox:
    """A colleague's `step` arrives; their clone."""
    colleague = clone(box, directory)
    step(colleague)
    take(box, colleague)
    return colleague


def follow(box: Sandbox, told: str) -> None:
    """Run the commands that a refusal names, in the work tree."""
    commands = told.split("here: ", 1)[1].split(". Then: ")[0].split("; ")
    for command in commands:
        tool, *words = command.strip().split()
        box.git(*words) if tool == "git" else box.ok(*words)


# Every command and every pull in the quick tier, every pair of them in the slow one.
PAIRS = [
    pytest.param(
        last, step, id=f"{step.__name__}-{last.__name__}", marks=[pytest.mark.slow] * bool((i + j) % 3)
    )
    for i, last in enumerate(LAST)
    for j, step in enumerate(PULLS)
]


@pytest.mark.parametrize(("last", "step"), PAIRS)
def test_a_pull_is_not_reverted(three: Sandbox, last: Step, step: Step, tmp_path: Path) -> None:
    last(three)
    colleague = pull(three, step, tmp_path)
    pulled = three.files()
    assert pulled == colleague.files()
    status = three.status()
    assert (status["state"], status["outdated"], status["on_top"]) == ("outdated", True, [])
    told = three.refused("patch", "refresh")
    assert "changed since they were applied" in told and "pyggml patch apply" in told
    for command in (("new", "x"), ("drop", "1"), ("edit", "1")):
        if step is not remove_all or command[0] == "new":
            assert "pyggml patch apply" in three.refused("patch", *command)
    assert three.files() == pulled
    done = three.ok("patch", "apply")
    total = len(colleague.status()["patches"])
    assert f"{total} of {total} patches applied" in done.out
    assert three.git("rev-parse", "HEAD") == colleague.git("rev-parse", "HEAD")
    assert three.git("status", "--porcelain") == ""
    three.ok("patch", "refresh")
    assert three.files() == pulled


@pytest.mark.parametrize("step", [change, add_below, remove_below, renumber])
def test_edits_survive_a_pull(three: Sandbox, step: Step, tmp_path: Path) -> None:
    new(three)
    colleague = pull(three, step, tmp_path)
    three.replace("src/named.c", "twin_a(", "twin_z(")
    before = (three.tree / "src/named.c").read_text()
    for command in ("refresh", "apply"):
        told = three.refused("patch", command)
        assert "stash" in told and "pyggml patch apply" in told
        assert (three.tree / "src/named.c").read_text() == before
    three.git("stash", "-q")
    three.ok("patch", "apply")
    three.git("stash", "pop", "-q")
    three.ok("patch", "refresh")
    assert "twin_z(" in (three.patches / sorted(three.files())[-2]).read_text()
    assert three.git("diff", "--name-only", colleague.git("rev-parse", "HEAD"), "HEAD") == "src/named.c"


@pytest.mark.parametrize("step", [change, add_below, remove_below, renumber])
def test_commits_survive_a_pull(three: Sandbox, step: Step, tmp_path: Path) -> None:
    new(three)
    pull(three, step, tmp_path)
    three.replace("src/named.c", "twin_a(", "twin_z(")
    three.git("commit", "-qam", "own : a commit")
    before = three.state()[0]
    assert three.status()["on_top"] == ["own : a commit"]
    for command in ("apply", "refresh"):
        told = three.refused("patch", command)
        assert "commits of yours" in told
        assert three.state()[0] == before
    follow(three, told)
    three.ok("patch", "refresh")
    assert [row["name"] for row in three.status()["patches"]][-1] == "a-commit"
    status = three.status()
    assert (status["state"], status["applied"]) == ("applied", status["total"])


@pytest.mark.parametrize("step", [change, add_below, remove_below, renumber])
def test_what_a_pull_changes_above_stays(three: Sandbox, step: Step, tmp_path: Path) -> None:
    """Only what is applied is written back: a pull of the patches above it is no obstacle."""
    three.patch("zeroth", "run.sh", "exit 0\n", "exit 1\n")
    three.ok("patch", "move", "zeroth", "1")
    three.ok("patch", "unapply", "--to", "1")
    colleague = pull(three, lambda box: (box.ok("patch", "apply"), step(box)), tmp_path)
    three.replace("run.sh", "exit 1\n", "exit 2\n")
    done = three.ok("patch", "refresh")
    total = len(colleague.status()["patches"])
    assert f"1 of {total} patches applied" in done.out
    assert three.status()["applied"] == 1
    three.ok("patch", "apply")
    changed = three.git("diff", "--name-only", colleague.git("rev-parse", "HEAD"), "HEAD")
    assert changed == "run.sh"


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("command", [("edit", "second"), ("new", "x")])
def test_a_pull_during_an_edit(
    three: Sandbox, command: tuple[str, ...], committed: bool, tmp_path: Path
) -> None:
    colleague = clone(three, tmp_path)
    three.ok("patch", *command)
    three.replace("src/named.c", "twin_a(", "twin_z(")
    if committed:
        three.git("commit", "-qam", "own : a commit")
        three.replace("src/named.c", "twin_b(", "twin_y(")
    change(colleague)
    take(three, colleague)
    pulled = three.files()
    told = three.refused("patch", "continue")
    assert f"changed since `patch {' '.join(command)}` began" in told
    assert three.files() == pulled
    if command[0] == "new" and committed:
        return  # a commit on top of a patch that is only begun: `continue` says so itself
    follow(three, told)
    three.ok("patch", "continue")
    changed = three.git("diff", "--name-only", colleague.git("rev-parse", "HEAD"), "HEAD")
    assert changed == "src/named.c"


def test_a_pull_during_a_conflict(three: Sandbox, tmp_path: Path) -> None:
    colleague = clone(three, tmp_path)
    three.ok("patch", "edit", "1")
    three.replace("src/scale.c", "line 20\n", "line zwanzig\n")
    three.refused("patch", "continue", code=3)
    colleague.ok("patch", "edit", "third")
    colleague.replace("README.md", "downstream\n", "downstream, mended\n")
    colleague.ok("patch", "continue")
    take(three, colleague)
    pulled = three.files()
    (three.tree / "src/scale.c").write_text("resolved\n")
    told = three.refused("patch", "continue")
    assert "have changed since `patch edit first` stopped" in told
    assert three.files() == pulled
    three.ok("patch", "abort")
    assert three.status()["state"] == "outdated"
    three.ok("patch", "apply")
    assert three.git("rev-parse", "HEAD") == colleague.git("rev-parse", "HEAD")
    three.ok("undo")
    three.ok("undo")
    assert (three.tree / "src/scale.c").read_text() == "resolved\n"


def reword(box: Sandbox, number: int, text: str) -> None:
    """Give the file of a patch another subject, as a colleague would."""
    path = sorted(box.patches.glob("*.patch"))[number - 1]
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(
        "".join(f"Subject: [PATCH] {text}\n" if line.startswith("Subject: ") else line for line in lines)
    )


def test_a_message_that_a_pull_changed_is_kept_by_refresh(three: Sandbox) -> None:
    reword(three, 2, "second : a colleague's words")
    reword(three, 3, "third : theirs")
    pulled = three.files()
    three.replace("README.md", "downstream\n", "far downstream\n")
    three.ok("patch", "refresh")
    assert three.files()["0002-second.patch"] == pulled["0002-second.patch"]
    assert "Subject: [PATCH] third : theirs\n" in three.files()["0003-third.patch"].decode()
    assert three.git("log", "-2", "--format=%s").splitlines() == [
        "third : theirs",
        "second : a colleague's words",
    ]
    assert "+far downstream" in three.files()["0003-third.patch"].decode()


@pytest.mark.parametrize("number", [2, 3])
def test_a_message_that_a_pull_changed_is_applied(three: Sandbox, number: int) -> None:
    three.ok("patch", "unapply", "--to", "1")
    three.ok("patch", "apply")
    assert "nothing to do" in three.ok("patch", "apply").out
    reword(three, number, "other : words")
    assert three.ok("patch", "apply").out.startswith("applied: 3 of 3")
    assert three.git("log", "-1", "--format=%s", f"HEAD~{3 - number}") == "other : words"


def test_what_is_applied_already_is_not_made_again(three: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of patches, reading them is what takes long."""
    three.ok("patch", "unapply", "--to", "1")
    three.ok("patch", "apply")
    monkeypatch.setattr(Workspace, "stack", lambda *args: pytest.fail("patches were read"))
    assert "nothing to do: 3 of 3" in three.ok("patch", "apply").out


def test_a_message_changed_on_both_sides_is_refused(three: Sandbox) -> None:
    reword(three, 3, "third : theirs")
    three.git("commit", "-q", "--amend", "-m", "third : mine")
    before = three.state()
    told = three.refused("patch", "refresh")
    assert "third" in told and "message" in told
    assert three.state() == before
    three.git("commit", "-q", "--amend", "-m", "third : theirs", "-m", "Why: because.")
    three.ok("patch", "refresh")
    assert three.state()[1] == before[1]
