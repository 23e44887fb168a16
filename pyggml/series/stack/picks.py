"""Rebuilding the upper part of a stack on a changed lower part: three-way merges, objects only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.series.patchfile.mail import Identity
from pyggml.series.stack.commits import Commit, commit_tree, merge_trees
from pyggml.series.stack.series_file import Patch


@dataclass(frozen=True)
class Delta:
    """A change as two trees: before and after."""

    old: str
    new: str


@dataclass(frozen=True)
class Pick:
    """A patch to be put on top of whatever comes before it.

    Attributes:
        patch: its entry; the tree in it is recomputed.
        deltas: the change itself and the fix-ups to fold into it, in order.
    """

    patch: Patch
    author: Identity
    message: str
    deltas: tuple[Delta, ...]


@dataclass(frozen=True)
class Conflict:
    """Where picking stopped.

    Attributes:
        paths: the conflicting paths.
        tree: the merge's tree, with conflict markers in those paths.
        rest: the picks still to be made; the first is the one that conflicts, with only those deltas left
            that come after the conflict.
    """

    paths: tuple[str, ...]
    tree: str
    rest: tuple[Pick, ...]


@dataclass(frozen=True)
class Restacked:
    """The outcome of picking: the patches with their commits, and where it stopped if it did."""

    done: tuple[tuple[Patch, Commit], ...]
    conflict: Conflict | None = None


def pick_of(patch: Patch, commit: Commit, parent_tree: str) -> Pick:
    """The pick that repeats `commit`."""
    return Pick(patch, commit.author, commit.message, (Delta(parent_tree, commit.tree),))


def restack(git: Git, parent: str, tree: str, picks: Sequence[Pick]) -> Restacked:
    """Pick every patch in order onto the commit `parent` with tree `tree`."""
    done: list[tuple[Patch, Commit]] = []
    for index, pick in enumerate(picks):
        now = tree
        for step, delta in enumerate(pick.deltas):
            now, paths = merge_trees(git, delta.old, now, delta.new)
            if paths:
                left = replace(pick, deltas=pick.deltas[step + 1 :])
                return Restacked(tuple(done), Conflict(paths, now, (left, *picks[index + 1 :])))
        if now == tree:
            raise PyggmlError(
                f"patch {pick.patch.name} would change nothing any more on top of what comes before it",
                f"Remove it first with: pyggml patch drop {pick.patch.name}",
            )
        commit = commit_tree(git, now, parent, pick.author, pick.message)
        done.append((replace(pick.patch, tree=now), commit))
        parent, tree = commit.id, now
    return Restacked(tuple(done))
