"""What the branch and the edits in the work tree make of the series."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from pyggml.errors import PyggmlError
from pyggml.series.editing.match import CommitDelta, match_commits
from pyggml.series.editing.squash import merged_entry
from pyggml.series.patchfile.mail import Identity, clean_message
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.history import read_chain, read_commit
from pyggml.series.stack.merge import merge
from pyggml.series.stack.picks import Pick, TreeDelta, series_picks
from pyggml.series.stack.series_file import Patch, slug
from pyggml.series.worktree.applied import applied_here
from pyggml.series.worktree.position import made_of_files, refuse_outdated
from pyggml.series.worktree.sequencer import EDITING
from pyggml.series.worktree.workspace import Workspace

_FIXUP = ("fixup! ", "squash! ", "amend! ")


@dataclass(frozen=True)
class BranchSeries:
    """The series as the branch has it.

    Attributes:
        done: the patches at the bottom that have not changed, with their commits.
        picks: all the others, in order; those that are not applied come last.
        applied: how many patches are applied.
        notes: what the user should know, a sentence each.
    """

    done: list[tuple[Patch, Commit]]
    picks: list[Pick]
    applied: int
    notes: tuple[str, ...] = ()


def read_branch(work: Workspace, tree: str, wanted: int = 0, dropped: Sequence[str] = ()) -> BranchSeries:
    """Match the commits of the branch with the patches of the series.

    Args:
        tree: of the work tree's files; edits go into the topmost applied patch.
        wanted: how many patches of the series are to be applied at the end, besides those of the branch.
        dropped: the patches whose commits were removed on purpose; they leave the series.

    Raises:
        PyggmlError: the patch files are newer than the work tree, a commit changes nothing, a fix-up has no
            patch, a patch below others is missing, one that is said to be dropped is not missing, or no patch
            is applied that could take the edits.
    """
    refuse_outdated(work)
    gone = {work.series.find(name) - 1 for name in dropped}
    changes, fixups = _read_changes(work)
    stack = work.stack()
    total = len(stack)
    before = applied_here(work)
    old = [patch.commit for patch in before.patches] if before else []
    olds = [CommitDelta(c, TreeDelta(a, c.tree)) for a, c in zip(work.series.trees, stack, strict=False)]
    matched = match_commits(work.git, changes, olds, old, gone)
    # Without a record, a patch below one that is there counts as applied.
    was = len(old) if before else max(matched.values(), default=-1)
    below = work.head_tree
    missing = sorted(set(range(was)) - set(matched.values()))
    for present in sorted(gone - set(missing)):
        _refuse_dropped(work, changes, matched, present, missing)
    squashed = {}
    if gone or not made_of_files(work):
        squashed = _find_squashed(work, changes, matched, was, below, gone)
    taken = {patch.name for patch in work.series.patches}
    picks: list[Pick] = []
    notes: list[str] = []
    for index, change in enumerate(changes):
        commit, number = change.commit, matched.get(index)
        inside = [work.series.patches[n] for n in squashed.get(index, ())]
        if number is None and inside:
            patch, author, message = inside.pop(0), commit.author, commit.message
        elif number is None:
            patch = Patch(slug(commit.subject.split(" : ", 1)[-1], taken), commit.tree)
            taken.add(patch.name)
            author, message = commit.author, commit.message
        else:
            patch = work.series.patches[number]
            author, message = _merge_message(work, patch, old[number : number + 1], stack[number], commit)
        if inside:
            names = " and ".join(other.name for other in inside)
            notes.append(
                f"{names} is part of {patch.name} now, as in commit {commit.id[:12]}; its file is gone"
            )
            patch, more = merged_entry([patch, *inside])
            notes += more
        folded = Pick(patch, author, message, (change.delta,))
        for fixup in fixups.get(index, ()):
            folded = _fold(folded, fixup)
        picks.append(folded)
    if tree != below:
        if not picks:
            raise PyggmlError(
                "there are edits, but no patch is applied that could take them",
                "Make a patch of them: pyggml patch new NAME",
            )
        picks[-1] = replace(picks[-1], deltas=(*picks[-1].deltas, TreeDelta(below, tree)))
    placed = {*matched.values(), *gone, *(n for numbers in squashed.values() for n in numbers)}
    later = [number for number in range(1, total + 1) if number - 1 not in placed]
    applied = len(picks) + sum(number <= wanted for number in later)
    picks += series_picks(work.series, stack, later)
    recorded = series_picks(work.series, stack, range(1, total + 1))
    same = 0
    while same < min(len(picks), total) and picks[same] == recorded[same]:
        same += 1
    done = list(zip(work.series.patches[:same], stack[:same], strict=True))
    return BranchSeries(done, picks[same:], applied, tuple(notes))


def _read_changes(work: Workspace) -> tuple[list[CommitDelta], dict[int, list[CommitDelta]]]:
    """The commits of the branch, and the fix-ups by the index of the commit that they name."""
    changes: list[CommitDelta] = []
    fixups: dict[int, list[CommitDelta]] = {}
    before = work.series.base
    for commit in read_chain(work.git, work.base, work.head):
        change = CommitDelta(commit, TreeDelta(before, commit.tree))
        before = commit.tree
        if commit.subject.startswith(_FIXUP):
            fixups.setdefault(_named(changes, commit), []).append(change)
        elif change.delta.old == change.delta.new:
            raise PyggmlError(
                f"commit {commit.id[:12]} ({commit.subject}) changes nothing",
                "Remove it with git rebase, or give it a change (git commit --amend).",
            )
        else:
            changes.append(change)
    return changes, fixups


def _named(changes: Sequence[CommitDelta], fixup: Commit) -> int:
    """The index of the topmost commit that `fixup` names."""
    subject = fixup.subject
    while subject.startswith(_FIXUP):
        subject = subject.split(" ", 1)[1]
    for index in range(len(changes) - 1, -1, -1):
        if changes[index].commit.subject == subject:
            return index
    raise PyggmlError(
        f"commit {fixup.id[:12]} is a fix-up of {subject!r}, which is not below it",
        "Reword it (git commit --amend) so that it names a patch, or move it with git rebase.",
    )


def _fold(pick: Pick, fixup: CommitDelta) -> Pick:
    message = pick.message
    if fixup.commit.subject.startswith("amend! ") and "\n\n" in fixup.commit.message:
        message = clean_message(fixup.commit.message.split("\n\n", 1)[1])
    return replace(pick, message=message, deltas=(*pick.deltas, fixup.delta))


def _find_squashed(
    work: Workspace,
    changes: Sequence[CommitDelta],
    matched: Mapping[int, int],
    was: int,
    tree: str,
    gone: Collection[int],
) -> dict[int, list[int]]:
    """The applied patches that are part of another commit now, as after a squash or fixup of `git rebase -i`.

    Patches above all others that are gone were reset away: they stay in the series, unless their change is
    in the tree `tree` of the others.

    Args:
        gone: the indices of the patches that were dropped on purpose.

    Returns:
        index of the commit to the indices of the patches that it took in.

    Raises:
        PyggmlError: other patches that were applied have been taken out of the branch, or cannot be found in
            one commit.
    """
    present, squashed = set(matched.values()), dict[int, list[int]]()
    last = max((number for number in present if number < was), default=-1)
    trees, lost, reason = work.series.trees, list[int](), ""
    for missing in sorted(set(range(was)) - present - set(gone)):
        taker = _taker(work, changes, TreeDelta(trees[missing], trees[missing + 1]))
        if taker is not None:
            squashed.setdefault(taker, []).append(missing)
        elif missing < last:
            lost.append(missing)
            reason = reason or "but a later one is"
        elif merge(work.git, trees[missing], tree, trees[missing + 1]).tree == tree:
            lost.append(missing)
            reason = reason or "but its change is in them"
    if not lost:
        return squashed
    names = [f"{number + 1} ({work.series.patches[number].name})" for number in lost]
    what = f"patch {names[0]} is" if len(names) == 1 else f"patches {', '.join(names)} are"
    raise PyggmlError(
        f"{work.git.work_tree}: {what} not among the commits any more, {reason}",
        f"If that is on purpose: {_dropping(work, {*gone, *lost})}. Otherwise bring the commits back: git reflog",
    )


def _refuse_dropped(
    work: Workspace,
    changes: Sequence[CommitDelta],
    matched: Mapping[int, int],
    number: int,
    missing: Sequence[int],
) -> NoReturn:
    """Refuse to leave out a patch that is not missing."""
    name = work.series.patches[number].name
    there = next((changes[index].commit.id[:12] for index, n in matched.items() if n == number), None)
    if there is None:
        raise PyggmlError(
            f"patch {name} is not applied, so it was not dropped from the branch",
            f"Remove it from the series with: pyggml patch drop {name}",
        )
    raise PyggmlError(
        f"{work.git.work_tree}: patch {name} was not dropped: commit {there} is it",
        f"What is missing: {_dropping(work, missing)}" if missing else "No applied patch is missing.",
    )


def _dropping(work: Workspace, numbers: Iterable[int]) -> str:
    """The command that takes the branch without these patches."""
    command = "patch continue" if EDITING.what(work.project) else "patch refresh"
    return f"pyggml {command} --dropped {' '.join(work.series.patches[n].name for n in sorted(numbers))}"


def _taker(work: Workspace, changes: Sequence[CommitDelta], patch: TreeDelta) -> int | None:
    """The index of the commit after which the change of `patch` is in the tree, and before which it is not."""

    def has(tree: str) -> bool:
        merged = merge(work.git, patch.old, tree, patch.new)
        return not merged.stages and merged.tree == tree

    for index, change in enumerate(changes):
        if has(change.delta.new):
            return None if has(change.delta.old) else index
    return None


def _merge_message(
    work: Workspace, patch: Patch, before: Sequence[str], file: Commit, commit: Commit
) -> tuple[Identity, str]:
    """Author and message of a patch: what was changed since it was applied, in its file or in the branch.

    Raises:
        PyggmlError: both were, in different ways.
    """
    theirs, ours = (file.author, file.message), (commit.author, commit.message)
    if theirs == ours or not before or work.git.resolve(f"{before[0]}^{{commit}}") is None:
        return ours
    old = read_commit(work.git, before[0])
    if (old.author, old.message) == ours:
        return theirs
    if (old.author, old.message) == theirs:
        return ours
    raise PyggmlError(
        f"patch {patch.name}: its file has another message or author since it was applied, "
        f"and commit {commit.id[:12]} has its own",
        "Reword the commit like the file (git commit --amend), or restore the file (git checkout -- patches).",
    )
