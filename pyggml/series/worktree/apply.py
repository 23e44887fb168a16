"""Moving the work tree up and down the series."""

from __future__ import annotations

from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.worktree.applied import applied_change, applied_series, outdated
from pyggml.series.worktree.files import edits
from pyggml.series.worktree.position import known_position, made_of_files, position
from pyggml.series.worktree.session import Needs, Session, changing, require
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace


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
    return at if at is not None or (made_of_files(work) and outdated(work)) else known_position(work)


def _is_reworded(work: Workspace, at: int) -> bool:
    """The trees are the same, but messages or authors in the patch files have changed since they were applied.

    Never so with commits of the user (`git commit --amend`) or edited files: those stay.
    """
    if at == 0 or not made_of_files(work) or edits(work.git).tracked:
        return False
    return work.stack(at)[-1].id != work.head


def _move(session: Session, doing: str, at: int | None, wanted: int) -> ApplyResult:
    work, total = session.work, len(session.work.series.patches)
    if at == wanted and not _is_reworded(work, at):
        return ApplyResult(work.pin.name, False, at, total, work.head, session.finished)
    require(work, doing, Needs.NO_EDITS)
    if at is not None:
        known_position(work)
    stack = work.stack(wanted)
    head = stack[-1].id if stack else work.base
    applied = applied_series(work, stack)
    change = Transaction(
        *(doing, work.head, head, work.head_tree, work.series.trees[wanted]),
        applied_change(work.project, applied),
    )
    publish(work.project, work.git, change)
    return ApplyResult(work.pin.name, True, wanted, total, head, session.finished)
