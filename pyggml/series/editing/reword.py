"""Changing the message of a patch, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.publish import Goal, SeriesChange, begin, pick_and_publish
from pyggml.series.patchfile.mail import clean_message, read_patch
from pyggml.series.stack.picks import series_picks
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.position import refuse_outdated
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.workspace import Workspace


def patch_message(work: Workspace, wanted: str) -> str:
    """The message of a patch as its file has it.

    Raises:
        PyggmlError: no such patch, or its file cannot be read.
    """
    number = work.series.find(wanted)
    return read_patch(work.patch_file(number), work.series.patches[number - 1].file(number)).message


def reword_patch(project: Project, wanted: str, message: str, pin: str | None = None) -> SeriesChange:
    """Give a patch another message; the other files and the work tree stay as they are, edits included.

    Raises:
        PyggmlError: no such patch, an empty message, or one that would not survive `git am`.
    """
    with changing(project, f"patch reword {wanted}", pin, Needs.NOTHING_WAITING | Needs.OWN_PIN) as session:
        work = session.work
        number = work.series.find(wanted)
        refuse_outdated(work)
        text = clean_message(message)
        if not text:
            raise PyggmlError("the message is empty", "Give it a subject: -m TEXT")
        stack = work.stack()
        done = list(zip(work.series.patches[: number - 1], stack[: number - 1], strict=True))
        first, *later = series_picks(work.series, stack, range(number, len(stack) + 1))
        tree = work_tree_state(work.git)
        operation = begin(work, f"patch reword {first.patch.name}", "edit", session.applied, tree)
        goal = Goal(session.applied, work.series.trees[session.applied], kept=tree)
        return pick_and_publish(work, operation, done, [replace(first, message=text), *later], tree, goal)
