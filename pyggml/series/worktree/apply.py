"""Moving the work tree up and down the series."""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.worktree.applied import applied_change, applied_here, applied_series, outdated
from pyggml.series.worktree.files import edits
from pyggml.series.worktree.position import check_position, made_of_files, position
from pyggml.series.worktree.session import Needs, Session, changing, require
from pyggml.series.worktree.status import applied_count
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace, open_workspace


@dataclass(frozen=True)
class ApplyResult:
    """What `apply` and `unapply` did.

    Attributes:
        recovered: the command that had been killed half-way and was finished first, if any.
    """

    pin: str
    changed: bool
    applied: int
    total: int
    head: str
    recovered: str | None = None


def apply_series(project: Project, pin_name: str | None = None, to: int | None = None) -> ApplyResult:
    """Apply the series, or bring it to exactly `to` patches if fewer are applied now.

    Args:
        pin_name: the pin; None for the default. Another pin's series is taken off first.
        to: how many patches; None for all.

    Raises:
        PyggmlError: local edits, commits of the user, a patch that does not give its recorded tree; nothing
            was changed.
    """
    with changing(project, "patch apply", pin_name, Needs.NOTHING_WAITING, keeps_series=True) as session:
        wanted = _check_target(session.work, to)
        at = _movable_position(session.work)
        return _move(session, "patch apply", at, wanted if at is None else max(at, wanted))


def unapply_series(project: Project, pin_name: str | None = None, to: int = 0) -> ApplyResult:
    """Take patches off until `to` are left.

    Raises:
        PyggmlError: as `apply_series`.
    """
    with changing(project, "patch unapply", pin_name, Needs.NOTHING_WAITING, keeps_series=True) as session:
        wanted = _check_target(session.work, to)
        at = _movable_position(session.work)
        return _move(session, "patch unapply", at, wanted if at is None else min(at, wanted))


def _check_target(work: Workspace, to: int | None) -> int:
    total = len(work.series.patches)
    if to is not None and not 0 <= to <= total:
        raise PyggmlError(
            f"there is no position {to} in a series of {total} patches", "List it with: pyggml patch list"
        )
    return total if to is None else to


def _movable_position(work: Workspace) -> int | None:
    """As `known_position`; None also if the patch files have changed since they were applied."""
    at = position(work)
    return at if at is not None or (made_of_files(work) and outdated(work)) else check_position(work, at)


def _is_reworded(work: Workspace, at: int, head: str) -> bool:
    """The trees are the same, but messages or authors in the patch files have changed since they were applied.

    Never so with commits of the user (`git commit --amend`) or edited files: those stay.
    """
    if at == 0 or _is_made_of_these_files(work, at, head):
        return False
    if not made_of_files(work) or edits(work.git, untracked_too=False).tracked:
        return False
    return work.stack(at)[-1].id != head


def _is_made_of_these_files(work: Workspace, at: int, head: str) -> bool:
    """Whether HEAD is patch `at`, and no patch file has changed since it was applied."""
    applied = applied_here(work)
    if applied is None or not applied.digest or len(applied.patches) < at:
        return False
    return applied.commits[at] == head and applied.digest == work.digest()


def _move(session: Session, doing: str, at: int | None, wanted: int) -> ApplyResult:
    work, total = session.work, len(session.work.series.patches)
    old = work.head
    if at == wanted and not _is_reworded(work, at, old):
        return ApplyResult(work.pin.name, False, at, total, old, session.finished)
    require(work, doing, Needs.NO_EDITS)
    if at is not None:
        check_position(work, at)
    digest = work.digest()
    stack = work.stack(wanted)
    head = stack[-1].id if stack else work.base
    applied = applied_series(work, stack, total, digest)
    change = Transaction(
        *(doing, old, head, work.head_tree, work.series.trees[wanted]),
        applied_change(work.project, applied),
    )
    publish(work.project, work.git, change)
    return ApplyResult(work.pin.name, True, wanted, total, head, session.finished)


def push_patches(project: Project, wanted: str | None = None, pin_name: str | None = None) -> ApplyResult:
    """Apply the next patch, the next N, or all up to one, as quilt's `push`.

    Args:
        wanted: a number of patches, or the name of the last one to apply; None for the next.

    Raises:
        PyggmlError: as `apply_series`; or all of the series is applied, or that patch is.
    """
    at, total, to = _counted(project, wanted, pin_name, 1)
    if to <= at or to > total:
        what = "all of the series is" if at == total else f"{at} of {total} patches are"
        raise PyggmlError(f"{what} applied: there is nothing to push", "See: pyggml patch status")
    return apply_series(project, pin_name, to)


def pop_patches(project: Project, wanted: str | None = None, pin_name: str | None = None) -> ApplyResult:
    """Take the topmost patch off, the topmost N, or all above one, as quilt's `pop`.

    Args:
        wanted: a number of patches, or the name of the one that is to be on top; None for the topmost.

    Raises:
        PyggmlError: as `unapply_series`; or fewer patches are applied, or that one is on top or not applied.
    """
    at, total, to = _counted(project, wanted, pin_name, -1)
    if to >= at or to < 0:
        what = "no patch is applied" if not at else f"{at} of {total} patches are applied"
        raise PyggmlError(f"{what}: there is nothing to pop", "See: pyggml patch status")
    return unapply_series(project, pin_name, to)


def _counted(project: Project, wanted: str | None, pin_name: str | None, step: int) -> tuple[int, int, int]:
    """How many patches are applied, how many there are, and how many are to be."""
    work = open_workspace(project, pin_name)
    at = applied_count(work)
    number = wanted or "1"
    if number.isascii() and number.isdigit():
        return at, len(work.series.patches), at + step * int(number)
    return at, len(work.series.patches), work.series.find(number)
