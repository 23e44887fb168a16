"""Where HEAD stands: at which patch of the series, on another pin's series, or at commits of the user."""

from __future__ import annotations

from pyggml.errors import PyggmlError
from pyggml.series.stack.series_file import read_series
from pyggml.series.worktree.applied import applied_here, outdated
from pyggml.series.worktree.workspace import Workspace


def position(work: Workspace) -> int | None:
    """How many patches are applied, by equality of trees; None if HEAD's tree is not one of the series."""
    tree = work.head_tree
    places = [number for number, other in enumerate(work.series.trees) if other == tree]
    if len(places) > 1:
        # A patch that takes another back gives the same tree again: only the number of commits tells them apart.
        count = int(work.git.text("rev-list", "--count", f"{work.base}..HEAD"))
        places.sort(key=lambda number: number != count)
    return places[0] if places else None


def known_position(work: Workspace) -> int | None:
    """As `position`, but None only if HEAD is at a position of another pin's series.

    Raises:
        PyggmlError: HEAD is at no recorded tree, or at commits of the user that give one.
    """
    return check_position(work, position(work))


def check_position(work: Workspace, at: int | None) -> int | None:
    """As `known_position`, where `position` has given `at`."""
    if at is None and other_pin_at_head(work) is not None:
        return None
    if at is None and outdated(work):
        if made_of_files(work):
            raise PyggmlError(
                f"{work.git.work_tree}: the patch files have changed since they were applied",
                "Bring the work tree up to date with: pyggml patch apply",
            )
        refuse_outdated(work)
    if at is None or _has_own_commits(work, at):
        which = (
            "HEAD is at no tree of the series" if at is None else f"HEAD is not patch {at} as its file has it"
        )
        raise PyggmlError(
            f"{work.git.work_tree}: {which} on pin {work.pin.name}: it has commits of yours",
            "Write them into patch files with `pyggml patch refresh`, or look with `pyggml patch status`.",
        )
    return at


def made_of_files(work: Workspace) -> bool:
    """Whether HEAD is a commit that was made of patch files, as they were then: moving away loses nothing."""
    applied = applied_here(work)
    return applied is not None and work.head in applied.commits


def refuse_outdated(work: Workspace) -> None:
    """Refuse to write the work tree into patch files that are newer than what it was made of.

    Raises:
        PyggmlError: they are; the message says how both are kept.
    """
    if not outdated(work):
        return
    tree, applied = work.git.work_tree, applied_here(work)
    changed = f"{tree}: the patch files have changed since they were applied"
    assert applied is not None  # noqa: S101
    if made_of_files(work):
        raise PyggmlError(
            f"{changed}: writing the work tree back would undo that",
            f"Put edits aside (git -C {tree} stash), run `pyggml patch apply`, then: git -C {tree} stash pop",
        )
    top = applied.commits[-1][:12]
    raise PyggmlError(
        f"{changed}, and it has commits of yours",
        f"There: git branch mine; git reset --keep {top}; pyggml patch apply; git cherry-pick {top}..mine. "
        "Then: pyggml patch refresh",
    )


def _has_own_commits(work: Workspace, at: int) -> bool:
    """Whether the trees are those of the series, but the commits are the user's (`git commit --amend`)."""
    if applied_here(work) is None or made_of_files(work):
        return False
    return work.head != (work.stack(at)[-1].id if at else work.base)


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
