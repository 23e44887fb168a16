"""Everything that a person needs to resolve one stop of a rebase, as data and as a text to read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyggml.git import Git
from pyggml.series.patchfile.diff import FileDiff, Hunk, split_lines
from pyggml.series.patchfile.hunks import Read, numbered, parsed, reader, shown
from pyggml.series.patchfile.placement import diff_bytes
from pyggml.series.rebasing.plan import Plan, Stop
from pyggml.series.rebasing.state import KINDS
from pyggml.series.rebasing.verdict import renamed_paths

_CONFLICT = re.compile(
    rb"^<<<<<<< [^\n]*\n(?P<ours>.*?)^\|\|\|\|\|\|\| [^\n]*\n(?P<base>.*?)^=======\n(?P<theirs>.*?)^>>>>>>> [^\n]*$",
    re.MULTILINE | re.DOTALL,
)
MARGIN = 3
"""Lines around a hunk in which a change of upstream counts as being under it."""


@dataclass(frozen=True)
class ConflictHunk:
    """One marked place; `line` is that of its first mark in the worktree's file."""

    line: int
    ours: str
    base: str
    theirs: str


@dataclass(frozen=True)
class ConflictFile:
    """One conflicting path.

    Attributes:
        kind: `content`, `deleted upstream`, `deleted by the patch`, `added by both` or `other`.
        upstream: what upstream changed under the patch's hunks, as a diff.
        patch: what the patch changes in this file, as a diff.
    """

    path: str
    kind: str
    hunks: tuple[ConflictHunk, ...]
    upstream: str
    patch: str


@dataclass(frozen=True)
class Traces:
    """What of the patch the new upstream says too, in files that changed too much for a hunk to be recognised.

    Attributes:
        standing, added: how many of the lines that the patch adds stand in the same files upstream, of how many.
        gone, removed: how many of the lines that it removes stand there no more, of how many.
    """

    standing: int
    added: int
    gone: int
    removed: int


@dataclass(frozen=True)
class Dossier:
    """One stop.

    Attributes:
        upstream_hunks: numbers of the patch's hunks that upstream has already.
        traces: the same line by line, wherever in the file: a hint, no proof.
        functions: hunks that stand in another function now: `path: old -> new`.
        worktree: where to edit.
        commands: what can be done next, with what it means.
    """

    kind: str
    patch: str
    number: int
    total: int
    source: str
    onto: str
    message: str
    purpose: str
    drop_when: str
    proof: tuple[str, ...]
    files: tuple[ConflictFile, ...]
    hunks: int
    upstream_hunks: tuple[int, ...]
    functions: tuple[str, ...]
    deleted: tuple[tuple[str, str], ...]
    note: str
    worktree: str
    traces: Traces
    commands: Mapping[str, str] = field(default_factory=dict)


def make_dossier(plan: Plan, stop: Stop, worktree: Path) -> Dossier:
    """Collect it; reads objects only."""
    git = plan.onto.git
    diffs = parsed(git, stop.base, stop.theirs)
    renames = renamed_paths(git, plan.source.pin.tree, plan.onto.pin.tree)
    back = {new: old for old, new in renames.items()}
    now, before = reader(git, stop.merged.tree), reader(git, stop.base)
    files = tuple(
        _file(git, stop, path, back.get(path, path), diffs, now, before) for path in stop.merged.paths
    )
    functions = stop.unconfirmed if stop.kind == "confirm" else ()
    return Dossier(
        stop.kind,
        stop.patch.name,
        stop.number,
        len(plan.source.series.patches),
        plan.source.pin.name,
        plan.onto.pin.name,
        stop.message,
        stop.patch.purpose.strip(),
        stop.patch.drop_when,
        stop.patch.proof,
        files,
        len(numbered(diffs)),
        stop.judged.upstream,
        functions,
        stop.judged.deleted,
        stop.note,
        str(worktree),
        _traces(diffs, reader(git, plan.onto.pin.tree), renames),
        _commands(stop, worktree),
    )


def _traces(diffs: tuple[FileDiff, ...], read: Read, renames: Mapping[str, str]) -> Traces:
    """Lines are compared without their blanks at both ends; those of fewer than four characters say nothing."""
    counts = Counter[str]()
    for diff in diffs:
        path = shown(diff.new if diff.old is None else diff.old)
        content = read(path) or read(renames.get(path, path)) or b""
        lines = {line.strip() for line in split_lines(content)}
        for hunk in diff.hunks:
            for line in hunk.lines:
                kind, text = line[:1], line[1:].strip()
                if len(text) >= 4 and kind in (b"+", b"-"):
                    counts["added" if kind == b"+" else "removed"] += 1
                    counts["standing" if kind == b"+" else "gone"] += (text in lines) == (kind == b"+")
    return Traces(counts["standing"], counts["added"], counts["gone"], counts["removed"])


def _commands(stop: Stop, worktree: Path) -> dict[str, str]:
    go = "pyggml patch rebase --continue"
    found = {go: "after editing there"}
    if stop.kind == "confirm":
        found = {f"{go} --confirm": "the hunks are where they belong", **found}
    gone = [s.path for s in stop.merged.stages if s.stage == 3 and _kind(stop, s.path) == "deleted upstream"]
    if gone:
        found[f"{go} --remove {gone[0]}"] = "the file is to stay deleted, after `git rm` of it there"
    found["pyggml patch rebase --skip --reason TEXT"] = "leave the patch out"
    found["pyggml patch rebase --skip --upstream --reason TEXT"] = "leave it out: upstream does it already"
    found["pyggml patch rebase --abort"] = "everything stays as it was before the rebase"
    return found


def _kind(stop: Stop, path: str) -> str:
    stages = {stage.stage for stage in stop.merged.stages if stage.path == path}
    kinds = {
        (1, 2, 3): "content",
        (1, 3): "deleted upstream",
        (1, 2): "deleted by the patch",
        (2, 3): "added by both",
    }
    return kinds.get(tuple(sorted(stages)), "other")


def _file(
    git: Git, stop: Stop, path: str, old: str, diffs: tuple[FileDiff, ...], now: Read, before: Read
) -> ConflictFile:
    content = now(path) or b""
    hunks = tuple(
        ConflictHunk(
            content.count(b"\n", 0, match.start()) + 1,
            _text(match["ours"]),
            _text(match["base"]),
            _text(match["theirs"]),
        )
        for match in _CONFLICT.finditer(content)
    )
    own = [diff for diff in diffs if old in (shown(diff.old), shown(diff.new))]
    changed = _under(git, stop, old, path, own, before)
    return ConflictFile(path, _kind(stop, path), hunks, changed, _text(b"".join(_lines(own))))


def _under(git: Git, stop: Stop, old: str, new: str, own: list[FileDiff], before: Read) -> str:
    """The hunks of upstream's change of the file that touch what the patch touches."""
    spans = [(h.old_start - MARGIN, h.old_start + h.old_count + MARGIN) for diff in own for h in diff.hunks]
    if before(old) is None or not spans:
        return ""
    changes = parsed(git, stop.base, stop.ours)
    found: list[bytes] = []
    for diff in changes:
        if old not in (shown(diff.old), shown(diff.new)) and shown(diff.new) != new:
            continue
        if diff.new is None:
            return f"upstream removed {old} ({len(split_lines(before(old) or b''))} lines)\n"
        for hunk in diff.hunks:
            if any(_touches(hunk, span) for span in spans):
                found += [hunk.header(), *hunk.lines]
    return _text(b"".join(found))


def _touches(hunk: Hunk, span: tuple[int, int]) -> bool:
    return hunk.old_start < span[1] and span[0] < hunk.old_start + max(hunk.old_count, 1)


def _lines(diffs: list[FileDiff]) -> list[bytes]:
    return [line for diff in diffs for line in diff_bytes(diff)]


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def dossier_text(dossier: Dossier, *, brief: bool = False) -> str:
    """For reading, in Markdown; `brief` leaves out what the worktree shows anyway."""
    d = dossier
    out = [
        f"# Patch {d.patch} ({d.number} of {d.total}), from pin {d.source} onto {d.onto}: {KINDS[d.kind]}",
        "",
        *_paragraph("Purpose", d.purpose),
        *_paragraph("Can be dropped when", d.drop_when),
        *_paragraph("Proof", ", ".join(d.proof)),
        *_paragraph("Note", d.note),
    ]
    if d.upstream_hunks:
        numbers = ", ".join(map(str, d.upstream_hunks))
        out += [
            f"{len(d.upstream_hunks)} of {d.hunks} hunks are upstream already ({numbers}): "
            "the patch that is left is smaller.",
            "",
        ]
    if d.traces.standing:
        out += [
            f"Line by line: {d.traces.standing} of the {d.traces.added} lines that the patch adds stand in the same "
            f"files of {d.onto}, and {d.traces.gone} of the {d.traces.removed} that it removes are gone there.",
            "",
        ]
    for line in d.functions:
        out += [f"Another function: {line}"]
    for path, line in d.deleted:
        out += [f"Deletes a line of upstream that the old patch did not: {path}: {line.strip()}"]
    for file in d.files:
        out += ["", f"## {file.path} ({file.kind})", ""]
        if brief and file.hunks:
            out += [f"Marked places: lines {', '.join(str(hunk.line) for hunk in file.hunks)}", ""]
        for hunk in () if brief else file.hunks:
            out += [f"Line {hunk.line}:", ""]
            for title, text in (("upstream", hunk.ours), ("patch's base", hunk.base), ("patch", hunk.theirs)):
                out += [f"    [{title}]", *_indented(text), ""]
        if file.upstream:
            out += ["What upstream changed under the patch:", "", *_indented(file.upstream), ""]
        if file.patch and not brief:
            out += ["What the patch changes here:", "", *_indented(file.patch), ""]
    if not brief:
        out += ["", "## The patch's message", "", *_indented(d.message)]
    out += ["", f"## Edit {d.worktree}, then", ""]
    width = max(map(len, d.commands))
    out += [f"    {command:<{width}}   {meaning}" for command, meaning in d.commands.items()]
    return "\n".join(out) + "\n"


def _paragraph(title: str, text: str) -> list[str]:
    return [f"{title}: {' '.join(text.split())}", ""] if text else []


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()] or ["    (nothing)"]
