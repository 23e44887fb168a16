"""The hunks of a patch before and after it moved: which became which, and where each of them is."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyggml.series.patchfile.diff import FileDiff, Hunk, split_lines
from pyggml.series.patchfile.enclosing_function import enclosing_function, has_functions
from pyggml.series.patchfile.placement import ReadFile, find_places


@dataclass(frozen=True)
class ChangedRun:
    """Changed lines without a line of context between them.

    Attributes:
        hunk: number (from 1) of its hunk in the patch.
        line: the line of the old file at which the old side begins, from 1.
        removed, added: the lines, without their leading character.
    """

    path: str
    hunk: int
    line: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


@dataclass(frozen=True)
class HunkPlace:
    """Where a hunk is.

    Attributes:
        line: number of its first changed line, from 1.
        function: name of the enclosing function; empty if there is none.
        candidates: number of places in the file that hold the hunk's old lines; 0 for a new file.
    """

    path: str
    line: int
    function: str
    candidates: int


@dataclass(frozen=True)
class HunkMove:
    """One hunk of the old patch and what became of it.

    Attributes:
        after: None if the new patch has none of its changes.
        whole: the new patch has all of its changes, word for word.
    """

    number: int
    before: HunkPlace
    after: HunkPlace | None
    whole: bool = True

    @property
    def offset(self) -> int:
        return self.after.line - self.before.line if self.after else 0

    @property
    def function_changed(self) -> bool:
        return self.after is not None and self.after.function != self.before.function

    @property
    def key(self) -> str:
        """What stands for this move where a user confirms that the other function is right."""
        after = self.after or self.before
        return f"{after.path}: {self.before.function or '(none)'} -> {after.function or '(none)'}"


def numbered_hunks(diffs: Sequence[FileDiff]) -> list[tuple[int, FileDiff, Hunk | None]]:
    """Every hunk with its number in the patch; a file without hunks (mode, binary, rename) counts as one."""
    pairs = [(diff, hunk) for diff in diffs for hunk in diff.hunks or (None,)]
    return [(number, diff, hunk) for number, (diff, hunk) in enumerate(pairs, 1)]


def changed_runs(diffs: Sequence[FileDiff]) -> list[ChangedRun]:
    """Every run of changed lines of a patch, in order."""
    return [
        ChangedRun(diff.old_path, number, line, tuple(removed), tuple(added))
        for number, diff, hunk in numbered_hunks(diffs)
        for line, removed, added in (_runs(hunk) if hunk else ())
    ]


def _runs(hunk: Hunk) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    at = hunk.old_start + (0 if hunk.old_count else 1)
    lines = [line for line in hunk.lines if not line.startswith(b"\\")]
    for changed, group in itertools.groupby(lines, lambda line: line[:1] in (b"-", b"+")):
        run = list(group)
        removed = [line[1:] for line in run if changed and line.startswith(b"-")]
        if changed:
            yield at, removed, [line[1:] for line in run if line.startswith(b"+")]
        at += len(removed) if changed else len(run)


def hunk_moves(
    before: tuple[FileDiff, ...],
    after: tuple[FileDiff, ...],
    read_before: ReadFile,
    read_after: ReadFile,
    renames: Mapping[str, str],
) -> tuple[HunkMove, ...]:
    """What became of every hunk with text of the old patch.

    Args:
        read_before, read_after: the trees that the two patches apply to.
        renames: old path to new path, where upstream moved a file.
    """
    old, new = changed_runs(before), changed_runs(after)
    partner = _pair(old, new, renames)
    hunks = {number: hunk for number, _, hunk in numbered_hunks(before)}
    new_hunks = {number: hunk for number, _, hunk in numbered_hunks(after)}
    moves = []
    for number in dict.fromkeys(run.hunk for run in old):
        own = [index for index, run in enumerate(old) if run.hunk == number]
        paired = [index for index in own if index in partner]
        place = _place(old[paired[0] if paired else own[0]], hunks[number], read_before)
        if not paired:
            moves.append(HunkMove(number, place, None, False))
            continue
        target = new[partner[paired[0]]]
        place_after = _place(target, new_hunks[target.hunk], read_after)
        whole = all(index in partner and _text(old[index]) == _text(new[partner[index]]) for index in own)
        moves.append(HunkMove(number, place, place_after, whole))
    return tuple(moves)


def _text(run: ChangedRun) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    return run.removed, run.added


def _pair(old: Sequence[ChangedRun], new: Sequence[ChangedRun], renames: Mapping[str, str]) -> dict[int, int]:
    """Index of an old run to index of a new one: equal runs first, then those between equal neighbours."""
    partner: dict[int, int] = {}
    for path in dict.fromkeys(run.path for run in old):
        mine = [index for index, run in enumerate(old) if run.path == path]
        theirs = [index for index, run in enumerate(new) if run.path in (path, renames.get(path, path))]
        left, right = [_text(old[i]) for i in mine], [_text(new[i]) for i in theirs]
        matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal" or (kind == "replace" and b - a == d - c):
                partner.update(zip(mine[a:b], theirs[c:d], strict=True))
    return partner


def _place(run: ChangedRun, hunk: Hunk | None, read: ReadFile) -> HunkPlace:
    content = read(run.path)
    if content is None or hunk is None:
        return HunkPlace(run.path, run.line, "", 0)
    lines = split_lines(content)
    wanted = hunk.old_lines()
    at = run.line - 1 if run.removed else run.line - 2
    function = ""
    if has_functions(run.path):
        # An added line is not in the file yet: a blank one stands for it.
        function = (
            enclosing_function(lines, at)
            if run.removed
            else enclosing_function([*lines[: at + 1], b"\n"], at + 1)
        )
    return HunkPlace(run.path, run.line, function, len(find_places(lines, wanted)) if wanted else 0)


def newly_removed_lines(
    before: Sequence[FileDiff], after: Sequence[FileDiff]
) -> tuple[tuple[str, bytes], ...]:
    """Lines that the new patch removes and the old one did not: (path, line). Blank ones do not count."""
    had = Counter(line.strip() for run in changed_runs(before) for line in run.removed)
    new: list[tuple[str, bytes]] = []
    for run in changed_runs(after):
        put_back = Counter(line.strip() for line in run.added)
        for line in run.removed:
            text = line.strip()
            if not text:
                continue
            if had[text]:
                had[text] -= 1
            elif put_back[text]:
                put_back[text] -= 1
            else:
                new.append((run.path, line.rstrip(b"\r\n")))
    return tuple(new)
