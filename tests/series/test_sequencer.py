"""What waits for the user: one at a time, written down completely, and readable after an update of pyggml."""

from __future__ import annotations

import json
from pathlib import Path

from rebase_helpers import RESOLVED, TwoPins
from series_helpers import Sandbox

from pyggml.series.editing.operation import Operation
from pyggml.series.patchfile.mail import Identity
from pyggml.series.rebasing.decisions import Decision, Resolution
from pyggml.series.rebasing.state import RebaseState, SavedStop
from pyggml.series.rebasing.todo import PlanLine
from pyggml.series.stack.picks import Pick, TreeDelta
from pyggml.series.stack.series_file import Patch
from pyggml.series.worktree.sequencer import EDITING, REBASING, Sequencer, waiting

PATCH = Patch("name", "1" * 40, "why", "", ("tests/test_a.py::test_b",), "Error")
STATES = (
    (
        EDITING,
        Operation(
            *("patch drop x", "conflict", "one", 2, "a" * 40, "b" * 40),
            done=((PATCH, "c" * 40),),
            todo=(Pick(PATCH, Identity("Ada", "a@b", "1 +0000"), "subject\n", (TreeDelta("d", "e"),)),),
            conflicts=("a.c", "ä \udcff.c"),
        ),
    ),
    (
        REBASING,
        RebaseState(
            *("one", "two", "f" * 64),
            todo=(PlanLine("pick", "name"), PlanLine("skip", "other", "because")),
            decisions={
                "name": Decision(
                    "name",
                    confirmed=("a.c: f -> g",),
                    message="another\n",
                    entry={"purpose": "p", "proof": ("x", "y")},
                    resolution=Resolution("1" * 40, "2" * 40, b"diff \xff\n"),
                )
            },
            waiting=SavedStop("conflict", "name", 1, paths=("a.c",)),
        ),
    ),
)


def forget_what(box: Sandbox, sequencer: Sequencer) -> None:
    """Make the state what earlier versions wrote."""
    path = box.root / sequencer.file
    document = json.loads(path.read_bytes())
    del document["what"]
    path.write_text(json.dumps(document), "utf-8")


def test_a_state_is_read_as_it_was_written(box: Sandbox) -> None:
    for sequencer, state in STATES:
        assert waiting(box.project) is None
        sequencer.store(box.project, state)
        assert sequencer.load(box.project, type(state)) == state
        command = waiting(box.project)
        assert command is not None
        assert (command.sequencer, command.what) == (sequencer, state.what())
        sequencer.clear(box.project)


def test_an_edit_that_an_older_version_left_waiting_goes_on(three: Sandbox) -> None:
    three.ok("patch", "edit", "first")
    three.replace("src/scale.c", "line three\n", "line drei\n")
    forget_what(three, EDITING)
    assert "older pyggml is under way" in three.status()["operation"]
    told = three.refused("patch", "drop", "second")
    assert "older pyggml is under way" in told and "pyggml patch continue" in told
    three.ok("patch", "continue")
    assert b"line drei" in three.files()["0001-first.patch"]
    assert three.status()["operation"] is None


def test_a_rebase_that_an_older_version_left_waiting_goes_on(four: TwoPins, tmp_path: Path) -> None:
    assert four.pyggml("patch", "rebase", "--onto", "two").code == 3
    four.resolve("a.c", RESOLVED)
    forget_what(four, REBASING)
    told = four.refused("patch", "apply")
    assert "older pyggml is under way" in told and "pyggml patch rebase --continue" in told
    four.ok("patch", "rebase", "--continue")
    assert four.status()["rebase"] is None
