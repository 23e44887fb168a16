"""`kill -9` at many points of a fetch: what is left is consistent, and the same command finishes the job."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests import kill_points
from tests.upstream.helpers import GOOD, Upstream, fetch, git, leftovers, on_disk, pyggml, write_project

KILLS = 15
SEED = 20_200_101
BIG = {
    **GOOD,
    **{f"bulk/{n // 50}/{n}.bin": ("100644", bytes((n,)) * 20_000) for n in range(250)},
}


def start(project_root: Path, name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from pyggml.cli import main; main()", "--project", str(project_root)]
    return subprocess.Popen(
        [*command, "vendor", "fetch", name],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@kill_points.every
def test_killed_fetch_is_finished_by_the_same_command(tmp_path: Path, every: int) -> None:
    first, second = (
        Upstream(tmp_path / "a", BIG),
        Upstream(tmp_path / "b", {**BIG, "more": ("100644", b"m\n")}),
    )
    whole = write_project(tmp_path / "whole", one=first.pin(), two=second.pin())
    began = time.monotonic()
    assert pyggml(whole, "vendor", "fetch", "one").returncode == 0
    lasted = time.monotonic() - began
    expected = {
        "one": git(whole.root / "vendor" / "up", "rev-parse", "pin/one"),
        "two": fetch(whole, "two").commit,
    }
    files = {path: value for path, value in BIG.items() if not path.startswith("docs/")}

    dice = random.Random(SEED)  # noqa: S311
    moments = [dice.uniform(0.1, 1.05) for _ in range(KILLS)]
    landed = 0
    # Whole threes: every third kill is that of a second fetch.
    numbers = [
        number
        for three in kill_points.chosen(range(0, KILLS, 3), every)
        for number in range(three, three + 3)
    ]
    for number in numbers:
        project = write_project(tmp_path / f"killed{number}", one=first.pin(), two=second.pin())
        name = "one"
        if number % 3 == 2:
            fetch(project, "one")
            name = "two"
        process = start(project.root, name)
        time.sleep(moments[number] * lasted)
        # Every other time git outlives its parent, as it does if only pyggml is killed.
        (os.killpg if number % 2 else os.kill)(process.pid, signal.SIGKILL)
        landed += process.wait() == -signal.SIGKILL
        work = project.root / "vendor" / "up"
        assert not work.exists() or git(work, "status", "--porcelain") == ""
        again = pyggml(project, "vendor", "fetch", name)
        assert again.returncode == 0, again.stderr
        assert git(work, "rev-parse", f"pin/{name}") == expected[name]
        assert git(work, "rev-parse", "HEAD") == expected["one"]
        assert on_disk(project) == files
        assert git(work, "status", "--porcelain") == ""
        # A git that outlived the killed process keeps its directory until a later fetch.
        deadline = time.monotonic() + 20
        while leftovers(project) and time.monotonic() < deadline:
            time.sleep(0.05)
            fetch(project, name)
        assert leftovers(project) == []
    assert landed >= len(numbers) // 2, "the kills came too late to test anything"
