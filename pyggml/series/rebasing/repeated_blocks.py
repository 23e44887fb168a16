"""Blocks that a patch adds although the file has them already, because upstream took them at another place."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyggml.series.patchfile.diff import FileDiff, split_lines
from pyggml.series.patchfile.hunks import changed_runs
from pyggml.series.patchfile.placement import ReadFile

FEWEST_LINES = 3
"""A block counts from this many lines on that say something: blank ones and lone braces do not."""
_LARGE_PART = 0.7
_SLACK = 2


@dataclass(frozen=True)
class RepeatedBlock:
    """Lines that the new patch adds and that stand in the file without it.

    Attributes:
        line: where they stand in the file before the patch, from 1.
        first: the first of them, without blanks around it.
        count: how many they are, without blank lines and lone braces.
    """

    path: str
    line: int
    first: str
    count: int


def repeated_blocks(
    after: Sequence[FileDiff], read_before: ReadFile, read_now: ReadFile, renames: Mapping[str, str]
) -> tuple[RepeatedBlock, ...]:
    """The blocks of the new patch that stand in the file already, and did not when the old patch was made.

    Indentation does not count. A block counts if most of it is there: upstream may have changed a line of it.

    Args:
        after: the new patch.
        read_before: the tree that the old patch was made on.
        read_now: the tree that the new one is made on.
        renames: old path to new path, where upstream moved a file.
    """
    former = {new: old for old, new in renames.items()}
    blocks: list[RepeatedBlock] = []
    for run in changed_runs(after):
        added = [text for _, text in _lines(b"".join(run.added))]
        fewest = max(FEWEST_LINES, _LARGE_PART * sum(map(_says_something, added)))
        # Lines that the run itself takes away are rewritten, not repeated.
        if sum(map(_says_something, added)) < FEWEST_LINES or set(added) <= set(
            map(bytes.strip, run.removed)
        ):
            continue
        content, old = read_now(run.path) or b"", read_before(former.get(run.path, run.path)) or b""
        if content == old:
            continue
        gone = range(run.line, run.line + len(run.removed))
        now = [(number, text) for number, text in _lines(content) if number not in gone]
        there = _standing(added, [text for _, text in now])
        was_there = _standing(added, [text for _, text in _lines(old)])
        if len(there) < fewest or len(was_there) >= len(there):
            continue
        line, text = now[there[0]]
        blocks.append(RepeatedBlock(run.path, line, text.decode("utf-8", "replace"), len(there)))
    return tuple(blocks)


def _lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers (from 1)."""
    for number, line in enumerate(split_lines(content), 1):
        if text := line.strip():
            yield number, text


def _says_something(line: bytes) -> bool:
    return any(byte > 127 or chr(byte).isalnum() for byte in line)


def _standing(block: Sequence[bytes], lines: Sequence[bytes]) -> list[int]:
    """Where (from 0) those lines of `block` that say something stand together in `lines`: at its best place."""
    best = difflib.SequenceMatcher(None, block, lines, autojunk=False).find_longest_match()
    start = max(best.b - best.a - _SLACK, 0)
    near = lines[start : best.b - best.a + len(block) + _SLACK]
    matches = difflib.SequenceMatcher(None, block, near, autojunk=False).get_matching_blocks()
    places = [start + match.b + step for match in matches for step in range(match.size)]
    return [place for place in places if _says_something(lines[place])]
