"""The verdict on each patch of a rebase, and what a person should look at although the text merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pyggml.git import Git
from pyggml.series.patchfile.diff import FileDiff
from pyggml.series.patchfile.hunks import HunkMove, collateral, moves, numbered, parsed, reader, shown
from pyggml.series.rebasing.contained_hunks import present
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.series_file import Patch

CLEAN, MERGED, CONFLICT = "clean", "merged", "conflict"
UPSTREAM, PARTLY, EMPTY, SKIPPED = "already upstream", "partly upstream", "empty", "skipped"
DROPPED = (UPSTREAM, EMPTY, SKIPPED)
"""Verdicts that leave the patch out of the new series."""


@dataclass(frozen=True)
class Judged:
    """What the old and the new patch say, compared.

    Attributes:
        upstream: numbers (from 1) of the hunks that are there without the patch.
        total: how many hunks the old patch has.
        hunks: where every hunk was and is.
        deleted: upstream's lines that the new patch removes and the old one did not: (path, line).
        left_behind: files that the patch creates in a directory that upstream moved: (path, new directory).
    """

    verdict: str
    upstream: tuple[int, ...]
    total: int
    hunks: tuple[HunkMove, ...] = ()
    deleted: tuple[tuple[str, str], ...] = ()
    left_behind: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Step:
    """One patch of the old series and what became of it.

    Attributes:
        number: its place in the old series, from 1.
        mechanical: the tree that the merge alone gave.
        how: `replayed` if a recorded resolution was used, else empty.
        reason: why it is left out, where a person decided that.
        commit: of the new patch; None if it is left out.
    """

    number: int
    patch: Patch
    subject: str
    judged: Judged
    mechanical: str
    how: str = ""
    reason: str = ""
    commit: Commit | None = None

    @property
    def verdict(self) -> str:
        return self.judged.verdict


def judge(
    git: Git,
    before: tuple[str, str],
    now: str,
    result: str,
    upstream: str,
    renames: Mapping[str, str],
    *,
    conflicts: bool,
) -> Judged:
    """Compare the old patch with the new one.

    Args:
        before: the trees before and after the old patch.
        now, result: the trees before and after the new one.
        upstream: the new pin's tree, without any patch.
        conflicts: the merge alone did not give `result`.
    """
    diffs = parsed(git, *before)
    read_before, read_now = reader(git, before[0]), reader(git, now)
    there = present(diffs, read_before, read_now, renames)
    total = len(numbered(diffs))
    if result == now:
        direct = present(diffs, read_before, reader(git, upstream), renames)
        verdict = UPSTREAM if len(direct) == total else EMPTY
        return Judged(verdict, direct if verdict == UPSTREAM else there, total)
    after = parsed(git, now, result)
    hunks = moves(diffs, after, read_before, read_now, renames)
    deleted = tuple((path, line.decode("utf-8", "replace")) for path, line in collateral(diffs, after))
    if conflicts:
        verdict = CONFLICT
    elif there:
        verdict = PARTLY
    elif all(
        move.after is not None and move.whole and not move.offset and move.after.path == move.before.path
        for move in hunks
    ):
        verdict = CLEAN
    else:
        verdict = MERGED
    return Judged(verdict, there, total, hunks, deleted, _left_behind(git, after, upstream, renames))


def _left_behind(
    git: Git, after: Sequence[FileDiff], upstream: str, renames: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """New files in a directory that upstream has emptied by moving its files elsewhere."""
    found = []
    for path in (shown(diff.new) for diff in after if diff.old is None):
        directory = PurePosixPath(path).parent
        moved = Counter(
            PurePosixPath(new).parent.as_posix()
            for old, new in renames.items()
            if PurePosixPath(old).parent == directory
        )
        if moved and git.status("cat-file", "-e", f"{upstream}:{directory}", ok=(0, 1, 128))[0]:
            found.append((path, moved.most_common(1)[0][0]))
    return tuple(found)


def renamed_paths(git: Git, old: str, new: str) -> dict[str, str]:
    """Files that moved between two trees: old path to new path."""
    out = git.run("diff-tree", "-r", "-z", "--find-renames", "--diff-filter=R", "--name-status", old, new)
    parts = out.decode("utf-8", "surrogateescape").split("\0")
    return {parts[i + 1]: parts[i + 2] for i in range(0, len(parts) - 2, 3)}
