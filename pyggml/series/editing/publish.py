"""The end of every command that changes the series: pick what is left, write the files, publish everything at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError, StoppedError
from pyggml.series.editing.operation import Operation
from pyggml.series.patchfile.mail import read_patch
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.format_patch import format_patches
from pyggml.series.stack.merge import IndexStage
from pyggml.series.stack.picks import Pick, apply_picks
from pyggml.series.stack.series_file import SERIES_FILE, Patch, Series, series_toml
from pyggml.series.worktree.applied import applied_change, applied_series, read_applied
from pyggml.series.worktree.sequencer import EDITING
from pyggml.series.worktree.state_file import FileChange, read_file
from pyggml.series.worktree.status import applied_count
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace, files_digest, open_workspace


@dataclass(frozen=True)
class SeriesChange:
    """What a command did to the series.

    Attributes:
        applied, total: how many patches are applied and how many there are, as `patch status` counts them.
        written: files of the series that were written.
        removed: files of patches that are in the series no more.
        renamed: pairs of the old and the new file of a patch that has another number or name now.
        waiting: what the user has to do before `pyggml patch continue`; None if all is done.
        recovered: the command that had been killed half-way and was finished, if that was all there was to do.
        notes: what the user should know besides, a sentence each.
    """

    pin: str
    applied: int
    total: int
    head: str
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    waiting: str | None = None
    recovered: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Goal:
    """What a command must give if no patch conflicts; another result is refused.

    Attributes:
        patches, tree: after so many patches, this tree.
        otherwise: message and hint if it is another one.
        kept: the tree of the work tree's files afterwards, if edits stay there. A conflict is refused then:
            they would be in its way.
    """

    patches: int
    tree: str
    otherwise: tuple[str, str] = ("the patches give another tree than before", "Nothing was changed.")
    kept: str | None = None


def series_change(
    work: Workspace,
    changed: Sequence[FileChange] = (),
    renamed: Mapping[str, str] | None = None,
    waiting: str | None = None,
    recovered: str | None = None,
    files: Sequence[str] | None = None,
) -> SeriesChange:
    """What a command did, read back from what is there now.

    Args:
        changed: the files it changed; those that are not of the series do not count.
        renamed: old to new name of patches that have another name now.
        files: the files that the patches of `work` had; by default those of their numbers.
    """
    now = open_workspace(work.project, work.pin.name)
    relative = work.directory.relative_to(work.project.root).as_posix()
    inside = [change for change in changed if change.path.startswith(f"{relative}/")]
    written = [change.path for change in inside if change.new is not None]
    removed = [change.path for change in inside if change.new is None]
    new = {patch.name: f"{relative}/{patch.file(n)}" for n, patch in enumerate(now.series.patches, 1)}
    pairs = []
    for number, patch in enumerate(work.series.patches, 1):
        file = files[number - 1] if files else patch.file(number)
        old, place = f"{relative}/{file}", new.get((renamed or {}).get(patch.name, patch.name))
        if old != place and old in removed and place in written:
            pairs.append((old, place))
            removed.remove(old)
            written.remove(place)
    return SeriesChange(
        work.pin.name,
        applied_count(now),
        len(now.series.patches),
        now.head,
        tuple(written),
        tuple(removed),
        tuple(pairs),
        waiting,
        recovered,
    )


def begin(
    work: Workspace, doing: str, kind: str, applied: int, tree: str, name: str = "", message: str = ""
) -> Operation:
    """An operation that begins now, with the files of the work tree as in `tree`."""
    before = read_applied(work.project)
    return Operation(doing, kind, work.pin.name, applied, work.head, tree, name, message, before=before)


def pick_and_publish(
    work: Workspace,
    operation: Operation,
    done: Sequence[tuple[Patch, Commit]],
    picks: Sequence[Pick],
    tree: str,
    goal: Goal | None = None,
) -> SeriesChange:
    """Pick what is left on top of `done`, then publish the series, or stop at the first conflict.

    Args:
        tree: of the work tree's files as they are now.
        goal: what must come out unless a patch conflicts.

    Raises:
        PyggmlError: it does not come out.
        StoppedError: a patch conflicts; the operation waits for `patch continue`.
    """
    result = apply_picks(work.git, *top(work, done), picks)
    entries = [*done, *result.done]
    conflict = result.conflict
    notes = tuple(f"{name} is left out: it changes nothing here" for name in result.left_out)
    if conflict is None:
        if goal and top(work, entries[: goal.patches])[1] != goal.tree:
            raise PyggmlError(*goal.otherwise)
        doing = f"end of {operation.doing}" if EDITING.what(work.project) else operation.doing
        kept = goal.kept if goal else None
        return replace(publish_series(work, doing, entries, operation.applied, tree, kept), notes=notes)
    if goal and goal.kept:
        raise PyggmlError(
            f"patch {conflict.rest[0].patch.name} would conflict in {', '.join(conflict.paths)}",
            f"Put the edits that are to stay aside (git -C {work.git.work_tree} stash), then run the command again.",
        )
    stopped = replace(
        operation,
        kind="conflict",
        series=work.digest(),
        done=tuple((patch, commit.id) for patch, commit in entries),
        todo=conflict.rest,
        conflicts=conflict.paths,
    )
    # As after a conflict of git itself, `git diff` shows what conflicts.
    publish_waiting(work, stopped, top(work, entries)[0], tree, conflict.tree, unmerged=conflict.stages)
    name = conflict.rest[0].patch.name
    raise StoppedError(
        f"patch {name} conflicts in {', '.join(conflict.paths)} ({work.git.work_tree})",
        f"Resolve the marked places, then: {EDITING.resume}   (or go back: {EDITING.abort})",
    )


def top(work: Workspace, entries: Sequence[tuple[Patch, Commit]]) -> tuple[str, str]:
    """The commit and the tree on top of `entries`; those of the pin if there are none."""
    return (entries[-1][1].id, entries[-1][1].tree) if entries else (work.base, work.series.base)


def publish_series(
    work: Workspace,
    doing: str,
    entries: Sequence[tuple[Patch, Commit]],
    applied: int,
    tree: str,
    kept: str | None = None,
) -> SeriesChange:
    """Publish the series `entries`, with the first `applied` of them in the work tree; nothing waits any more.

    Args:
        tree: of the work tree's files as they are now.
        kept: of the work tree's files afterwards, if edits stay there.
    """
    head, head_tree = top(work, entries[:applied])
    new_tree = kept or head_tree
    contents = [work.patch_file(number) for number in range(1, len(work.series.patches) + 1)]
    written = series_files(work, entries, contents)
    changes = work.series_changes(written)
    record = applied_entries(work, entries, applied, files_digest(written))
    cleared = EDITING.file_change(work.project, None)
    files = (*changes, *record, *cleared)
    publish(work.project, work.git, Transaction(doing, work.head, head, tree, new_tree, files))
    return series_change(work, changes)


def applied_entries(
    work: Workspace, entries: Sequence[tuple[Patch, Commit]], applied: int, digest: str = ""
) -> tuple[FileChange, ...]:
    """The change of the record that says: the first `applied` of `entries` are in the work tree.

    Args:
        digest: of the files that hold them (`Workspace.digest`), if they are written from these entries.
    """
    commits = [commit for _, commit in entries[:applied]]
    return applied_change(work.project, applied_series(work, commits, len(entries), digest))


def publish_waiting(
    work: Workspace,
    operation: Operation,
    head_new: str,
    tree_old: str,
    tree_new: str,
    applied: tuple[FileChange, ...] = (),
    unmerged: tuple[IndexStage, ...] = (),
) -> None:
    """Move the work tree and leave `operation` waiting there.

    Args:
        applied: the change of what the work tree is made of, if it is made of patch files then.
        unmerged: index entries of the conflicting paths.
    """
    files = (*EDITING.file_change(work.project, operation), *applied)
    step = "stop" if operation.kind == "conflict" else "begin"
    change = Transaction(
        f"{step} of {operation.doing}", work.head, head_new, tree_old, tree_new, files, unmerged_new=unmerged
    )
    publish(work.project, work.git, change)


def series_files(
    work: Workspace, entries: Sequence[tuple[Patch, Commit]], contents: Sequence[bytes]
) -> dict[str, bytes]:
    """The whole content of the series' directory; files of unchanged commits are kept byte for byte.

    Args:
        contents: what the files of the patches of `work` have now.
    """
    known: dict[tuple[str, str], tuple[bytes, str]] = {}
    for patch, before, data in zip(work.series.patches, work.series.trees, contents, strict=False):
        known[patch.name, patch.tree] = data, before
    files: dict[str, bytes] = {}
    changed: dict[str, Commit] = {}
    below = work.series.base
    for number, (patch, commit) in enumerate(entries, 1):
        data, before = known.get((patch.name, commit.tree), (b"", ""))
        # On the same tree, the same result means the same diff.
        if not data or before != below or not commit.is_made_of(read_patch(data, commit.subject)):
            changed[patch.file(number)] = commit
        files[patch.file(number)] = data
        below = commit.tree
    files.update(zip(changed, format_patches(work.git, list(changed.values())), strict=True))
    files[SERIES_FILE] = series_listing(work, tuple(patch for patch, _ in entries), {})
    return files


def series_listing(work: Workspace, patches: tuple[Patch, ...], renamed: Mapping[str, str]) -> bytes:
    """The text of `series.toml` for `patches`; what `renamed` maps to a new name keeps its own keys."""
    previous = read_file(work.directory / SERIES_FILE)
    if previous is not None:
        for old, new in renamed.items():
            previous = previous.replace(f'name = "{old}"'.encode(), f'name = "{new}"'.encode())
    return series_toml(Series(work.pin.name, work.series.base, patches), previous)
