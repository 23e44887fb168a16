"""kill -9 at every point of apply, refresh and undo: status tells the truth, the same command finishes the job."""

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
from pyggml.series.editing.edit import refresh
from pyggml.series.worktree.apply import apply_series
from pyggml.series.worktree.status import series_status
from pyggml.series.worktree.undo import undo_last
from tests import kill_points

KILLER = Path(__file__).with_name("killer.py")


def prepare(box: Sandbox, command: str) -> list[str]:
    """Bring the box before the command and return the command."""
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
    {"apply": apply_series, "refresh": refresh, "undo": undo_last}[args[-1]](box.project)


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
@pytest.mark.parametrize("command", ["apply", "refresh", "undo"])
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
    words = "undo of patch drop first" if command == "undo" else " ".join(args)
    interrupted = 0
    for point in kill_points.chosen(range(1, points + 1), every):
        box = fresh(str(point))
        killed = subprocess.run(
            [sys.executable, str(KILLER), str(point), str(box.root), *args], cwd=box.root, capture_output=True
        )
        assert killed.returncode == -signal.SIGKILL
        status = series_status(box.project)
        interrupted += status.interrupted is not None
        check_truth(box, before, after, words)
        complete = status.interrupted is None and outcome(box) == after
        if command == "undo" and complete:
            continue  # once more would take back one change more
        try:
            run_again(box, args)
        except PyggmlError as error:
            # Finishing the killed undo leaves nothing of it to take back.
            assert command == "undo" and "is finished" in error.message, error
        found = outcome(box)
        assert found == after, f"point {point}: {differing(found, after)}"
        assert not (box.tree / ".git/index.lock").exists()
    assert interrupted * every >= 3


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
