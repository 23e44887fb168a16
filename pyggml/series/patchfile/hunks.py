"""The hunks of a patch before and after it moved: which became which, and where each stands."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyggml.git import Git
from pyggml.git.runner import DIFF_FORMAT
from pyggml.series.patchfile.diff import FileDiff, Hunk, parse_diff, split_lines
from pyggml.series.patchfile.functions import enclosing, has_functions
from pyggml.series.patchfile.placement import find_places

DIFF = (
    "diff-tree",
    "-r",
    "-p",
    *DIFF_FORMAT,
)
Read = Callable[[str], bytes | None]


@dataclass(frozen=True)
class Block:
    """A run of changed lines.

    Attributes:
        hunk: number (from 1) of its hunk in the patch.
        line: where its old side begins in the old file, from 1.
        removed, added: the lines, without their leading character.
    """

    path: str
    hunk: int
    line: int
    removed: tuple[bytes, ...]
    added: tuple[bytes, ...]


@dataclass(frozen=True)
class Place:
    """Where a hunk stands.

    Attributes:
        line: of its first changed line, from 1.
        function: the name of the enclosing function; empty outside of any.
        candidates: how many places of the file hold the hunk's old lines; 0 for a new file.
    """

    path: str
    line: int
    function: str
    candidates: int


@dataclass(frozen=True)
class HunkMove:
    """One hunk of the old patch and what became of it.

    Attributes:
        after: None if none of its changes is in the new patch.
        whole: all of its changes are in the new patch, word for word.
    """

    number: int
    before: Place
    after: Place | None
    whole: bool = True

    @property
    def offset(self) -> int:
        return self.after.line - self.before.line if self.after else 0

    @property
    def function_changed(self) -> bool:
        return self.after is not None and self.after.function != self.before.function

    @property
    def key(self) -> str:
        """How a confirmation of a changed function is written down."""
        after = self.after or self.before
        return f"{after.path}: {self.before.function or '(none)'} -> {after.function or '(none)'}"


def tree_diff(git: Git, old: str, new: str, *options: str) -> bytes:
    """The diff of two trees: the same bytes with every configuration."""
    return git.run(*DIFF, "--find-renames", *options, old, new)


def reader(git: Git, tree: str) -> Read:
    """Contents of the files of `tree` by path; None where there is none."""
    known: dict[str, bytes | None] = {}

    def read(path: str) -> bytes | None:
        if path not in known:
            status, out = git.status("cat-file", "blob", f"{tree}:{path}", ok=(0, 1, 128))
            known[path] = out if status == 0 else None
        return known[path]

    return read


def shown(path: bytes | None) -> str:
    return (path or b"").decode("utf-8", "surrogateescape")


def numbered(diffs: Sequence[FileDiff]) -> list[tuple[int, FileDiff, Hunk | None]]:
    """Every hunk with its number in the patch; a file without hunks (mode, binary, rename) counts as one."""
    found: list[tuple[int, FileDiff, Hunk | None]] = []
    for diff in diffs:
        hunks: Sequence[Hunk | None] = diff.hunks or (None,)
        for hunk in hunks:
            found.append((len(found) + 1, diff, hunk))
    return found


def blocks_of(diffs: Sequence[FileDiff]) -> list[Block]:
    """Every run of changed lines."""
    found: list[Block] = []
    for number, diff, hunk in numbered(diffs):
        path = shown(diff.new if diff.old is None else diff.old)
        for line, removed, added in _runs(hunk) if hunk else ():
            found.append(Block(path, number, line, tuple(removed), tuple(added)))
    return found


def _runs(hunk: Hunk) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    at = hunk.old_start + (0 if hunk.old_count else 1)
    lines = [line for line in hunk.lines if not line.startswith(b"\\")]
    for changed, group in itertools.groupby(lines, lambda line: line[:1] in (b"-", b"+")):
        run = list(group)
        removed = [line[1:] for line in run if changed and line.startswith(b"-")]
        if changed:
            yield at, removed, [line[1:] for line in run if line.startswith(b"+")]
        at += len(removed) if changed else len(run)


def moves(
    before: tuple[FileDiff, ...],
    after: tuple[FileDiff, ...],
    read_before: Read,
    read_after: Read,
    renames: Mapping[str, str],
) -> tuple[HunkMove, ...]:
    """What became of every hunk with text of the old patch.

    Args:
        read_before, read_after: the trees that the two patches apply to.
        renames: old path to new path, where upstream moved a file.
    """
    old, new = blocks_of(before), blocks_of(after)
    partner = _pair(old, new, renames)
    hunks = {number: hunk for number, _, hunk in numbered(before)}
    new_hunks = {number: hunk for number, _, hunk in numbered(after)}
    found = []
    for number in dict.fromkeys(block.hunk for block in old):
        own = [index for index, block in enumerate(old) if block.hunk == number]
        met = [index for index in own if index in partner]
        place = _place(old[own[0]], hunks[number], read_before)
        if not met:
            found.append(HunkMove(number, place, None, False))
            continue
        if met[0] != own[0]:
            place = _place(old[met[0]], hunks[number], read_before)
        target = new[partner[met[0]]]
        there = _place(target, new_hunks[target.hunk], read_after)
        whole = all(index in partner and _key(old[index]) == _key(new[partner[index]]) for index in own)
        found.append(HunkMove(number, place, there, whole))
    return tuple(found)


def _key(block: Block) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    return block.removed, block.added


def _pair(old: Sequence[Block], new: Sequence[Block], renames: Mapping[str, str]) -> dict[int, int]:
    """Index of an old block to index of a new one: equal blocks first, then those between equal neighbours."""
    partner: dict[int, int] = {}
    for path in dict.fromkeys(block.path for block in old):
        mine = [index for index, block in enumerate(old) if block.path == path]
        theirs = [index for index, block in enumerate(new) if block.path in (path, renames.get(path, path))]
        left, right = [_key(old[i]) for i in mine], [_key(new[i]) for i in theirs]
        matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
        for kind, a, b, c, d in matcher.get_opcodes():
            if kind == "equal" or (kind == "replace" and b - a == d - c):
                partner.update(zip(mine[a:b], theirs[c:d], strict=True))
    return partner


def _place(block: Block, hunk: Hunk | None, read: Read) -> Place:
    content = read(block.path)
    if content is None or hunk is None:
        return Place(block.path, block.line, "", 0)
    lines = split_lines(content)
    wanted = hunk.old_lines()
    at = block.line - 1 if block.removed else block.line - 2
    function = ""
    if has_functions(block.path):
        function = enclosing(lines, at) if block.removed else enclosing([*lines[: at + 1], b"\n"], at + 1)
    return Place(block.path, block.line, function, len(find_places(lines, wanted)) if wanted else 0)


def collateral(before: Sequence[FileDiff], after: Sequence[FileDiff]) -> tuple[tuple[str, bytes], ...]:
    """Lines that the new patch removes and the old one did not: (path, line). Blank ones do not count."""
    had = Counter(line.strip() for block in blocks_of(before) for line in block.removed)
    found: list[tuple[str, bytes]] = []
    for block in blocks_of(after):
        put_back = Counter(line.strip() for line in block.added)
        for line in block.removed:
            text = line.strip()
            if not text:
                continue
            if had[text]:
                had[text] -= 1
            elif put_back[text]:
                put_back[text] -= 1
            else:
                found.append((block.path, line.rstrip(b"\r\n")))
    return tuple(found)


def parsed(git: Git, old: str, new: str) -> tuple[FileDiff, ...]:
    """The diff of two trees, taken apart."""
    return parse_diff(tree_diff(git, old, new)) if old != new else ()
