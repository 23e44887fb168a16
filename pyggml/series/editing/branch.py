"""What the branch and the edits in the work tree make of the series."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.mail import clean_message
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.history import read_chain
from pyggml.series.stack.picks import Pick, TreeDelta, series_picks
from pyggml.series.stack.series_file import Patch, slug
from pyggml.series.worktree.workspace import Workspace

_FIXUP = ("fixup! ", "squash! ", "amend! ")


@dataclass(frozen=True)
class BranchSeries:
    """The series as the branch has it.

    Attributes:
        done: the patches at the bottom that have not changed, with their commits.
        picks: all the others, in order; those that are not applied come last.
        applied: how many patches are applied.
    """

    done: list[tuple[Patch, Commit]]
    picks: list[Pick]
    applied: int


def read_branch(work: Workspace, tree: str) -> BranchSeries:
    """Match the commits of the branch with the patches of the series.

    Args:
        tree: of the work tree's files; edits go into the topmost applied patch.

    Raises:
        PyggmlError: a commit changes nothing, a fix-up has no patch, a patch below others is missing, or no
            patch is applied that could take the edits.
    """
    chain = read_chain(work.git, work.base, work.head)
    stack = work.stack()
    total = len(work.series.patches)
    picks: list[Pick] = []
    used: dict[int, int] = {}
    taken = {patch.name for patch in work.series.patches}
    before = work.series.base
    for index, commit in enumerate(chain):
        delta = TreeDelta(before, commit.tree)
        before = commit.tree
        if commit.subject.startswith(_FIXUP):
            _fold(picks, commit, delta)
            continue
        if delta.old == delta.new:
            raise PyggmlError(
                f"commit {commit.id[:12]} ({commit.subject}) changes nothing",
                "Remove it with git rebase, or give it a change (git commit --amend).",
            )
        match = _match(work, stack, used, index, commit, delta)
        if match is None:
            name = slug(commit.subject.split(" : ", 1)[-1], taken)
            taken.add(name)
            patch = Patch(name, commit.tree)
        else:
            used[match] = index
            patch = work.series.patches[match]
        picks.append(Pick(patch, commit.author, commit.message, (delta,)))
    if tree != before:
        if not picks:
            raise PyggmlError(
                "there are edits, but no patch is applied that could take them",
                "Make a patch of them: pyggml patch new NAME",
            )
        picks[-1] = replace(picks[-1], deltas=(*picks[-1].deltas, TreeDelta(before, tree)))
    last = max(used, default=-1)
    for missing in range(last):
        if missing not in used:
            name = work.series.patches[missing].name
            raise PyggmlError(
                f"patch {missing + 1} ({name}) is not among the commits any more, but a later one is",
                f"If you mean to remove it: pyggml undo, or put it back, then pyggml patch drop {name}",
            )
    applied = len(picks)
    picks += series_picks(work.series, stack, range(last + 2, total + 1))
    recorded = series_picks(work.series, stack, range(1, total + 1))
    same = 0
    while same < min(len(picks), total) and picks[same] == recorded[same]:
        same += 1
    done = list(zip(work.series.patches[:same], stack[:same], strict=True))
    return BranchSeries(done, picks[same:], applied)


def _fold(picks: list[Pick], commit: Commit, delta: TreeDelta) -> None:
    kind, subject = commit.subject.split(" ", 1)
    while subject.startswith(_FIXUP):
        subject = subject.split(" ", 1)[1]
    for index in range(len(picks) - 1, -1, -1):
        if picks[index].message.split("\n", 1)[0] == subject:
            message = picks[index].message
            if kind == "amend!" and "\n\n" in commit.message:
                message = clean_message(commit.message.split("\n\n", 1)[1])
            picks[index] = replace(picks[index], message=message, deltas=(*picks[index].deltas, delta))
            return
    raise PyggmlError(
        f"commit {commit.id[:12]} is a fix-up of {subject!r}, which is not below it",
        "Reword it (git commit --amend) so that it names a patch, or move it with git rebase.",
    )


def _match(
    work: Workspace,
    stack: Sequence[Commit],
    used: dict[int, int],
    index: int,
    commit: Commit,
    delta: TreeDelta,
) -> int | None:
    """The patch that `commit` is a version of: the same commit, subject, change, or else the same place."""
    free = [n for n in range(len(stack)) if n not in used and n > max(used, default=-1)]
    trees = work.series.trees
    parent = stack[index - 1].id if 0 < index <= len(stack) else work.base
    tests: tuple[Callable[[int], bool], ...] = (
        lambda n: stack[n].id == commit.id,
        lambda n: stack[n].subject == commit.subject,
        lambda n: (trees[n], trees[n + 1]) == (delta.old, delta.new),
        lambda n: n == index and commit.parent == parent,
    )
    return next((n for test in tests for n in free if test(n)), None)
