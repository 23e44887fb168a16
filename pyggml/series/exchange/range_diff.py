"""Two series compared patch by patch; the pairing is `git range-diff`'s."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.errors import PyggmlError, did_you_mean
from pyggml.git import Git
from pyggml.project import Project
from pyggml.series.patchfile.foreign import read_foreign
from pyggml.series.stack.commits import Commit, apply_patches
from pyggml.series.stack.series_file import SERIES_FILE, read_toml
from pyggml.series.worktree.workspace import Workspace, open_workspace
from pyggml.upstream.pins import read_pins

CREATION_FACTOR = 60
"""How much two patches of a pair may differ, in percent; git's own default."""
_HEAD = re.compile(r"\s*(\d+|-):\s+(?:[0-9a-f]+|-+) ([=!<>])\s+(\d+|-):\s+(?:[0-9a-f]+|-+) (.*)")


@dataclass(frozen=True)
class PatchPair:
    """Two patches that correspond, or one without a counterpart.

    Attributes:
        before, after: numbers (from 1) in the two series.
        sign: `=` the same, `!` changed, `<` only before, `>` only after.
        lines: the difference between the two patches, as git shows it.
    """

    before: int | None
    after: int | None
    sign: str
    subject: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class RangeDiff:
    """The comparison of two series; `before` and `after` are what the user called them."""

    before: str
    after: str
    entries: tuple[PatchPair, ...]


def compare(project: Project, before: str, after: str) -> RangeDiff:
    """Compare two series.

    Args:
        before, after: pins, or directories of patches: with a `series.toml` (on the pin that it names), or
            plain ones, on the pin of the other series.

    Raises:
        PyggmlError: neither a pin nor a directory, or patches that do not apply.
    """
    names = {pin.name for pin in read_pins(project).pins}
    plain = [name for name in (before, after) if name not in names and not _recorded(name)]
    for name in plain:
        if not Path(name).exists():
            raise PyggmlError(
                f"{name} is neither a pin nor a directory of patches",
                f"{did_you_mean(name, names)}Pins: {', '.join(sorted(names))}.",
            )
    if len(plain) == 2:
        raise PyggmlError(
            f"{before} and {after} do not say which pin they are for",
            f"Name a pin for one of them ({', '.join(sorted(names))}).",
        )
    left = None if before in plain else _series(project, names, before)
    right = None if after in plain else _series(project, names, after)
    work = left[0] if left else right[0] if right else open_workspace(project)
    left = left or _plain(work, before)
    right = right or _plain(work, after)
    if not left[1] or not right[1]:
        # git does not accept an empty range.
        gone = [PatchPair(n, None, "<", commit.subject) for n, commit in enumerate(left[1], 1)]
        new = [PatchPair(None, n, ">", commit.subject) for n, commit in enumerate(right[1], 1)]
        return RangeDiff(before, after, (*gone, *new))
    out = _range_diff(work.git, left, right)
    return RangeDiff(before, after, parse_range_diff(out))


def _range_diff(
    git: Git, left: tuple[Workspace, Sequence[Commit]], right: tuple[Workspace, Sequence[Commit]]
) -> str:
    ranges = [f"{work.base}..{stack[-1].id}" for work, stack in (left, right)]
    options = ("--no-color", f"--creation-factor={CREATION_FACTOR}", "--no-notes")
    return git.run("range-diff", *options, *ranges).decode("utf-8", "replace")


def _recorded(name: str) -> bool:
    return (Path(name) / SERIES_FILE).is_file()


def _series(project: Project, pins: set[str], name: str) -> tuple[Workspace, Sequence[Commit]]:
    if name in pins:
        work = open_workspace(project, name)
        return work, work.stack()
    pin = str(read_toml(Path(name) / SERIES_FILE, {}).get("pin"))
    if Path(name).name == pin:
        work = open_workspace(project, pin, Path(name).resolve().parent)
        return work, work.stack()
    # A workspace expects its series in a directory named after the pin.
    with tempfile.TemporaryDirectory(prefix="pyggml-series-") as scratch:
        shutil.copytree(name, Path(scratch) / pin)
        work = open_workspace(project, pin, Path(scratch))
        return work, work.stack()


def _plain(work: Workspace, name: str) -> tuple[Workspace, Sequence[Commit]]:
    return work, list(apply_patches(work.git, work.base, work.pin.tree, read_foreign((Path(name),))))


def parse_range_diff(text: str) -> tuple[PatchPair, ...]:
    """Parse the output of `git range-diff`."""
    pairs: list[PatchPair] = []
    lines: list[str] = []
    head: re.Match[str] | None = None

    def close() -> None:
        if head is not None:
            before, sign, after, subject = head.groups()
            left, right = (None if number == "-" else int(number) for number in (before, after))
            pairs.append(PatchPair(left, right, sign, subject, tuple(lines)))

    for line in text.splitlines():
        match = None if line.startswith("    ") else _HEAD.fullmatch(line)
        if match:
            close()
            head, lines = match, []
        else:
            lines.append(line.removeprefix("    "))
    close()
    return tuple(pairs)


def line_kind(line: str) -> str:
    """What a line of the difference between two patches is: `added`, `removed`, `hunk` or `same`.

    Its first character says what changed between the series, the second what the patch does.
    """
    if line.startswith(("@@", " @@", " ##", "+@@", "-@@")) or line[1:4] == "## ":
        return "hunk"
    return {"+": "added", "-": "removed"}.get(line[:1], "same")


def entry_lines(entry: PatchPair) -> list[tuple[str, dict[str, Any]]]:
    """One entry for a terminal: lines and how to show them."""
    sides = [str(number) if number else "-" for number in (entry.before, entry.after)]
    colour = {"=": None, "!": "yellow", "<": "red", ">": "green"}[entry.sign]
    out: list[tuple[str, dict[str, Any]]] = [
        (f"{sides[0]:>3} {entry.sign} {sides[1]:>3}  {entry.subject}", {"fg": colour, "bold": True})
    ]
    styles = {"added": "green", "removed": "red", "hunk": "cyan", "same": None}
    out += [(f"    {line}", {"fg": styles[line_kind(line)]}) for line in entry.lines]
    return out
