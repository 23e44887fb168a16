"""Which hunks of a patch a newer tree has already."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyggml.git.runner import GitError, run_outside
from pyggml.series.patchfile.diff import FileDiff, Hunk, split_lines
from pyggml.series.patchfile.hunks import Read, numbered, shown
from pyggml.series.patchfile.placement import result


def present(
    diffs: Sequence[FileDiff], read_before: Read, read_now: Read, renames: Mapping[str, str]
) -> tuple[int, ...]:
    """The numbers (from 1) of the hunks that change nothing any more.

    A hunk is there if merging it alone, as a change of the file that the patch was made on, into the file
    as it is now gives that file back: its old lines are gone and its new ones stand in their place.

    Args:
        read_before: the tree that the patch was made on.
        read_now: the newer tree.
        renames: old path to new path, where upstream moved a file.
    """
    found = []
    for number, diff, hunk in numbered(diffs):
        if diff.old is None:
            there = _created(diff, read_now)
        elif diff.new is None:
            there = read_now(shown(diff.old)) is None and shown(diff.old) not in renames
        else:
            there = hunk is not None and _merged(diff, hunk, read_before, read_now, renames)
        if there:
            found.append(number)
    return tuple(found)


def _created(diff: FileDiff, read_now: Read) -> bool:
    content = read_now(shown(diff.new))
    return content is not None and content == b"".join(
        line for hunk in diff.hunks for line in hunk.new_lines()
    )


def _merged(
    diff: FileDiff, hunk: Hunk, read_before: Read, read_now: Read, renames: Mapping[str, str]
) -> bool:
    path = shown(diff.old)
    base = read_before(path)
    ours = read_now(path)
    if ours is None and path in renames:
        ours = read_now(renames[path])
    if base is None or ours is None:
        return False
    if base == ours:
        return False
    theirs = result(replace(diff, hunks=(hunk,)), base)
    return theirs == ours or (_possible(hunk, ours) and merge_contents(base, ours, theirs) == ours)


def _possible(hunk: Hunk, ours: bytes) -> bool:
    """Whether every line that the hunk adds stands in `ours`; if not, no merge needs to be tried."""
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
