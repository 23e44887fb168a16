"""Which commit of the branch is which patch of the series: what they are decides, never where they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache

from pyggml.git import Git
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.picks import TreeDelta
from pyggml.series.stack.trees import tree_diff

_REFLOG = "1000"


@dataclass(frozen=True)
class CommitDelta:
    """A commit of the branch with its change."""

    commit: Commit
    delta: TreeDelta


def match_commits(
    git: Git,
    changes: Sequence[CommitDelta],
    stack: Sequence[CommitDelta],
    applied: Sequence[str],
    gone: Collection[int] = (),
) -> dict[int, int]:
    """Match commits with patches: index of the commit to index of the patch; a commit without one is new.

    The strongest evidence goes first, for all commits: the same commit, the same diff, the same subject and
    author. Only a patch that was applied can be recognised by its subject alone, or by its author and date,
    which `git commit --amend` and `git rebase` keep and a new commit never has.

    Args:
        stack: what the patch files make.
        applied: the commits of the patches that were applied, bottom up.
        gone: the indices of the patches that the user says were dropped; their authors and dates are no evidence.
    """
    new = cache(lambda: _new_commits(git))
    diff = cache(lambda delta: plain_diff(tree_diff(git, delta.old, delta.new)))

    def same_commit(change: CommitDelta, n: int) -> bool:
        return change.commit.id in (stack[n].commit.id, *applied[n : n + 1])

    def same_diff(change: CommitDelta, n: int) -> bool:
        return change.delta == stack[n].delta or diff(change.delta) == diff(stack[n].delta)

    def same_subject(change: CommitDelta, n: int) -> bool:
        return change.commit.subject == stack[n].commit.subject

    def same_author(change: CommitDelta, n: int) -> bool:
        # A script may make two commits within a second: the reflog tells them apart.
        return change.commit.author == stack[n].commit.author and change.commit.id not in new()

    rules: tuple[Callable[[CommitDelta, int], bool], ...] = (
        same_commit,
        lambda c, n: same_diff(c, n) and same_subject(c, n),
        same_diff,
        lambda c, n: same_subject(c, n) and same_author(c, n),
        lambda c, n: n < len(applied) and same_subject(c, n),
        lambda c, n: n < len(applied) and n not in gone and same_author(c, n),
    )
    matched: dict[int, int] = {}
    for rule in rules:
        for index, change in enumerate(changes):
            if index in matched:
                continue
            free = (n for n in range(len(stack)) if n not in matched.values())
            patch = next((n for n in free if rule(change, n)), None)
            if patch is not None:
                matched[index] = patch
    return matched


def plain_diff(diff: bytes) -> bytes:
    """A diff without what depends on other patches: blob ids and line numbers."""
    return re.sub(rb"(?m)^(?:index [0-9a-f]+\.\.[0-9a-f]+|@@ -[0-9,]+ \+[0-9,]+ @@.*$)", b"", diff)


def _new_commits(git: Git) -> frozenset[str]:
    """The commits that `git commit` made without `--amend`, as far as the reflog goes."""
    rows = git.text("reflog", "show", "-n", _REFLOG, "--format=%H %gs", "HEAD", "--").splitlines()
    return frozenset(row.split(" ", 1)[0] for row in rows if row.split(" ", 1)[-1].startswith("commit: "))
