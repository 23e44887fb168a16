"""Where a hunk belongs: at its stated line, at one other place, or nowhere to be trusted.

`git apply` and `git am` look for a hunk's old lines outwards from the stated line and take the nearest
match (git's apply.c, `find_pos`), even where the same lines stand several times. A hunk that moved is
accepted here only if there is exactly one place for it; so is one behind a hunk that moved, since then
its stated line is no evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import FileDiff, Hunk, split_lines


@dataclass(frozen=True)
class Placed:
    """Where one hunk went.

    Attributes:
        path: the file.
        stated: the line (from 1) that the hunk's header names, after the offsets of earlier hunks.
        found: the line where its old lines stand.
        candidates: the number of places in the file where they stand.
    """

    path: str
    stated: int
    found: int
    candidates: int

    @property
    def offset(self) -> int:
        return self.found - self.stated


def find_places(lines: Sequence[bytes], wanted: Sequence[bytes]) -> list[int]:
    """Every index in `lines` at which the run `wanted` stands."""
    if not wanted:
        return list(range(len(lines) + 1))
    first, count = wanted[0], len(wanted)
    return [
        index
        for index in range(len(lines) - count + 1)
        if lines[index] == first and list(lines[index : index + count]) == list(wanted)
    ]


def place(diff: FileDiff, old: bytes) -> tuple[FileDiff, tuple[Placed, ...]]:
    """Place every hunk of `diff` in the file content `old`.

    Returns:
        the diff with every header naming the true line, and where each hunk went.

    Raises:
        PyggmlError: a hunk's old lines stand nowhere, or only at several places that are not the stated one.
    """
    lines = split_lines(old)
    path = diff.path.decode("utf-8", "backslashreplace")
    hunks: list[Hunk] = []
    placed: list[Placed] = []
    drift = 0
    growth = 0
    floor = 0
    for number, hunk in enumerate(diff.hunks, 1):
        wanted = hunk.old_lines()
        stated = max(hunk.old_start - (1 if hunk.old_count else 0), 0)
        if drift == 0 and stated >= floor and lines[stated : stated + len(wanted)] == wanted:
            found, candidates = stated, 1
        else:
            places = [index for index in find_places(lines, wanted) if index >= floor]
            candidates = len(places)
            if not places or not wanted:
                raise PyggmlError(
                    f"{path}: hunk {number} (line {hunk.old_start}) does not apply: its old lines stand nowhere",
                    "The patch is for another version of this file, or another patch must come first.",
                )
            if candidates > 1:
                raise PyggmlError(
                    f"{path}: hunk {number} (line {hunk.old_start}) fits in {candidates} places "
                    f"(lines {', '.join(str(index + 1) for index in places[:6])})",
                    "It is not guessed: correct the hunk's line number, or give the hunk more context.",
                )
            found = places[0]
        drift = found - stated
        hunks.append(
            replace(
                hunk,
                old_start=hunk.old_start + drift,
                new_start=found + growth + (1 if hunk.new_count else 0),
            )
        )
        placed.append(Placed(path, stated + 1, found + 1, candidates))
        growth += hunk.new_count - hunk.old_count
        floor = found + len(wanted)
    return replace(diff, hunks=tuple(hunks)), tuple(placed)


def place_all(
    diffs: Sequence[FileDiff], read: Callable[[bytes], bytes | None]
) -> tuple[bytes, tuple[Placed, ...]]:
    """Place a whole patch; `read` gives a file's content before the patch, or None where there is none.

    A patch that names one file several times is placed step by step, each on the result before.

    Returns:
        the patch with exact line numbers, ready for `git apply`, and where every hunk went.

    Raises:
        PyggmlError: as `place`, or a file that the patch changes does not exist.
    """
    out: list[bytes] = []
    places: list[Placed] = []
    now: dict[bytes, bytes | None] = {}
    for diff in diffs:
        if diff.old is None or not diff.hunks:
            out.extend(diff_bytes(diff))
            if diff.new is not None and diff.hunks:
                now[diff.new] = b"".join(diff.hunks[0].new_lines())
            continue
        old = now[diff.old] if diff.old in now else read(diff.old)
        if old is None:
            raise PyggmlError(
                f"{diff.old.decode('utf-8', 'backslashreplace')}: the patch changes it, but there is no such file",
                "The patch is for another version, or another patch must come first.",
            )
        exact, where = place(diff, old)
        places.extend(where)
        out.extend(diff_bytes(exact))
        if diff.new is not None:
            now[diff.new] = result(exact, old)
        if diff.new != diff.old:
            now[diff.old] = None
    return b"".join(out), tuple(places)


def diff_bytes(diff: FileDiff) -> list[bytes]:
    """The diff of one file as lines."""
    lines = list(diff.header)
    for hunk in diff.hunks:
        lines.append(hunk.header())
        lines.extend(hunk.lines)
    return [*lines, *diff.tail]


def result(diff: FileDiff, old: bytes) -> bytes:
    """The content after an exactly placed diff."""
    lines = split_lines(old)
    out: list[bytes] = []
    at = 0
    for hunk in diff.hunks:
        start = max(hunk.old_start - (1 if hunk.old_count else 0), 0)
        out.extend(lines[at:start])
        out.extend(hunk.new_lines())
        at = start + len(hunk.old_lines())
    out.extend(lines[at:])
    return b"".join(out)
