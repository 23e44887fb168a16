"""Taking the last change back."""

from __future__ import annotations

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.rebasing.state import refuse_rebase
from pyggml.series.worktree.files import check_ready, edits
from pyggml.series.worktree.transaction import Record, publish, records, recover, work_tree_state
from pyggml.upstream.pins import read_pins
from pyggml.upstream.store import repository


def list_undo(project: Project) -> list[Record]:
    """What can be taken back, newest first."""
    return list(reversed(records(project)))


def undo_last(project: Project) -> Record:
    """Take back the newest change.

    Raises:
        PyggmlError: there is none, or something has changed since that it would overwrite.
    """
    with project.lock("undo"):
        git = repository(project, read_pins(project))
        if not git.git_dir.is_dir():
            raise PyggmlError(
                "nothing to take back: no source is fetched yet", "Begin with: pyggml vendor fetch"
            )
        finished = recover(project, git)
        refuse_rebase(project)
        if finished and finished.startswith("undo of "):
            raise PyggmlError(
                f"the killed `{finished}` is finished now", "To go further back, run once more: pyggml undo"
            )
        check_ready(git)
        found = records(project)
        if not found:
            raise PyggmlError(
                "nothing to take back", "Every change made so far has been taken back, or none was made."
            )
        record = found[-1]
        change = record.change
        head = git.text("rev-parse", "HEAD")
        if head != change.head_new:
            raise PyggmlError(
                f"{git.work_tree}: HEAD has moved since `{change.doing}`: taking it back would lose commits of yours",
                "Write them into patch files with `pyggml patch refresh`, or move them to another branch.",
            )
        tree = work_tree_state(git)
        if tree != change.tree_new:
            names = ", ".join(edits(git).tracked[:3])
            raise PyggmlError(
                f"{git.work_tree}: edited since `{change.doing}`: {names}",
                f"Put the edits aside with `git -C {git.work_tree} stash`, then undo.",
            )
        for file in change.files:
            target = project.root / file.path
            if (target.read_bytes() if target.is_file() else None) != file.new:
                raise PyggmlError(
                    f"{target} was changed since `{change.doing}`",
                    "Put your version aside, restore the file from git, then undo.",
                )
        publish(project, git, change.inverse(record.number))
        return record
