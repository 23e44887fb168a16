"""`pyggml patch status` and the list of patches: reads only, takes no lock."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.patchfile.mail import read_patch
from pyggml.series.stack.history import read_chain
from pyggml.series.worktree.applied import applied_here, outdated
from pyggml.series.worktree.files import edits
from pyggml.series.worktree.position import other_pin_at_head, position
from pyggml.series.worktree.sequencer import EDITING, REBASING
from pyggml.series.worktree.transaction import (
    Transaction,
    changed_since,
    interrupted_transaction,
    refuse_changed_files,
)
from pyggml.series.worktree.workspace import Workspace, open_workspace


@dataclass(frozen=True)
class PatchStatus:
    """A patch as `patch status` shows it; `state` is `applied` or `unapplied`."""

    number: int
    name: str
    file: str
    subject: str
    state: str
    tree: str


@dataclass(frozen=True)
class SeriesStatus:
    """Where the work tree is in the series.

    Attributes:
        state: `clean` (nothing applied), `partial`, `applied`, `dirty` (tracked files are edited),
            `outdated` (HEAD is what the patch files gave before they changed) or `diverged` (HEAD is at no
            recorded tree).
        applied: how many patches are applied; with `diverged`, how many lie below the user's commits.
        edits: tracked paths that are edited.
        on_top: subjects of the commits that are in no patch file.
        operation: what waits for `patch continue`, as a clause.
        rebase: the rebase that waits for `patch rebase --continue`, as a clause.
        interrupted: the command that was killed half-way and that the next command finishes.
        elsewhere: the other pin whose series HEAD is on.
        outdated: the patch files have changed since they were applied.
    """

    pin: str
    state: str
    applied: int
    total: int
    head: str
    patches: tuple[PatchStatus, ...]
    edits: tuple[str, ...] = field(default=())
    untracked: tuple[str, ...] = field(default=())
    on_top: tuple[str, ...] = field(default=())
    operation: str | None = None
    interrupted: str | None = None
    elsewhere: str | None = None
    rebase: str | None = None
    outdated: bool = False


def series_status(project: Project, pin_name: str | None = None) -> SeriesStatus:
    """Where the work tree is.

    Raises:
        PyggmlError: the pin is unknown or not fetched, or the series is inconsistent.
    """
    interrupted = interrupted_transaction(project)
    with _patches_after(project, interrupted) as patches_dir:
        try:
            work = open_workspace(project, pin_name, patches_dir)
        except PyggmlError:
            if interrupted is not None:
                refuse_changed_files(project, interrupted)
            raise
        all_subjects = subjects(work)
    edited = edits(work.git)
    at, elsewhere, applied, on_top = _where(work)
    # While a command is at work, what it has written down is of no moment.
    stale = interrupted is None and outdated(work)
    total = len(work.series.patches)
    if at is None:
        state = "outdated" if stale and not on_top else "diverged"
    elif edited.tracked:
        state = "dirty"
    else:
        state = "clean" if at == 0 else "applied" if at == total else "partial"
    rows = tuple(
        PatchStatus(
            number,
            patch.name,
            patch.file(number),
            subject,
            "applied" if number <= applied else "unapplied",
            patch.tree,
        )
        for number, (patch, subject) in enumerate(zip(work.series.patches, all_subjects, strict=True), 1)
    )
    return SeriesStatus(
        pin=work.pin.name,
        state=state,
        applied=applied,
        total=total,
        head=work.head,
        patches=rows,
        edits=edited.tracked,
        untracked=edited.untracked,
        on_top=on_top,
        operation=EDITING.what(project),
        interrupted=interrupted.doing if interrupted else None,
        elsewhere=elsewhere,
        rebase=REBASING.what(project),
        outdated=stale,
    )


def applied_count(work: Workspace) -> int:
    """How many patches are applied, as `patch status` counts them."""
    return _where(work)[2]


def _where(work: Workspace) -> tuple[int | None, str | None, int, tuple[str, ...]]:
    """HEAD's position, the other pin it is on, how many patches are applied, and the commits in no patch file."""
    at = position(work)
    elsewhere = other_pin_at_head(work) if at is None else None
    if at is None and elsewhere is None:
        return at, elsewhere, *_below_and_on_top(work)
    return at, elsewhere, at or 0, ()


def subjects(work: Workspace) -> list[str]:
    """The subject of every patch file, read without applying anything; empty where a file cannot be read."""
    texts = []
    for number, patch in enumerate(work.series.patches, 1):
        try:
            texts.append(read_patch(work.patch_file(number), patch.name).subject)
        except PyggmlError:
            texts.append("")
    return texts


@contextmanager
def _patches_after(project: Project, interrupted: Transaction | None) -> Iterator[Path]:
    """The patches' directory as the interrupted command will leave it; the project's own if there is none."""
    below = project.patches_dir.relative_to(project.root)
    files = [f for f in interrupted.files if Path(f.path).is_relative_to(below)] if interrupted else []
    # What something else has changed since, a pull for one, will not be written over.
    if interrupted is None or not files or changed_since(project, interrupted):
        yield project.patches_dir
        return
    with tempfile.TemporaryDirectory(prefix="pyggml-series-") as scratch:
        shutil.copytree(project.patches_dir, Path(scratch) / below)
        for file in files:
            target = Path(scratch) / file.path
            if file.new is None:
                target.unlink(missing_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.new)
        yield Path(scratch) / below


def _below_and_on_top(work: Workspace) -> tuple[int, tuple[str, ...]]:
    """How many patches lie below the first commit that is in no patch file, and the subjects from there on."""
    try:
        chain = read_chain(work.git, work.base, work.head)
    except PyggmlError:
        return 0, ("(HEAD does not descend from this pin)",)
    applied, trees = applied_here(work), work.series.trees
    known = applied.commits if applied else ()
    last = max((index for index, commit in enumerate(chain, 1) if commit.tree in trees), default=0)
    below = trees.index(chain[last - 1].tree) if last else 0
    return below, tuple(commit.subject for commit in chain[last:] if commit.id not in known)
