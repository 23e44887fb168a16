"""What upstream did to a patch between its last good rung and its first bad one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyggml.frontier.placing import DEPENDS, GONE, Change, Placed
from pyggml.git import Git
from pyggml.series.patchfile.diff import FileDiff, Hunk, path_text
from pyggml.series.patchfile.hunks import numbered_hunks
from pyggml.series.rebasing.contained_hunks import contained_hunks
from pyggml.series.rebasing.stop_report import MARGIN, touches
from pyggml.series.stack.merge import merge
from pyggml.series.stack.trees import parsed_tree_diff, renamed_paths, tree_reader

FATE_COLLIDES, FATE_DEPENDS = "collides", "depends"
FATE_PARTLY, FATE_UPSTREAM, FATE_EMPTY = "partly upstream", "wholly upstream", "empty"
FATE_RENAMED, FATE_REMOVED = "renamed", "removed"


@dataclass(frozen=True)
class UpstreamHunk:
    """A hunk of upstream's change between two rungs.

    Attributes:
        path: of the file at the last good rung.
        line: at which it begins there, from 1.
        text: as in a diff.
    """

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class ContainedHunk:
    """A hunk of the patch that the tree has already: its number in the patch, and where it lies on the pin."""

    number: int
    path: str
    line: int


@dataclass(frozen=True)
class Collision:
    """What became of a patch.

    Attributes:
        fate: `collides`, `partly upstream`, `wholly upstream`, `renamed`, `removed`, `depends` or `empty`.
        paths: files that conflict.
        hunks: upstream's changes between the two rungs that the patch collides with.
        nearby: whether those hunks touch lines of the patch; if not, they are all of upstream's in those files.
        contained: hunks of the patch that the tree has already.
        total: how many hunks the patch has.
        moved: files of the patch that upstream moved: (old path, new path).
    """

    fate: str
    paths: tuple[str, ...] = ()
    hunks: tuple[UpstreamHunk, ...] = ()
    nearby: bool = True
    contained: tuple[ContainedHunk, ...] = ()
    total: int = 0
    moved: tuple[tuple[str, str], ...] = ()


def contained_in(git: Git, change: Change, tree: str, home: str, rung: str) -> tuple[ContainedHunk, ...]:
    """The hunks of a patch that `tree` contains.

    Args:
        home, rung: the trees of the pin and of the rung, to find files that moved.
    """
    diffs = parsed_tree_diff(git, change.before, change.after)
    renames = renamed_paths(git, home, rung)
    numbers = contained_hunks(diffs, tree_reader(git, change.before), tree_reader(git, tree), renames)
    places = {
        number: (diff.old_path, hunk.old_start if hunk else 0) for number, diff, hunk in numbered_hunks(diffs)
    }
    return tuple(ContainedHunk(number, *places[number]) for number in numbers)


def explain(
    git: Git,
    change: Change,
    placed: Placed,
    home: str,
    rungs: tuple[str, str],
    stacks: tuple[str, str],
) -> Collision:
    """What became of `change` at the first bad rung.

    Args:
        placed: the patch there.
        home: the tree of the pin.
        rungs: the trees of the last good rung and of the first bad one.
        stacks: the same with the patches before `change` that apply on both.
    """
    rung = rungs[1]
    total = len(numbered_hunks(parsed_tree_diff(git, change.before, change.after)))
    contained = contained_in(git, change, placed.before, home, rung)
    if placed.state == GONE:
        # Of upstream, if it has every hunk without any patch; else earlier patches have left nothing to do.
        direct = contained_in(git, change, rung, home, rung)
        fate = FATE_UPSTREAM if len(direct) == total else FATE_EMPTY
        return Collision(fate, contained=direct or contained, total=total)
    if placed.state == DEPENDS:
        return Collision(FATE_DEPENDS, placed.paths, contained=contained, total=total)
    moves = renamed_paths(git, *rungs)
    moved = tuple((old, new) for old, new in moves.items() if old in change.paths or new in placed.paths)
    hunks, nearby = _colliding(git, change, rungs, stacks, placed.paths, dict(moved))
    if len(contained) == total:
        fate = FATE_UPSTREAM
    elif contained:
        fate = FATE_PARTLY
    elif any(old in placed.paths or new in placed.paths for old, new in moved):
        fate = FATE_RENAMED
    elif any(tree_reader(git, rung)(path) is None and path in change.paths for path in placed.paths):
        fate = FATE_REMOVED
    else:
        fate = FATE_COLLIDES
    return Collision(fate, placed.paths, hunks, nearby, contained, total, moved)


def _colliding(
    git: Git,
    change: Change,
    rungs: tuple[str, str],
    stacks: tuple[str, str],
    conflicting: Collection[str],
    moved: dict[str, str],
) -> tuple[tuple[UpstreamHunk, ...], bool]:
    """Upstream's hunks between the rungs in the conflicting files: those at the patch's lines, else all of them.

    They are compared where both are: on the stacks. Their lines are given as in the rungs' own diff.
    """
    former = {new: old for old, new in moved.items()}
    paths = {former.get(path, path) for path in conflicting}
    here = merge(git, change.before, stacks[0], change.after)
    own = _touching(parsed_tree_diff(git, stacks[0], here.tree), paths - set(here.paths))
    upstream = _touching(parsed_tree_diff(git, *stacks), paths)
    near = [
        (path, hunk)
        for path, hunk in upstream
        if any(path == other and touches(hunk, _around(mine)) for other, mine in own)
    ]
    bare = {(path, hunk.lines): hunk for path, hunk in _touching(parsed_tree_diff(git, *rungs), paths)}
    chosen = [(path, bare.get((path, hunk.lines), hunk)) for path, hunk in near or upstream]
    return tuple(_upstream_hunk(path, hunk) for path, hunk in chosen), bool(near)


def _around(hunk: Hunk) -> tuple[int, int]:
    return hunk.old_start - MARGIN, hunk.old_start + max(hunk.old_count, 1) + MARGIN


def _touching(diffs: Collection[FileDiff], paths: Collection[str]) -> list[tuple[str, Hunk]]:
    both = [(path_text(diff.old if diff.old is not None else diff.new), diff) for diff in diffs]
    return [(path, hunk) for path, diff in both if path in paths for hunk in diff.hunks]


def _upstream_hunk(path: str, hunk: Hunk) -> UpstreamHunk:
    text = b"".join((hunk.header(), *hunk.lines)).decode("utf-8", "replace")
    return UpstreamHunk(path, hunk.old_start, text)
