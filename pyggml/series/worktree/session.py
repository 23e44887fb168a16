"""The one way for a command to open a project for a change: it says what it needs, and gets it or is refused."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.worktree.applied import applied_here
from pyggml.series.worktree.files import check_ready, edits
from pyggml.series.worktree.position import known_position, made_of_files, refuse_outdated
from pyggml.series.worktree.sequencer import refuse_waiting
from pyggml.series.worktree.transaction import Transaction, recover
from pyggml.series.worktree.workspace import Workspace, open_workspace
from pyggml.upstream.pins import read_pins
from pyggml.upstream.store import repository


class Needs(enum.Flag):
    """What must hold before a command may change anything.

    Attributes:
        NOTHING_WAITING: no edit, conflict or rebase waits for the user.
        NO_EDITS: no tracked file is edited.
        KNOWN_HEAD: HEAD is at a position of the series, or of another pin's series.
        OWN_PIN: HEAD is at a position of the series of this pin.
        NO_COMMITS: HEAD has no commit of the user; it may be made of patch files that have changed since.
        SETTLED: nothing waits, nothing is edited, and HEAD is at a known position.
        ONLY_FILES: nothing waits, and the work tree has nothing that patch files do not have or had.
    """

    NONE = 0
    NOTHING_WAITING = enum.auto()
    NO_EDITS = enum.auto()
    KNOWN_HEAD = enum.auto()
    OWN_PIN = enum.auto()
    NO_COMMITS = enum.auto()
    SETTLED = NOTHING_WAITING | NO_EDITS | KNOWN_HEAD
    ONLY_FILES = NOTHING_WAITING | NO_EDITS | NO_COMMITS


@dataclass(frozen=True)
class Session:
    """A project that is locked for one command.

    Attributes:
        recovered: what a command had left that was killed half-way, and that was finished first, if anything.
        applied: how many patches are applied, if the command asked for KNOWN_HEAD or OWN_PIN; 0 if HEAD is on
            another pin's series.
    """

    work: Workspace
    recovered: Transaction | None
    applied: int = 0

    @property
    def finished(self) -> str | None:
        """The command that was finished first, if any."""
        return self.recovered.doing if self.recovered else None


@contextmanager
def locked(project: Project, doing: str) -> Iterator[tuple[Git, Transaction | None]]:
    """Hold the project's lock and finish what a killed command left.

    Yields:
        the vendored repository, which need not exist yet, and what was finished, if anything.
    """
    with project.lock(doing):
        git = repository(project, read_pins(project))
        yield git, recover(project, git) if git.git_dir.is_dir() else None


@contextmanager
def changing(
    project: Project,
    doing: str,
    pin_name: str | Callable[[], str | None] | None = None,
    needs: Needs = Needs.NONE,
    *,
    keeps_series: bool = False,
    opened: Callable[[Project, str | None], Workspace] = open_workspace,
) -> Iterator[Session]:
    """Open the project for a change.

    Args:
        doing: the command, for messages.
        pin_name: the pin, or what says it once the project is locked.
        keeps_series: the command changes no patch file of this pin, or finishes what was begun before the series
            was closed.
        opened: what reads pins and series.

    Raises:
        PyggmlError: as `open_workspace` and `require`; or another process holds the project, or the vendored
            repository is in the middle of a merge or the like, or on another branch.
    """
    with locked(project, doing) as (_, recovered):
        work = opened(project, pin_name() if callable(pin_name) else pin_name)
        check_ready(work.git)
        if not keeps_series:
            _refuse_closed(work)
        yield Session(work, recovered, require(work, doing, needs))


def require(work: Workspace, doing: str, needs: Needs) -> int:
    """Refuse the command `doing` unless everything it needs is so.

    Returns:
        `Session.applied`.

    Raises:
        PyggmlError: something is not; the message says what, and the way out.
    """
    if Needs.NOTHING_WAITING in needs:
        refuse_waiting(work.project)
    if Needs.NO_EDITS in needs:
        _refuse_edits(work, doing, writable=Needs.NO_COMMITS not in needs)
    if Needs.NO_COMMITS in needs and not made_of_files(work):
        _refuse_commits(work, doing)
        known_position(work)
    if not needs & (Needs.KNOWN_HEAD | Needs.OWN_PIN):
        return 0
    at = known_position(work)
    if at is None and Needs.OWN_PIN in needs:
        raise PyggmlError(
            f"the work tree is on another pin than {work.pin.name}",
            f"Bring it there with: pyggml patch apply --pin {work.pin.name}",
        )
    return at or 0


def _refuse_closed(work: Workspace) -> None:
    if work.series.closed:
        raise PyggmlError(
            f"the series on pin {work.pin.name} is closed: {work.series.closed}",
            f"Change the series on pin {work.pins.default}, or open this one again with: --reopen",
        )


def _refuse_commits(work: Workspace, doing: str) -> None:
    applied = applied_here(work)
    if applied is None:
        return
    top = applied.commits[-1][:12]
    raise PyggmlError(
        f"{work.git.work_tree}: it has commits of yours, which `{doing}` would lose",
        f"There: git branch mine; git reset --keep {top}; pyggml {doing}; git cherry-pick {top}..mine. "
        "Then: pyggml patch refresh",
    )


def _refuse_edits(work: Workspace, doing: str, *, writable: bool) -> None:
    """Refuse edited files.

    Args:
        writable: the series can be written now, so the edits can go into it.
    """
    edited = edits(work.git, untracked_too=False).tracked
    if edited:
        if writable:
            refuse_outdated(work)
        more = f" and {len(edited) - 1} more" if len(edited) > 1 else ""
        aside = f"ut it aside with `git -C {work.git.work_tree} stash`."
        keep = "Keep it with `pyggml patch refresh` or `pyggml patch new NAME`, or p"
        raise PyggmlError(
            f"{work.git.work_tree}: {edited[0]}{more} edited: `{doing}` would lose that",
            (keep if writable else "P") + aside,
        )
