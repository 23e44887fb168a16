"""The end of every command that changes the series: pick what is left, write the files, publish once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyggml.errors import StoppedError
from pyggml.project import Project
from pyggml.series.editing.operation import OPERATION_FILE, Operation, operation_bytes
from pyggml.series.patchfile.mail import read_patch
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.format_patch import export_commit
from pyggml.series.stack.picks import Pick, restack
from pyggml.series.stack.series_file import SERIES_FILE, Patch, Series, series_toml
from pyggml.series.worktree.transaction import Change, FileChange, publish
from pyggml.series.worktree.workspace import Workspace, file_changes


@dataclass(frozen=True)
class SeriesChange:
    """The outcome of a command that changes the series.

    Attributes:
        written: files of the series that were written or removed.
        waiting: what the user has to do before `pyggml patch continue`; None when all is done.
    """

    pin: str
    applied: int
    total: int
    head: str
    written: tuple[str, ...]
    waiting: str | None = None


def run(
    work: Workspace,
    operation: Operation,
    done: Sequence[tuple[Patch, Commit]],
    picks: Sequence[Pick],
    tree: str,
) -> SeriesChange:
    """Pick what is left, then publish the series, or stop at the first conflict."""
    parent, base = (done[-1][1].id, done[-1][1].tree) if done else (work.base, work.series.base)
    outcome = restack(work.git, parent, base, picks)
    entries = [*done, *outcome.done]
    if outcome.conflict is None:
        return write(work, operation.doing, entries, operation.applied, tree)
    conflict = outcome.conflict
    stopped = replace(
        operation,
        kind="conflict",
        done=tuple((patch, commit.id) for patch, commit in entries),
        todo=conflict.rest,
        conflicts=conflict.paths,
    )
    head = entries[-1][1].id if entries else work.base
    publish_operation(work, stopped, work.head, head, tree, conflict.tree)
    name = conflict.rest[0].patch.name
    raise StoppedError(
        f"patch {name} conflicts in {', '.join(conflict.paths)} ({work.git.work_tree})",
        "Resolve the marked places, then: pyggml patch continue   (or go back: pyggml patch abort)",
    )


def write(
    work: Workspace, doing: str, entries: Sequence[tuple[Patch, Commit]], applied: int, tree: str
) -> SeriesChange:
    """Publish the series `entries` with the first `applied` of them in the work tree."""
    files = series_files(work, entries)
    head, new_tree = (
        (entries[applied - 1][1].id, entries[applied - 1][1].tree)
        if applied
        else (work.base, work.series.base)
    )
    changes = (*file_changes(work, files), *operation_file(work.project, None))
    publish(work.project, work.git, Change(doing, work.head, head, tree, new_tree, changes))
    written = tuple(change.path for change in changes if change.path != OPERATION_FILE)
    return SeriesChange(work.pin.name, applied, len(entries), head, written)


def series_files(work: Workspace, entries: Sequence[tuple[Patch, Commit]]) -> dict[str, bytes]:
    """The whole content of the series' directory; files of unchanged commits are kept byte for byte."""
    known: dict[tuple[str, str], bytes] = {}
    for number, patch in enumerate(work.series.patches, 1):
        known[patch.name, patch.tree] = (work.directory / patch.file(number)).read_bytes()
    files: dict[str, bytes] = {}
    for number, (patch, commit) in enumerate(entries, 1):
        kept = known.get((patch.name, commit.tree))
        if kept is None or not _says(kept, commit) or not _same_change(work, patch, commit):
            kept = export_commit(work.git, commit)
        files[patch.file(number)] = kept
    files[SERIES_FILE] = listing(work, tuple(patch for patch, _ in entries), {})
    return files


def _says(data: bytes, commit: Commit) -> bool:
    mail = read_patch(data, commit.subject)
    return mail.message == commit.message and mail.author == commit.author


def _same_change(work: Workspace, patch: Patch, commit: Commit) -> bool:
    """Whether the patch stands on the same tree as in the files: its diff is then the same."""
    trees = work.series.trees
    number = next(n for n, p in enumerate(work.series.patches) if p.name == patch.name)
    return trees[number] == work.git.text("rev-parse", f"{commit.parent}^{{tree}}")


def listing(work: Workspace, patches: tuple[Patch, ...], renamed: dict[str, str]) -> bytes:
    path = work.directory / SERIES_FILE
    previous = path.read_bytes() if path.is_file() else None
    if previous is not None:
        for old, new in renamed.items():
            previous = previous.replace(f'name = "{old}"'.encode(), f'name = "{new}"'.encode())
    return series_toml(Series(work.pin.name, work.series.base, patches), previous)


def operation_file(project: Project, operation: Operation | None) -> tuple[FileChange, ...]:
    old = operation_bytes(project)
    new = operation.encode() if operation else None
    return () if old == new else (FileChange(OPERATION_FILE, old, new),)


def publish_operation(
    work: Workspace, operation: Operation, head_old: str, head_new: str, tree_old: str, tree_new: str
) -> None:
    change = Change(
        operation.doing, head_old, head_new, tree_old, tree_new, operation_file(work.project, operation)
    )
    publish(work.project, work.git, change)


def result(
    work: Workspace, applied: int, head: str, written: tuple[str, ...], waiting: str | None = None
) -> SeriesChange:
    return SeriesChange(work.pin.name, applied, len(work.series.patches), head, written, waiting)
