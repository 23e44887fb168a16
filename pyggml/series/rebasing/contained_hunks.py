"""Which hunks of a patch a newer tree contains already."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyggml.git.runner import GitError, run_outside
from pyggml.series.patchfile.diff import FileDiff, Hunk, path_text, split_lines
from pyggml.series.patchfile.hunks import numbered_hunks
from pyggml.series.patchfile.placement import ReadFile, patched


def contained_hunks(
    diffs: Sequence[FileDiff], read_before: ReadFile, read_now: ReadFile, renames: Mapping[str, str]
) -> tuple[int, ...]:
    """The numbers (from 1) of the hunks that change nothing any more.

    A tree contains a hunk if merging it alone, as a change of the file that the patch was made on, into the
    file as it is now gives that file back: its old lines are gone, and its new ones are in their place.

    Args:
        read_before: the tree that the patch was made on.
        read_now: the newer tree.
        renames: old path to new path, where upstream moved a file.
    """
    contained = []
    for number, diff, hunk in numbered_hunks(diffs):
        if diff.old is None:
            is_contained = _created(diff, read_now)
        elif diff.new is None:
            is_contained = read_now(diff.old_path) is None and diff.old_path not in renames
        else:
            is_contained = hunk is not None and _merged(diff, hunk, read_before, read_now, renames)
        if is_contained:
            contained.append(number)
    return tuple(contained)


def _created(diff: FileDiff, read_now: ReadFile) -> bool:
    content = read_now(path_text(diff.new))
    return content is not None and content == b"".join(
        line for hunk in diff.hunks for line in hunk.new_lines()
    )


def _merged(
    diff: FileDiff, hunk: Hunk, read_before: ReadFile, read_now: ReadFile, renames: Mapping[str, str]
) -> bool:
    path = diff.old_path
    base = read_before(path)
    ours = read_now(path)
    if ours is None and path in renames:
        ours = read_now(renames[path])
    if base is None or ours is None:
        return False
    if base == ours:
        return False
    theirs = patched(replace(diff, hunks=(hunk,)), base)
    return theirs == ours or (_possible(hunk, ours) and merge_contents(base, ours, theirs) == ours)


def _possible(hunk: Hunk, ours: bytes) -> bool:
    """Whether `ours` has every line that the hunk adds; if not, no merge needs to be tried."""
    lines = {line.rstrip(b"\r\n") for line in split_lines(ours)}
    added = (line[1:].rstrip(b"\r\n") for line in hunk.lines if line.startswith(b"+"))
    return all(line in lines for line in added)


def merge_contents(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    """The merge of three versions of a file; None if they conflict or are binary."""
    with tempfile.TemporaryDirectory(prefix="pyggml-merge-") as scratch:
        place = Path(scratch)
        for name, content in (("base", base), ("ours", ours), ("theirs", theirs)):
            (place / name).write_bytes(content)
        try:
            return run_outside("merge-file", "-p", "--quiet", "ours", "base", "theirs", cwd=place)
        except GitError:
            return None
