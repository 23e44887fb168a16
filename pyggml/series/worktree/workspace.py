"""The series on the vendored tree: where it stands, and moving it up and down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.editing.operation import read_operation
from pyggml.series.rebasing.state import rebase_words, refuse_rebase
from pyggml.series.stack.commits import Commit, build_stack
from pyggml.series.stack.series_file import Series, read_series
from pyggml.series.worktree.files import Edits, check_ready, edits
from pyggml.series.worktree.transaction import Change, FileChange, pending, publish, records, recover
from pyggml.upstream.pins import Pin, Pins, read_pins
from pyggml.upstream.store import base_commit, repository


@dataclass(frozen=True)
class Workspace:
    """Everything a command needs to know of the project, read once.

    Attributes:
        base: commit id of the pin's snapshot.
        directory: where the patch files lie.
    """

    project: Project
    pins: Pins
    pin: Pin
    git: Git
    base: str
    directory: Path
    series: Series

    @property
    def head(self) -> str:
        return self.git.text("rev-parse", "--verify", "HEAD")


@dataclass(frozen=True)
class PatchState:
    """A patch as `patch status` shows it; `state` is `applied` or `unapplied`."""

    number: int
    name: str
    file: str
    subject: str
    state: str
    tree: str


@dataclass(frozen=True)
class SeriesStatus:
    """Where the work tree stands in the series.

    Attributes:
        state: `clean` (nothing applied), `partial`, `applied`, `dirty` (tracked files are edited) or
            `diverged` (HEAD is at no recorded tree).
        applied: how many patches are applied; with `diverged`, how many lie below the foreign commits.
        edits: tracked paths that are edited.
        on_top: subjects of the commits that are in no patch file.
        operation: what `patch continue` would go on with, in words.
        rebase: the rebase that waits for `patch rebase --continue`, in words.
        interrupted: the command that was killed half-way and that the next command finishes.
        elsewhere: the other pin on whose series HEAD stands.
    """

    pin: str
    state: str
    applied: int
    total: int
    head: str
    patches: tuple[PatchState, ...]
    edits: tuple[str, ...] = field(default=())
    untracked: tuple[str, ...] = field(default=())
    on_top: tuple[str, ...] = field(default=())
    operation: str | None = None
    interrupted: str | None = None
    elsewhere: str | None = None
    rebase: str | None = None


@dataclass(frozen=True)
class MoveResult:
    """The outcome of `apply` and `unapply`."""

    pin: str
    changed: bool
    applied: int
    total: int
    head: str
    recovered: str | None = None


def open_workspace(
    project: Project, pin_name: str | None = None, patches_dir: Path | None = None
) -> Workspace:
    """Read pins and series and find the vendored repository.

    Args:
        patches_dir: where the series of all pins lie; the project's own directory by default.

    Raises:
        PyggmlError: the pin is unknown or not fetched, or the series is inconsistent.
    """
    pins = read_pins(project)
    pin = pins.get(pin_name)
    git = repository(project, pins)
    base = base_commit(project, pins, pin)
    directory = (patches_dir or project.patches_dir) / pin.name
    return Workspace(project, pins, pin, git, base, directory, read_series(directory, pin.name, pin.tree))


@contextmanager
def decided_files(project: Project, change: Change | None) -> Iterator[Path]:
    """The directory of the series as a half-done change will leave it; the project's own if there is none."""
    below = project.patches_dir.relative_to(project.root)
    files = [f for f in change.files if Path(f.path).is_relative_to(below)] if change else []
    if not files:
        yield project.patches_dir
        return
    import shutil
    import tempfile

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


@contextmanager
def changing(
    project: Project, doing: str, pin_name: str | None = None
) -> Iterator[tuple[Workspace, str | None]]:
    """Hold the project for a change: lock, finish what a killed command left, then read.

    Yields:
        the workspace, and the interrupted command that was finished, if any.
    """
    with project.lock(doing):
        finished = (
            recover(project, repository(project, read_pins(project))) if _has_repository(project) else None
        )
        work = open_workspace(project, pin_name)
        check_ready(work.git)
        yield work, finished


def _has_repository(project: Project) -> bool:
    return repository(project, read_pins(project)).git_dir.is_dir()


def position(work: Workspace) -> int | None:
    """How many patches are applied, by equality of trees; None if HEAD's tree is none of the series."""
    tree = work.git.text("rev-parse", "--verify", "HEAD^{tree}")
    trees = work.series.trees
    return trees.index(tree) if tree in trees else None


def refuse_edits(work: Workspace, why: str) -> Edits:
    """Raise if tracked files are edited.

    Raises:
        PyggmlError: they are; the message names the first and the way out.
    """
    found = edits(work.git)
    if found.tracked:
        more = f" and {len(found.tracked) - 1} more" if len(found.tracked) > 1 else ""
        raise PyggmlError(
            f"{work.git.work_tree}: {found.tracked[0]}{more} edited: {why} would lose that",
            "Keep it with `pyggml patch refresh` or `pyggml patch new NAME`, "
            f"or put it aside with `git -C {work.git.work_tree} stash`.",
        )
    return found


def refuse_operation(work: Workspace) -> None:
    """Raise while an `edit` or `new` waits for `continue`, or a rebase is under way."""
    refuse_rebase(work.project)
    operation = read_operation(work.project)
    if operation is not None:
        raise PyggmlError(
            f"{operation.words()} is under way",
            "Finish it with `pyggml patch continue`, or drop it with `pyggml patch abort`.",
        )


def known_position(work: Workspace) -> int:
    """As `position`, refusing a diverged work tree; -1 if HEAD is at a position of another pin's series.

    Raises:
        PyggmlError: HEAD is at no recorded tree.
    """
    at = position(work)
    if at is None and other_pin_at_head(work) is not None:
        return -1
    if at is None and applied_other_files(work):
        raise PyggmlError(
            f"{work.git.work_tree}: the patch files have changed since they were applied",
            "Bring the work tree to them with: pyggml patch apply",
        )
    if at is None:
        raise PyggmlError(
            f"{work.git.work_tree}: HEAD is at no tree of the series on pin {work.pin.name}: it has commits of yours",
            "Write them into patch files with `pyggml patch refresh`, or look with `pyggml patch status`.",
        )
    return at


def applied_other_files(work: Workspace) -> bool:
    """HEAD is where `apply` or `unapply` put it, from files that have changed since, as after a `git pull`.

    Every commit there was made of a patch file, so moving away loses nothing; `pyggml undo` goes back.
    """
    made = [record.change for record in records(work.project)[-1:]]
    return any(c.head_new == work.head and c.doing in ("patch apply", "patch unapply") for c in made)


def _movable_position(work: Workspace) -> int:
    """As `known_position`; -1 also where the files have changed under what was applied."""
    if position(work) is None and applied_other_files(work):
        return -1
    return known_position(work)


def other_pin(work: Workspace) -> PyggmlError:
    """The refusal of a command that needs the work tree on its own pin."""
    return PyggmlError(
        f"the work tree stands on another pin than {work.pin.name}",
        f"Bring it there with: pyggml patch apply --pin {work.pin.name}",
    )


def other_pin_at_head(work: Workspace) -> str | None:
    """The other pin of whose series HEAD is a recorded position: moving away loses nothing then."""
    tree = work.git.text("rev-parse", "--verify", "HEAD^{tree}")
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


def apply_series(project: Project, pin_name: str | None = None, to: int | None = None) -> MoveResult:
    """Apply the series, or bring it to exactly `to` patches if fewer are applied now.

    Args:
        pin_name: the pin; None for the default. Another pin's series is taken off first.
        to: how many patches; None for all.

    Raises:
        PyggmlError: local edits, foreign commits, a patch that does not give its recorded tree; nothing
            was changed.
    """
    with changing(project, "patch apply", pin_name) as (work, finished):
        refuse_operation(work)
        total = len(work.series.patches)
        wanted = total if to is None else _check_target(to, total)
        at = _movable_position(work)
        if at >= wanted:
            return MoveResult(work.pin.name, False, at, total, work.head, finished)
        return _move(work, "patch apply", wanted, finished)


def unapply_series(project: Project, pin_name: str | None = None, to: int = 0) -> MoveResult:
    """Take patches off until `to` are left.

    Raises:
        PyggmlError: as `apply_series`.
    """
    with changing(project, "patch unapply", pin_name) as (work, finished):
        refuse_operation(work)
        total = len(work.series.patches)
        wanted = _check_target(to, total)
        at = _movable_position(work)
        if 0 <= at <= wanted:
            return MoveResult(work.pin.name, False, at, total, work.head, finished)
        return _move(work, "patch unapply", wanted, finished)


def _check_target(to: int, total: int) -> int:
    if not 0 <= to <= total:
        raise PyggmlError(
            f"there is no position {to} in a series of {total} patches", "List it with: pyggml patch list"
        )
    return to


def _move(work: Workspace, doing: str, wanted: int, finished: str | None) -> MoveResult:
    refuse_edits(work, f"`{doing}`")
    stack = build_stack(work.git, work.directory, work.series, work.base, wanted)
    head = stack[-1].id if stack else work.base
    before = work.head
    publish(
        work.project,
        work.git,
        Change(
            doing, before, head, work.git.text("rev-parse", f"{before}^{{tree}}"), work.series.trees[wanted]
        ),
    )
    return MoveResult(work.pin.name, True, wanted, len(work.series.patches), head, finished)


def subjects(work: Workspace) -> list[str]:
    """The subject of every patch file, read without applying anything; unreadable files give an empty one."""
    from pyggml.series.patchfile.mail import read_patch

    found = []
    for number, patch in enumerate(work.series.patches, 1):
        file = patch.file(number)
        try:
            found.append(read_patch((work.directory / file).read_bytes(), file).subject)
        except PyggmlError:
            found.append("")
    return found


def series_status(project: Project, pin_name: str | None = None) -> SeriesStatus:
    """Where the work tree stands; reads only, takes no lock.

    Raises:
        PyggmlError: the pin is unknown or not fetched, or the series is inconsistent.
    """
    change = pending(project)
    with decided_files(project, change) as patches_dir:
        work = open_workspace(project, pin_name, patches_dir)
        told = subjects(work)
    operation = read_operation(project)
    at = position(work)
    found = edits(work.git)
    on_top: tuple[str, ...] = ()
    below = at
    elsewhere = other_pin_at_head(work) if at is None else None
    if at is None and elsewhere is None:
        below, on_top = _foreign(work)
    total = len(work.series.patches)
    if at is None:
        state = "diverged"
    elif found.tracked:
        state = "dirty"
    else:
        state = "clean" if at == 0 else "applied" if at == total else "partial"
    applied = below or 0
    rows = tuple(
        PatchState(
            number,
            patch.name,
            patch.file(number),
            subject,
            "applied" if number <= applied else "unapplied",
            patch.tree,
        )
        for number, (patch, subject) in enumerate(zip(work.series.patches, told, strict=True), 1)
    )
    return SeriesStatus(
        pin=work.pin.name,
        state=state,
        applied=applied,
        total=total,
        head=work.head,
        patches=rows,
        edits=found.tracked,
        untracked=found.untracked,
        on_top=on_top,
        operation=operation.words() if operation else None,
        interrupted=change.doing if change else None,
        elsewhere=elsewhere,
        rebase=rebase_words(project),
    )


def _foreign(work: Workspace) -> tuple[int, tuple[str, ...]]:
    """The patches below the first commit that is in no patch file, and the subjects of those above."""
    from pyggml.series.stack.history import read_chain

    try:
        chain = read_chain(work.git, work.base, work.head)
    except PyggmlError:
        return 0, ("(HEAD does not descend from this pin)",)
    trees = work.series.trees
    last = 0
    for index, commit in enumerate(chain, 1):
        if commit.tree in trees:
            last = index
    below = trees.index(chain[last - 1].tree) if last else 0
    return below, tuple(commit.subject for commit in chain[last:])


def file_changes(work: Workspace, new: dict[str, bytes]) -> tuple[FileChange, ...]:
    """The changes that make `new` (file name to content) the whole content of the series' directory.

    Only patch files and `series.toml` are looked at; files that are the same are left alone.
    """
    from pyggml.series.stack.series_file import SERIES_FILE

    relative = work.directory.relative_to(work.project.root).as_posix()
    present = {path.name: path.read_bytes() for path in work.directory.glob("*.patch")}
    listing = work.directory / SERIES_FILE
    if listing.is_file():
        present[SERIES_FILE] = listing.read_bytes()
    names = sorted(present.keys() | new.keys(), key=lambda name: (name == SERIES_FILE, name))
    return tuple(
        FileChange(f"{relative}/{name}", present.get(name), new.get(name))
        for name in names
        if present.get(name) != new.get(name)
    )


def canonical(work: Workspace, upto: int | None = None) -> list[Commit]:
    """The commits of the series as its files give them."""
    return build_stack(work.git, work.directory, work.series, work.base, upto)


__all__ = [
    "MoveResult",
    "PatchState",
    "SeriesStatus",
    "Workspace",
    "apply_series",
    "series_status",
    "unapply_series",
]
