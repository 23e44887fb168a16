"""Where HEAD stands: at which patch of the series, on another pin's series, or at commits of the user."""

from __future__ import annotations

from pyggml.errors import PyggmlError
from pyggml.series.stack.series_file import read_series
from pyggml.series.worktree.transaction import undo_records
from pyggml.series.worktree.workspace import Workspace


def position(work: Workspace) -> int | None:
    """How many patches are applied, by equality of trees; None if HEAD's tree is not one of the series."""
    tree, trees = work.head_tree, work.series.trees
    return trees.index(tree) if tree in trees else None


def known_position(work: Workspace) -> int | None:
    """As `position`, but None only if HEAD is at a position of another pin's series.

    Raises:
        PyggmlError: HEAD is at no recorded tree.
    """
    at = position(work)
    if at is not None or other_pin_at_head(work) is not None:
        return at
    if applied_older_files(work):
        raise PyggmlError(
            f"{work.git.work_tree}: the patch files have changed since they were applied",
            "Bring the work tree up to date with: pyggml patch apply",
        )
    raise PyggmlError(
        f"{work.git.work_tree}: HEAD is at no tree of the series on pin {work.pin.name}: it has commits of yours",
        "Write them into patch files with `pyggml patch refresh`, or look with `pyggml patch status`.",
    )


def applied_older_files(work: Workspace) -> bool:
    """HEAD is where `apply` or `unapply` put it, from files that have changed since, as after a `git pull`.

    Every commit there was made from a patch file, so moving away loses nothing; `pyggml undo` goes back.
    """
    last = [record.transaction for record in undo_records(work.project)[-1:]]
    return any(t.head_new == work.head and t.doing in ("patch apply", "patch unapply") for t in last)


def other_pin_at_head(work: Workspace) -> str | None:
    """The other pin whose series has HEAD's tree: moving away loses nothing then."""
    tree = work.head_tree
    for pin in work.pins.pins:
        if pin.name == work.pin.name:
            continue
        try:
            series = read_series(work.project.patches_dir / pin.name, pin.name, pin.tree)
        except PyggmlError:
            continue
        if tree in series.trees:
            return pin.name
    return None
