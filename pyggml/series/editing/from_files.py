"""Patch files that git or a person changed: number them, record their trees anew, and let the work tree follow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.project import Project
from pyggml.series.editing.match import CommitDelta, match_commits
from pyggml.series.editing.merge_sides import MergeSides, is_same_patch
from pyggml.series.editing.publish import SeriesChange, applied_entries, series_change, series_files, top
from pyggml.series.editing.squash import merged_entry
from pyggml.series.patchfile.mail import NamedPatch, PatchMail, read_patch
from pyggml.series.stack.commits import Commit, apply_patches
from pyggml.series.stack.history import read_commit
from pyggml.series.stack.picks import TreeDelta
from pyggml.series.stack.series_file import SERIES_FILE, Patch, read_listing, slug
from pyggml.series.worktree.applied import applied_here
from pyggml.series.worktree.files import work_tree_state
from pyggml.series.worktree.position import position
from pyggml.series.worktree.session import Needs, changing
from pyggml.series.worktree.transaction import Transaction, publish
from pyggml.series.worktree.workspace import Workspace, open_bare

_MARKS = re.compile(rb"(?ms)^<<<<<<< .*?^=======$.*?^>>>>>>> ")


@dataclass(frozen=True)
class _ListedPatch:
    """An entry of series.toml with the file that has its patch now."""

    patch: Patch
    file: str
    data: bytes
    mail: PatchMail


@dataclass(frozen=True)
class _Listing:
    """What series.toml and the files beside it make of the series, whatever numbers they have.

    Attributes:
        notes: what became of patches that were there twice, a sentence each.
        merged: a merge may have put them together.
    """

    patches: tuple[_ListedPatch, ...]
    notes: tuple[str, ...] = ()
    closed: str = ""
    merged: bool = False


def refresh_from_files(project: Project, pin: str | None = None) -> SeriesChange:
    """Take patch files that were edited by hand as right, and record their trees anew.

    Their hunks are placed; an ambiguous one is refused. The work tree follows: what was applied stays applied,
    and all of the series if all of it was.

    Raises:
        PyggmlError: edits or commits of the user, or a patch does not apply.
    """
    doing = "patch refresh --from-files"
    with changing(project, doing, pin, Needs.ONLY_FILES) as session:
        work = session.work
        rows = []
        for number, patch in enumerate(work.series.patches, 1):
            file, data = patch.file(number), work.patch_file(number)
            _refuse_marks(work, file, data)
            rows.append(_ListedPatch(patch, file, data, read_patch(data, file)))
        return _publish_files(work, doing, _Listing(tuple(rows)))


def renumber_series(project: Project, pin: str | None = None) -> SeriesChange:
    """Number the patch files in the order of `series.toml`, as after a merge, and record their trees anew.

    Of two patches with the same name the later one gets another; a patch that is there twice is kept once. The
    work tree follows, as in `refresh_from_files`.

    Raises:
        PyggmlError: edits or commits of the user, conflict marks, an entry without a file, a file without an
            entry, or a patch does not apply.
    """
    doing = "patch renumber"
    with changing(project, doing, pin, Needs.ONLY_FILES, opened=_open_listing) as session:
        return _publish_files(session.work, doing, _read_listing(session.work))


def _open_listing(project: Project, pin: str | None) -> Workspace:
    work = open_bare(project, pin)
    listing = _read_listing(work)
    patches = tuple(listed.patch for listed in listing.patches)
    return replace(work, series=replace(work.series, patches=patches, closed=listing.closed))


def _read_listing(work: Workspace) -> _Listing:
    series, named = read_listing(work.directory, work.pin.name, work.series.base)
    free = {path.name for path in work.directory.glob("*.patch")}
    files: list[str] = []
    for file in named:
        files.append(file if file in free else "")
        free.discard(file)
    sides = MergeSides(work.directory)
    rows: list[_ListedPatch] = []
    notes: list[str] = []
    for patch, own, wanted in zip(series.patches, files, named, strict=True):
        file = own or _other_file(work, patch, wanted, named, free)
        free.discard(file)
        data = (work.directory / file).read_bytes()
        others = sorted(one for one in free if _name_in(one) == patch.name and one not in named)
        contents = [data, *((work.directory / one).read_bytes() for one in others)]
        right = sides.settle(patch.name, contents) if _MARKS.search(data) or others else data
        if right is not None:
            free -= {*others}
            notes += [f"{one} was a copy of {file} that the merge left, and is gone" for one in others]
            rows.append(_ListedPatch(patch, file, right, read_patch(right, file)))
            continue
        both = sides.both_added(patch.name) if _MARKS.search(data) else ()
        if not both:
            _refuse_marks(work, file, data)
            rows.append(_ListedPatch(patch, file, data, read_patch(data, file)))
        rows += [_ListedPatch(patch, file, version, read_patch(version, file)) for version in both]
    notes += [_refuse_unless_gone(work, file, rows, sides) for file in sorted(free)]
    kept: list[_ListedPatch] = []
    for row in rows:
        twin = next((n for n, one in enumerate(kept) if one.patch.name == row.patch.name), None)
        if twin is None:
            kept.append(row)
        elif is_same_patch(kept[twin].mail, row.mail):
            entry = merged_entry([kept[twin].patch, row.patch])[0]
            kept[twin] = replace(kept[twin], patch=replace(entry, tree=kept[twin].patch.tree))
            notes.append(f"{row.file} was the same patch as {kept[twin].file} and is gone")
        else:
            name = slug(row.patch.name, {one.patch.name for one in (*rows, *kept)})
            notes.append(f"two patches were named {row.patch.name}: the later one is {name} now")
            kept.append(replace(row, patch=replace(row.patch, name=name, tree="")))
    return _Listing(tuple(kept), tuple(notes), series.closed, merged=True)


def _other_file(work: Workspace, patch: Patch, wanted: str, named: Sequence[str], free: set[str]) -> str:
    """The file of an entry whose own is not there: one with the same name and another number."""
    others = sorted(file for file in free if _name_in(file) == patch.name and file not in named)
    if not others and named.count(wanted) > 1:
        raise PyggmlError(
            f"{work.directory / SERIES_FILE}: {wanted} is listed twice", "Remove one of the two entries."
        )
    if not others:
        raise PyggmlError(
            f"{work.directory / wanted} is listed in {SERIES_FILE} but missing",
            "Restore the file (git checkout -- patches), or remove the entry if the patch is to go.",
        )
    return others[0]


def _refuse_unless_gone(work: Workspace, file: str, rows: Sequence[_ListedPatch], sides: MergeSides) -> str:
    """A file without an entry may go if one side of a merge removed the patch and the other left it as it was.

    Returns:
        what is said about it.

    Raises:
        PyggmlError: otherwise.
    """
    path, name = work.directory / file, _name_in(file)
    other = next((row.file for row in rows if row.patch.name == name), None)
    if other is not None:
        raise PyggmlError(
            f"{path} is not listed in {SERIES_FILE}, and {other} is another version of it",
            "Remove the file that is not to stay, or give it an entry in series.toml to keep both.",
        )
    if sides.removed(name, path.read_bytes()):
        return f"{file} is gone: one side of the merge removed {name}, and the other did not change it"
    raise PyggmlError(
        f"{path} is not listed in {SERIES_FILE}",
        "Give it an entry there (name and file are enough), or remove the file if the patch is to go.",
    )


def _name_in(file: str) -> str:
    return re.sub(r"^\d+-|\.patch$", "", file)


def _refuse_marks(work: Workspace, file: str, data: bytes) -> None:
    mark = _MARKS.search(data)
    if mark is None:
        return
    path = work.directory / file
    name, line = path.relative_to(work.project.root).as_posix(), data.count(b"\n", 0, mark.start()) + 1
    raise PyggmlError(
        f"{path}:{line}: a merge left conflict marks: both sides have changed the patch",
        f"Take one side whole: git checkout --ours (or --theirs) {name}. Then: pyggml patch renumber",
    )


def _publish_files(work: Workspace, doing: str, listing: _Listing) -> SeriesChange:
    rows = listing.patches
    files = [NamedPatch(row.file, row.mail) for row in rows]
    commits: list[Commit] = []
    try:
        commits.extend(apply_patches(work.git, work.base, work.series.base, files))
    except PyggmlError as error:
        if not listing.merged:
            raise
        raise PyggmlError(
            error.message,
            "If another patch changes the same lines: take the file and its entry out, run "
            "`pyggml patch renumber` again, and make the change anew on top.",
        ) from error
    entries = [(replace(row.patch, tree=c.tree), c) for row, c in zip(rows, commits, strict=True)]
    changes = work.series_changes(series_files(work, entries, [row.data for row in rows]))
    head_old, tree_old = work.head, work_tree_state(work.git)
    applied = _still_applied(work, entries)
    if applied is None:  # another pin's series is in the work tree: it stays there
        change = Transaction(doing, head_old, head_old, tree_old, tree_old, changes)
    else:
        head, tree = top(work, entries[:applied])
        change = Transaction(doing, head_old, head, tree_old, tree, changes)
        if not change.empty:
            change = replace(change, files=(*changes, *applied_entries(work, entries, applied)))
    publish(work.project, work.git, change)
    made = series_change(work, changes, files=[row.file for row in rows])
    return replace(made, notes=listing.notes)


def _still_applied(work: Workspace, entries: Sequence[tuple[Patch, Commit]]) -> int | None:
    """How many patches to apply: up to the topmost that is applied now, or all if all were.

    None if another pin's series is in the work tree.
    """
    before, head = applied_here(work), work.head
    if before is None or head not in before.commits:
        return position(work)
    count = before.commits.index(head)
    if before.complete and count == len(before.patches):
        return len(entries)
    trees = (work.series.base, *(patch.tree for patch in before.patches))
    olds = [
        CommitDelta(read_commit(work.git, commit), TreeDelta(trees[n], trees[n + 1]))
        for n, commit in enumerate(before.commits[1 : count + 1])
    ]
    below = [work.series.base, *(commit.tree for _, commit in entries)]
    news = [CommitDelta(c, TreeDelta(tree, c.tree)) for tree, (_, c) in zip(below, entries, strict=False)]
    return max(match_commits(work.git, olds, news, ()).values(), default=-1) + 1
