"""Three-way merges of trees, as a cherry-pick does them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyggml.git import Git
from pyggml.git.object_store import ObjectStore, has_sha1
from pyggml.series.patchfile.mail import Identity
from pyggml.series.stack.commits import scratch_index
from pyggml.series.stack.trees import read_blobs

_AUTHOR = Identity("pyggml", "pyggml@users.noreply.github.com", "0 +0000")


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


def merge(
    git: Git,
    base: str,
    ours: str,
    theirs: str,
    labels: ConflictLabels | None = None,
    store: ObjectStore | None = None,
) -> MergeResult:
    """Merge the change from tree `base` to `theirs` into tree `ours`, as a cherry-pick does.

    Args:
        store: writes the commits that git merges, all at once.
        labels: with them, conflicts show the base as well, and their text is the same everywhere; without
            them they are git's, with commit ids for labels.

    Source: git's merge-ort through `git merge-tree --write-tree`; its exit status 1 means conflicts.
    """
    if ours == base:
        return MergeResult(theirs)
    if theirs in (base, ours):
        return MergeResult(ours)
    root = _commit(git, base, store)
    left, right = _commit(git, ours, store, root), _commit(git, theirs, store, root)
    if store is not None:
        store.flush()
    style = ("-c", "merge.conflictStyle=diff3") if labels else ()
    status, out = git.status(*style, "merge-tree", "--write-tree", "-z", "--no-messages", left, right)
    tree, *rows = out.decode("utf-8", "surrogateescape").split("\0")
    if status == 0:
        return MergeResult(tree)
    stages = tuple(_stage(row) for row in rows if row)
    if labels:
        tree = _relabel(git, tree, stages, (left, root, right), labels)
    return MergeResult(tree, stages)


def merge_stored(
    store: ObjectStore, base: str, ours: str, theirs: str, labels: ConflictLabels | None = None
) -> MergeResult:
    """As `merge`, without a process if no file that `theirs` changes differs between `base` and `ours`."""
    made = _merge_in_memory(store, base, ours, theirs) if has_sha1(base) else None
    if made is not None:
        return MergeResult(made)
    if not has_sha1(base):
        store.flush()
        return merge(store.git, base, ours, theirs, labels)
    return merge(store.git, base, ours, theirs, labels, store)


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


def _commit(git: Git, tree: str, store: ObjectStore | None, *parents: str) -> str:
    """A commit that only stands for its tree, with the same id everywhere."""
    if store is not None:
        who = f"{_AUTHOR.name} <{_AUTHOR.email}> {_AUTHOR.date}"
        lines = [f"tree {tree}", *(f"parent {one}" for one in parents), f"author {who}", f"committer {who}"]
        return store.write("commit", ("\n".join(lines) + "\n\nmerge\n").encode())
    args = [arg for parent in parents for arg in ("-p", parent)]
    return git.text("commit-tree", tree, *args, stdin=b"merge\n", env=_AUTHOR.environment())


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
    lines: list[str] = []
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
            lines.append(f"{meta[0]} {blob}\t{path}")
    if not lines:
        return tree
    with scratch_index(git, tree) as index:
        data = "\0".join(lines).encode("utf-8", "surrogateescape") + b"\0"
        index.run("update-index", "-z", "--index-info", stdin=data)
        return index.text("write-tree")
