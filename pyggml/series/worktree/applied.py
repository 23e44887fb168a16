"""What the work tree was made of: the patches that a command applied, whatever their files have become since.

It is written in the same transaction that moves the branch, so it is right after a kill and after `pyggml undo`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pyggml.project import Project
from pyggml.series.stack.commits import Commit
from pyggml.series.worktree.state_file import FileChange, from_plain, read_file, to_json
from pyggml.series.worktree.workspace import Workspace

APPLIED_FILE = ".pyggml/applied.json"


@dataclass(frozen=True)
class AppliedPatch:
    """A patch in the work tree: the tree after it, and the commit that was made of its file."""

    tree: str
    commit: str


@dataclass(frozen=True)
class AppliedSeries:
    """The patches in the work tree, bottom up, as they were when a command put them there.

    Attributes:
        base: the pin's commit, below the first patch.
        complete: these were all patches of the series.
        digest: `Workspace.digest` of the files that the patches were read from; empty if that was not kept.
    """

    pin: str
    base: str
    patches: tuple[AppliedPatch, ...]
    complete: bool = False
    digest: str = ""

    @property
    def commits(self) -> tuple[str, ...]:
        """The commits at every position, like `Series.trees`."""
        return (self.base, *(patch.commit for patch in self.patches))


def read_applied(project: Project) -> AppliedSeries | None:
    """What the work tree was made of; None if no command has written it down."""
    content = read_file(project.root / APPLIED_FILE)
    try:
        return None if content is None else from_plain(AppliedSeries, json.loads(content))
    except (ValueError, TypeError, KeyError):
        return None


def applied_series(work: Workspace, commits: Sequence[Commit], total: int, digest: str = "") -> AppliedSeries:
    """What the work tree is made of with `commits` made of the first of `total` patches on the pin of `work`."""
    patches = tuple(AppliedPatch(commit.tree, commit.id) for commit in commits)
    return AppliedSeries(work.pin.name, work.base, patches, 0 < len(patches) == total, digest)


def applied_change(project: Project, new: AppliedSeries | None) -> tuple[FileChange, ...]:
    """The change of the file, to be published with the branch."""
    old = read_file(project.root / APPLIED_FILE)
    content = to_json(new) if new else None
    return () if old == content else (FileChange(APPLIED_FILE, old, content),)


def applied_here(work: Workspace) -> AppliedSeries | None:
    """As `read_applied`, if it is of the pin of `work`."""
    applied = read_applied(work.project)
    return applied if applied and (applied.pin, applied.base) == (work.pin.name, work.base) else None


def outdated(work: Workspace) -> bool:
    """Whether the files of applied patches give other trees than the work tree was made of, as after a `git pull`."""
    applied = applied_here(work)
    if applied is None:
        return False
    trees = work.series.trees[1:]
    return [patch.tree for patch in applied.patches] != list(trees[: len(applied.patches)])
