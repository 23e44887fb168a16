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
from pathlib import Path

import pytest
from series_helpers import Sandbox

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.edit import abort_operation, continue_operation, refresh
from pyggml.series.worktree.apply import apply_series
from pyggml.series.worktree.status import series_status
from pyggml.series.worktree.undo import undo_last
from tests import kill_points

KILLER = Path(__file__).with_name("killer.py")


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
    done = subprocess.run(
        [sys.executable, str(KILLER), "0", str(box.root), *args], cwd=box.root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    points = int(done.stderr.splitlines()[-1])
    after = outcome(box)
    assert before != after
    assert points > 15
    goes_on = command in ("apply", "pulled", "refresh")
    interrupted = 0
    for point in kill_points.chosen(range(1, points + 1), every):
        box = fresh(str(point))
        killed = subprocess.run(
            [sys.executable, str(KILLER), str(point), str(box.root), *args], cwd=box.root, capture_output=True
        )
        assert killed.returncode == -signal.SIGKILL
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
    command = [sys.executable, str(KILLER), "0", str(three.root), "patch", "continue"]
    shutil.copytree(base, three.root, symlinks=True)
    done = subprocess.run(command, cwd=three.root, capture_output=True, text=True)
    decided = 0
    for point in kill_points.chosen(range(1, int(done.stderr.splitlines()[-1]) + 1), every):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        command[2] = str(point)
        killed = subprocess.run(command, cwd=three.root, capture_output=True)
        assert killed.returncode == -signal.SIGKILL
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
