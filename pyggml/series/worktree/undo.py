"""Taking changes back, one after the other, and making them again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.worktree.files import changed_paths, check_ready, edits, work_tree_state
from pyggml.series.worktree.sequencer import REBASING, refuse_waiting
from pyggml.series.worktree.session import locked
from pyggml.series.worktree.state_file import read_file
from pyggml.series.worktree.transaction import Transaction, UndoRecord, publish, undo_records


@dataclass(frozen=True)
class UndoResult:
    """What was taken back, or made again.

    Attributes:
        done: the undo or redo itself.
        aside: paths with edits that were made before the change and are not in the work tree any more;
            `undo --redo` brings them back.
        commits: how many commits that were made before the change are on the branch no more, likewise.
    """

    done: Transaction
    aside: tuple[str, ...] = ()
    commits: int = 0


def list_undo(project: Project) -> list[UndoRecord]:
    """What can be taken back, newest first."""
    return [
        record for record in reversed(_in_force(undo_records(project))) if record.transaction.undoes is None
    ]


def list_redo(project: Project) -> list[UndoRecord]:
    """The undos that can themselves be taken back, newest first: those since the last other change."""
    undos = []
    for record in reversed(_in_force(undo_records(project))):
        if record.transaction.undoes is None:
            break
        if record.transaction.doing.startswith("undo of "):
            undos.append(record)
    return undos


def _in_force(records: list[UndoRecord]) -> list[UndoRecord]:
    """The records that no later one has taken back, oldest first."""
    kept: list[UndoRecord] = []
    gone: set[int | None] = set()
    for record in reversed(records):
        if record.number not in gone:
            kept.append(record)
            gone.add(record.transaction.undoes)
    return list(reversed(kept))


def undo_last(project: Project, *, redo: bool = False) -> UndoResult:
    """Take back the newest change that has not been taken back yet.

    Args:
        redo: instead, take the last undo back.

    Raises:
        PyggmlError: there is none, or taking it back would overwrite something that has changed since.
    """
    with locked(project, "undo") as (git, recovered):
        if not git.git_dir.is_dir():
            raise PyggmlError(
                "nothing to take back: no source is fetched yet", "Begin with: pyggml vendor fetch"
            )
        refuse_waiting(project, REBASING)
        if recovered and recovered.undoes is not None:
            raise PyggmlError(
                f"the killed `{recovered.doing}` is finished now",
                "To go further back, run once more: pyggml undo",
            )
        check_ready(git)
        records = list_redo(project) if redo else list_undo(project)
        if not records:
            raise PyggmlError(*_nothing(project, redo))
        last = records[0].transaction
        head, tree = git.text("rev-parse", "HEAD"), work_tree_state(git)
        _check_known(project, git, last, head, tree)
        for file in last.files:
            target = project.root / file.path
            if read_file(target) != file.new:
                raise PyggmlError(
                    f"{target} was changed since `{last.doing}`",
                    "Put your version aside, restore the file from git, then undo.",
                )
        back = replace(last.inverse(records[0].number), head_old=head, tree_old=tree)
        publish(project, git, back)
        if redo:
            return UndoResult(back)
        aside = tuple(change.path for change in changed_paths(git, last.tree_new, tree))
        return UndoResult(back, aside, int(git.text("rev-list", "--count", f"{last.head_new}..{head}")))


def _nothing(project: Project, redo: bool) -> tuple[str, str]:
    """The error if there is nothing to take back."""
    if not redo:
        hint = "Every change made so far has been taken back, or none was made."
        if list_redo(project):
            hint = (
                "Every change made so far has been taken back. To make the last one again: pyggml undo --redo"
            )
        return "nothing to take back", hint
    return (
        "no undo to take back",
        "The last change was no undo. See what can be taken back: pyggml undo --list",
    )


def _check_known(project: Project, git: Git, last: Transaction, head: str, tree: str) -> None:
    """Refuse to go back from a state that is in no record: something there is nowhere else.

    Raises:
        PyggmlError: commits or edits have been made since the last command.
    """
    newest = undo_records(project)[-1].transaction
    if head not in (last.head_new, newest.head_new):
        raise PyggmlError(
            f"{git.work_tree}: HEAD has moved since `{newest.doing}`: taking it back would lose commits of yours",
            "Write them into patch files with `pyggml patch refresh`, or move them to another branch.",
        )
    known = {git.text("rev-parse", f"{head}^{{tree}}")}
    known |= {change.tree_new for change in (last, newest) if change.head_new == head}
    if tree not in known:
        names = ", ".join(edits(git, untracked_too=False).tracked[:3])
        raise PyggmlError(
            f"{git.work_tree}: edited since `{newest.doing}`: {names}",
            f"Put the edits aside with `git -C {git.work_tree} stash`, then undo.",
        )
