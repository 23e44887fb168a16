"""The cheapest question: does each patch of a series merge, as text, into the tree of a rung?"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyggml.frontier.answers import Answers
from pyggml.git import Git
from pyggml.series.rebasing.decisions import LABELS
from pyggml.series.rebasing.stop_report import CONFLICT_MARKS
from pyggml.series.stack.commits import tree_with
from pyggml.series.stack.merge import MergeResult, merge
from pyggml.series.stack.trees import tree_reader

_MARKED = re.compile(CONFLICT_MARKS.pattern + rb"\n?", CONFLICT_MARKS.flags)
APPLIES, COLLIDES, DEPENDS, GONE = "applies", "collides", "depends", "changes nothing"


@dataclass(frozen=True)
class Change:
    """A patch of the series as two trees.

    Attributes:
        number: its place, from 1.
        before, after: the trees of the series on its own pin.
        paths: what it touches there.
        chain: a hash of this change and of all before it.
    """

    number: int
    name: str
    before: str
    after: str
    paths: frozenset[str]
    chain: str


@dataclass(frozen=True)
class Placed:
    """A patch on a rung.

    Attributes:
        state: `applies`; `collides`; `depends` (it needs a patch that does not apply); `changes nothing` (the
            tree has all of it).
        before, after: the rung's tree with the patches before it, and with this one: all of it, or what does not
            conflict.
        paths: files that conflict.
        without: numbers of the patches before it that do not apply and touch a file that it touches: it is judged
            without what conflicts of them, or needs that.
    """

    state: str
    before: str
    after: str
    paths: tuple[str, ...] = ()
    without: tuple[int, ...] = ()

    @property
    def broken(self) -> bool:
        return self.state in (COLLIDES, DEPENDS)


def make_changes(git: Git, base: str, patches: Sequence[tuple[str, str]]) -> tuple[Change, ...]:
    """The changes of a series: `patches` are (name, tree after it), `base` is the pin's tree."""
    changes, before, chain = [], base, base
    for number, (name, after) in enumerate(patches, 1):
        chain = hashlib.sha256(f"{chain} {before} {after}".encode()).hexdigest()
        out = git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", before, after)
        paths = frozenset(path for path in out.decode("utf-8", "surrogateescape").split("\0") if path)
        changes.append(Change(number, name, before, after, paths, chain))
        before = after
    return tuple(changes)


class Placer:
    """Places a series on trees, as a rebase does, but goes on after a patch that conflicts.

    What does not conflict of such a patch stays, so that those after it are judged as well as possible.
    """

    def __init__(self, git: Git, changes: Sequence[Change], answers: Answers) -> None:
        self.git = git
        self.changes = changes
        self.answers = answers

    def place(self, tree: str) -> tuple[Placed, ...]:
        """What becomes of every patch on the tree of a rung; the answers are kept."""
        placed = self._kept(tree)
        now = placed[-1].after if placed else tree
        for change in self.changes[len(placed) :]:
            broken = [number for number, one in enumerate(placed, 1) if one.broken]
            placed.append(self._place_one(change, now, broken))
            now = placed[-1].after
            self.answers.put(asdict(placed[-1]), "text", change.chain, tree)
        return tuple(placed)

    def stack_without(self, tree: str, left_out: Collection[int], upto: int) -> str:
        """The tree with the first `upto` patches but for `left_out`, and for those that conflict then."""
        for change in self.changes[:upto]:
            if change.number not in left_out:
                merged = merge(self.git, change.before, tree, change.after)
                tree = tree if merged.stages else merged.tree
        return tree

    def _place_one(self, change: Change, now: str, broken: Sequence[int]) -> Placed:
        without = tuple(n for n in broken if self.changes[n - 1].paths & change.paths)
        merged = merge(self.git, change.before, now, change.after, LABELS)
        if not merged.stages:
            state = GONE if merged.tree == now else APPLIES
            return Placed(state, now, merged.tree, (), without)
        # If it conflicts on its own pin as well when the others are missing, it may be that it needs them.
        at_home: set[str] = set()
        if without:
            home = self.stack_without(self.changes[0].before, broken, change.number - 1)
            at_home = set(merge(self.git, change.before, home, change.after).paths)
        own = tuple(path for path in merged.paths if path not in at_home)
        rest = without_conflicts(self.git, merged, now)
        return Placed(COLLIDES if own else DEPENDS, now, rest, own or merged.paths, without)

    def _kept(self, tree: str) -> list[Placed]:
        placed: list[Placed] = []
        for change in self.changes:
            answer = self.answers.get("text", change.chain, tree)
            if answer is None or (one := _read(answer)) is None:
                break
            placed.append(one)
        # The trees themselves may have been dropped.
        if placed and self.git.resolve(f"{placed[-1].after}^{{tree}}") is None:
            return []
        return placed


def without_conflicts(git: Git, merged: MergeResult, ours: str) -> str:
    """The merged tree with the side of `ours` at every place that conflicts.

    Args:
        merged: made with labels, so that its marks can be found.
    """
    read = tree_reader(git, merged.tree)
    stages = {(stage.path, stage.stage): stage for stage in merged.stages}
    entries: dict[str, tuple[str, str] | None] = {}
    for path in merged.paths:
        mine = stages.get((path, 2))
        content, count = _MARKED.subn(rb"\g<ours>", read(path) or b"")
        if mine is None:
            entries[path] = None
        elif count and (path, 1) in stages and (path, 3) in stages:
            blob = git.text("hash-object", "-w", "--stdin", stdin=content)
            entries[path] = (mine.mode, blob)
        else:
            entries[path] = (mine.mode, mine.blob)
    return tree_with(git, merged.tree, entries)


def _read(answer: Any) -> Placed | None:
    try:
        paths, without = tuple(map(str, answer["paths"])), tuple(map(int, answer["without"]))
        return Placed(answer["state"], answer["before"], answer["after"], paths, without)
    except (KeyError, TypeError, ValueError):
        return None
