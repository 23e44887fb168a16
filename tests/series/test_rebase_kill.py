"""kill -9 at every point of publishing a rebase: the old state or the new one, and the same command finishes it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rebase_helpers import NEW, OLD, RESOLVED, TwoPins, make_two_pins

from pyggml.series.worktree.status import series_status
from tests import kill_points

KILLER = Path(__file__).with_name("killer.py")


def prepare(box: TwoPins, command: str) -> list[str]:
    if command == "begin":
        box.patch("clean", "b.c", "line 7\n", "line seven\n")
        return ["patch", "rebase", "--onto", "two"]
    box.patch("conflicts", "a.c", "line 5\n", "line five mine\n")
    if command == "stop":
        return ["patch", "rebase", "--onto", "two"]
    assert box.pyggml("patch", "rebase", "--onto", "two").code == 3
    if command == "abort":
        return ["patch", "rebase", "--abort"]
    if command == "skip":
        return ["patch", "rebase", "--skip", "--reason", "not needed"]
    box.resolve("a.c", RESOLVED.replace("line thirty\n", "line 30\n"))
    return ["patch", "rebase", "--continue"]


def outcome(box: TwoPins) -> object:
    status = series_status(box.project)
    return box.everything(), status.pin, status.state, status.rebase


@kill_points.every
@pytest.mark.parametrize("command", ["begin", "stop", "continue", "skip", "abort"])
def test_killed_at_every_point(tmp_path: Path, command: str, every: int) -> None:
    box = make_two_pins(tmp_path, OLD, NEW)
    args = prepare(box, command)
    code = 3 if command == "stop" else 0
    before = outcome(box)
    saved = tmp_path / "saved"
    box.root.rename(saved)

    def fresh() -> None:
        if box.root.exists():
            shutil.rmtree(box.root)
        shutil.copytree(saved, box.root, symlinks=True)

    fresh()
    kill = [sys.executable, str(KILLER)]
    done = subprocess.run([*kill, "0", str(box.root), *args], cwd=box.root, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    points = int(done.stderr.splitlines()[-1])
    after = outcome(box)
    assert after != before
    interrupted = 0
    # Reading and merging come first and touch nothing; publishing is at the end, and there every point counts.
    last, step = {
        "begin": (39, 2),
        "continue": (44, 4),
        "skip": (44, 6),
        "stop": (48, 12),
        "abort": (12, 2),
    }[command]
    for point in kill_points.chosen([points // 3, *range(max(1, points - last), points + 1, step)], every):
        fresh()
        killed = subprocess.run([*kill, str(point), str(box.root), *args], cwd=box.root, capture_output=True)
        assert killed.returncode == -signal.SIGKILL
        status = series_status(box.project)
        interrupted += status.interrupted is not None
        if status.interrupted is None:
            now = outcome(box)
            told = (now[0], *now[1:3])
            assert told in ((before[0], *before[1:3]), (after[0], *after[1:3])), point
        again = box.pyggml(*args)
        if "no patch waits to be left out" in again.err:
            # It was noted already; the hint goes on, and nothing is left out twice.
            assert command == "skip" and status.rebase is not None
            again = box.pyggml("patch", "rebase", "--continue")
        complete = any(word in again.err for word in ("no rebase is under way", "already", "under way"))
        assert again.code == code or complete, (point, again)
        assert outcome(box) == after, point
    assert interrupted * every >= 3 or command in ("stop", "abort")
