"""Folding edits into one patch of the series: any that is applied, and all edits or those of some paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.contents import is_under
from pyggml.series.editing.publish import Goal, SeriesChange, begin, pick_and_publish
from pyggml.series.stack.commits import tree_with
from pyggml.series.stack.picks import TreeDelta, series_picks
from pyggml.series.worktree.files import changed_paths, work_tree_state
from pyggml.series.worktree.position import refuse_outdated
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.workspace import Workspace


def refresh_into(
    project: Project, wanted: str | None = None, paths: Sequence[str] = (), pin: str | None = None
) -> SeriesChange:
    """Fold the work tree's edits into a patch, and put the later ones back on top.

    Args:
        wanted: the patch; None for the topmost applied one.
        paths: files and directories of the source. Other edits stay in the work tree as they are.

    Raises:
        PyggmlError: no such patch, it is not applied, nothing is edited there, commits of the user, or later
            patches would take the edits back.
        StoppedError: a patch conflicts.
    """
    doing = "patch refresh" + (f" -p {wanted}" if wanted else "")
    with changing(project, doing, pin, Needs.NOTHING_WAITING | Needs.OWN_PIN) as session:
        work, applied = session.work, session.applied
        refuse_outdated(work)
        number = applied if wanted is None else work.series.find(wanted)
        if number > applied or not number:
            name = (
                f"patch {work.series.patches[number - 1].name} is not applied"
                if number
                else "no patch is applied"
            )
            raise PyggmlError(
                f"{name}: the edits were not made on it",
                "Apply it first (put edits aside with git stash), or make a patch of them: pyggml patch new NAME",
            )
        tree, below = work_tree_state(work.git), work.head_tree
        part = _only(work, below, tree, paths) if paths else tree
        if part == below:
            raise PyggmlError(
                f"{work.git.work_tree}: nothing is edited" + (f" in {', '.join(paths)}" if paths else ""),
                "New files count after `git add`. See: pyggml patch status",
            )
        stack = work.stack()
        done = list(zip(work.series.patches[: number - 1], stack[: number - 1], strict=True))
        first, *later = series_picks(work.series, stack, range(number, len(stack) + 1))
        first = replace(first, deltas=(*first.deltas, TreeDelta(below, part)))
        otherwise = (
            f"later patches would take the edits back out: they change the same lines as {first.patch.name}",
            "Fold them into the patch that changes those lines last: pyggml patch refresh -p NAME",
        )
        goal = Goal(applied, part, otherwise, tree if part != tree else None)
        operation = begin(work, f"patch refresh -p {first.patch.name}", "edit", applied, tree)
        return pick_and_publish(work, operation, done, [first, *later], tree, goal)


def _only(work: Workspace, old: str, new: str, paths: Sequence[str]) -> str:
    """The tree `old` with what `new` has at `paths` and below them."""
    names = {path.rstrip("/") for path in paths}
    whole = bool(names & {"", "."})
    changes = changed_paths(work.git, old, new)
    return tree_with(
        work.git, old, {one.path: one.new for one in changes if whole or is_under(one.path, names)}
    )
