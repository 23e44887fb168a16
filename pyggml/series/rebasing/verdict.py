"""The verdict on each patch of a rebase, and what needs a look although the text merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType

from pyggml.git.object_store import ObjectStore
from pyggml.series.patchfile.diff import FileDiff
from pyggml.series.patchfile.hunks import HunkMove, hunk_moves, newly_removed_lines, numbered_hunks
from pyggml.series.rebasing.contained_hunks import contained_hunks
from pyggml.series.rebasing.missing_names import MissingName, missing_names
from pyggml.series.rebasing.repeated_blocks import RepeatedBlock, repeated_blocks
from pyggml.series.stack.commits import Commit
from pyggml.series.stack.series_file import Patch
from pyggml.series.stack.trees import Trees

CLEAN, MERGED, CONFLICT = "clean", "merged", "conflict"
UPSTREAM, PARTLY, EMPTY, SKIPPED, ADDED = "already upstream", "partly upstream", "empty", "skipped", "added"


@dataclass(frozen=True)
class PatchComparison:
    """The old and the new patch, compared.

    Attributes:
        upstream: numbers (from 1) of the hunks that are there even without the patch.
        total: how many hunks the old patch has.
        hunks: where every hunk was and is.
        deleted: upstream's lines that the new patch removes and the old one did not: (path, line).
        left_behind: files that the patch creates in a directory that upstream moved: (path, new directory).
        repeated: blocks that the new patch adds although upstream has them at another place of the file.
        missing: names that it uses and that only a patch which is left out would have added.
    """

    verdict: str
    upstream: tuple[int, ...]
    total: int
    hunks: tuple[HunkMove, ...] = ()
    deleted: tuple[tuple[str, str], ...] = ()
    left_behind: tuple[tuple[str, str], ...] = ()
    repeated: tuple[RepeatedBlock, ...] = ()
    missing: tuple[MissingName, ...] = ()


@dataclass(frozen=True)
class RebasedPatch:
    """One patch of the old series and what became of it, or one that only the new pin has.

    Attributes:
        number: its place in the old series, from 1; 0 for an added patch.
        mechanical: the tree that the merge alone gave.
        how: `replayed` if a recorded resolution was used, else empty.
        reason: why it is left out, if the user decided that.
        commit: of the new patch; None if it is left out.
    """

    number: int
    patch: Patch
    subject: str
    comparison: PatchComparison
    mechanical: str
    how: str = ""
    reason: str = ""
    commit: Commit | None = None

    @property
    def verdict(self) -> str:
        return self.comparison.verdict


def compare_patch(
    trees: Trees,
    before: tuple[str, str],
    now: str,
    result: str,
    upstream: str,
    renames: Mapping[str, str],
    left_out: Mapping[str, frozenset[bytes]] = MappingProxyType({}),
    *,
    conflicts: bool,
) -> PatchComparison:
    """Compare the old patch with the new one.

    Args:
        before: the trees before and after the old patch.
        now, result: the trees before and after the new one.
        upstream: the new pin's tree, without any patch.
        left_out: patches before it that are left out, with the names that each of them added.
        conflicts: the merge alone did not give `result`.
    """
    diffs = trees.diff(*before)
    read_before, read_now = trees.reader(before[0]), trees.reader(now)
    contained = contained_hunks(diffs, read_before, read_now, renames)
    total = len(numbered_hunks(diffs))
    if result == now:
        direct = contained_hunks(diffs, read_before, trees.reader(upstream), renames)
        verdict = UPSTREAM if len(direct) == total else EMPTY
        return PatchComparison(verdict, direct if verdict == UPSTREAM else contained, total)
    after = trees.diff(now, result)
    hunks = hunk_moves(diffs, after, read_before, read_now, renames)
    removed = newly_removed_lines(diffs, after)
    deleted = tuple((path, line.decode("utf-8", "replace")) for path, line in removed)
    repeated = repeated_blocks(after, read_before, read_now, renames)
    missing = missing_names(after, read_now, left_out)
    if conflicts:
        verdict = CONFLICT
    elif contained:
        verdict = PARTLY
    elif not (repeated or missing) and all(
        move.after is not None and move.whole and not move.offset and move.after.path == move.before.path
        for move in hunks
    ):
        verdict = CLEAN
    else:
        verdict = MERGED
    left_behind = _left_behind(trees.store, after, upstream, renames)
    return PatchComparison(verdict, contained, total, hunks, deleted, left_behind, repeated, missing)


def _left_behind(
    store: ObjectStore, after: Sequence[FileDiff], upstream: str, renames: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """New files in a directory that upstream has emptied by moving its files elsewhere."""
    left_behind = []
    for path in (diff.old_path for diff in after if diff.old is None):
        directory = PurePosixPath(path).parent
        moved = Counter(
            PurePosixPath(new).parent.as_posix()
            for old, new in renames.items()
            if PurePosixPath(old).parent == directory
        )
        if moved and store.entry(upstream, str(directory).encode("utf-8", "surrogateescape")) is None:
            left_behind.append((path, moved.most_common(1)[0][0]))
    return tuple(left_behind)
