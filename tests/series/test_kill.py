"""kill -9 at every point of a command: status tells the truth, the same command finishes the job, undo goes back."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from killer import run_and_kill
from series_helpers import Sandbox

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.edit import abort_operation, continue_operation, refresh
from pyggml.series.worktree.apply import apply_series
from pyggml.series.worktree.status import series_status
from pyggml.series.worktree.undo import undo_last
from tests import kill_points

WORDS = {
    "apply": "patch apply",
    "pulled": "patch apply",
    "refresh": "patch refresh",
    "continue": "end of patch edit second",
    "abort": "abort of patch edit second",
    "undo": "undo of patch drop first",
    "undo-again": "undo of patch new third",
    "redo": "redo of patch drop first",
}
AGAIN = {
    "apply": apply_series,
    "refresh": refresh,
    "continue": continue_operation,
    "abort": abort_operation,
    "undo": undo_last,
    "--redo": lambda project: undo_last(project, redo=True),
}


def edit_with_commits(box: Sandbox) -> None:
    """An edit of the patch in the middle that waits, with a commit and an edit on it."""
    box.ok("patch", "edit", "second")
    box.replace("src/named.c", "twin_a(", "twin_z(")
    box.git("commit", "-qam", "own : in the middle")
    box.replace("src/named.c", "twin_b(", "twin_y(")


def prepare(box: Sandbox, command: str) -> list[str]:
    """Bring the box before the command and return the command."""
    if command in ("continue", "abort"):
        edit_with_commits(box)
        return ["patch", command]
    if command == "pulled":
        box.patch("fourth", "run.sh", "exit 0\n", "exit 1\n")
        mine = box.files()
        box.ok("patch", "drop", "first")
        theirs = box.files()
        box.ok("undo")
        for name in mine:
            (box.patches / name).unlink()
        for name, data in theirs.items():
            (box.patches / name).write_bytes(data)
        return ["patch", "apply"]
    if command == "undo-again":
        box.replace("README.md", "downstream\n", "downstream\nagain\n")
        box.ok("patch", "refresh")
        box.ok("undo")
        return ["undo"]
    if command == "redo":
        box.ok("patch", "drop", "first")
        box.ok("undo")
        return ["undo", "--redo"]
    if command == "apply":
        box.ok("patch", "unapply")
        return ["patch", "apply"]
    if command == "refresh":
        box.replace("src/scale.c", "line 30\n", "line dreissig\n")
        box.replace("README.md", "downstream\n", "downstream\nagain\n")
        return ["patch", "refresh"]
    box.ok("patch", "drop", "first")
    return ["undo"]


def outcome(box: Sandbox) -> tuple[object, ...]:
    """What the command is to have achieved."""
    status = series_status(box.project)
    return box.state(), status.state, status.applied, status.total, box.git("status", "--porcelain")


def run_again(box: Sandbox, args: list[str]) -> None:
    """The same command once more, in this process."""
    AGAIN[args[-1]](box.project)


def check_truth(box: Sandbox, before: tuple[object, ...], after: tuple[object, ...], told: str) -> None:
    """Status must name a state that is really there: the old one, the new one, or an interrupted command."""
    status = series_status(box.project)
    if status.interrupted is not None:
        assert status.interrupted == told
        return
    assert outcome(box) in (before, after)


def differing(found: object, wanted: object) -> str:
    """Where two outcomes differ, in a few words."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        return ", ".join(
            f"{k}: {found.get(k)!r}" for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)
        )
    if isinstance(found, tuple) and isinstance(wanted, tuple):
        return "; ".join(differing(a, b) for a, b in zip(found, wanted, strict=True) if a != b)
    return f"{found!r} for {wanted!r}"


@kill_points.every
@pytest.mark.parametrize("command", WORDS)
def test_killed_at_every_point(three: Sandbox, command: str, every: int, tmp_path: Path) -> None:
    args = prepare(three, command)
    before = outcome(three)
    base = tmp_path / "before"
    three.root.rename(base)

    def fresh(name: str) -> Sandbox:
        # The same path every time: index entries and upstream's place stay valid.
        if three.root.exists():
            shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        return Sandbox(Project(three.root))

    box = fresh("whole")
    code, points = run_and_kill(0, box.root, *args)
    after = outcome(box)
    assert code == 0 and before != after
    assert points > 15
    goes_on = command in ("apply", "pulled", "refresh")
    interrupted = 0
    for point in kill_points.chosen(range(1, points + 1), every):
        box = fresh(str(point))
        assert run_and_kill(point, box.root, *args)[0] == -signal.SIGKILL
        status = series_status(box.project)
        interrupted += status.interrupted is not None
        check_truth(box, before, after, WORDS[command])
        complete = status.interrupted is None and outcome(box) == after
        if goes_on or not complete:  # once more would take back one change more, or find nothing
            try:
                run_again(box, args)
            except PyggmlError as error:
                # Finishing the killed undo leaves nothing of it to take back.
                assert args[0] == "undo" and "is finished" in error.message, error
        found = outcome(box)
        assert found == after, f"point {point}: {differing(found, after)}"
        assert not (box.tree / ".git/index.lock").exists()
        undo_last(box.project, redo=command in ("undo", "undo-again"))
        found = outcome(box)
        assert found[0] == before[0], f"point {point}, undo: {differing(found[0], before[0])}"
    assert interrupted * every >= 3


@kill_points.every
def test_abort_takes_a_killed_continue_back(three: Sandbox, every: int, tmp_path: Path) -> None:
    """Whether the killed command had been decided or not, the patch is as it was before the edit."""
    before = three.state()
    edit_with_commits(three)
    base = tmp_path / "before"
    three.root.rename(base)
    shutil.copytree(base, three.root, symlinks=True)
    points = run_and_kill(0, three.root, "patch", "continue")[1]
    decided = 0
    for point in kill_points.chosen(range(1, points + 1), every):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        assert run_and_kill(point, three.root, "patch", "continue")[0] == -signal.SIGKILL
        status = series_status(three.project)
        if status.interrupted is None and status.operation is None:
            continue  # it was complete: nothing is left to give up
        decided += status.interrupted is not None
        done = abort_operation(three.project)
        assert three.state() == before, f"point {point}: {differing(three.state(), before)}"
        assert (done.applied, done.total) == (3, 3)
        status = series_status(three.project)
        assert (status.state, status.applied, status.total, status.operation) == ("applied", 3, 3, None)
        undo_last(three.project)
        assert "twin_y(" in (three.tree / "src/named.c").read_text()
    assert decided * every >= 3


def pulled(box: Sandbox) -> None:
    """A pull has changed the files of patches that are applied, and an edit is made on the old ones."""
    prepare(box, "pulled")
    box.replace("src/named.c", "twin_a(", "twin_z(")


def conflict(box: Sandbox) -> None:
    box.ok("patch", "edit", "first")
    box.replace("src/scale.c", "line 20\n", "line zwanzig\n")


def link_out(box: Sandbox) -> None:
    (box.tree / "link").symlink_to("../outside")
    box.git("add", "link")


def wide(box: Sandbox) -> None:
    """A fourth patch that changes two files."""
    box.replace("README.md", "downstream\n", "downstream\nagain\n")
    box.patch("wide", "run.sh", "exit 0\n", "exit 1\n")


def replacement(box: Sandbox) -> None:
    """Another version of the first patch, beside the series."""
    data = box.files()["0001-first.patch"]
    (box.root / "theirs.patch").write_bytes(data.replace(b"+line three\n", b"+line III\n"))


def below_src(box: Sandbox) -> None:
    """A patch of another directory, beside the series."""
    box.patch("theirs", "src/scale.c", "line 30\n", "line thirty\n")
    data = box.files()["0004-theirs.patch"].replace(b"src/", b"")
    box.ok("undo")
    box.git("reset", "-q", "--hard")
    (box.root / "theirs.patch").write_bytes(data)


# For every loss that has been seen once, and every command that rewrites patches:
# what comes before, the command, and the exit code it has.
LOSSES: dict[str, tuple[Callable[[Sandbox], object], str, int]] = {
    "commit in the middle": (edit_with_commits, "patch continue", 0),
    "followed pull": (lambda box: prepare(box, "pulled"), "patch apply", 0),
    "refused pull": (pulled, "patch refresh", 1),
    "stop": (conflict, "patch continue", 3),
    "abort": (edit_with_commits, "patch abort", 0),
    "refresh": (lambda box: prepare(box, "refresh"), "patch refresh", 0),
    "link": (link_out, "patch new link", 1),
    "drop": (lambda box: None, "patch drop first", 0),
    "move": (lambda box: None, "patch move third 1", 0),
    "rename": (lambda box: None, "patch rename second zwei", 0),
    "reword": (lambda box: None, "patch reword second -m reworded", 0),
    "refresh into": (
        lambda box: box.replace("src/scale.c", "line 30\n", "line dreissig\n"),
        "patch refresh -p first",
        0,
    ),
    "refresh into, stop": (
        lambda box: box.replace("src/scale.c", "line twenty\n", "line zwanzig\n"),
        "patch refresh -p first",
        3,
    ),
    "refresh path": (lambda box: prepare(box, "refresh"), "patch refresh README.md", 0),
    "squash": (lambda box: None, "patch squash first third", 0),
    "split": (wide, "patch split wide narrow --path run.sh -m narrow", 0),
    "pop": (lambda box: None, "patch pop 2", 0),
    "push": (lambda box: box.ok("patch", "pop", "2"), "patch push", 0),
    "into a directory": (below_src, "patch import --directory src theirs.patch", 0),
    "replace": (replacement, "patch import --replace first theirs.patch", 0),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_undo_after_a_kill_at_every_point(three: Sandbox, loss: str, tmp_path: Path) -> None:
    step, command, code = LOSSES[loss]
    args = command.split()
    step(three)
    before = outcome(three)
    base = tmp_path / "before"
    three.root.rename(base)
    shutil.copytree(base, three.root, symlinks=True)
    ended, points = run_and_kill(0, three.root, *args)
    after = outcome(three)
    assert ended == code
    assert (before == after) == (code == 1)
    decided = 0
    for point in range(1, points + 1):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        assert run_and_kill(point, three.root, *args)[0] == -signal.SIGKILL
        status = series_status(three.project)
        done = status.interrupted is not None or (outcome(three) == after and code != 1)
        decided += done
        back = three.pyggml("undo")
        if not done and back.code == 0:  # that was the command before
            three.ok("undo", "--redo")
        assert back.code == 0 or not done, f"point {point}: {back.err}"
        # Edits that come back are staged.
        found = outcome(three)[:-1]
        assert found == before[:-1], f"point {point}: {differing(found, before[:-1])}"
    assert (decided > 3) == (code != 1)


@kill_points.every
@pytest.mark.parametrize("command", ["apply", "refresh"])
def test_killed_at_random_moments(three: Sandbox, command: str, every: int, tmp_path: Path) -> None:
    """Between git's own steps as well: the whole process group dies at a random time."""
    args = prepare(three, command)
    base = tmp_path / "before"
    before = outcome(three)
    three.root.rename(base)
    shutil.copytree(base, three.root, symlinks=True)
    start = time.monotonic()
    three.ok(*args)
    length = time.monotonic() - start
    after = outcome(three)
    rng = random.Random(20261129)  # noqa: S311
    moments = [rng.uniform(0.3, 1.1) for _ in range(12)]
    for number in kill_points.chosen(range(12), every):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "pyggml", *args],
            cwd=three.root,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(length * moments[number])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        check_truth(three, before, after, " ".join(args))
        run_again(three, args)
        assert outcome(three) == after


@kill_points.every
def test_a_pull_after_a_kill_is_not_written_over(three: Sandbox, every: int, tmp_path: Path) -> None:
    """What a colleague has dropped must not come back with what the killed command would have written."""
    colleague = tmp_path / "colleague"
    shutil.copytree(three.root, colleague, symlinks=True)
    theirs = Sandbox(Project(colleague))
    theirs.ok("patch", "drop", "third")
    base = tmp_path / "before"
    three.root.rename(base)
    shutil.copytree(base, three.root, symlinks=True)
    _, points = run_and_kill(0, three.root, "patch", "rename", "first", "eins")
    met = 0
    for point in kill_points.chosen(range(1, points + 1), every):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        run_and_kill(point, three.root, "patch", "rename", "first", "eins")
        mine = three.files()
        if (
            series_status(three.project).interrupted is None
            or mine["series.toml"] != before_files(base)["series.toml"]
        ):
            continue
        met += 1
        # As git merges it: what the killed command has written is not tracked yet, the rest is the colleague's.
        (three.patches / "0003-third.patch").unlink()
        (three.patches / "series.toml").write_bytes(theirs.files()["series.toml"])
        status = three.pyggml("patch", "status", "--json")
        if "0001-eins.patch" in mine:  # half of the one and half of the other: no series at all
            assert "patches/one/series.toml has been changed since" in status.err
        else:
            assert status.json["interrupted"] == "patch rename first eins"
        pulled = three.files()
        told = three.refused("patch", "apply")
        assert "patches/one/series.toml has been changed since" in told and "ORIG_HEAD" in told
        assert three.files() == pulled
        for name, content in mine.items():
            (three.patches / name).write_bytes(content)
        three.ok("patch", "apply")
        assert [row["name"] for row in three.status()["patches"]] == ["eins", "second", "third"]
    assert met or every > 1


def before_files(root: Path) -> dict[str, bytes]:
    return Sandbox(Project(root)).files()
