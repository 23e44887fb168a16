"""Taking the last change back."""

from __future__ import annotations

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.worktree.files import check_ready, edits, work_tree_state
from pyggml.series.worktree.sequencer import REBASING, refuse_waiting
from pyggml.series.worktree.session import locked
from pyggml.series.worktree.state_file import read_file
from pyggml.series.worktree.transaction import UndoRecord, publish, undo_records


def list_undo(project: Project) -> list[UndoRecord]:
    """What can be taken back, newest first."""
    return list(reversed(undo_records(project)))


def undo_last(project: Project) -> UndoRecord:
    """Take back the newest change.

    Raises:
        PyggmlError: there is none, or taking it back would overwrite something that has changed since.
    """
    with locked(project, "undo") as (git, finished):
        if not git.git_dir.is_dir():
            raise PyggmlError(
                "nothing to take back: no source is fetched yet", "Begin with: pyggml vendor fetch"
            )
        refuse_waiting(project, REBASING)
        if finished and finished.startswith("undo of "):
            raise PyggmlError(
                f"the killed `{finished}` is finished now", "To go further back, run once more: pyggml undo"
            )
        check_ready(git)
        records = undo_records(project)
        if not records:
            raise PyggmlError(
                "nothing to take back", "Every change made so far has been taken back, or none was made."
            )
        record = records[-1]
        last = record.transaction
        if git.text("rev-parse", "HEAD") != last.head_new:
            raise PyggmlError(
                f"{git.work_tree}: HEAD has moved since `{last.doing}`: taking it back would lose commits of yours",
                "Write them into patch files with `pyggml patch refresh`, or move them to another branch.",
            )
        if work_tree_state(git) != last.tree_new:
            names = ", ".join(edits(git).tracked[:3])
            raise PyggmlError(
                f"{git.work_tree}: edited since `{last.doing}`: {names}",
                f"Put the edits aside with `git -C {git.work_tree} stash`, then undo.",
            )
        for file in last.files:
            target = project.root / file.path
            if read_file(target) != file.new:
                raise PyggmlError(
                    f"{target} was changed since `{last.doing}`",
                    "Put your version aside, restore the file from git, then undo.",
                )
        publish(project, git, last.inverse(record.number))
        return record
