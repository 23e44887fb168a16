"""Three-way merges of trees, as a cherry-pick does them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyggml.git import Git
from pyggml.git.object_store import ObjectStore, open_objects
from pyggml.series.patchfile.mail import COMMITTER
from pyggml.series.stack.commits import tree_with, write_commit
from pyggml.series.stack.trees import read_blobs


@dataclass(frozen=True)
class ConflictLabels:
    """What is written behind the conflict marks: the tree so far, the tree the patch was made on, the patch."""

    ours: str
    base: str
    theirs: str


@dataclass(frozen=True)
class IndexStage:
    """One version of a conflicting path as git's index holds it: 1 base, 2 the tree so far, 3 the patch."""

    mode: str
    blob: str
    stage: int
    path: str


@dataclass(frozen=True)
class MergeResult:
    """What a merge gave.

    Attributes:
        tree: the merged tree, with conflict marks where it conflicts.
        stages: the versions of the conflicting paths; empty if there is no conflict.
    """

    tree: str
    stages: tuple[IndexStage, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The conflicting paths."""
        return tuple(dict.fromkeys(stage.path for stage in self.stages))


def merge(git: Git, base: str, ours: str, theirs: str, labels: ConflictLabels | None = None) -> MergeResult:
    """As `merge_stored`, for a single merge."""
    with open_objects(git) as store:
        return merge_stored(store, base, ours, theirs, labels)


def merge_stored(
    store: ObjectStore, base: str, ours: str, theirs: str, labels: ConflictLabels | None = None
) -> MergeResult:
    """Merge the change from tree `base` to `theirs` into tree `ours`, as a cherry-pick does.

    No process is needed if no file that `theirs` changes differs between `base` and `ours`.

    Args:
        labels: with them, conflicts show the base as well, and their text is the same everywhere; without
            them they are git's, with commit ids for labels.
    """
    if ours == base:
        return MergeResult(theirs)
    if theirs in (base, ours):
        return MergeResult(ours)
    made = _merge_in_memory(store, base, ours, theirs)
    return merge_by_git(store, base, ours, theirs, labels) if made is None else MergeResult(made)


def merge_by_git(
    store: ObjectStore, base: str, ours: str, theirs: str, labels: ConflictLabels | None = None
) -> MergeResult:
    """As `merge_stored`, always by git.

    Source: git's merge-ort through `git merge-tree --write-tree`; its exit status 1 means conflicts.
    """
    # Commits that only stand for their trees, with the same ids everywhere.
    root = write_commit(store, base, (), COMMITTER, "merge\n")
    left, right = (write_commit(store, tree, (root,), COMMITTER, "merge\n") for tree in (ours, theirs))
    store.flush()
    style = ("-c", "merge.conflictStyle=diff3") if labels else ()
    status, out = store.git.status(*style, "merge-tree", "--write-tree", "-z", "--no-messages", left, right)
    tree, *rows = out.decode("utf-8", "surrogateescape").split("\0")
    if status == 0:
        return MergeResult(tree)
    stages = tuple(_stage(row) for row in rows if row)
    if labels:
        tree = _relabel(store.git, tree, stages, (left, root, right), labels)
    return MergeResult(tree, stages)


def _merge_in_memory(store: ObjectStore, base: str, ours: str, theirs: str) -> str | None:
    changes = store.changes(base, theirs)
    for path, entry in changes.items():
        parts = path.split(b"/")
        if any(b"/".join(parts[:count]) in changes for count in range(1, len(parts))):
            return None  # a file takes the place of a directory, or the other way round
        was = store.entry(base, path)
        if store.entry(ours, path) != was or (was is None and not store.is_free(ours, path)):
            return None
        if entry is not None and entry.mode == b"160000":
            return None
    return store.with_files(ours, changes)


def _stage(row: str) -> IndexStage:
    meta, path = row.split("\t", 1)
    mode, blob, stage = meta.split(" ")
    return IndexStage(mode, blob, int(stage), path)


def _relabel(
    git: Git, tree: str, stages: tuple[IndexStage, ...], ids: tuple[str, str, str], labels: ConflictLabels
) -> str:
    """The tree with labels in place of the commit ids in its conflict marks."""
    left, root, right = (commit.encode() for commit in ids)
    paths = {stage.path for stage in stages}
    rows = git.run("ls-tree", "-z", tree, "--", *paths).decode("utf-8", "surrogateescape").split("\0")
    entries = [row.split("\t", 1) for row in rows if row]
    files = [(meta.split(" "), path) for meta, path in entries if " blob " in meta]
    contents = read_blobs(git, [meta[2] for meta, _ in files])
    relabelled: dict[str, tuple[str, str]] = {}
    for (meta, path), content in zip(files, contents, strict=True):
        new = re.sub(rb"(?m)^<<<<<<< " + left, b"<<<<<<< " + labels.ours.encode(), content)
        new = re.sub(rb"(?m)^>>>>>>> " + right, b">>>>>>> " + labels.theirs.encode(), new)
        # git shortens the id of the base.
        short = re.compile(rb"(?m)^\|\|\|\|\|\|\| ([0-9a-f]{7,})")
        new = short.sub(
            lambda m: b"||||||| " + (labels.base.encode() if root.startswith(m[1]) else m[1]), new
        )
        if new != content:
            blob = git.text("hash-object", "-w", "--stdin", stdin=new)
            relabelled[path] = (meta[0], blob)
    return tree_with(git, tree, relabelled)
