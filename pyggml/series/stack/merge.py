"""A three-way merge of trees whose conflicts look the same everywhere: base shown, no commit ids in the marks."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyggml.git import Git
from pyggml.series.stack.commits import blob_lines, commit_tree_of, merge_environment, scratch_index

OURS, BASE, THEIRS = "upstream", "patch's base", "patch"
"""What stands behind the conflict marks: the new tree so far, the tree the patch was made on, the patch."""


@dataclass(frozen=True)
class Stage:
    """One version of a conflicting path as git's index holds it: 1 base, 2 the new tree, 3 the patch."""

    mode: str
    blob: str
    stage: int
    path: str


@dataclass(frozen=True)
class Merge:
    """The outcome.

    Attributes:
        tree: with conflict marks where it conflicts.
        stages: the versions of the conflicting paths; empty if it merged.
    """

    tree: str
    stages: tuple[Stage, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(stage.path for stage in self.stages))


def merge(git: Git, base: str, ours: str, theirs: str) -> Merge:
    """Merge the change from tree `base` to `theirs` into tree `ours`, as a cherry-pick would.

    Source: git's merge-ort through `git merge-tree --write-tree`; its exit status 1 means conflicts.
    """
    if ours == base:
        return Merge(theirs)
    if theirs in (base, ours):
        return Merge(ours)
    environment = merge_environment()
    root = commit_tree_of(git, base, environment)
    left, right = (commit_tree_of(git, tree, environment, root) for tree in (ours, theirs))
    status, out = git.status(
        "-c",
        "merge.conflictStyle=diff3",
        "merge-tree",
        "--write-tree",
        "-z",
        "--no-messages",
        left,
        right,
    )
    tree, *rows = out.decode("utf-8", "surrogateescape").split("\0")
    if status == 0:
        return Merge(tree)
    stages = tuple(_stage(row) for row in rows if row)
    return Merge(_relabel(git, tree, stages, (left, root, right)), stages)


def _stage(row: str) -> Stage:
    meta, path = row.split("\t", 1)
    mode, blob, stage = meta.split(" ")
    return Stage(mode, blob, int(stage), path)


def _relabel(git: Git, tree: str, stages: tuple[Stage, ...], ids: tuple[str, str, str]) -> str:
    """The tree with words for the commit ids in its conflict marks."""
    left, root, right = (commit.encode() for commit in ids)
    known = {stage.path for stage in stages}
    rows = git.run("ls-tree", "-z", tree, "--", *known).decode("utf-8", "surrogateescape").split("\0")
    found = [row.split("\t", 1) for row in rows if row]
    files = [(meta.split(" "), path) for meta, path in found if " blob " in meta]
    contents = blob_lines(git, [meta[2] for meta, _ in files])
    lines: list[str] = []
    for (meta, path), content in zip(files, contents, strict=True):
        new = re.sub(rb"(?m)^<<<<<<< " + left, b"<<<<<<< " + OURS.encode(), content)
        new = re.sub(rb"(?m)^>>>>>>> " + right, b">>>>>>> " + THEIRS.encode(), new)
        short = re.compile(rb"(?m)^\|\|\|\|\|\|\| ([0-9a-f]{7,})")
        new = short.sub(lambda m: b"||||||| " + (BASE.encode() if root.startswith(m[1]) else m[1]), new)
        if new != content:
            blob = git.text("hash-object", "-w", "--stdin", stdin=new)
            lines.append(f"{meta[0]} {blob}\t{path}")
    if not lines:
        return tree
    with scratch_index(git) as index:
        index.run("read-tree", tree)
        data = "\0".join(lines).encode("utf-8", "surrogateescape") + b"\0"
        index.run("update-index", "-z", "--index-info", stdin=data)
        return index.text("write-tree")
