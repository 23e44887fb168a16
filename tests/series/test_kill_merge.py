"""kill -9 at every point of `patch renumber`, `refresh --dropped` and `refresh --from-files`, then undo."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from killer import run_and_kill
from series_helpers import Sandbox
from test_branch import rebase
from test_kill import differing
from test_merge import git
from test_renumber import add, save, switch, two_branches

from pyggml.series.worktree.status import series_status
from pyggml.series.worktree.transaction import interrupted_transaction


def merged(box: Sandbox) -> None:
    """The project after a merge of two branches: two patches with one name, and one below them."""
    two_branches(box)
    add(box, "of-main")
    add(box, "more")
    save(box, "main")
    switch(box, "theirs")
    add(box, "more", "of-theirs")
    save(box, "theirs")
    switch(box, "main")
    assert git(box, "merge", "-q", "--no-edit", "theirs") == 0


def dropped(box: Sandbox) -> None:
    box.patch("fourth", "run.sh", "exit 0\n", "exit 1\n")
    rebase(box, "pick %4", "pick %1")


def by_hand(box: Sandbox) -> None:
    path = box.patches / "0001-first.patch"
    path.write_bytes(path.read_bytes().replace(b"+line three", b"+line III"))


COMMANDS: dict[str, tuple[Callable[[Sandbox], None], int]] = {
    "patch renumber": (merged, 6),
    "patch refresh --dropped second third": (dropped, 2),
    "patch refresh --from-files": (by_hand, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_killed_at_every_point(three: Sandbox, command: str, tmp_path: Path) -> None:
    prepare, count = COMMANDS[command]
    args = command.split()
    prepare(three)
    before = three.state()
    base = tmp_path / "before"
    three.root.rename(base)
    shutil.copytree(base, three.root, symlinks=True)
    code, points = run_and_kill(0, three.root, *args)
    after = three.state()
    assert code == 0 and points > 15 and before != after
    decided = 0
    for point in range(1, points + 1):
        shutil.rmtree(three.root)
        shutil.copytree(base, three.root, symlinks=True)
        assert run_and_kill(point, three.root, *args)[0] == -signal.SIGKILL
        interrupted = interrupted_transaction(three.project) is not None
        if not interrupted:
            assert three.state() in (before, after), f"point {point}"
        else:
            decided += 1
            status = series_status(three.project)
            assert status.interrupted is not None and command.startswith(status.interrupted)
        done = interrupted or three.state() == after
        # Whatever was decided is finished by the next command; what was not is done by the same one.
        three.ok("patch", "apply") if done else three.ok(*args)
        assert three.state() == after, f"point {point}: {differing(three.state(), after)}"
        status = series_status(three.project)
        assert (status.state, status.applied, status.total) == ("applied", count, count)
        three.ok("undo")
        assert three.state() == before, f"point {point}, undo: {differing(three.state(), before)}"
    assert decided >= 3
