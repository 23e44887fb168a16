"""Where a hunk belongs: at its stated line, at the one other place that fits, or nowhere that is certain.

`git apply` and `git am` look for a hunk's old lines outwards from the stated line and take the nearest
match (git's apply.c, `find_pos`), even if the same lines occur several times. Here a hunk that moved is
accepted only if exactly one place fits. The same goes for every hunk after one that moved: its stated line
proves nothing then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pyggml.errors import PyggmlError
from pyggml.series.patchfile.diff import FileDiff, Hunk, path_text, split_lines

ReadFile = Callable[[str], bytes | None]
"""The content of a file by its path; None if there is no such file."""


@dataclass(frozen=True)
class PlacedHunk:
    """Where one hunk went.

    Attributes:
        path: the file.
        stated: the line (from 1) that the hunk's header names.
        actual: the line at which the file has its old lines.
        candidates: the number of places at which the file has them.
    """

    path: str
    stated: int
    actual: int
    candidates: int

    @property
    def offset(self) -> int:
        return self.actual - self.stated


def find_places(lines: Sequence[bytes], wanted: Sequence[bytes]) -> list[int]:
    """Every index in `lines` at which the lines `wanted` begin."""
    if not wanted:
        return list(range(len(lines) + 1))
    first, count = wanted[0], len(wanted)
    return [
        index
        for index in range(len(lines) - count + 1)
        if lines[index] == first and list(lines[index : index + count]) == list(wanted)
    ]


def place(diff: FileDiff, old: bytes) -> tuple[FileDiff, tuple[PlacedHunk, ...]]:
    """Place every hunk of `diff` in the file content `old`.

    Returns:
        the diff with the actual line in every header, and where each hunk went.

    Raises:
        PyggmlError: the file has a hunk's old lines nowhere, or at several places but not at the stated line.
    """
    lines = split_lines(old)
    path = diff.path.decode("utf-8", "backslashreplace")
    hunks: list[Hunk] = []
    placed: list[PlacedHunk] = []
    drift = 0
    growth = 0
    floor = 0
    for number, hunk in enumerate(diff.hunks, 1):
        wanted = hunk.old_lines()
        stated = max(hunk.old_start - (1 if hunk.old_count else 0), 0)
        if drift == 0 and stated >= floor and lines[stated : stated + len(wanted)] == wanted:
            at, candidates = stated, 1
        else:
            places = [index for index in find_places(lines, wanted) if index >= floor]
            candidates = len(places)
            if not places or not wanted:
                what, way_out = _why_not(lines, wanted)
                raise PyggmlError(
                    f"{path}: hunk {number} (line {hunk.old_start}) does not apply: {what}", way_out
                )
            if candidates > 1:
                raise PyggmlError(
                    f"{path}: hunk {number} (line {hunk.old_start}) fits in {candidates} places "
                    f"(lines {', '.join(str(index + 1) for index in places[:6])})",
                    "pyggml does not guess: correct the hunk's line number, or give the hunk more context.",
                )
            at = places[0]
        drift = at - stated
        hunks.append(
            replace(
                hunk,
                old_start=hunk.old_start + drift,
                new_start=at + growth + (1 if hunk.new_count else 0),
            )
        )
        placed.append(PlacedHunk(path, stated + 1, at + 1, candidates))
        growth += hunk.new_count - hunk.old_count
        floor = at + len(wanted)
    return replace(diff, hunks=tuple(hunks)), tuple(placed)


def _why_not(lines: Sequence[bytes], wanted: Sequence[bytes]) -> tuple[str, str]:
    """Why the file has the lines `wanted` nowhere, and the way out."""
    plain, searched = ([line.rstrip(b"\r\n") for line in side] for side in (lines, wanted))
    at = find_places(plain, searched) if wanted else []
    if not at:
        return (
            "the file does not have its old lines",
            "The patch is for another version of this file, or another patch must come first.",
        )
    here = lines[at[0] : at[0] + len(wanted)]
    if any(line.endswith(b"\r\n") for line in here) != any(line.endswith(b"\r\n") for line in wanted):
        ends = ("CRLF", "LF") if any(line.endswith(b"\r\n") for line in here) else ("LF", "CRLF")
        return (
            f"the lines of the file end in {ends[0]} and those of the patch in {ends[1]}",
            "Make the patch again with these line ends; if it came by mail, ask for it as an attachment.",
        )
    if here[-1].endswith(b"\n") != wanted[-1].endswith(b"\n"):
        has = "ends with a newline" if here[-1].endswith(b"\n") else "has no newline at its end"
        return (
            f"the file {has}, and the patch says otherwise",
            "Add or remove the line `\\ No newline at end of file` in the patch, or make the patch again.",
        )
    return (
        "the file has its old lines, but with mixed line ends (LF and CRLF)",
        "Make the patch again from this version of the file.",
    )


def place_all(diffs: Sequence[FileDiff], read: ReadFile) -> tuple[bytes, tuple[PlacedHunk, ...]]:
    """As `place_files`: the patch with exact line numbers, ready for `git apply`, and where every hunk went."""
    exact, places, _ = place_files(diffs, read)
    return exact, places


def place_files(
    diffs: Sequence[FileDiff], read: ReadFile
) -> tuple[bytes, tuple[PlacedHunk, ...], dict[bytes, bytes | None]]:
    """Place every hunk of a patch; `read` gives the files as they are before it.

    If the patch names a file several times, each diff is placed on the result of the one before.

    Returns:
        the patch with exact line numbers, where every hunk went, and the files as they are after it: path to
        content, None for one that is gone. Binary changes and those of modes are not among them.

    Raises:
        PyggmlError: as `place`, or a file that the patch changes does not exist.
    """
    out: list[bytes] = []
    places: list[PlacedHunk] = []
    now: dict[bytes, bytes | None] = {}
    for diff in diffs:
        if not diff.git and diff.new is not None and _makes(diff, diff.new, now, read):
            diff = replace(diff, old=None)
        _check_whole_file(diff)
        if diff.old is None or not diff.hunks:
            out.extend(diff.exact_lines())
            if diff.new is not None and diff.hunks:
                now[diff.new] = b"".join(diff.hunks[0].new_lines())
            continue
        # What git copies or renames is the file as it was before the whole patch.
        moves = diff.git and diff.new not in (None, diff.old)
        old = now[diff.old] if diff.old in now and not moves else read(path_text(diff.old))
        if old is None:
            raise PyggmlError(
                f"{diff.old.decode('utf-8', 'backslashreplace')}: the patch changes this file, but it does not exist",
                "The patch is for another version, or another patch must come first.",
            )
        for number, hunk in enumerate(diff.hunks, 1):
            if not hunk.old_lines() and (old or hunk.old_start):
                raise PyggmlError(
                    f"{path_text(diff.old)}: hunk {number} (line {hunk.old_start}) adds lines, and no line of context "
                    "says where",
                    "Make the patch again with context: git diff -U3",
                )
        exact, where = place(diff, old)
        places.extend(where)
        out.extend(exact.exact_lines())
        if diff.new is not None:
            now[diff.new] = patched(exact, old)
        if diff.new is None or (diff.new != diff.old and diff.old not in now and not diff.copies):
            now[diff.old] = None
    return b"".join(out), tuple(places), now


def _check_whole_file(diff: FileDiff) -> None:
    """Refuse a diff that makes a file of old lines, or removes one and adds lines to it.

    Source: git's apply.c, `parse_single_patch`.
    """
    path = diff.path.decode("utf-8", "backslashreplace")
    if diff.old is None and (len(diff.hunks) > 1 or any(hunk.old_lines() for hunk in diff.hunks)):
        raise PyggmlError(
            f"{path}: the patch makes this file, but has old lines of it",
            "Its header was edited by hand: restore it, or make the patch again with git.",
        )
    if diff.new is None and any(hunk.new_lines() for hunk in diff.hunks):
        raise PyggmlError(
            f"{path}: the patch removes this file, but leaves lines in it",
            "Its header was edited by hand: restore it, or make the patch again with git.",
        )


def _makes(diff: FileDiff, path: bytes, now: dict[bytes, bytes | None], read: ReadFile) -> bool:
    """Whether a plain diff makes a file: it need not say so, but then it has no old lines, and the file is not there.

    Source: git's apply.c, `check_preimage` for a patch whose `is_new` is unknown.
    """
    return (
        all(hunk.old_start == hunk.old_count == 0 for hunk in diff.hunks)
        and (now[path] if path in now else read(path_text(path))) is None
    )


def patched(diff: FileDiff, old: bytes) -> bytes:
    """The file content `old` after `diff`, whose line numbers are exact."""
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
