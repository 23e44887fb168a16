"""Rebuilding the upper part of a stack on a changed lower part: three-way merges, objects only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.git import Git
from pyggml.git.object_store import ObjectStore, open_objects
from pyggml.series.patchfile.mail import Identity
from pyggml.series.stack.commits import Commit, stored_commit
from pyggml.series.stack.links import check_new_links
from pyggml.series.stack.merge import ConflictLabels, IndexStage, merge_stored
from pyggml.series.stack.series_file import Patch, Series


@dataclass(frozen=True)
class TreeDelta:
    """A change as two trees: before and after."""

    old: str
    new: str


@dataclass(frozen=True)
class Pick:
    """A patch to be put on top of whatever comes before it.

    Attributes:
        patch: its entry; the tree in it is recomputed.
        deltas: the change itself and the fix-ups to fold into it, in order.
        optional: leave it out if it changes nothing, instead of refusing that.
    """

    patch: Patch
    author: Identity
    message: str
    deltas: tuple[TreeDelta, ...]
    optional: bool = False


@dataclass(frozen=True)
class PickConflict:
    """Where picking stopped.

    Attributes:
        stages: the versions of the conflicting paths.
        tree: the merged tree, with conflict marks in those paths.
        rest: the picks that are left; the first is the one that conflicts, with only those deltas that come
            after the conflict.
    """

    stages: tuple[IndexStage, ...]
    tree: str
    rest: tuple[Pick, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """The conflicting paths."""
        return tuple(dict.fromkeys(stage.path for stage in self.stages))


@dataclass(frozen=True)
class PickResult:
    """The patches that were picked, with their commits, and the conflict that ended it, if any.

    Attributes:
        left_out: names of the optional ones that change nothing.
    """

    done: tuple[tuple[Patch, Commit], ...]
    conflict: PickConflict | None = None
    left_out: tuple[str, ...] = ()


def series_picks(series: Series, stack: Sequence[Commit], numbers: Sequence[int]) -> list[Pick]:
    """The picks that repeat the patches `numbers` (from 1) of a series, whose commits are `stack`."""
    return [
        Pick(
            series.patches[n - 1],
            stack[n - 1].author,
            stack[n - 1].message,
            (TreeDelta(series.trees[n - 1], stack[n - 1].tree),),
        )
        for n in numbers
    ]


def apply_picks(git: Git, parent: str, tree: str, picks: Sequence[Pick]) -> PickResult:
    """Pick every patch in order onto the commit `parent` with tree `tree`.

    Raises:
        PyggmlError: a patch changes nothing any more, or makes a link that leads out of the tree.
    """
    with open_objects(git) as store:
        return _apply_picks(store, parent, tree, picks)


def _apply_picks(store: ObjectStore, parent: str, tree: str, picks: Sequence[Pick]) -> PickResult:
    done: list[tuple[Patch, Commit]] = []
    left_out: list[str] = []
    for index, pick in enumerate(picks):
        now = tree
        for step, delta in enumerate(pick.deltas):
            labels = ConflictLabels("the series so far", "before the change", f"patch {pick.patch.name}")
            merged = merge_stored(store, delta.old, now, delta.new, labels)
            if merged.stages:
                rest = (replace(pick, deltas=pick.deltas[step + 1 :]), *picks[index + 1 :])
                conflict = PickConflict(merged.stages, merged.tree, rest)
                return PickResult(tuple(done), conflict, tuple(left_out))
            now = merged.tree
        if now == tree and pick.optional:
            left_out.append(pick.patch.name)
            continue
        if now == tree:
            raise PyggmlError(
                f"patch {pick.patch.name} would change nothing any more on top of what comes before it",
                f"Remove it first with: pyggml patch drop {pick.patch.name}",
            )
        check_new_links(store, tree, now, f"patch {pick.patch.name}")
        commit = stored_commit(store, now, parent, pick.author, pick.message)
        done.append((replace(pick.patch, tree=now), commit))
        parent, tree = commit.id, now
    return PickResult(tuple(done), None, tuple(left_out))
